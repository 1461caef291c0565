"""Kernels on matrices that move entries: other formats, rows, several matrices in one, and sums of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.cases import OURS, Case, Kernel, Prepare
from benchmarks.kernels.check import Entries
from benchmarks.kernels.data import generator_for
from benchmarks.kernels.layouts import needed
from benchmarks.kernels.matrix_kernels import Operands
from benchmarks.kernels.timing import Call

BATCH = 256  # rows of a batch


def convert(o: Operands) -> Iterator[Case]:
    """The same matrix in another format; CSR to CSC is also a transposition."""
    A, T, matrix = o.A, o.transposed, o.matrix

    def reference() -> Entries:
        return Entries(matrix.keys, matrix.data.astype(np.float64))

    def torch_csc(narrow: bool) -> torch.Tensor:
        given = T.csr32 if narrow else T.csr64
        return torch.sparse_csc_tensor(given.crow_indices(), given.col_indices(), T.values, A.shape)

    def scipy_csc() -> Any:
        sparse, t = needed("scipy.sparse", "SciPy"), T.matrix
        return sparse.csc_array((t.data, t.indices, t.indptr), shape=matrix.shape)

    csc = A.scorch.to_format("csc")
    coo = A.scorch.to_format("coo")
    yield Case(
        "convert",
        "CSR to CSC",
        reference,
        {
            OURS: lambda: lambda: A.scorch.to_format("csc"),
            "torch CSR int32": lambda: lambda: A.csr32.to_sparse_csc(),
            "torch CSR int64": lambda: lambda: A.csr64.to_sparse_csc(),
            "torch COO": lambda: lambda: A.coo.to_sparse_csc(),
            "SciPy": lambda: A.scipy.tocsc,
        },
    )
    yield Case(
        "convert",
        "CSC to CSR",
        reference,
        {
            OURS: lambda: lambda: csc.to_format("csr"),
            "torch CSC int32": lambda: torch_csc(True).to_sparse_csr,
            "torch CSC int64": lambda: torch_csc(False).to_sparse_csr,
            "SciPy": lambda: scipy_csc().tocsr,
        },
    )
    yield Case(
        "convert",
        "CSR to COO",
        reference,
        {
            OURS: lambda: lambda: A.scorch.to_format("coo"),
            "torch CSR int32": lambda: A.csr32.to_sparse_coo,
            "torch CSR int64": lambda: A.csr64.to_sparse_coo,
            "SciPy": lambda: A.scipy.tocoo,
        },
    )
    yield Case(
        "convert",
        "COO to CSR",
        reference,
        {
            OURS: lambda: lambda: coo.to_format("csr"),
            "torch COO": lambda: A.coo.to_sparse_csr,
            "SciPy": lambda: A.scipy.tocoo().tocsr,
        },
    )


# parts and joins -------------------------------------------------------------------------------------


def rows(o: Operands) -> Iterator[Case]:
    """S[idx], a batch of rows drawn at random, as training loops take them, and all rows in another order."""
    m = o.matrix.shape[0]
    drawn = generator_for(o.name + "rows")
    yield _rows(o, f"S[{BATCH} rows]", drawn.integers(0, m, BATCH))
    yield _rows(o, "S[all rows]", drawn.permutation(m))


def _rows(o: Operands, label: str, picked: np.ndarray) -> Case:
    A, index = o.A, torch.from_numpy(picked)
    n, matrix = o.matrix.shape[1], o.matrix

    def reference() -> Entries:
        counts = np.diff(matrix.indptr)[picked]
        begins = np.cumsum(counts) - counts
        at = np.repeat(matrix.indptr[picked] - begins, counts) + np.arange(counts.sum())
        keys = np.repeat(np.arange(len(picked)), counts) * n + matrix.indices[at]
        return Entries(keys, matrix.data[at].astype(np.float64))

    contestants: dict[str, Prepare] = {
        OURS: lambda: lambda: A.scorch[index],
        "torch COO": lambda: lambda: torch.index_select(A.coo, 0, index),
        "SciPy": lambda: lambda: A.scipy[picked],
    }
    return Case("rows", label, reference, contestants)


def cat(o: Operands) -> Iterator[Case]:
    """A below A shifted, and beside it."""
    A, B = o.A, o.shifted
    m, n = o.matrix.shape
    for dim, label in enumerate(("cat of rows", "cat of columns")):

        def reference(dim: int = dim) -> Entries:
            columns, width = [], n * (1 + dim)
            for number, part in enumerate((A.matrix, B.matrix)):
                row = part.rows.astype(np.int64) + (number * m if dim == 0 else 0)
                columns.append(row * width + part.indices + (number * n if dim == 1 else 0))
            values = np.concatenate([A.matrix.data, B.matrix.data]).astype(np.float64)
            return Entries.sorted(np.concatenate(columns), values)

        def with_scipy(dim: int = dim) -> Call:
            sparse = needed("scipy.sparse", "SciPy")
            join = sparse.vstack if dim == 0 else sparse.hstack
            return lambda: join([A.scipy, B.scipy], format="csr")

        contestants: dict[str, Prepare] = {
            OURS: lambda dim=dim: lambda: torch.cat([A.scorch, B.scorch], dim),
            "torch COO": lambda dim=dim: lambda: torch.cat([A.coo, B.coo], dim),
            "SciPy": with_scipy,
        }
        yield Case("cat", label, reference, contestants)


def sums(o: Operands) -> Iterator[Case]:
    """The sum of each row, and of each column."""
    A, matrix = o.A, o.matrix
    for dim, label in ((1, "sum(1)"), (0, "sum(0)")):

        def reference(dim: int = dim) -> np.ndarray:
            along = matrix.rows if dim == 1 else matrix.indices
            return np.bincount(along, weights=matrix.data, minlength=matrix.shape[1 - dim])

        def by_ones(dim: int = dim) -> Call:
            ones = torch.ones(matrix.shape[dim])
            given = A.csr32 if dim == 1 else A.csr32.t()
            return lambda: given @ ones

        contestants: dict[str, Prepare] = {
            OURS: lambda dim=dim: lambda: A.scorch.sum(dim),
            "torch COO": lambda dim=dim: lambda: torch.sparse.sum(A.coo, dim),
            "torch CSR int32": by_ones,
            "SciPy": lambda dim=dim: lambda: A.scipy.sum(axis=dim),
        }
        yield Case("sum", label, reference, contestants)


def transpose(o: Operands) -> Iterator[Case]:
    """The transposed matrix with its own rows compressed."""
    A, T = o.A, o.transposed

    def reference() -> Entries:
        return Entries(T.matrix.keys, T.matrix.data.astype(np.float64))

    contestants: dict[str, Prepare] = {
        OURS: lambda: lambda: A.scorch.T.to_format("csr"),
        "torch CSR int32": lambda: lambda: A.csr32.transpose(0, 1).to_sparse_csr(),
        "torch CSR int64": lambda: lambda: A.csr64.transpose(0, 1).to_sparse_csr(),
        "torch COO": lambda: lambda: A.coo.t().coalesce(),
        "SciPy": lambda: lambda: A.scipy.T.tocsr(),
    }
    yield Case("transpose", "A.T in CSR", reference, contestants)


KERNELS = [
    Kernel("convert", "matrix", ("CSR to CSC", "CSC to CSR", "CSR to COO", "COO to CSR"), convert),
    Kernel("transpose", "matrix", ("A.T in CSR",), transpose),
    Kernel("rows", "matrix", (f"S[{BATCH} rows]", "S[all rows]"), rows),
    Kernel("cat", "matrix", ("cat of rows", "cat of columns"), cat),
    Kernel("sum", "matrix", ("sum(1)", "sum(0)"), sums),
]
