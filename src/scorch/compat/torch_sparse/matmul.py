"""Products of a matrix with dense and sparse ones, by Scorch's kernels, with gradients.

The gradient of a product with respect to one side is a product of the other with the incoming gradient,
sampled at the stored entries where that side is sparse, so that it takes no more memory than they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scorch._src.statements.einsum import einsum
from scorch._src.storage.storage import Storage
from scorch._src.tensor.sparse_tensor import SparseTensor as Matrix
from scorch._src.tensor.sparse_tensor import with_values
from scorch.compat.torch_sparse.storage import SparseStorage, combine
from scorch.errors import OperandError, ShapeError, UnsupportedError

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor


def matmul(src: SparseTensor, other: Any, reduce: str = "sum") -> Any:
    """``src @ other``: dense with a dense tensor, sparse with a sparse one.

    ``reduce`` is how the products of a row are combined: sum, mean, min or max; the last three take the
    stored entries alone.
    """
    if isinstance(other, type(src)):
        if reduce not in ("sum", "add"):
            raise UnsupportedError(f"reduce={reduce!r} is for products with dense tensors; use sum")
        return _sparse_product(src, other)
    if not isinstance(other, Tensor):
        raise OperandError(f"matmul takes a tensor or a SparseTensor, not a {type(other).__name__}")
    value = src.storage.value()
    if value is not None and value.dim() > 1:
        raise ShapeError(f"a matrix that multiplies has one number an entry, not {tuple(value.shape[1:])}")
    return _with_columns(src, value, other, reduce)


def _with_columns(src: SparseTensor, value: Tensor | None, other: Tensor, reduce: str) -> Tensor:
    """Vectors and batches are matrices with other columns."""
    if other.dim() == 1:
        return _with_columns(src, value, other.unsqueeze(-1), reduce).squeeze(-1)
    if other.shape[-2] != src.sparse_size(1):
        raise ShapeError(
            f"a matrix of {src.sparse_sizes()} cannot multiply one of shape {tuple(other.shape)}: "
            f"{src.sparse_size(1)} columns, {other.shape[-2]} rows"
        )
    if other.dim() > 2:
        moved = other.movedim(-2, 0)
        found = _dense_product(src, value, moved.flatten(1), reduce)
        return found.reshape(-1, *moved.shape[1:]).movedim(0, -2)
    return _dense_product(src, value, other, reduce)


def _dense_product(src: SparseTensor, value: Tensor | None, other: Tensor, reduce: str) -> Tensor:
    storage = src.storage
    if reduce in ("sum", "add", "mean"):
        given = other.new_ones(src.nnz()) if value is None else value
        found: Tensor = _DenseProduct.apply(given, other, storage)
        if reduce != "mean":
            return found
        counts = storage.rowcount().clamp(min=1).unsqueeze(1)
        return found / counts if found.is_floating_point() or found.is_complex() else found // counts
    parts = other[storage.col()]
    if value is not None:
        parts = parts * value.unsqueeze(-1)
    return combine(parts, storage.row(), src.sparse_size(0), reduce)


class _DenseProduct(torch.autograd.Function):
    """value, other -> matrix(value) @ other."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, other: Tensor, storage: SparseStorage) -> Tensor:
        ctx.save_for_backward(value, other)
        ctx.storage = storage
        found = einsum("ij,jk->ik", storage.matrix(value), other.detach(), format="dense")
        assert isinstance(found, Tensor)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        value, other = ctx.saved_tensors
        storage: SparseStorage = ctx.storage
        grad_value = grad_other = None
        if ctx.needs_input_grad[0]:
            grad_value = _sampled("ik,jk->ij", storage, value, grad, other.conj().resolve_conj())
        if ctx.needs_input_grad[1]:
            matrix = storage.matrix(value.conj().resolve_conj())
            grad_other = einsum("ij,ik->jk", matrix, grad, format="dense").to(other.dtype)
        return grad_value, grad_other, None


# sparse times sparse ---------------------------------------------------------------------------------


def _sparse_product(src: SparseTensor, other: SparseTensor) -> SparseTensor:
    if src.sparse_size(1) != other.sparse_size(0):
        raise ShapeError(f"sizes {src.sparse_sizes()} and {other.sparse_sizes()} do not multiply")
    sides = (src, other)
    values = [side.storage.value() for side in sides]
    if any(value is not None and value.dim() > 1 for value in values):
        raise ShapeError("matrices that multiply have one number an entry")
    dtype = next((value.dtype for value in values if value is not None), torch.get_default_dtype())
    given = [
        torch.ones(side.nnz(), dtype=dtype, device=side.device()) if value is None else value
        for side, value in zip(sides, values, strict=True)
    ]
    value, rowptr, col = _SparseProduct.apply(*given, src.storage, other.storage)
    sizes = (src.sparse_size(0), other.sparse_size(1))
    kept = None if values[0] is None and values[1] is None else value
    return src.like(None, col, kept, sizes, rowptr=rowptr, is_sorted=True)


class _SparseProduct(torch.autograd.Function):
    """values of A and B -> values, row pointers and columns of A @ B."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, A: SparseStorage, B: SparseStorage) -> tuple[Tensor, ...]:
        found = einsum("ij,jk->ik", A.matrix(a), B.matrix(b), format="csr")
        assert isinstance(found, Matrix)
        ctx.save_for_backward(a, b)
        ctx.sides = A, B
        ctx.product = found.storage
        rowptr, col, value = found.csr()
        ctx.mark_non_differentiable(rowptr, col)
        return value, rowptr, col

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, b = ctx.saved_tensors
        A, B = ctx.sides
        incoming = Matrix(Storage(ctx.product.pattern, grad.contiguous()))
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = _sampled("ik,jk->ij", A, a, incoming, B.matrix(b.conj().resolve_conj()))
        if ctx.needs_input_grad[1]:
            grad_b = _sampled("ij,ik->jk", B, b, A.matrix(a.conj().resolve_conj()), incoming)
        return grad_a, grad_b, None, None


def _sampled(equation: str, storage: SparseStorage, value: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The product of ``left`` and ``right`` at the entries of ``storage``: a gradient for each value."""
    places = storage.matrix(value)
    ones = with_values(places, torch.ones_like(places.storage.values))
    operands, target = equation.split("->")
    found = einsum(f"{target},{operands}->{target}", ones, left, right, format="csr")
    assert isinstance(found, Matrix)
    if found.nnz == ones.nnz:
        return storage.from_matrix(found.storage.values).to(value.dtype)
    # Where no entries meet, a product of sparse matrices has none.
    width = max(ones.shape[1], 1)
    row, column, _ = ones.coo()
    met_row, met_column, met = found.coo()
    all_places = met.new_zeros(ones.nnz)
    all_places[torch.searchsorted(row * width + column, met_row * width + met_column)] = met
    return storage.from_matrix(all_places).to(value.dtype)
