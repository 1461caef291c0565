"""Products of a matrix with dense and sparse ones: einsums, which have gradients at the stored elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorch._src.devices import HOST
from scorch._src.statements.autocast import is_autocast
from scorch._src.statements.einsum import einsum
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.sparse_tensor import SparseTensor as Matrix
from scorch.compat.torch_sparse.check_source import takes_compat
from scorch.compat.torch_sparse.forms import filled
from scorch.compat.torch_sparse.storage import combine
from scorch.errors import OperandError, ShapeError, UnsupportedError, kind_of

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor

_TINY = 256  # products of two numbers
_ROUNDED_ALIKE = {torch.float32, torch.float64}  # sums of shorter floats need a longer accumulator


@takes_compat
def matmul(src: SparseTensor, other: Any, reduce: str = "sum") -> Any:
    """Return ``src @ other``: dense for a dense tensor, in its dtype; sparse for a sparse one.

    Args:
        src: the matrix.
        other: a dense tensor or another matrix.
        reduce: how to reduce the products of a row: ``"sum"``, or with a dense tensor ``"mean"``, ``"min"``
            or ``"max"`` over the stored elements.

    Raises:
        ShapeError: the sizes do not match.

    Example:

        >>> import torch
        >>> from scorch.compat.torch_sparse import SparseTensor, matmul
        >>> matmul(SparseTensor.eye(2), torch.ones(2, 1), reduce="max")
        tensor([[1.],
                [1.]])
    """
    if isinstance(other, type(src)):
        if reduce not in ("sum", "add"):
            raise UnsupportedError(
                f"reduce={reduce!r} is supported only for products with dense tensors; use 'sum'"
            )
        return _sparse_product(src, other)
    if not isinstance(other, Tensor):
        raise OperandError(f"matmul expected a tensor or a SparseTensor, but got {kind_of(other)}")
    return _with_columns(src, _factors(src, other.dtype), other, reduce)


def rmatmul(src: SparseTensor, other: Tensor) -> Tensor:
    """Return ``other @ src``: dense for a dense tensor, a ``scorch.SparseTensor`` for one."""
    product: Tensor = other @ src.to_scorch()
    return product


def spmm(src: SparseTensor, other: Tensor, reduce: str = "sum") -> Tensor:
    """Return ``src @ other`` for a dense tensor."""
    product: Tensor = matmul(src, other, reduce)
    return product


def spspmm(src: SparseTensor, other: SparseTensor, reduce: str = "sum") -> SparseTensor:
    """Return ``src @ other`` for a sparse matrix."""
    product: SparseTensor = matmul(src, other, reduce)
    return product


def spmm_sum(src: SparseTensor, other: Tensor) -> Tensor:
    return spmm(src, other)


def spmm_mean(src: SparseTensor, other: Tensor) -> Tensor:
    return spmm(src, other, "mean")


def spmm_min(src: SparseTensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least product of each row, and which entry it belongs to."""
    return _with_entries(src, other, "min")


def spmm_max(src: SparseTensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest product of each row, and which entry it belongs to."""
    return _with_entries(src, other, "max")


def spspmm_sum(src: SparseTensor, other: SparseTensor) -> SparseTensor:
    return spspmm(src, other)


spmm_add, spspmm_add = spmm_sum, spspmm_sum


def _with_entries(src: SparseTensor, other: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Return the extremes, and the entry of each: the first one, the number of entries if a row has none."""
    out, count = spmm(src, other, reduce), src.nnz()
    with torch.no_grad():
        row, col, _ = src.coo()
        value = _factors(src, other.dtype)
        parts = other.index_select(-2, col)
        parts = parts if value is None else parts * value.unsqueeze(-1)
        entry = torch.arange(count, device=col.device).unsqueeze(-1).expand_as(parts)
        entry = entry.where(parts == out.index_select(-2, row), count)
        none = torch.full_like(out, count, dtype=torch.int64)
        return out, none.scatter_reduce(-2, row.unsqueeze(-1).expand_as(parts), entry, "amin")


def _factors(src: SparseTensor, dtype: torch.dtype) -> Tensor | None:
    """Return the values in the dtype of the tensor that they multiply, if that can hold such numbers."""
    value = src.storage.value()
    if value is None:
        return None
    if value.dim() > 1:
        raise ShapeError(f"products need scalar values, but the values have shape {tuple(value.shape[1:])}")
    return value.to(dtype) if torch.can_cast(value.dtype, dtype) else value


def _with_columns(src: SparseTensor, value: Tensor | None, other: Tensor, reduce: str) -> Tensor:
    """Multiply vectors and batches as matrices with other columns."""
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
    if reduce in ("sum", "add", "mean") and not _is_tiny(src, value, other):
        matrix = storage.matrix(other.new_ones(src.nnz()) if value is None else value)
        product = einsum("ij,jk->ik", matrix, other, format="dense")
        assert isinstance(product, Tensor)
        if reduce != "mean":
            return product
        counts = storage.rowcount().clamp(min=1).unsqueeze(1)
        return product / counts if product.is_floating_point() or product.is_complex() else product // counts
    parts = other.index_select(0, storage.col())
    if value is not None:
        parts = parts * value.unsqueeze(-1)
    return combine(parts, storage.row(), src.sparse_size(0), reduce)


def _is_tiny(src: SparseTensor, value: Tensor | None, other: Tensor) -> bool:
    """Whether to multiply without a kernel, which rounds twice as PyG's ``message`` and ``aggregate`` do.

    Kernels round once, by fused multiply-adds. For so few products, PyTorch's operators take no longer than a
    training step with a kernel, and compile nothing.
    """
    if src.nnz() * other.shape[1] > _TINY or other.device != HOST:
        return False
    types = {other.dtype, other.dtype if value is None else value.dtype}
    return types <= _ROUNDED_ALIKE and not is_autocast()


def _sparse_product(src: SparseTensor, other: SparseTensor) -> SparseTensor:
    if src.sparse_size(1) != other.sparse_size(0):
        raise ShapeError(
            f"matrices of sizes {src.sparse_sizes()} and {other.sparse_sizes()} cannot be multiplied"
        )
    sides = (src, other)
    values = [side.storage.value() for side in sides]
    if any(value is not None and value.dim() > 1 for value in values):
        raise ShapeError("products need scalar values")
    dtype = next((value.dtype for value in values if value is not None), torch.get_default_dtype())
    left, right = (side.storage.matrix(filled(side, dtype)) for side in sides)
    product = einsum("ij,jk->ik", left, right, format="csr")
    assert isinstance(product, Matrix)
    rowptr, col, _ = product.csr()
    sizes = (src.sparse_size(0), other.sparse_size(1))
    kept = None if values[0] is None and values[1] is None else values_of(product)
    return src.like(None, col, kept, sizes, rowptr=rowptr, is_sorted=True)
