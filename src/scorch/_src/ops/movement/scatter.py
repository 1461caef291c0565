"""Values written to places that an index names: in the place of others, added to them, or reduced with them.

Every function here ends in ``written``, which replaces or adds entries at keys and refuses keys outside of
the tensor. Where several values meet, the places that are named are gathered into a dense list, torch reduces
that list, and the list is written back as entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.grad_state import are_patterns_fixed
from scorch._src.ops.fallback import densely
from scorch._src.ops.movement.index import Points, check_long, check_places, of_nothing, plain_indices
from scorch._src.ops.movement.shape import shape_after
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.tensor.entries import Entries, Shape, entries_of, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, IndexRangeError, ShapeError

aten = torch.ops.aten
REDUCE = {"add": "sum", "multiply": "prod"}  # scatter's words for those of scatter_reduce


def written(self: SparseTensor, keys: torch.Tensor, values: torch.Tensor, adds: bool) -> SparseTensor:
    """``self`` with ``values`` at ``keys``, in their place or added; of several the last stays.

    Every function that writes to places ends here, so that none makes an entry outside of the tensor.
    """
    keys = check_places(keys, self.numel(), 0)
    entries = entries_of(self)
    values = values.to(entries.values.dtype)
    if adds:
        both = torch.cat([entries.keys, keys]), torch.cat([entries.values, values])
        return from_entries(Entries(*both, entries.shape), self.format, in_order=False)
    keys, order = torch.sort(keys, stable=True)
    is_last = torch.ones_like(keys, dtype=torch.bool)
    is_last[:-1] = keys[1:] != keys[:-1]
    keys, values = keys[is_last], values[order][is_last]
    kept = ~torch.isin(entries.keys, keys)
    both = torch.cat([entries.keys[kept], keys]), torch.cat([entries.values[kept], values])
    return from_entries(Entries(*both, entries.shape), self.format, in_order=False)


def source_at(src: Any, shape: Shape, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The values to write, one for each place, from a number or a tensor."""
    if not isinstance(src, torch.Tensor):
        return torch.full((math.prod(shape),), src, dtype=dtype, device=device)
    dense = src.to_dense() if isinstance(src, SparseTensor) else src
    if not dense.dim():
        return dense.reshape(1)
    return dense[tuple(slice(size) for size in shape)].reshape(-1)


