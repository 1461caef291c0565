"""Write values at indices: replace, add or reduce.

Every function here ends in ``write_at_keys``, which replaces or adds entries at keys and refuses keys outside
of the tensor. Where several values meet, the indexed positions are gathered into a dense list, torch reduces
that list, and the list is written back as entries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from scorch._src.grad_state import are_patterns_fixed
from scorch._src.ops.fallback import as_dense, run_densely
from scorch._src.ops.movement.index import (
    IndexedPositions,
    Indices,
    check_indices,
    check_int64,
    keys_along,
    normalize_indices,
    run_on_empty,
)
from scorch._src.ops.movement.infer_shape import as_meta, infer_shape
from scorch._src.ops.movement.shape import split_entries
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.tensor.entries import Entries, Shape, entries_of, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, IndexRangeError, ShapeError

aten = torch.ops.aten
Tensor = torch.Tensor
Handler = TypeVar("Handler", bound=Callable[..., Any])
REDUCE = {"add": "sum", "multiply": "prod"}  # scatter's names of scatter_reduce's reductions


def write_at_keys(self: SparseTensor, keys: Tensor, values: Tensor, adds: bool) -> SparseTensor:
    """Return ``self`` with ``values`` at ``keys``, replaced or added; of several the last stays.

    Every function that writes ends here, so that none creates an entry outside the tensor.
    """
    keys = check_indices(keys, self.numel(), 0)
    entries = entries_of(self)
    values = values.to(entries.values.dtype)
    if not adds:
        keys, order = torch.sort(keys, stable=True)
        is_last = torch.ones_like(keys, dtype=torch.bool)
        is_last[:-1] = keys[1:] != keys[:-1]
        keys, values = keys[is_last], values[order][is_last]
        entries = keep_entries(entries, ~torch.isin(entries.keys, keys))
    merged = torch.cat([entries.keys, keys]), torch.cat([entries.values, values])
    return from_entries(Entries(*merged, entries.shape), self.format, in_order=False)


def keep_entries(entries: Entries, which: Tensor) -> Entries:
    return Entries(entries.keys[which], entries.values[which], entries.shape)


def source_values(src: Any, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the values to write, one for each position, from a number or a tensor."""
    if not isinstance(src, Tensor):
        return torch.full((math.prod(shape),), src, dtype=dtype, device=device)
    dense: Tensor = as_dense(src)
    if not dense.dim():
        return dense.reshape(1)
    return dense[tuple(slice(size) for size in shape)].reshape(-1)


def _writes(*operators: Any) -> Callable[[Handler], Handler]:
    """Register a handler that writes to a sparse tensor with elements, after torch has checked the shapes."""

    def register(handler: Handler) -> Handler:
        for operator in operators:
            implements(operator)(functools.partial(_check_and_write, operator, handler))
        return handler

    return register


