"""Linear equations, determinants and least squares of sparse matrices.

With SciPy installed a matrix is factored (SuperLU), whose cost follows the entries of its factors. Without it
a small matrix is solved densely, a larger one by ``cg`` where it is symmetric and positive definite, else by
``gmres``, which say so when they do not converge. Batches of matrices are solved densely, within the budget.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import torch

from scorch._src.grad_state import is_transformed
from scorch._src.ops.fallback import as_dense, run_densely, write_out
from scorch._src.ops.linalg.krylov import cg, gmres, lsmr, solve_by_column
from scorch._src.ops.linalg.linear_operators import (
    adjoint_of,
    as_columns,
    as_matrix,
    as_scipy,
    as_square,
    is_hermitian,
    multiply_by,
    scipy_linalg,
    tolerance,
)
from scorch._src.ops.products.matmul import matmul
from scorch._src.statements.einsum import einsum
from scorch._src.storage.budget import check_budget
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import apply, by_formula, dense_of, sparse_of, values_of
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, LinAlgError, ShapeError

MAX_DENSE_ROWS = 2048  # up to this size a dense factorisation takes a second at most
MAX_DENSE_ELEMENTS = 1 << 22
# With pivots from the diagonal, whatever the scales of rows: others would fill the factors.
SYMMETRIC = {
    "permc_spec": "MMD_AT_PLUS_A",
    "diag_pivot_thresh": 0.0,
    "options": {"SymmetricMode": True},
}


def _run_densely(function: Any, *args: Any, out: Any, **kwargs: Any) -> Any:
    return run_densely(function, args, kwargs if out is None else {**kwargs, "out": out})


@implements(torch.linalg.solve)
def solve(A: Any, B: Any, *, left: bool = True, out: Any = None) -> Any:
    """Solve ``A @ X = B``, or with ``left=False`` ``X @ A = B``, for a dense solution."""
    if out is not None:
        solution = solve(A, B, left=left)
        if out.dtype != solution.dtype:
            raise CallError(f"expected out of solve to have dtype {solution.dtype}, but got {out.dtype}")
        return write_out(out, solution, "solve")
    is_sparse = isinstance(A, SparseTensor) or A.layout is not torch.strided
    if not is_sparse or A.dim() != 2 or B.dim() > 2:
        return run_densely(torch.linalg.solve, (A, B), {"left": left})
    matrix = as_square("solve", A)
    assert isinstance(matrix, SparseTensor)
    if not left and B.dim() == 1:
        raise ShapeError("solve with left=False expected B to be a matrix; use B.unsqueeze(0)")
    if not left:
        return solve(matrix.T, torch.transpose(B, 0, 1)).T
    if isinstance(B, SparseTensor):
        hint = "solve a few columns at a time"
        size = B.numel() * B.dtype.itemsize
        check_budget(size, B.storage.device, f"the solution of shape {tuple(B.shape)}", hint)
    columns = as_columns("solve", B, matrix.shape[0], matrix)
    if not columns.numel():
        return columns.clone()
    factors = factorize(matrix)
    if factors is not None:
        solution = factors.solve(as_scipy(columns.contiguous()))
        return torch.from_numpy(solution).to(columns.device)
    if matrix.shape[0] <= MAX_DENSE_ROWS:
        return run_densely(torch.linalg.solve, (matrix, columns), {})
    return _solve_iteratively(matrix, columns)


@implements(torch.sparse.spsolve)
def spsolve(input: Any, other: Any, *, left: bool = True) -> Any:
    return solve(input, other, left=left)


class _Solve(torch.autograd.Function):
    """The solution as a differentiable function of the matrix's values and the right-hand side."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, right: torch.Tensor, pattern: Pattern) -> Any:
        solution = solve(SparseTensor(Storage(pattern, values.detach())), right.detach())
        ctx.save_for_backward(values, right)
        ctx.solution, ctx.pattern = solution.detach(), pattern
        return solution

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        values, right = ctx.saved_tensors
        matrix = sparse_of(ctx.pattern, values)
        is_double_backward = torch.is_grad_enabled()  # the gradient is differentiated again
        solution = differentiable_solve(matrix, right) if is_double_backward else ctx.solution
        right_grad = differentiable_solve(adjoint_of(matrix), gradient)
        if not ctx.needs_input_grad[0]:
            return None, right_grad, None
        factor, columns = right_grad, solution.conj() if solution.is_complex() else solution
        if factor.dim() == 1:
            factor, columns = factor.unsqueeze(1), columns.unsqueeze(1)
        present = SparseTensor(Storage(ctx.pattern, ctx.pattern.present.to(factor.dtype)))
        sampled = einsum("ij,ik,jk->ij", present, factor, columns)
        assert isinstance(sampled, SparseTensor)
        return -values_of(sampled), right_grad, None