def shell_of(tensor: Any) -> Any:
    """A tensor of the same shape and dtype without memory; a number as it is."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


@implements(aten.scatter.src, aten.scatter.value)
def scatter(self: SparseTensor, dim: int, index: torch.Tensor, src: Any) -> Any:
    return _scattered(self, dim, index, src, False)


@implements(aten.scatter_add)
def scatter_add(self: SparseTensor, dim: int, index: torch.Tensor, src: Any) -> Any:
    return _scattered(self, dim, index, src, True)


def _scattered(self: SparseTensor, dim: int, index: torch.Tensor, src: Any, adds: bool) -> Any:
    func = aten.scatter_add.default if adds else aten.scatter.value
    func = aten.scatter.src if isinstance(src, torch.Tensor) and not adds else func
    if not isinstance(self, SparseTensor):
        return func(self, dim, index, src.to_dense() if isinstance(src, SparseTensor) else src)
    if not self.numel():
        return of_nothing(func, self, dim, index, src)
    shape_after(func, self, dim, index.to("meta"), shell_of(src))
    if not index.numel():
        return torch.clone(self)
    keys = scattered_keys(self, dim, index)
    return written(self, keys, source_at(src, tuple(index.shape), self.dtype, index.device), adds)


def scattered_keys(self: SparseTensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """The place in ``self`` for each element of ``index``, which tells its coordinate in ``dim``."""
    dim %= self.dim()
    index = check_places(index if index.dim() else index.reshape(1), self.shape[dim], dim)
    grid = torch.meshgrid(*(torch.arange(size, device=index.device) for size in index.shape), indexing="ij")
    columns = [(index if d == dim else column).reshape(-1) for d, column in enumerate(grid)]
    return keys_of(columns, tuple(self.shape))


# slices and rows -------------------------------------------------------------------------------------


@implements(aten.select_scatter)
def select_scatter(self: torch.Tensor, src: torch.Tensor, dim: int, index: int) -> Any:
    if not isinstance(self, SparseTensor):
        return aten.select_scatter(self, src.to_dense(), dim, index)
    rank, size = self.dim(), _size_of(self, dim)
    if not -size <= index < size:
        raise IndexRangeError(f"index {index} is out of bounds for dimension {dim % rank} with size {size}")
    start = index % size
    _check_source(src, [extent for d, extent in enumerate(self.shape) if d != dim % rank], "the selection")
    return _replaced(self, torch.unsqueeze(src, dim % rank), dim % rank, range(start, start + 1))


@implements(aten.slice_scatter)
def slice_scatter(
    self: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    if not isinstance(self, SparseTensor):
        return aten.slice_scatter(self, src.to_dense(), dim, start, end, step)
    size = _size_of(self, dim)
    if step < 1:
        raise CallError(f"slice_scatter takes a step from 1, not {step}")
    dim %= self.dim()
    places = range(*slice(start, end, step).indices(size))
    _check_source(
        src, [len(places) if d == dim else extent for d, extent in enumerate(self.shape)], "the slice"
    )
    return _replaced(self, src, dim, places)


def _size_of(self: SparseTensor, dim: int) -> int:
    rank = self.dim()
    if not -rank <= dim < rank:
        raise IndexRangeError(f"dimension {dim} is not there: this tensor has {-rank} to {rank - 1}")
    return self.shape[dim]


def _check_source(src: torch.Tensor, shape: Sequence[int], what: str) -> None:
    if tuple(src.shape) != tuple(shape):
        raise CallError(f"{what} has shape {tuple(shape)}, but src has shape {tuple(src.shape)}")


def _replaced(self: SparseTensor, src: torch.Tensor, dim: int, places: range) -> SparseTensor:
    """``self`` with ``src`` at ``places`` of ``dim``; the cost follows the entries, not the places."""
    entries = entries_of(self)
    here = entries.coordinates[dim]
    step = places.step if len(places) > 1 else 1
    end = places.start + len(places) * step
    is_outside = (here < places.start) | (here >= end) | ((here - places.start) % step != 0)
    left = Entries(entries.keys[is_outside], entries.values[is_outside], entries.shape)
    columns, values = _entries_in(src)
    columns[dim] = columns[dim] * step + places.start
    return written(from_entries(left, self.format), keys_of(columns, entries.shape), values, adds=False)


def _entries_in(source: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The coordinates and values of the entries of a sparse tensor, or of what counts in a dense one."""
    if isinstance(source, SparseTensor):
        entries = entries_of(source)
        return entries.coordinates, entries.values
    is_taken = torch.ones_like(source) if are_patterns_fixed() else source  # zeros have gradients too
    where = torch.nonzero(is_taken, as_tuple=True)
    return list(where), source[where]


