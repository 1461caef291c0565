"""Reductions over the stored entries of rows and columns, with torch_sparse's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scorch.compat.torch_sparse.storage import combine

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor


def reduction(src: SparseTensor, dim: int | None = None, reduce: str = "sum") -> Tensor:
    """Over the stored entries of each column (0) or row (1), over values' dimensions, or over all."""
    value = src.storage.value()
    reduce = "sum" if reduce == "add" else reduce
    if value is None:
        value = torch.ones(src.nnz(), dtype=src.dtype(), device=src.device())
    if dim is None:
        found: Tensor = getattr(value, reduce)()
        return found
    dim = dim + src.dim() if dim < 0 else dim
    if dim in (0, 1):
        place = src.storage.col() if dim == 0 else src.storage.row()
        return combine(value, place, src.sparse_size(1 - dim), reduce)
    name = {"min": "amin", "max": "amax"}.get(reduce, reduce)
    part: Tensor = getattr(value, name)(dim=dim - 1)
    return part


def sum(src: SparseTensor, dim: int | None = None) -> Tensor:
    """The sum of stored values."""
    return reduction(src, dim, "sum")


def mean(src: SparseTensor, dim: int | None = None) -> Tensor:
    """The mean of stored values."""
    return reduction(src, dim, "mean")


def min(src: SparseTensor, dim: int | None = None) -> Tensor:
    """The least stored value, 0 where none is stored."""
    return reduction(src, dim, "min")


def max(src: SparseTensor, dim: int | None = None) -> Tensor:
    """The largest stored value, 0 where none is stored."""
    return reduction(src, dim, "max")