@implements_differentiable(torch.linalg.solve, torch.sparse.spsolve)
def differentiable_solve(A: Any, B: Any, *, left: bool = True, out: Any = None) -> Any:
    """Solve a sparse equation; its gradient is the solution of the transposed equation.

    A @ X = B       ->       dB = solve(A.T, dX),   dA = -dB @ X.T  at the entries of A only
    """
    if not isinstance(A, SparseTensor) or A.dim() != 2 or B.dim() > 2 or out is not None or is_transformed():
        return by_formula(torch.linalg.solve, (A, B), {"left": left} if out is None else {"out": out})
    if not left:
        return differentiable_solve(A.T, B.T).T if B.dim() == 2 else solve(A, B, left=False)
    return apply(_Solve, values_of(A), dense_of(B), A.storage.pattern)


@implements(torch.linalg.solve_triangular)
def solve_triangular(
    A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False, out: Any = None
) -> Any:
    """Solve ``A @ X = B`` for a triangular ``A``; entries of the other triangle are not read."""
    linalg = scipy_linalg()
    if linalg is None or not isinstance(A, SparseTensor) or A.dim() != 2 or out is not None:
        options = {"upper": upper, "left": left, "unitriangular": unitriangular}
        return _run_densely(torch.linalg.solve_triangular, A, B, out=out, **options)
    matrix = as_square("solve_triangular", A)
    if not left:
        transposed = torch.transpose(B, 0, 1)
        return solve_triangular(matrix.T, transposed, upper=not upper, unitriangular=unitriangular).T
    if B.dim() != 2:
        advice = "; pass B.unsqueeze(1)" if B.dim() == 1 else ""
        raise ShapeError(
            f"solve_triangular expected B to be a matrix, but got shape {tuple(B.shape)}{advice}"
        )
    columns = as_columns("solve_triangular", B, matrix.shape[0], matrix)
    triangle = torch.triu(matrix) if upper else torch.tril(matrix)
    assert isinstance(triangle, SparseTensor)
    if not unitriangular and not bool(as_dense(torch.diagonal(triangle)).all()):
        raise LinAlgError("solve_triangular: the matrix is singular: it has a zero on its diagonal")
    result = linalg.spsolve_triangular(
        as_scipy(triangle).tocsr(),
        as_scipy(columns),
        lower=not upper,
        unit_diagonal=unitriangular,
    )
    return torch.from_numpy(result).to(columns.device, matrix.dtype)


def factorize(matrix: SparseTensor) -> Any:
    """Return SuperLU's factors of a square matrix, or None where SciPy is not installed."""
    linalg = scipy_linalg()
    if linalg is None:
        return None
    if not bool(matrix.storage.values.isfinite().all()):  # SuperLU takes it for singular
        raise LinAlgError("the matrix has non-finite values, so the equation has no solution")
    scipy_matrix = as_scipy(matrix).tocsc()
    diagonal = as_dense(torch.diagonal(matrix)).real
    if bool((diagonal > 0).all()) and is_hermitian(matrix):  # positive definite, in most cases
        with contextlib.suppress(RuntimeError):
            factors = linalg.splu(scipy_matrix, **SYMMETRIC)
            if _is_accurate(factors, scipy_matrix):
                return factors
    try:
        return linalg.splu(scipy_matrix)
    except RuntimeError:
        raise LinAlgError(
            f"the matrix of shape {tuple(matrix.shape)} is singular, so the equation has no solution "
            "or many; torch.linalg.lstsq returns the least-squares solution"
        ) from None


def _is_accurate(factors: Any, matrix: Any) -> bool:
    """Check that a solution by factors without pivoting is exact for a matrix close to this one."""
    right = matrix @ np.ones(matrix.shape[1], dtype=matrix.dtype)
    with np.errstate(all="ignore"):
        solution = factors.solve(right)
        scale = abs(matrix).sum(axis=1).max() * abs(solution).max()
        error = abs(matrix @ solution - right).max() / scale
    return bool(error <= np.finfo(matrix.dtype).eps ** 0.75)


def _solve_iteratively(matrix: SparseTensor, columns: torch.Tensor) -> torch.Tensor:
    diagonal = as_dense(torch.diagonal(matrix))
    inverse = torch.where(diagonal == 0, 1, 1 / diagonal)

    def precondition(x: torch.Tensor) -> torch.Tensor:
        return x * (inverse if x.dim() == 1 else inverse.unsqueeze(1))

    real = diagonal.real if diagonal.is_complex() else diagonal
    if bool((real > 0).all()) and is_hermitian(matrix):
        try:
            return cg(matrix, columns, M=precondition)
        except LinAlgError:
            pass  # not positive definite
    return gmres(matrix, columns, M=precondition)


