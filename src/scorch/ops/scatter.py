"""Values written to places that an index names, where several meet: their sum, product, largest ...

Only the places that are named take part. They are gathered into a dense list, torch reduces that list, and
the list is written back as entries.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from scorch.errors import ShapeError
from scorch.ops.generic import densely
from scorch.ops.index import _checked, written
from scorch.ops.shape import shape_after
from scorch.tensor.budget import check_budget
from scorch.tensor.dispatch import implements_operator
from scorch.tensor.entries import entries_of, keys_of
from scorch.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten
REDUCE = {"add": "sum", "multiply": "prod"}  # scatter's words for those of scatter_reduce


@implements_operator(aten.scatter_reduce.two)
def scatter_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    args = (self, dim, index, src, reduce)
    if not isinstance(self, SparseTensor) or isinstance(index, SparseTensor) or not self.dim():
        return densely(aten.scatter_reduce.two, args, {"include_self": include_self})
    shell = torch.empty(tuple(src.shape), dtype=src.dtype, device="meta")
    shape_after(
        aten.scatter_reduce.two, self, dim, index.to("meta"), shell, reduce, include_self=include_self
    )
    shape = tuple(index.shape)
    if not math.prod(shape):
        return torch.clone(self)
    dense = src.to_dense() if isinstance(src, SparseTensor) else src
    values = dense[tuple(slice(size) for size in shape)].reshape(-1)
    return _reduced(self, _keys(self, dim, index), values, reduce, include_self)


@implements_operator(aten.scatter.reduce)
def scatter_with(self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, *, reduce: str) -> Any:
    if reduce not in REDUCE or not isinstance(self, SparseTensor):
        return densely(aten.scatter.reduce, (self, dim, index, src), {"reduce": reduce})
    return scatter_reduce(self, dim, index, src, REDUCE[reduce])


@implements_operator(aten.scatter.value_reduce)
def scatter_number(self: SparseTensor, dim: int, index: torch.Tensor, value: Any, *, reduce: str) -> Any:
    if reduce not in REDUCE:
        return densely(aten.scatter.value_reduce, (self, dim, index, value), {"reduce": reduce})
    size = self.storage.values.element_size() * index.numel()
    check_budget(size, f"scatter of a number to {index.numel()} places", "use fewer places")
    src = torch.full(tuple(index.shape), value, dtype=self.dtype)
    return scatter_reduce(self, dim, index, src, REDUCE[reduce])


@implements_operator(aten.index_reduce)
def index_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    args = (self, dim, index, source, reduce)
    if not isinstance(self, SparseTensor) or isinstance(index, SparseTensor) or not self.numel():
        return densely(aten.index_reduce.default, args, {"include_self": include_self})
    shell = torch.empty(tuple(source.shape), dtype=source.dtype, device="meta")
    shape_after(
        aten.index_reduce.default, self, dim, index.to("meta"), shell, reduce, include_self=include_self
    )
    if not index.numel():
        return torch.clone(self)
    along = [1] * self.dim()
    along[dim] = -1
    places = index.reshape(along).expand(tuple(source.shape))
    return scatter_reduce(self, dim, places, source, reduce, include_self=include_self)


@implements_operator(aten.put)
def put(self: torch.Tensor, index: torch.Tensor, source: Any, accumulate: bool = False) -> Any:
    if not isinstance(self, SparseTensor) or isinstance(index, SparseTensor) or not self.dim():
        return densely(aten.put.default, (self, index, source, accumulate), {})
    if source.dtype != self.dtype or source.numel() != index.numel():
        aten.put(torch.zeros(1, dtype=self.dtype), index, torch.zeros(source.shape, dtype=source.dtype))
    places = _checked(index, self.numel(), 0).reshape(-1)
    values = source.to_dense() if isinstance(source, SparseTensor) else source
    return written(self, places, values.reshape(-1), accumulate)


@implements_operator(aten.diagonal_scatter)
def diagonal_scatter(
    self: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """A copy whose diagonal, a view, takes ``src``."""
    if not isinstance(self, SparseTensor):
        return densely(aten.diagonal_scatter.default, (self, src, offset, dim1, dim2), {})
    copy = torch.clone(self)
    diagonal = torch.diagonal(copy, offset, dim1, dim2)
    if tuple(diagonal.shape) != tuple(src.shape):
        raise ShapeError(f"the diagonal has shape {tuple(diagonal.shape)}, but src has {tuple(src.shape)}")
    diagonal.copy_(src)
    return copy


def _keys(self: SparseTensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """The place in ``self`` for each element of ``index``."""
    dim %= self.dim()
    _checked(index, self.shape[dim], dim)
    grid = torch.meshgrid(*(torch.arange(size) for size in index.shape), indexing="ij")
    columns = [(index if d == dim else column).reshape(-1) for d, column in enumerate(grid)]
    return keys_of(columns, tuple(self.shape))


def _reduced(
    self: SparseTensor, keys: torch.Tensor, values: torch.Tensor, reduce: str, include_self: bool
) -> SparseTensor:
    places, which = torch.unique(keys, return_inverse=True)
    before = entries_of(self).at(places)
    after = torch.scatter_reduce(before, 0, which, values, reduce, include_self=include_self)
    return written(self, places, after, adds=False)
