"""Sharded tensors from files: each rank maps the files and reads only its own rows."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.algorithms.choose import check_algorithm
from scorch._src.distributed.build import check_wire, device_of, group_of, with_options
from scorch._src.distributed.communication.agreement import agree, validating
from scorch._src.distributed.communication.collectives import Group, rank_in, size_of
from scorch._src.distributed.cuts import as_cuts, check_features, cut_evenly, cut_together
from scorch._src.distributed.entries import check_sparse_format, from_entries
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.io.mapped_rows import MemmapSparseDataset
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.tensor.autograd import values_of
from scorch.errors import ArgumentError, FileError, MissingFileError, ShapeError

Tensor = torch.Tensor
BALANCES = {"nnz": "about as many entries and rows", "rows": "about as many rows"}


@suggests_keywords
def load_rows(
    paths: Any,
    mesh: Any = None,
    *,
    balance: str = "nnz",
    cuts: Any = None,
    columns: Any = None,
    features: Sequence[int] = (),
    name: str = "",
    format: Any = "csr",
    algorithm: str = "halo",
    wire: torch.dtype | None = None,
    device: Any = None,
) -> RowSharded:
    """Load a matrix from ``.safetensors`` files; each rank reads only its own rows.

    The rows of a file follow those of the file before. ``scorch.save`` and ``RowWriter`` write such files.

    Args:
        paths: a file, a glob pattern such as ``"graph/*.safetensors"`` (sorted by name), or a list of files.
        mesh: a 1-D ``DeviceMesh`` or a process group; all ranks by default.
        balance: ``"nnz"`` gives ranks about the same work, weighed by ``features`` as in ``cuts``; ``"rows"``
            gives them equally many rows.
        cuts: where the rows of each rank begin, instead of ``balance``.
        columns: where the columns of each rank begin.
        features: the widths of the layers, as in ``cuts``.
        name: the name of the matrix in files with several.
        format: the format of the local shards.
        algorithm: how products communicate, as in ``with_algorithm``.
        wire: a narrower dtype for rows on the wire, as in ``shard``.
        device: the device of the local shard; that of the mesh by default.

    Returns:
        A ``RowSharded`` matrix.

    Raises:
        MissingFileError: no file matches.
        FileError: a file is not a ``.safetensors`` file with rows.
        ShapeError: the files have different numbers of columns or dtypes.

    Example::

        scorch.save("graph.safetensors", A)
        shards = sd.load_rows("graph.safetensors", mesh)
    """
    group = group_of(mesh)
    with validating(group, "load_rows"):
        if balance not in BALANCES:
            raise ArgumentError(f"balance must be {' or '.join(map(repr, BALANCES))}, but got {balance!r}")
        check_features(features)
        check_sparse_format(format, 2)
        check_algorithm(algorithm)
        check_wire(wire)
        files = _open_all(paths, name)
    facts = [(file.path.name, tuple(file.shape), str(file.dtype), file.nnz) for file in files]
    agree(group, "load_rows", (facts, balance, cuts is None, list(features), wire), _describe)
    begins = torch.tensor([0, *(len(file) for file in files)], device=HOST).cumsum(0).tolist()
    shape = begins[-1], files[0].shape[1]
    parts, where = size_of(group), device_of(mesh, group, device) or HOST
    if cuts is None:
        cuts = _find_cuts(files, begins, balance, features, group, where)
    with validating(group, "load_rows"):
        row_cuts = as_cuts("cuts", cuts, shape[0], parts)
        if columns is not None:
            column_cuts = as_cuts("columns", columns, shape[1], parts)
        else:
            column_cuts = row_cuts if shape[0] == shape[1] else cut_evenly(shape[1], parts)
    agree(group, "load_rows", (row_cuts.tolist(), column_cuts.tolist()), lambda found: f"cuts {found}")
    rank = rank_in(group)
    crd, values = _read(files, begins, int(row_cuts[rank]), int(row_cuts[rank + 1]))
    crd = [column.to(where) for column in crd]
    result = from_entries(crd, values.to(where), shape, row_cuts, column_cuts, group, format, mesh)
    return with_options(result, algorithm, wire)


def _open_all(paths: Any, name: str) -> list[MemmapSparseDataset]:
    files = [_open(path, name) for path in _list_paths(paths)]
    _check_alike(files)
    return files


def _describe(facts: tuple[list[Any], str, bool, list[int], Any]) -> str:
    files, balance, has_no_cuts, features, wire = facts
    cuts = f"balance={balance!r} and features={features}" if has_no_cuts else "cuts"
    return f"the files {files}, {cuts} and wire={wire}"


def _list_paths(paths: Any) -> list[Path]:
    if isinstance(paths, (str, os.PathLike)):
        text = os.fspath(paths)
        has_pattern = not os.path.exists(text) and glob.has_magic(text)
        found = sorted(glob.glob(text)) if has_pattern else [text]
        if not found:
            raise MissingFileError(f"no files match {text}")
        return [Path(path) for path in found]
    if not isinstance(paths, Sequence) or not paths:
        raise ArgumentError(f"paths must be a file, a glob pattern or a list of files, but got {paths!r}")
    found = [os.fspath(path) for path in paths]
    return [Path(path) for path in found]


def _open(path: Path, name: str) -> MemmapSparseDataset:
    if path.suffix != ".safetensors":
        raise FileError(
            f"{path}: single rows can be read only from .safetensors files; write one with "
            f"scorch.save('{path.stem}.safetensors', scorch.load('{path.name}', format='csr')), or with "
            "RowWriter if it does not fit into memory"
        )
    return MemmapSparseDataset(path, name)


def _check_alike(files: list[MemmapSparseDataset]) -> None:
    first = files[0]
    for file in files[1:]:
        if file.shape[1] != first.shape[1] or file.dtype != first.dtype:
            raise ShapeError(
                f"{file.path.name} has {file.shape[1]} columns of {file.dtype}, {first.path.name} has "
                f"{first.shape[1]} of {first.dtype}: their rows cannot be concatenated"
            )


def _find_cuts(
    files: list[MemmapSparseDataset],
    begins: list[int],
    balance: str,
    features: Sequence[int],
    group: Group,
    device: torch.device,
) -> Tensor:
    rows, parts = begins[-1], size_of(group)
    even = cut_evenly(rows, parts)
    if balance == "rows":
        return even
    begin, end = (int(even[rank_in(group) + step]) for step in (0, 1))
    pieces = [file.lengths(low, high) for file, _, low, high in _pieces(files, begins, begin, end)]
    lengths = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64, device=HOST)
    return cut_together(lengths.to(device), begin, rows, group, features)


def _pieces(
    files: list[MemmapSparseDataset], begins: list[int], begin: int, end: int
) -> Iterator[tuple[MemmapSparseDataset, int, int, int]]:
    """List the files that have some of these rows, where each begins, and which of its rows are meant."""
    for file, start in zip(files, begins, strict=False):
        low, high = max(begin - start, 0), min(end - start, len(file))
        if low < high:
            yield file, start, low, high


def _read(
    files: list[MemmapSparseDataset], begins: list[int], begin: int, end: int
) -> tuple[list[Tensor], Tensor]:
    """Return the coordinates and values of the entries of some rows."""
    rows, columns = ([torch.zeros(0, dtype=torch.int64, device=HOST)] for _ in range(2))
    values = [torch.zeros(0, dtype=files[0].dtype, device=HOST)]
    for file, start, low, high in _pieces(files, begins, begin, end):
        piece = file[low:high]
        (row, column), places = numbered_entries(piece.storage.pattern)
        rows.append(row.to(torch.int64) + (start + low))
        columns.append(column.to(torch.int64))
        values.append(values_of(piece)[places])
    return [torch.cat(rows), torch.cat(columns)], torch.cat(values)
