"""Elementwise sums and products of matrices, computed by PyTorch, so gradients of values flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorch.compat.torch_sparse.check_source import takes_compat
from scorch.errors import OperandError, ShapeError

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor


@takes_compat
def add(src: SparseTensor, other: Any) -> SparseTensor:
    """Add a matrix; or add a column (n, 1) or a row (1, n) to the stored elements."""
    if not isinstance(other, type(src)):
        return add_nnz(src, _spread(src, other), layout="coo")
    return src.like(*_both(src, other), _larger(src, other)).coalesce()


@takes_compat
def add_(src: SparseTensor, other: Any) -> SparseTensor:
    return src.set_value_(add_nnz(src, _spread(src, other)).storage.value(), layout="coo")


@takes_compat
def add_nnz(src: SparseTensor, other: Any, layout: str | None = None) -> SparseTensor:
    """Add ``other`` to each value."""
    value = src.storage.value()
    total = _each(src, other) + 1 if value is None else value + _as_dtype(other, value)
    return src.set_value(total, layout=layout)


@takes_compat
def add_nnz_(src: SparseTensor, other: Any, layout: str | None = None) -> SparseTensor:
    return src.set_value_(add_nnz(src, other, layout).storage.value(), layout="coo")


@takes_compat
def mul(src: SparseTensor, other: Any) -> SparseTensor:
    """Multiply elementwise by a matrix, a column (n, 1) or a row (1, n)."""
    if not isinstance(other, type(src)):
        return mul_nnz(src, _spread(src, other), layout="coo")
    if not src.is_coalesced() or not other.is_coalesced():
        raise OperandError("entries repeat; call coalesce() first")
    row, col, value = src.coo()
    factor = other.storage.value()
    if value is None or factor is None:
        raise OperandError("both matrices must have values; use fill_value(1.0)")
    sizes = _larger(src, other)
    ours, theirs = (m.storage.row() * max(sizes[1], 1) + m.storage.col() for m in (src, other))
    place = torch.searchsorted(theirs, ours).clamp_(max=max(theirs.numel() - 1, 0))
    met = theirs[place] == ours if theirs.numel() else torch.zeros_like(ours, dtype=torch.bool)
    return src.like(row[met], col[met], value[met] * factor[place[met]], sizes, is_sorted=True)


@takes_compat
def mul_(src: SparseTensor, other: Any) -> SparseTensor:
    return src.set_value_(mul_nnz(src, _spread(src, other)).storage.value(), layout="coo")


@takes_compat
def mul_nnz(src: SparseTensor, other: Any, layout: str | None = None) -> SparseTensor:
    """Multiply each value by ``other``."""
    value = src.storage.value()
    product = _each(src, other) if value is None else value * _as_dtype(other, value)
    return src.set_value(product, layout=layout)


@takes_compat
def mul_nnz_(src: SparseTensor, other: Any, layout: str | None = None) -> SparseTensor:
    return src.set_value_(mul_nnz(src, other, layout).storage.value(), layout="coo")


def _spread(src: SparseTensor, other: Any) -> Any:
    """Return the element of ``other`` in the row or column of each entry."""
    if not isinstance(other, Tensor) or other.dim() == 0:
        return other
    rows, columns = src.sparse_sizes()
    if other.dim() > 1 and other.shape[:2] == (rows, 1):
        return other.squeeze(1)[src.storage.row()]
    if other.dim() > 1 and other.shape[:2] == (1, columns):
        return other.squeeze(0)[src.storage.col()]
    raise ShapeError(
        f"size mismatch: a matrix of {rows} x {columns} goes with ({rows}, 1, ...) or (1, {columns}, ...), "
        f"not with {tuple(other.shape)}"
    )


def _each(src: SparseTensor, other: Any) -> Tensor:
    """Return ``other`` for every entry."""
    each = torch.as_tensor(other, device=src.device())
    return each.expand(src.nnz(), *each.shape[1:])


def _as_dtype(other: Any, value: Tensor) -> Any:
    return other.to(value.dtype) if isinstance(other, Tensor) else other


def _both(src: SparseTensor, other: SparseTensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the entries of both, one after the other; missing values are ones."""
    row = torch.cat([src.storage.row(), other.storage.row()])
    col = torch.cat([src.storage.col(), other.storage.col()])
    values = [src.storage.value(), other.storage.value()]
    like = next((value for value in values if value is not None), None)
    if like is None:
        return row, col, None
    ones = [like.new_ones(matrix.nnz(), *like.shape[1:]) for matrix in (src, other)]
    return row, col, torch.cat([o if v is None else v for v, o in zip(values, ones, strict=True)])


def _larger(src: SparseTensor, other: SparseTensor) -> tuple[int, int]:
    rows, columns = map(max, src.sparse_sizes(), other.sparse_sizes())
    return rows, columns
