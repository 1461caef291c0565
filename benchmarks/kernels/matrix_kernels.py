"""Kernels on matrices, each said by every contestant in its own best words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch

import scorch
from benchmarks.kernels.cases import OURS, Case, Kernel, Prepare
from benchmarks.kernels.check import Csr, Entries
from benchmarks.kernels.data import Matrix, generator_for, matrix_from_coordinates
from benchmarks.kernels.layouts import DENSE_BYTES, Layouts, Skip, needed
from benchmarks.kernels.timing import Call

WIDTHS = (8, 32, 128, 256, 100)
SDDMM_WIDTH = 64
GATHER_BYTES = 1 << 30  # what gathering rows may take
MOST_PRODUCTS = 200_000_000  # of A @ A.T; beyond, the result alone fills gigabytes


class Operands:
    """What all kernels on one matrix share."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.A = Layouts(matrix)
        self.name = matrix.name

    def random(self, what: str, *shape: int) -> torch.Tensor:
        """Random numbers in memory of PyTorch, which begins where a cache line does; NumPy's need not."""
        drawn = generator_for(self.name + what).standard_normal(shape).astype(np.float32)
        return torch.from_numpy(drawn).clone()

    @cached_property
    def wide(self) -> torch.Tensor:
        """The dense operand of SpMM at its widest; narrower ones are its first columns."""
        return self.random("B", self.matrix.shape[1], max(WIDTHS))

    @cached_property
    def wide_reference(self) -> np.ndarray:
        A = self.A
        exact = torch.sparse_csr_tensor(A.indptr.long(), A.columns, A.values.double(), A.shape)
        return (exact @ self.wide.double()).numpy()

    @cached_property
    def transposed(self) -> Layouts:
        matrix = self.matrix
        m, n = matrix.shape
        order = np.argsort(matrix.indices, kind="stable")
        indptr = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(matrix.indices, minlength=n), out=indptr[1:])
        rows = matrix.rows[order].astype(np.int32)
        return Layouts(Matrix(matrix.name, matrix.group, (n, m), indptr, rows, matrix.data[order]))

    @cached_property
    def shifted(self) -> Layouts:
        """The same rows, each one further down: as dense, with other places."""
        matrix = self.matrix
        rows = (matrix.rows + 1) % matrix.shape[0]
        return Layouts(
            matrix_from_coordinates(
                matrix.name, matrix.group, matrix.shape, rows, matrix.indices, matrix.data
            )
        )


# sparse times dense ----------------------------------------------------------------------------------


def spmv(o: Operands) -> Iterator[Case]:
    """y = A @ x"""
    A, x = o.A, o.random("x", o.matrix.shape[1])
    column = x[:, None]

    def reference() -> np.ndarray:
        products = o.matrix.data * x.numpy().astype(np.float64)[o.matrix.indices]
        return np.bincount(o.matrix.rows, weights=products, minlength=o.matrix.shape[0])

    def with_numba() -> Call:
        loops = needed("benchmarks.kernels.numba_loops", "numba")
        m, call = o.matrix, loops.choose(loops.spmv, o.matrix.nnz)
        x_array = x.numpy()
        return lambda: call(m.indptr, m.indices, m.data, x_array, np.empty(m.shape[0], np.float32))

    contestants: dict[str, Prepare] = {OURS: lambda: _einsum("ij,j->i", A.scorch, x)}
    for name in A.torch_layouts():
        contestants[name] = lambda name=name: _matmul(A.torch_layouts()[name], x)
    contestants["torch dense"] = lambda: _matmul(A.dense, x)
    contestants["SciPy"] = lambda: _matmul(A.scipy, x.numpy())
    contestants["MKL"] = lambda: _mkl(A, x.numpy())
    contestants["numba"] = with_numba
    contestants["gather-scatter"] = lambda: lambda: gather_scatter(A, column)[:, 0]
    yield Case("spmv", "SpMV", reference, contestants)


def spmm(o: Operands) -> Iterator[Case]:
    """C = A @ B, with k columns"""
    for k in WIDTHS:
        yield _spmm(o, k)