@implements(torch.linalg.inv, torch.inverse, torch.Tensor.inverse)
def inv(A: Any, *, out: Any = None) -> Any:
    """Compute the inverse, which is dense whatever the pattern."""
    if isinstance(A, SparseTensor) and A.dim() == 2:
        size = A.numel() * A.dtype.itemsize
        what = f"the inverse of a matrix of shape {tuple(A.shape)}"
        check_budget(2 * size, A.storage.device, what, "use torch.linalg.solve")
    return _run_densely(torch.linalg.inv, A, out=out)


@implements(torch.linalg.det, torch.det, torch.Tensor.det)
def det(A: Any, *, out: Any = None) -> Any:
    if not _is_factored(A) or out is not None:
        return _run_densely(torch.linalg.det, A, out=out)
    pivots, sign = _pivots(as_square("det", A))
    return torch.prod(pivots) * sign


@implements(torch.linalg.slogdet, torch.slogdet, torch.Tensor.slogdet)
def slogdet(A: Any, *, out: Any = None) -> Any:
    """Compute the sign of the determinant, and the logarithm of its magnitude."""
    if not _is_factored(A) or out is not None:
        return _run_densely(torch.linalg.slogdet, A, out=out)
    pivots, sign = _pivots(as_square("slogdet", A))
    magnitudes = pivots.abs()
    signs = torch.where(magnitudes == 0, 0, pivots / magnitudes)
    kind = torch.return_types.linalg_slogdet  # type: ignore[attr-defined]
    return kind((signs.prod() * sign, torch.log(magnitudes).sum()))


def _pivots(matrix: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the diagonal of a triangular factor, and the sign of the row and column permutations."""
    assert isinstance(matrix, SparseTensor)
    if not bool(matrix.storage.values.isfinite().all()):
        return torch.full((1,), math.nan, dtype=matrix.dtype, device=matrix.storage.device), 1
    try:
        factors = factorize(matrix)
    except LinAlgError:  # singular
        return torch.zeros(1, dtype=matrix.dtype, device=matrix.storage.device), 1
    pivots = torch.from_numpy(factors.U.diagonal()).to(matrix.storage.device, matrix.dtype)
    return pivots, _parity(factors.perm_r) * _parity(factors.perm_c)


@implements(torch.logdet, torch.Tensor.logdet)
def logdet(A: Any) -> Any:
    if not _is_factored(A) or A.is_complex():
        return run_densely(torch.logdet, (A,), {})
    sign, logarithm = slogdet(A)
    return torch.where(sign < 0, math.nan, logarithm)


def _is_factored(A: Any) -> bool:
    return isinstance(A, SparseTensor) and A.dim() == 2 and bool(A.numel()) and scipy_linalg() is not None


def _parity(order: Any) -> int:
    """Return 1 for an even permutation, -1 for an odd one: by its number of cycles."""
    import scipy.sparse.csgraph

    count = len(order)
    edges = scipy.sparse.csr_array(([1] * count, order, range(count + 1)), shape=(count, count))
    cycles = scipy.sparse.csgraph.connected_components(edges, directed=True, connection="weak")[0]
    return 1 if (count - cycles) % 2 == 0 else -1


@implements(torch.linalg.lstsq)
def lstsq(A: Any, B: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Find the ``X`` of least norm among those that bring ``A @ X`` closest to ``B``.

    Large matrices are solved iteratively (LSMR, tolerance 1e-10 or in float32 1e-5); then the rank and the
    singular values are not known and left empty.
    """
    is_large = isinstance(A, SparseTensor) and A.dim() == 2 and A.numel() > MAX_DENSE_ELEMENTS
    if not is_large or driver is not None:
        return run_densely(torch.linalg.lstsq, (A, B), {"rcond": rcond, "driver": driver})
    matrix = as_matrix("lstsq", A)
    columns = as_columns("lstsq", B, matrix.shape[0], matrix)
    limit, max_steps = tolerance(None, matrix.dtype), 10 * max(100, min(matrix.shape))
    times, transposed = multiply_by(matrix), multiply_by(adjoint_of(matrix))
    solution = solve_by_column(
        lambda column: lsmr(times, transposed, column, matrix.shape[1], limit, max_steps), columns
    )
    residuals = (matmul(matrix, solution) - columns).abs().square().sum(0)
    if matrix.shape[0] <= matrix.shape[1]:
        residuals = residuals.new_zeros(0)
    rank = torch.zeros(0, dtype=torch.int64, device=solution.device)
    kind = torch.return_types.linalg_lstsq  # type: ignore[attr-defined]
    return kind((solution, residuals, rank, residuals.new_zeros(0)))
