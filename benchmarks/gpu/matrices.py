"""Matrices on the device that is measured, read from a directory or made up there, in every layout."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

import scorch
from benchmarks.kernels import data

LEAST_ENTRIES = 50_000  # of matrices of a collection; smaller ones are launches and nothing else


def generator_for(name: str, device: str) -> torch.Generator:
    """Make random numbers that are the same in every run on one kind of device."""
    return torch.Generator(device).manual_seed(zlib.crc32(name.encode()))


class Matrix:
    """A float32 matrix in CSR, columns sorted in each row, and the same in other layouts."""

    def __init__(self, name: str, keys: torch.Tensor, shape: tuple[int, int]) -> None:
        """Take sorted places in the dense matrix; values are drawn at random."""
        self.name, self.shape = name, shape
        self.device = str(keys.device)
        counts = torch.bincount(keys // shape[1], minlength=shape[0])
        self.indptr = torch.zeros(shape[0] + 1, dtype=torch.int32, device=keys.device)
        self.indptr[1:] = counts.cumsum(0)
        self.indices = (keys % shape[1]).int()
        self.values = self.random("values", len(keys))

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @cached_property
    def rows(self) -> torch.Tensor:
        """The row of each entry."""
        counts = self.indptr.diff().long()
        return torch.repeat_interleave(torch.arange(self.shape[0], device=self.device), counts)

    @property
    def keys(self) -> torch.Tensor:
        return self.rows * self.shape[1] + self.indices

    @cached_property
    def products(self) -> int:
        """How many products of entries ``A @ A``, or ``A @ A.T``, takes."""
        columns = torch.bincount(self.indices.long(), minlength=self.shape[1])
        met = self.indptr.diff().long() if self.shape[0] == self.shape[1] else columns
        return int((columns * met).sum())

    def random(self, what: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        draw = generator_for(self.name + what, self.device)
        return torch.randn(shape, generator=draw, device=self.device, dtype=dtype)

    def shifted(self) -> Matrix:
        """Make the same rows, each one further down: as dense, with other places."""
        rows = (self.rows + 1) % self.shape[0]
        return Matrix(self.name, (rows * self.shape[1] + self.indices).sort().values, self.shape)

    def transposed(self) -> Matrix:
        m, n = self.shape
        made = Matrix(self.name, (self.indices.long() * m + self.rows).sort().values, (n, m))
        order = torch.argsort(self.indices.long() * m + self.rows)
        made.values = self.values[order]
        return made

    # layouts -----------------------------------------------------------------------------------------

    def scorch(self, dtype: torch.dtype = torch.float32) -> scorch.SparseTensor:
        """Make a tensor with a pattern of its own, of which nothing is remembered."""
        found = scorch.sparse_csr_tensor(
            self.indptr.clone(), self.indices.clone(), self.values.to(dtype, copy=True), self.shape
        )
        assert isinstance(found, scorch.SparseTensor)
        return found

    def csr(self, index: torch.dtype, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        arrays = self.indptr.to(index), self.indices.to(index), self.values.to(dtype)
        return torch.sparse_csr_tensor(*arrays, self.shape)

    def coo(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        places = torch.stack([self.rows, self.indices.long()])
        return torch.sparse_coo_tensor(places, self.values.to(dtype), self.shape, is_coalesced=True)

    def csc(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        other = self.transposed()
        return torch.sparse_csc_tensor(other.indptr, other.indices, other.values.to(dtype), self.shape)

    def torch_layouts(
        self, dtype: torch.dtype = torch.float32, with_csc: bool = False
    ) -> dict[str, Callable[[], torch.Tensor]]:
        """The layouts that torch's sparse operations take."""
        found: dict[str, Callable[[], torch.Tensor]] = {
            "torch CSR int32": lambda: self.csr(torch.int32, dtype),
            "torch CSR int64": lambda: self.csr(torch.int64, dtype),
            "torch COO": lambda: self.coo(dtype),
        }
        if with_csc:
            found["torch CSC int32"] = lambda: self.csc(dtype)
        return found


# made up ---------------------------------------------------------------------------------------------


def pruned(name: str, device: str, m: int, n: int, kept: float) -> Matrix:
    """Keep each weight with the same probability."""
    mask = torch.rand(m * n, generator=generator_for(name, device), device=device) < kept
    return Matrix(name, mask.nonzero().ravel(), (m, n))