def _spmm(o: Operands, k: int) -> Case:
    A, B = o.A, o.wide[:, :k].contiguous()

    def with_numba() -> Call:
        loops = needed("benchmarks.kernels.numba_loops", "numba")
        m, call, B_array = o.matrix, loops.choose(loops.spmm, o.matrix.nnz * k), B.numpy()
        return lambda: call(m.indptr, m.indices, m.data, B_array, np.empty((m.shape[0], k), np.float32))

    def with_gathers() -> Call:
        if 4 * o.matrix.nnz * k > GATHER_BYTES:
            raise Skip(f"the gathered rows have more than {GATHER_BYTES >> 20} MB")
        return lambda: gather_scatter(A, B)

    contestants: dict[str, Prepare] = {OURS: lambda: _einsum("ij,jk->ik", A.scorch, B)}
    for name in A.torch_layouts():
        contestants[name] = lambda name=name: _matmul(A.torch_layouts()[name], B)
    # torch's other product of CSR and dense, which it has for reductions, is often its faster one.
    contestants["torch CSR int32, reduce"] = lambda: lambda: torch.sparse.mm(A.csr32, B, "sum")
    contestants["torch CSR int64, reduce"] = lambda: lambda: torch.sparse.mm(A.csr64, B, "sum")
    contestants["torch dense"] = lambda: _matmul(A.dense, B)
    contestants["SciPy"] = lambda: _matmul(A.scipy, B.numpy())
    contestants["MKL"] = lambda: _mkl(A, B.numpy())
    contestants["numba"] = with_numba
    contestants["gather-scatter"] = with_gathers
    return Case("spmm", f"SpMM k={k}", lambda: o.wide_reference[:, :k], contestants)


def gather_scatter(A: Layouts, B: torch.Tensor) -> torch.Tensor:
    """As PyG passes messages: gather a row for each entry, weigh it, add it where it belongs."""
    messages = B[A.columns] * A.values[:, None]
    return torch.zeros(A.shape[0], B.shape[1]).index_add_(0, A.rows, messages)


def _einsum(equation: str, *operands: torch.Tensor) -> Call:
    return lambda: scorch.einsum(equation, *operands)


def _matmul(A: Any, B: Any) -> Call:
    return lambda: A @ B


def _mkl(A: Layouts, B: Any, **options: bool) -> Call:
    """Intel's library through sparse-dot-mkl."""
    mkl = needed("sparse_dot_mkl", "sparse-dot-mkl")
    sparse, matrix = needed("scipy.sparse", "SciPy"), A.matrix
    left = sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    return lambda: mkl.dot_product_mkl(left, B, **options)


# sampled and sparse products -------------------------------------------------------------------------


def sddmm(o: Operands) -> Iterator[Case]:
    """S * (X @ Y.T) at the places of S, whose values are 1: torch's function reads only its pattern."""
    m, n = o.matrix.shape
    ones = Matrix(o.name, "", o.matrix.shape, o.matrix.indptr, o.matrix.indices, np.ones_like(o.matrix.data))
    S = Layouts(ones)
    X, Y = o.random("X", m, SDDMM_WIDTH), o.random("Y", n, SDDMM_WIDTH)
    by_columns = Y.T.contiguous()

    def reference() -> Entries:
        values = np.empty(o.matrix.nnz)
        rows, columns = S.rows, S.columns
        for at in range(0, len(values), 1 << 18):
            part = slice(at, at + (1 << 18))
            values[part] = (X[rows[part]].double() * Y[columns[part]].double()).sum(1).numpy()
        return Entries(o.matrix.keys, values)

    def with_numba() -> Call:
        loops = needed("benchmarks.kernels.numba_loops", "numba")
        call, X_array, Y_array = loops.choose(loops.sddmm, ones.nnz * SDDMM_WIDTH), X.numpy(), Y.numpy()
        arrays = ones.indptr, ones.indices, ones.data, X_array, Y_array

        def run() -> Csr:
            return Csr(ones.indptr, ones.indices, call(*arrays, np.empty_like(ones.data)), ones.shape)

        return run

    def with_gathers() -> Call:
        if 8 * o.matrix.nnz * SDDMM_WIDTH > GATHER_BYTES:
            raise Skip(f"the gathered rows have more than {GATHER_BYTES >> 20} MB")

        def run() -> torch.Tensor:
            values = (X[S.rows] * Y[S.columns]).sum(1) * S.values
            return torch.sparse_coo_tensor(S.coo._indices(), values, S.shape, is_coalesced=True)

        return run

    def sampled(pattern: torch.Tensor, right: torch.Tensor) -> Call:
        return lambda: torch.sparse.sampled_addmm(pattern, X, right, beta=0.0)

    rivals: dict[str, Prepare] = {
        "torch CSR int32, Y by columns": lambda: sampled(S.csr32, by_columns),
        "torch CSR int32, Y by rows": lambda: sampled(S.csr32, Y.T),
        "torch CSR int64, Y by columns": lambda: sampled(S.csr64, by_columns),
        "torch CSR int64, Y by rows": lambda: sampled(S.csr64, Y.T),
        "torch dense": lambda: _masked(S.dense, X, by_columns),
        "numba": with_numba,
        "gather-scatter": with_gathers,
    }
    for label, equation, right in (
        ("SDDMM k=64, Y by rows", "ij,ik,jk->ij", Y),
        ("SDDMM k=64, Y by columns", "ij,ik,kj->ij", by_columns),
    ):
        ours: dict[str, Prepare] = {
            OURS: lambda equation=equation, right=right: _einsum(equation, S.scorch, X, right)
        }
        yield Case("sddmm", label, reference, {**ours, **rivals})