def _check_and_write(func: Any, handler: Any, self: Tensor, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(self, SparseTensor):
        return func(self, *map(as_dense, args), **kwargs)
    if not self.numel():
        return run_on_empty(func, self, *args, **kwargs)
    infer_shape(func, self, *map(as_meta, args), **kwargs)
    return handler(self, *args, **kwargs)


def _scatter(self: SparseTensor, dim: int, index: Tensor, src: Any, adds: bool = False) -> Any:
    if not index.numel():
        return torch.clone(self)
    keys = keys_along(self, dim, index)
    return write_at_keys(self, keys, source_values(src, tuple(index.shape), self.dtype, index.device), adds)


_writes(aten.scatter.src, aten.scatter.value)(_scatter)
_writes(aten.scatter_add.default)(functools.partial(_scatter, adds=True))


@implements(aten.select_scatter)
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Any:
    if not isinstance(self, SparseTensor):
        return aten.select_scatter(self, src.to_dense(), dim, index)
    rank, size = self.dim(), _size_of(self, dim)
    if not -size <= index < size:
        raise IndexRangeError(f"index {index} is out of bounds for dimension {dim % rank} with size {size}")
    start = index % size
    _check_source(src, [extent for d, extent in enumerate(self.shape) if d != dim % rank], "the selection")
    return _replace_along(self, torch.unsqueeze(src, dim % rank), dim % rank, range(start, start + 1))


@implements(aten.slice_scatter)
def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    if not isinstance(self, SparseTensor):
        return aten.slice_scatter(self, src.to_dense(), dim, start, end, step)
    size = _size_of(self, dim)
    if step < 1:
        raise CallError(f"slice_scatter expected a positive step, but got {step}")
    dim %= self.dim()
    positions = range(*slice(start, end, step).indices(size))
    _check_source(src, _with_size(self, dim, len(positions)), "the slice")
    return _replace_along(self, src, dim, positions)


def _size_of(self: SparseTensor, dim: int) -> int:
    rank = self.dim()
    if not -rank <= dim < rank:
        raise IndexRangeError(
            f"dimension {dim} is out of range (expected to be in range of [{-rank}, {rank - 1}])"
        )
    return self.shape[dim]


def _with_size(self: SparseTensor, dim: int, size: int) -> Shape:
    """Return the shape of a tensor, with another ``size`` of ``dim``."""
    return tuple(size if d == dim % self.dim() else extent for d, extent in enumerate(self.shape))


def _check_source(src: Tensor, shape: Sequence[int], what: str) -> None:
    if tuple(src.shape) != tuple(shape):
        raise CallError(f"{what} has shape {tuple(shape)}, but src has shape {tuple(src.shape)}")


def _replace_along(self: SparseTensor, src: Tensor, dim: int, positions: range) -> SparseTensor:
    """Return ``self`` with ``src`` at ``positions`` of ``dim``; the cost follows the entries."""
    entries = entries_of(self)
    coordinate = entries.coordinates[dim]
    step = positions.step if len(positions) > 1 else 1
    offset = coordinate - positions.start
    is_outside = (offset < 0) | (offset >= len(positions) * step) | (offset % step != 0)
    remaining = from_entries(keep_entries(entries, is_outside), self.format)
    columns, values = split_entries(src)
    columns[dim] = columns[dim] * step + positions.start
    return write_at_keys(remaining, keys_of(columns, entries.shape), values, adds=False)


@_writes(aten.index_add.default)
def index_add(self: SparseTensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    check_slices(self, dim, index, source)
    columns, values = move_entries(self, dim, index, source)
    values = values * alpha if alpha != 1 else values
    return write_at_keys(self, keys_of(columns, tuple(self.shape)), values, adds=True)


@_writes(aten.index_copy.default)
def index_copy(self: SparseTensor, dim: int, index: Tensor, source: Tensor) -> Any:
    if not source.dim() and self.dim() == 1:
        source = source.reshape(1)  # a scalar is a slice of a vector
    check_slices(self, dim, index, source, kinds=(torch.int64,))
    columns, values = move_entries(self, dim, index, source, only_last=True)
    cleared = index_fill(self, dim, index, 0)
    return write_at_keys(cleared, keys_of(columns, tuple(self.shape)), values, adds=False)


def check_slices(
    self: SparseTensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    kinds: Sequence[torch.dtype] = (torch.int64, torch.int32),
) -> tuple[int, ...]:
    """Check that ``source`` has the shape of the slices of ``self`` at ``index`` of ``dim``, and return it.

    The index is a vector of one of the dtypes ``kinds``.
    """
    if index.dim() > 1:
        raise IndexRangeError(f"index must be 1-D, but got shape {tuple(index.shape)}")
    if index.dtype not in kinds:
        raise CallError(f"index must be {' or '.join(map(str, kinds))}, but got {index.dtype}")
    if source.dtype != self.dtype:
        raise CallError(
            f"expected source and self to have the same dtype, but got {source.dtype} and {self.dtype}; "
            "convert one of them"
        )
    shape = _with_size(self, dim, index.numel())
    _check_source(source, shape, "what the places name")
    return shape


def move_entries(
    self: SparseTensor, dim: int, index: Tensor, source: Tensor, only_last: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Move the entries of ``source`` to the positions along ``dim`` that ``index`` names.

    With ``only_last``, of slices of the source that go to one position only the last.
    """
    dim %= self.dim()
    index = check_indices(index.reshape(-1), self.shape[dim], dim).to(torch.int64)
    columns, values = split_entries(source)
    if only_last and index.numel():
        _, which = torch.unique(index, return_inverse=True)
        numbers = torch.arange(index.numel(), device=index.device)
        last = torch.zeros_like(index).scatter_reduce_(0, which, numbers, "amax")
        is_last = last[which[columns[dim]]] == columns[dim]
        columns, values = [column[is_last] for column in columns], values[is_last]
    columns[dim] = index[columns[dim]]
    return columns, values


@implements(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self: SparseTensor, dim: int, index: Tensor, value: Any) -> Any:
    size = _size_of(self, dim)
    if not self.numel():
        is_tensor = isinstance(value, Tensor)
        func = aten.index_fill.int_Tensor if is_tensor else aten.index_fill.int_Scalar
        return run_on_empty(func, self, dim, index, value)
    check_int64("index_fill", index)
    if index.dim() > 1:
        raise CallError(f"index_fill expected a 1-D index, but got shape {tuple(index.shape)}")
    dim %= self.dim()
    shape = tuple(self.shape)
    number = value.item() if isinstance(value, Tensor) else value
    entries = entries_of(self)
    chosen = torch.unique(check_indices(index.reshape(-1), size, dim, from_end=True))
    is_kept = ~torch.isin(entries.coordinates[dim], chosen)
    cleared = from_entries(keep_entries(entries, is_kept), self.format)
    if number == 0 and not (isinstance(value, Tensor) and are_patterns_fixed()):
        return cleared
    axes = [torch.arange(extent, device=chosen.device) for extent in shape]
    axes[dim] = chosen
    grid = torch.meshgrid(*axes, indexing="ij")
    keys = keys_of([column.reshape(-1) for column in grid], shape)
    numbers = torch.full(keys.shape, number, dtype=self.dtype, device=keys.device)
    return write_at_keys(cleared, keys, numbers, adds=False)


@implements(aten.index_put)
def index_put(self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Any:
    dense = as_dense(values)
    if not isinstance(self, SparseTensor):
        return aten.index_put(self, normalize_indices(self, indices), dense, accumulate)
    if values.dtype != self.dtype:
        raise CallError(
            f"expected values and self to have the same dtype, but got {values.dtype} and {self.dtype}; "
            "convert one of them"
        )
    normalized = normalize_indices(self, indices)
    if not self.numel():
        return run_on_empty(aten.index_put.default, self, normalized, dense, accumulate)
    indexed = IndexedPositions(self, normalized)
    device = self.storage.device
    grid = coordinates_of(torch.arange(math.prod(indexed.result), device=device), indexed.result)
    first, last = len(indexed.before), len(indexed.before) + len(indexed.shape)
    inside = keys_of(grid[first:last], indexed.shape, device).expand(math.prod(indexed.result))
    columns = dict(zip((*indexed.before, *indexed.after), (*grid[:first], *grid[last:]), strict=True))
    indexed_coordinates = coordinates_of(indexed.keys, indexed.sizes)
    columns |= {dim: crd[inside] for dim, crd in zip(indexed.dims, indexed_coordinates, strict=True)}
    shape = tuple(self.shape)
    keys = keys_of([columns[dim] for dim in range(len(shape))], shape)
    dense = dense if dense.dim() else dense.to(device)  # a number may be on the host
    return write_at_keys(self, keys, dense.expand(indexed.result).reshape(-1), accumulate)


@implements(aten.scatter_reduce.two)
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    func, args, options = aten.scatter_reduce.two, (dim, index, src, reduce), {"include_self": include_self}
    if not isinstance(self, SparseTensor) or isinstance(index, SparseTensor) or not self.dim():
        return run_densely(func, (self, *args), options)
    if not self.numel():
        return run_on_empty(func, self, *args, **options)
    infer_shape(func, self, *map(as_meta, args), **options)
    if not index.numel():
        return torch.clone(self)
    values = source_values(src, tuple(index.shape), self.dtype, index.device)
    keys, number = torch.unique(keys_along(self, dim, index), return_inverse=True)
    before = entries_of(self).at(keys)
    after = torch.scatter_reduce(before, 0, number, values, reduce, include_self=include_self)
    return write_at_keys(self, keys, after, adds=False)


@implements(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(self: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str) -> Any:
    is_number = not isinstance(src, Tensor)
    if reduce not in REDUCE or not isinstance(self, SparseTensor):
        func = aten.scatter.value_reduce if is_number else aten.scatter.reduce
        return run_densely(func, (self, dim, index, src), {"reduce": reduce})
    if is_number:
        size = self.storage.values.element_size() * index.numel()
        check_budget(
            size, index.device, f"scatter of a number to {index.numel()} elements", "use fewer indices"
        )
        src = torch.full(tuple(index.shape), src, dtype=self.dtype, device=index.device)
    return scatter_reduce(self, dim, index, src, REDUCE[reduce])


@implements(aten.index_reduce)
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    func, args, options = (
        aten.index_reduce.default,
        (dim, index, source, reduce),
        {"include_self": include_self},
    )
    if not isinstance(self, SparseTensor) or isinstance(index, SparseTensor) or not self.numel():
        return run_densely(func, (self, *args), options)
    infer_shape(func, self, *map(as_meta, args), **options)
    shape = check_slices(self, dim, index, source)
    if not index.numel():
        return torch.clone(self)
    along = [1] * self.dim()
    along[dim] = -1
    positions = index.reshape(along).expand(shape)
    return scatter_reduce(self, dim, positions, source, reduce, include_self=include_self)


@implements(aten.put)
def put(self: Tensor, index: Tensor, source: Any, accumulate: bool = False) -> Any:
    if not isinstance(self, SparseTensor) or isinstance(index, SparseTensor) or not self.dim():
        return run_densely(aten.put.default, (self, index, source, accumulate), {})
    check_int64("put", index)
    if source.dtype != self.dtype or source.numel() != index.numel():
        small = torch.zeros(1, dtype=self.dtype, device=index.device)
        aten.put(small, index, small.new_zeros(source.shape, dtype=source.dtype))  # raises torch's error
    if not self.numel():
        return run_on_empty(aten.put.default, self, index, source, accumulate)
    positions = check_indices(index, self.numel(), 0, from_end=True).reshape(-1)
    return write_at_keys(self, positions, as_dense(source).reshape(-1), accumulate)


@implements(aten.diagonal_scatter)
def diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Copy the tensor, and write ``src`` to its diagonal, a view."""
    if not isinstance(self, SparseTensor):
        return run_densely(aten.diagonal_scatter.default, (self, src, offset, dim1, dim2), {})
    copy = torch.clone(self)
    diagonal = torch.diagonal(copy, offset, dim1, dim2)
    if tuple(diagonal.shape) != tuple(src.shape):
        raise ShapeError(f"the diagonal has shape {tuple(diagonal.shape)}, but src has {tuple(src.shape)}")
    diagonal.copy_(src)
    return copy