@implements(aten.index_add)
def index_add(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> Any:
    if not isinstance(self, SparseTensor):
        return torch.index_add(self, dim, index, source.to_dense(), alpha=alpha)
    if not self.numel():
        return of_nothing(aten.index_add.default, self, dim, index, source, alpha=alpha)
    shape_after(aten.index_add.default, self, dim, index.to("meta"), shell_of(source), alpha=alpha)
    slices_shape(self, dim, index, source)
    columns, values = moved_entries(self, dim, index, source)
    values = values * alpha if alpha != 1 else values
    return written(self, keys_of(columns, tuple(self.shape)), values, adds=True)


@implements(aten.index_copy)
def index_copy(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    if not isinstance(self, SparseTensor):
        return torch.index_copy(self, dim, index, source.to_dense())
    if not self.numel():
        return of_nothing(aten.index_copy.default, self, dim, index, source)
    shape_after(aten.index_copy.default, self, dim, index.to("meta"), shell_of(source))
    if not source.dim() and self.dim() == 1:
        source = source.reshape(1)  # a number is a slice of a list
    slices_shape(self, dim, index, source, kinds=(torch.int64,))
    columns, values = moved_entries(self, dim, index, source, only_last=True)
    cleared = index_fill(self, dim, index, 0)
    return written(cleared, keys_of(columns, tuple(self.shape)), values, adds=False)


def slices_shape(
    self: SparseTensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    kinds: Sequence[torch.dtype] = (torch.int64, torch.int32),
) -> tuple[int, ...]:
    """The shape that slices of ``self`` at the places ``index`` of ``dim`` have together, as ``source`` must.

    The places are a list of one of the dtypes ``kinds``.
    """
    if index.dim() > 1:
        raise IndexRangeError(f"places are a list, not a tensor of shape {tuple(index.shape)}")
    if index.dtype not in kinds:
        raise CallError(f"places are {index.dtype}, not {' or '.join(map(str, kinds))}")
    if source.dtype != self.dtype:
        raise CallError(f"the source is {source.dtype}, but the tensor is {self.dtype}; convert one of them")
    shape = [index.numel() if d == dim % self.dim() else size for d, size in enumerate(self.shape)]
    _check_source(source, shape, "what the places name")
    return tuple(shape)


def moved_entries(
    self: SparseTensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    only_last: bool = False,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The entries of ``source`` at the places along ``dim`` that ``index`` names.

    With ``only_last``, of slices of the source that go to one place the last alone.
    """
    dim %= self.dim()
    index = check_places(index.reshape(-1), self.shape[dim], dim).to(torch.int64)
    columns, values = _entries_in(source)
    if only_last and index.numel():
        _, which = torch.unique(index, return_inverse=True)
        last = torch.zeros_like(index).scatter_reduce_(
            0, which, torch.arange(index.numel(), device=index.device), "amax"
        )
        kept = last[which[columns[dim]]] == columns[dim]
        columns, values = [column[kept] for column in columns], values[kept]
    columns[dim] = index[columns[dim]]
    return columns, values


@implements(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self: SparseTensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    size = _size_of(self, dim)
    if not self.numel():
        is_number = not isinstance(value, torch.Tensor)
        func = aten.index_fill.int_Scalar if is_number else aten.index_fill.int_Tensor
        return of_nothing(func, self, dim, index, value)
    check_long("index_fill", index)
    if index.dim() > 1:
        raise CallError(f"index_fill takes a list of places, not a tensor of shape {tuple(index.shape)}")
    dim %= self.dim()
    shape = tuple(self.shape)
    number = value.item() if isinstance(value, torch.Tensor) else value
    entries = entries_of(self)
    chosen = torch.unique(check_places(index.reshape(-1), size, dim, from_end=True))
    kept = ~torch.isin(entries.coordinates[dim], chosen)
    left = Entries(entries.keys[kept], entries.values[kept], shape)
    cleared = from_entries(left, self.format)
    if number == 0 and not (isinstance(value, torch.Tensor) and are_patterns_fixed()):
        return cleared
    sizes = [
        chosen if d == dim else torch.arange(extent, device=chosen.device) for d, extent in enumerate(shape)
    ]
    grid = torch.meshgrid(*sizes, indexing="ij")
    keys = keys_of([column.reshape(-1) for column in grid], shape)
    return written(
        cleared, keys, torch.full(keys.shape, number, dtype=self.dtype, device=keys.device), adds=False
    )


@implements(aten.index_put)
def index_put(
    self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> Any:
    dense = values.to_dense() if isinstance(values, SparseTensor) else values
    if not isinstance(self, SparseTensor):
        return aten.index_put(self, plain_indices(self, indices), dense, accumulate)
    if values.dtype != self.dtype:
        raise CallError(f"values are {values.dtype}, but the tensor is {self.dtype}; convert one of them")
    wanted = plain_indices(self, indices)
    if not self.numel():
        return of_nothing(aten.index_put.default, self, wanted, dense, accumulate)
    asked = Points(self, wanted)
    grid = coordinates_of(torch.arange(math.prod(asked.result), device=self.storage.device), asked.result)
    first, last = len(asked.before), len(asked.before) + len(asked.shape)
    inside = keys_of(grid[first:last], asked.shape).expand(math.prod(asked.result))
    columns = dict(zip((*asked.before, *asked.after), (*grid[:first], *grid[last:]), strict=True))
    picked = coordinates_of(asked.keys, asked.sizes)
    columns |= {dim: crd[inside] for dim, crd in zip(asked.dims, picked, strict=True)}
    shape = tuple(self.shape)
    keys = keys_of([columns[dim] for dim in range(len(shape))], shape)
    return written(self, keys, dense.expand(asked.result).reshape(-1), accumulate)


# reduced -------------------------------------------------------------------------------------------


@implements(aten.scatter_reduce.two)
def scatter_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    args = (self, dim, index, src, reduce)
    if not isinstance(self, SparseTensor) or isinstance(index, SparseTensor) or not self.dim():
        return densely(aten.scatter_reduce.two, args, {"include_self": include_self})
    if not self.numel():
        return of_nothing(aten.scatter_reduce.two, self, *args[1:], include_self=include_self)
    shape_after(
        aten.scatter_reduce.two, self, dim, index.to("meta"), shell_of(src), reduce, include_self=include_self
    )
    if not index.numel():
        return torch.clone(self)
    values = source_at(src, tuple(index.shape), self.dtype, index.device)
    return _reduced(self, scattered_keys(self, dim, index), values, reduce, include_self)


@implements(aten.scatter.reduce)
def scatter_with(self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, *, reduce: str) -> Any:
    if reduce not in REDUCE or not isinstance(self, SparseTensor):
        return densely(aten.scatter.reduce, (self, dim, index, src), {"reduce": reduce})
    return scatter_reduce(self, dim, index, src, REDUCE[reduce])


@implements(aten.scatter.value_reduce)
def scatter_number(self: SparseTensor, dim: int, index: torch.Tensor, value: Any, *, reduce: str) -> Any:
    if reduce not in REDUCE:
        return densely(aten.scatter.value_reduce, (self, dim, index, value), {"reduce": reduce})
    size = self.storage.values.element_size() * index.numel()
    check_budget(size, f"scatter of a number to {index.numel()} places", "use fewer places")
    src = torch.full(tuple(index.shape), value, dtype=self.dtype, device=index.device)
    return scatter_reduce(self, dim, index, src, REDUCE[reduce])


@implements(aten.index_reduce)
def index_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    args = (self, dim, index, source, reduce)
    if not isinstance(self, SparseTensor) or isinstance(index, SparseTensor) or not self.numel():
        return densely(aten.index_reduce.default, args, {"include_self": include_self})
    shell = shell_of(source)
    shape_after(
        aten.index_reduce.default, self, dim, index.to("meta"), shell, reduce, include_self=include_self
    )
    shape = slices_shape(self, dim, index, source)
    if not index.numel():
        return torch.clone(self)
    along = [1] * self.dim()
    along[dim] = -1
    places = index.reshape(along).expand(shape)
    return scatter_reduce(self, dim, places, source, reduce, include_self=include_self)


@implements(aten.put)
def put(self: torch.Tensor, index: torch.Tensor, source: Any, accumulate: bool = False) -> Any:
    if not isinstance(self, SparseTensor) or isinstance(index, SparseTensor) or not self.dim():
        return densely(aten.put.default, (self, index, source, accumulate), {})
    check_long("put", index)
    if source.dtype != self.dtype or source.numel() != index.numel():
        aten.put(
            torch.zeros(1, dtype=self.dtype, device=index.device),
            index,
            torch.zeros(source.shape, dtype=source.dtype, device=index.device),
        )
    if not self.numel():
        return of_nothing(aten.put.default, self, index, source, accumulate)
    places = check_places(index, self.numel(), 0, from_end=True).reshape(-1)
    values = source.to_dense() if isinstance(source, SparseTensor) else source
    return written(self, places, values.reshape(-1), accumulate)


@implements(aten.diagonal_scatter)
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


def _reduced(
    self: SparseTensor, keys: torch.Tensor, values: torch.Tensor, reduce: str, include_self: bool
) -> SparseTensor:
    places, which = torch.unique(keys, return_inverse=True)
    before = entries_of(self).at(places)
    after = torch.scatter_reduce(before, 0, which, values, reduce, include_self=include_self)
    return written(self, places, after, adds=False)
