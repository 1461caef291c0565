"""Matrices and tensors from files, as sorted NumPy arrays that every contestant starts from.

Read here are Matrix Market (``.mtx``, ``.mtx.gz``), CSR arrays (``.npz``) and FROSTT coordinates (``.tns``,
``.tns.gz``), with NumPy alone: SciPy is a contestant and may be missing.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Matrix:
    """A float32 matrix in CSR, columns sorted in each row, no duplicates."""

    name: str
    group: str
    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @property
    def rows(self) -> np.ndarray:
        """The row of each entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    @property
    def keys(self) -> np.ndarray:
        """The place of each entry in the dense matrix, row by row."""
        return self.rows * self.shape[1] + self.indices

    @property
    def products(self) -> int:
        """How many products of entries ``A @ A.T`` takes."""
        counts = np.bincount(self.indices, minlength=self.shape[1]).astype(np.int64)
        return int((counts * counts).sum())


@dataclass(frozen=True)
class Tensor:
    """A float32 tensor as coordinates, one row a dimension, sorted, no duplicates."""

    name: str
    group: str
    shape: tuple[int, ...]
    coordinates: np.ndarray
    data: np.ndarray

    @property
    def nnz(self) -> int:
        return len(self.data)


def generator_for(name: str) -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def random_values(name: str, count: int) -> np.ndarray:
    return generator_for(name).standard_normal(count).astype(np.float32)


def scaled(values: np.ndarray) -> np.ndarray:
    """float32 values of at most 1: some collections have values that overflow once multiplied."""
    most = np.abs(values).max(initial=0.0)
    return (values / most if most > 0 else values).astype(np.float32)


def matrix_from_coordinates(
    name: str,
    group: str,
    shape: tuple[int, int],
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray | None,
) -> Matrix:
    """Sort, add up duplicates, and give random values to a pattern."""
    keys, at = np.unique(rows.astype(np.int64) * shape[1] + columns, return_inverse=True)
    if values is None:
        data = random_values(name, len(keys))
    else:
        data = scaled(np.bincount(at.ravel(), weights=values, minlength=len(keys)))
    indptr = np.zeros(shape[0] + 1, np.int32)
    np.cumsum(np.bincount(keys // shape[1], minlength=shape[0]), out=indptr[1:])
    return Matrix(name, group, shape, indptr, (keys % shape[1]).astype(np.int32), data)


def tensor_from_coordinates(
    name: str, group: str, shape: tuple[int, ...], coordinates: np.ndarray, values: np.ndarray
) -> Tensor:
    """Sort by the first dimension, then the next, and add up duplicates."""
    if math.prod(shape) < 2**63:
        keys, at = np.unique(np.ravel_multi_index(tuple(coordinates), shape), return_inverse=True)
        unique = np.stack(np.unravel_index(keys, shape))
    else:
        unique, at = np.unique(coordinates, axis=1, return_inverse=True)
    data = np.bincount(at.ravel(), weights=values, minlength=unique.shape[1])
    return Tensor(name, group, shape, unique.astype(np.int64), scaled(data))


# reading files ---------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()


def stem(path: Path) -> str:
    """The name of a data file without its endings: names may have points of their own."""
    name = path.name.removesuffix(".gz")
    return name[: name.rindex(".")]


def read_mtx(path: Path, group: str) -> Matrix:
    """A matrix in Matrix Market's coordinate form."""
    header, _, rest = _text(path).partition("\n")
    words = header.lower().split()
    if words[:3] != ["%%matrixmarket", "matrix", "coordinate"] or words[3] == "complex":
        raise ValueError(f"{path.name}: not a real Matrix Market file in coordinate form: {header!r}")
    while rest.startswith("%") or rest.startswith("\n"):
        rest = rest.partition("\n")[2]
    sizes, _, body = rest.partition("\n")
    m, n, count = map(int, sizes.split())
    width = 2 if words[3] == "pattern" else 3
    table = np.fromstring(body, sep=" ").reshape(count, width)
    rows, columns = table[:, 0].astype(np.int64) - 1, table[:, 1].astype(np.int64) - 1
    values = None if width == 2 else table[:, 2]
    if words[4] != "general":
        sign = -1.0 if words[4] == "skew-symmetric" else 1.0
        off = rows != columns
        rows, columns = np.concatenate([rows, columns[off]]), np.concatenate([columns, rows[off]])
        values = None if values is None else np.concatenate([values, sign * values[off]])
    return matrix_from_coordinates(stem(path), group, (m, n), rows, columns, values)


def read_npz(path: Path, group: str) -> Matrix:
    """A matrix in CSR arrays, or the adjacency matrix of a graph (``adj_indptr``, ...)."""
    with np.load(path) as arrays:
        prefix = "adj_" if "adj_indptr" in arrays else ""
        indptr, indices = arrays[prefix + "indptr"], arrays[prefix + "indices"]
        m, n = (int(size) for size in arrays[prefix + "shape"])
        values = arrays.get(prefix + "data")
    rows = np.repeat(np.arange(m), np.diff(indptr))
    return matrix_from_coordinates(stem(path), group, (m, n), rows, indices, values)


def read_tns(path: Path, group: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """A tensor in FROSTT's form: indices from 1, then the value."""
    lines = [line for line in _text(path).splitlines() if line and not line.startswith("#")]
    table = np.fromstring(" ".join(lines), sep=" ").reshape(len(lines), -1)
    coordinates = table[:, :-1].T.astype(np.int64) - 1
    found = tuple(int(size) for size in coordinates.max(axis=1) + 1)
    return tensor_from_coordinates(stem(path), group, shape or found, coordinates, table[:, -1])


READERS = {".mtx": read_mtx, ".npz": read_npz}


def matrix_files(directory: Path) -> Iterator[tuple[str, Path]]:
    """The group and path of each matrix below ``directory``."""
    for group in ("suitesparse", "dlmc"):
        for path in sorted((directory / group).glob("*")):
            if Path(path.name.removesuffix(".gz")).suffix in READERS:
                yield group, path
    graph = directory / "ogbn_arxiv" / "ogbn_arxiv.npz"
    if graph.exists():
        yield "graph", graph


def read_matrix(group: str, path: Path) -> Matrix:
    return READERS[Path(path.name.removesuffix(".gz")).suffix](path, group)


def tensor_files(directory: Path) -> Iterator[tuple[Path, tuple[int, ...] | None]]:
    """The path and shape of each tensor below ``directory``; ``dims.json`` knows shapes."""
    folder = directory / "tensors"
    known = folder / "dims.json"
    shapes = json.loads(known.read_text()) if known.exists() else {}
    for path in sorted([*folder.glob("*.tns"), *folder.glob("*.tns.gz")]):
        entry = shapes.get(stem(path))
        yield path, tuple(entry["dims"]) if entry else None
