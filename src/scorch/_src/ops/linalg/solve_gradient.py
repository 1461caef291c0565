"""Gradients of sparse linear equations: each is the solution of the transposed equation.

A @ X = B       ->       dB = solve(A.T, dX),   dA = -dB @ X.T  at the entries of A only
"""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.grad_state import is_transformed
from scorch._src.ops.linalg import solve as equations
from scorch._src.statements.einsum import einsum
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import apply, by_formula, dense_of, sparse_of, values_of
from scorch._src.tensor.registry import implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor


class _Solve(torch.autograd.Function):
    """The solution as a differentiable function of the matrix's values and the right-hand side."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, right: torch.Tensor, pattern: Pattern) -> torch.Tensor:
        solution = equations.solve(SparseTensor(Storage(pattern, values.detach())), right.detach())
        ctx.save_for_backward(values, right)
        ctx.solution, ctx.pattern = solution.detach(), pattern
        return solution

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        values, right = ctx.saved_tensors
        matrix = sparse_of(ctx.pattern, values)
        is_double_backward = torch.is_grad_enabled()  # the gradient is differentiated again
        solution = solve(matrix, right) if is_double_backward else ctx.solution
        adjoint = matrix.T.conj() if matrix.is_complex() else matrix.T
        right_grad = solve(adjoint, gradient)
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
def solve(A: Any, B: Any, *, left: bool = True, out: Any = None) -> Any:
    """Solve ``A @ X = B``, or with ``left=False`` ``X @ A = B``, for a sparse matrix."""
    if not isinstance(A, SparseTensor) or A.dim() != 2 or B.dim() > 2 or out is not None or is_transformed():
        return by_formula(torch.linalg.solve, (A, B), {"left": left} if out is None else {"out": out})
    if not left:
        return solve(A.T, B.T).T if B.dim() == 2 else equations.solve(A, B, left=False)
    return apply(_Solve, values_of(A), dense_of(B), A.storage.pattern)