def mesh(name: str, device: str, side: int) -> Matrix:
    """Make a square grid whose points know the four next to them."""
    number = torch.arange(side * side, device=device)
    row, column = number // side, number % side
    keys = []
    for down, right in ((-1, 0), (0, -1), (0, 1), (1, 0)):
        r, c = row + down, column + right
        inside = (r >= 0) & (r < side) & (c >= 0) & (c < side)
        keys.append((number * side * side + r * side + c)[inside])
    return Matrix(name, torch.cat(keys).sort().values, (side * side, side * side))


def banded(name: str, device: str, n: int, a_row: int) -> Matrix:
    """Put entries near the diagonal, as stiffness matrices have them."""
    draw = generator_for(name, device)
    rows = torch.arange(n, device=device).repeat_interleave(7 * a_row // 6)  # some are drawn twice
    reach = 2 * a_row
    far = torch.randint(-reach, reach + 1, rows.shape, generator=draw, device=device)
    return Matrix(name, (rows * n + (rows + far).clamp(0, n - 1)).unique(), (n, n))


def power_law(name: str, device: str, n: int, entries: int, power: float) -> Matrix:
    """Make a graph of which few nodes have most edges, the fewer the higher ``power`` is."""
    draw = generator_for(name, device)
    heavy = (n * torch.rand(entries, generator=draw, device=device, dtype=torch.float64) ** power).long()
    other = torch.randint(0, n, (entries,), generator=draw, device=device)
    names = torch.randperm(n, generator=draw, device=device)
    keys = names[heavy.clamp(max=n - 1)] * n + names[other]
    return Matrix(name, keys.unique(), (n, n))


@dataclass(frozen=True)
class Source:
    """A matrix that has not been made yet."""

    name: str
    make: Callable[[str], Matrix]


MADE = [
    Source("pruned 512 90%", lambda device: pruned("pruned 512 90%", device, 512, 512, 0.1)),
    Source("fem 2k", lambda device: banded("fem 2k", device, 2_003, 42)),
    Source("mesh 62k", lambda device: mesh("mesh 62k", device, 249)),
    Source("social 76k", lambda device: power_law("social 76k", device, 75_879, 820_000, 2.0)),
    Source("citations 170k", lambda device: power_law("citations 170k", device, 169_343, 2_330_000, 2.33)),
    Source("power law 1M", lambda device: power_law("power law 1M", device, 1_000_000, 10_100_000, 3.0)),
]
TINY = [
    Source("tiny pruned", lambda device: pruned("tiny pruned", device, 24, 16, 0.2)),
    Source("tiny mesh", lambda device: mesh("tiny mesh", device, 6)),
    Source("tiny graph", lambda device: power_law("tiny graph", device, 40, 200, 2.0)),
]


# read ------------------------------------------------------------------------------------------------


def from_file(group: str, path: Path, device: str) -> Matrix:
    """Read the places of a matrix; the values of collections span too many magnitudes for float32."""
    read = data.read_matrix(group, path)
    keys = torch.from_numpy(read.keys).to(device)
    if group == "graph":  # citations count both ways
        n = read.shape[1]
        keys = torch.cat([keys, keys % n * n + keys // n]).unique()
    return Matrix(read.name, keys, read.shape)


def entries_in(path: Path) -> int:
    """Say about how many entries a file has, without reading them."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return int(arrays["adj_indptr" if "adj_indptr" in arrays else "indptr"][-1])
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        header = file.readline()
        sizes = next(line for line in file if line.strip() and not line.startswith("%"))
    return int(sizes.split()[2]) * (1 if "general" in header else 2)


def sources(directory: Path | None, tiny: bool) -> Iterator[Source]:
    """What there is to measure, the small ones first; beside those of a directory two that it lacks."""
    if tiny:
        yield from TINY
        return
    if directory is None:
        yield from MADE
        return
    yield MADE[0]
    files = [
        (entries_in(path), group, path) for group, path in data.matrix_files(directory) if group != "dlmc"
    ]
    for count, group, path in sorted(files):
        if count > LEAST_ENTRIES:
            yield Source(data.stem(path), lambda device, g=group, p=path: from_file(g, p, device))
    yield MADE[-1]