def _masked(mask: torch.Tensor, X: torch.Tensor, Y: torch.Tensor) -> Call:
    return lambda: mask * (X @ Y)


def spmspm(o: Operands) -> Iterator[Case]:
    """A @ A.T, the result in CSR with sorted rows; others than Scorch are given A.T in their best layout."""
    if o.matrix.products > MOST_PRODUCTS:
        return
    A, B = o.A, o.transposed

    def reference() -> Entries:
        m = o.matrix.shape[0]
        try:
            found = (A.scipy.astype(np.float64) @ B.scipy.astype(np.float64)).sorted_indices()
            rows = np.repeat(np.arange(m, dtype=np.int64), np.diff(found.indptr))
            return Entries(rows * m + found.indices, found.data)
        except Skip:
            product = torch.sparse.mm(A.coo.double(), B.coo.double()).coalesce()
            return Entries(
                (product.indices()[0] * m + product.indices()[1]).numpy(), product.values().numpy()
            )

    def with_scipy() -> Call:
        left, right = A.scipy, B.scipy

        def run() -> object:
            found = left @ right
            found.sort_indices()
            return found

        return run

    def with_numba() -> Call:
        loops = needed("benchmarks.kernels.numba_loops", "numba")
        a, b = A.matrix, B.matrix
        arrays = a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, b.shape[1]
        return lambda: Csr(*loops.spmspm(*arrays), (a.shape[0], a.shape[0]))

    def in_own_format() -> Call:
        call = _einsum("ij,kj->ik", A.scorch, A.scorch)
        if isinstance(call(), scorch.SparseTensor):
            raise Skip  # it is the same as the first
        return call

    def with_mkl() -> Call:
        return _mkl(A, needed("scipy.sparse", "SciPy").csr_matrix(B.scipy), reorder_output=True)

    def repeated() -> Call:
        def run() -> object:
            return scorch.einsum("ij,kj->ik", A.scorch, A.scorch, format="csr")

        for _ in range(3):  # from the third on, the pattern of the result is known
            run()
        return run

    def with_new_patterns() -> Call:
        own = scorch.from_torch(A.csr32)  # with a pattern of its own
        pattern = own.storage.pattern

        def run() -> object:
            pattern.structures.clear()  # where the pattern of the last result is cached
            return scorch.einsum("ij,kj->ik", own, own, format="csr")

        return run

    contestants: dict[str, Prepare] = {
        OURS: repeated,
        "Scorch, patterns multiplied first": with_new_patterns,
        "torch CSR int32": lambda: _matmul(A.csr32, B.csr32),
        "torch CSR int64": lambda: _matmul(A.csr64, B.csr64),
        "torch COO": lambda: lambda: torch.sparse.mm(A.coo, B.coo),
        "SciPy": with_scipy,
        "SciPy, rows unsorted": lambda: _matmul(A.scipy, B.scipy),
        "Scorch, dense as it chooses": in_own_format,
        "MKL": with_mkl,
        "numba": with_numba,
    }
    extras = frozenset(
        {"SciPy, rows unsorted", "Scorch, dense as it chooses", "Scorch, patterns multiplied first"}
    )
    yield Case("spmspm", "SpMSpM A @ A.T", reference, contestants, extras)


# entry by entry --------------------------------------------------------------------------------------


def add(o: Operands) -> Iterator[Case]:
    """C = A + B"""
    yield _merge(o, "add", "A + shifted", o.shifted)
    if o.matrix.shape[0] == o.matrix.shape[1]:
        yield _merge(o, "add", "A + A.T", o.transposed)


def mul(o: Operands) -> Iterator[Case]:
    """C = A * B"""
    yield _merge(o, "mul", "A * shifted", o.shifted)
    if o.matrix.shape[0] == o.matrix.shape[1]:
        yield _merge(o, "mul", "A * A.T", o.transposed)


def _merge(o: Operands, kernel: str, label: str, B: Layouts) -> Case:
    A, is_sum = o.A, kernel == "add"

    def reference() -> Entries:
        a, b = A.matrix, B.matrix
        if is_sum:
            keys, at = np.unique(np.concatenate([a.keys, b.keys]), return_inverse=True)
            both = np.concatenate([a.data, b.data]).astype(np.float64)
            return Entries(keys, np.bincount(at.ravel(), weights=both, minlength=len(keys)))
        keys, at_a, at_b = np.intersect1d(a.keys, b.keys, assume_unique=True, return_indices=True)
        return Entries(keys, a.data[at_a].astype(np.float64) * b.data[at_b])

    def ours() -> Call:
        left, right = A.scorch, B.scorch
        if is_sum:
            return lambda: scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=left, B=right)
        return _einsum("ij,ij->ij", left, right)

    def combined(left: Any, right: Any) -> Call:
        return (lambda: left + right) if is_sum else (lambda: left * right)

    def with_numba() -> Call:
        loops = needed("benchmarks.kernels.numba_loops", "numba")
        a, b = A.matrix, B.matrix
        arrays = a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, not is_sum
        return lambda: Csr(*loops.merge(*arrays), a.shape)

    contestants: dict[str, Prepare] = {OURS: ours}
    for name in A.torch_layouts():
        contestants[name] = lambda name=name: combined(A.torch_layouts()[name], B.torch_layouts()[name])
    contestants["torch dense"] = lambda: combined(A.dense, B.dense)
    contestants["SciPy"] = lambda: combined(A.scipy, B.scipy)
    contestants["numba"] = with_numba
    return Case(kernel, label, reference, contestants)


def softmax(o: Operands) -> Iterator[Case]:
    """Softmax over the stored entries of each row."""
    A = o.A

    def reference() -> Entries:
        matrix, rows = o.matrix, o.matrix.rows
        most = np.full(matrix.shape[0], -np.inf)
        np.maximum.at(most, rows, matrix.data)
        powers = np.exp(matrix.data - most[rows])
        sums = np.bincount(rows, weights=powers, minlength=matrix.shape[0])
        return Entries(matrix.keys, powers / sums[rows])

    def with_numba() -> Call:
        loops = needed("benchmarks.kernels.numba_loops", "numba")
        m, call = o.matrix, loops.choose(loops.softmax, o.matrix.nnz)
        return lambda: Csr(m.indptr, m.indices, call(m.indptr, m.data, np.empty_like(m.data)), m.shape)

    def with_scatters() -> Call:
        rows, m = A.rows, o.matrix.shape[0]

        def run() -> torch.Tensor:
            most = torch.full((m,), -torch.inf).scatter_reduce_(0, rows, A.values, "amax")
            powers = (A.values - most[rows]).exp()
            sums = torch.zeros(m).index_add_(0, rows, powers)
            values = powers / sums[rows]
            return torch.sparse_coo_tensor(A.coo._indices(), values, A.shape, is_coalesced=True)

        return run

    contestants: dict[str, Prepare] = {
        OURS: lambda: lambda: torch.sparse.softmax(A.scorch, 1),
        "torch COO": lambda: lambda: torch.sparse.softmax(A.coo, 1),
        "numba": with_numba,
        "gather-scatter": with_scatters,
    }
    yield Case("softmax", "row softmax", reference, contestants)


KERNELS = [
    Kernel("spmv", "matrix", ("SpMV",), spmv),
    Kernel("spmm", "matrix", tuple(f"SpMM k={k}" for k in WIDTHS), spmm),
    Kernel("spmspm", "matrix", ("SpMSpM A @ A.T",), spmspm),
    Kernel("sddmm", "matrix", ("SDDMM k=64, Y by rows", "SDDMM k=64, Y by columns"), sddmm),
    Kernel("add", "matrix", ("A + shifted", "A + A.T"), add),
    Kernel("mul", "matrix", ("A * shifted", "A * A.T"), mul),
    Kernel("softmax", "matrix", ("row softmax",), softmax),
]
LIMITS = f"dense torch up to {DENSE_BYTES >> 20} MB, A @ A.T up to {MOST_PRODUCTS:,} products"
