"""Indexing: entries are found by their keys, and tensors are put together from entries.

Reading ``S[rows, columns]`` joins the entries with the places asked for by their coordinates in the indexed
dimensions; writing replaces or adds entries at keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from scorch.errors import CallError, IndexRangeError
from scorch.ops.generic import densely
from scorch.ops.shape import made, made_at, shape_after
from scorch.tensor.broadcast import expanded
from scorch.tensor.dispatch import implements_operator
from scorch.tensor.entries import (
    Entries,
    Shape,
    coordinates_of,
    entries_of,
    format_for,
    from_entries,
    keys_of,
)
from scorch.tensor.parts import outer_dim, rows_of
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.tracking import are_patterns_fixed

aten = torch.ops.aten


def join(stored: torch.Tensor, asked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of equal numbers: for each its place in ``stored`` and in ``asked``."""
    ordered, order = torch.sort(asked, stable=True)
    first = torch.searchsorted(ordered, stored)
    count = torch.searchsorted(ordered, stored, right=True) - first
    left = torch.repeat_interleave(torch.arange(stored.numel()), count)
    begin = torch.repeat_interleave(torch.cumsum(count, 0) - count, count)
    right = first[left] + torch.arange(left.numel()) - begin
    return left, order[right]


# reading ---------------------------------------------------------------------------------------------


@implements_operator(aten.index_select)
def index_select(self: SparseTensor, dim: int, index: torch.Tensor) -> Any:
    if index.dtype not in (torch.int32, torch.int64):
        raise CallError(f"index_select takes places of int32 or int64, not of {index.dtype}")
    if index.dim() > 1:
        raise IndexRangeError(
            f"index_select takes a list of places, not a tensor of {index.dim()} dimensions"
        )
    shape = shape_after(aten.index_select.default, self, dim, index.to("meta"))
    dim %= max(self.dim(), 1)
    if (rows := _rows(self, dim, index)) is not None:
        return rows
    index = _checked(index, self.shape[dim], dim)
    entries = entries_of(self)
    crd = entries.coordinates
    left, right = join(crd[dim], index.reshape(-1).to(torch.int64))
    columns = [right if d == dim else c[left] for d, c in enumerate(crd)]
    return made_at(self, columns, entries.values[left], shape, False)


def _rows(self: SparseTensor, dim: int, index: torch.Tensor) -> SparseTensor | None:
    """Rows copied as they lie; None if they do not lie so, or one of them is not there."""
    if dim != outer_dim(self.format) or index.dtype not in (torch.int64, torch.int32):
        return None
    found = rows_of(self.storage, index)
    return None if found is None else SparseTensor(found)


def _checked(index: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """``index`` counted from the beginning."""
    if not index.numel():
        return index
    least, most = (int(value) for value in torch.aminmax(index))
    if most >= size or least < -size:
        worst = most if most >= size else least
        raise IndexRangeError(f"index {worst} is out of bounds for dimension {dim} with size {size}")
    return index % size if least < 0 else index


@implements_operator(aten.index.Tensor)
def index(self: SparseTensor, indices: Sequence[torch.Tensor | None]) -> Any:
    """``self[...]`` with tensors: places in some dimensions, broadcast together."""
    wanted = _plain_indices(self, indices)
    if not isinstance(self, SparseTensor):
        return aten.index.Tensor(self, wanted)
    places = [dim for dim, value in enumerate(wanted) if value is not None]
    tensors = [value for value in wanted if value is not None]
    if len(tensors) == 1 and tensors[0].dim() == 1:
        (dim,) = places
        if (rows := _rows(self, dim, tensors[0])) is not None:
            return rows
        return index_select(self, dim, _checked(tensors[0], self.shape[dim], dim))
    asked = _Points(self, wanted)
    entries = entries_of(self)
    crd = entries.coordinates
    left, right = join(keys_of([crd[dim] for dim in asked.dims], asked.sizes), asked.keys)
    columns = [crd[d][left] for d in asked.before] + coordinates_of(right, asked.shape)
    columns += [crd[d][left] for d in asked.after]
    result = asked.result
    if not result:
        return entries.values[left].sum(dtype=entries.values.dtype)
    return made_at(self, columns, entries.values[left], result, False)


class _Points:
    """The places that index tensors name together, in ``dims``, of which the tensor has ``sizes``.

    ``keys`` numbers them within ``sizes``. The ``result`` has the dimensions ``before``, those of the points
    (``shape``) and those ``after``; points that are not together come first, as in torch.
    """

    def __init__(self, tensor: SparseTensor, indices: Sequence[torch.Tensor | None]) -> None:
        whole = tuple(tensor.shape)
        self.dims = [dim for dim, value in enumerate(indices) if value is not None]
        self.sizes = tuple(whole[dim] for dim in self.dims)
        given = [value for value in indices if value is not None]
        try:
            points = torch.broadcast_tensors(*given)
        except RuntimeError:
            shapes = ", ".join(str(tuple(value.shape)) for value in given)
            raise IndexRangeError(f"indices of shapes {shapes} do not fit together") from None
        self.shape = tuple(points[0].shape)
        counted = [_checked(p, whole[dim], dim) for p, dim in zip(points, self.dims, strict=True)]
        self.keys = keys_of([point.reshape(-1) for point in counted], self.sizes)
        rest = [dim for dim in range(len(whole)) if dim not in self.dims]
        is_together = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        self.before = [dim for dim in rest if dim < self.dims[0]] if is_together else []
        self.after = [dim for dim in rest if dim not in self.before]
        self.result = (*(whole[d] for d in self.before), *self.shape, *(whole[d] for d in self.after))


def _plain_indices(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Masks as the coordinates where they hold, and None for dimensions left alone."""
    found: list[torch.Tensor | None] = []
    for value in indices:
        if value is None:
            found.append(None)
        elif value.dtype in (torch.bool, torch.uint8):
            size = tuple(self.shape[len(found) : len(found) + value.dim()])
            if tuple(value.shape) != size:
                raise IndexRangeError(
                    f"a mask of shape {tuple(value.shape)} does not fit dimensions of {size}"
                )
            found += list(torch.nonzero(value).unbind(1))  # of a sparse mask, by its entries
        elif value.dtype not in (torch.int32, torch.int64):
            raise IndexRangeError(f"indices are int64, int32, uint8 or bool, not {value.dtype}")
        else:
            found.append(value.to_dense() if isinstance(value, SparseTensor) else value)
    return found + [None] * (self.dim() - len(found))


def _looked_up(self: SparseTensor, keys: torch.Tensor, shape: Shape) -> Any:
    """The values at ``keys`` as a tensor of ``shape``, of which only those stored are kept."""
    values, stored = entries_of(self).find(keys.reshape(-1))
    kept = torch.nonzero(stored, as_tuple=True)[0]
    if not shape:
        return values.reshape(())
    return from_entries(Entries(kept, values[kept], shape), format_for(self, shape))


@implements_operator(aten.gather)
def gather(self: SparseTensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    shape = shape_after(aten.gather.default, self, dim, index.to("meta"))
    if len(shape) != self.dim():
        return densely(aten.gather.default, (self, dim, index), {})
    dim %= max(self.dim(), 1)
    _checked(index, self.shape[dim], dim)
    grid = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
    columns = [index if d == dim else column for d, column in enumerate(grid)]
    return _looked_up(self, keys_of(columns, tuple(self.shape)), shape)


@implements_operator(aten.take)
def take(self: SparseTensor, index: torch.Tensor) -> Any:
    _checked(index, self.numel(), 0)
    return _looked_up(self, index % max(self.numel(), 1), tuple(index.shape))


@implements_operator(aten.masked_select)
def masked_select(self: torch.Tensor, mask: torch.Tensor) -> Any:
    if not isinstance(self, SparseTensor):
        return torch.masked_select(self, mask.to_dense())
    if mask.dtype != torch.bool:
        raise CallError(f"masked_select takes a mask of bools, not of {mask.dtype}")
    shape = tuple(torch.broadcast_shapes(self.shape, mask.shape))
    if not self.dim():
        return torch.masked_select(self.to_dense(), mask)
    keys = torch.nonzero(mask.expand(shape).reshape(-1)).reshape(-1)  # of a sparse mask, by its entries
    wide = expanded(entries_of(self), shape)
    return _looked_up(made(self, wide.keys, wide.values, shape, True), keys, (keys.numel(),))


@implements_operator(aten.nonzero)
def nonzero(self: SparseTensor) -> torch.Tensor:
    entries = entries_of(self)
    keys = entries.keys[entries.values != 0]
    return torch.stack(coordinates_of(keys, entries.shape), 1)


@implements_operator(aten.embedding)
def embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rows of ``weight``."""
    places = indices.to_dense() if isinstance(indices, SparseTensor) else indices
    rows = torch.index_select(weight, 0, places.reshape(-1))
    return rows.reshape(*places.shape, *weight.shape[1:])


# writing ---------------------------------------------------------------------------------------------


def written(self: SparseTensor, keys: torch.Tensor, values: torch.Tensor, adds: bool) -> SparseTensor:
    """``self`` with ``values`` at ``keys``, in their place or added; of several the last stays."""
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


def _source_at(src: Any, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """The values to write, one for each place, from a number or a tensor."""
    if not isinstance(src, torch.Tensor):
        return torch.full((math.prod(shape),), src, dtype=dtype)
    dense = src.to_dense() if isinstance(src, SparseTensor) else src
    return dense[tuple(slice(size) for size in shape)].reshape(-1)


@implements_operator(aten.scatter.src, aten.scatter.value)
def scatter(self: SparseTensor, dim: int, index: torch.Tensor, src: Any) -> Any:
    return _scattered(self, dim, index, src, False)


@implements_operator(aten.select_scatter)
def select_scatter(self: torch.Tensor, src: torch.Tensor, dim: int, index: int) -> Any:
    place = torch.tensor([index % self.shape[dim]])
    return torch.index_copy(self, dim, place, torch.unsqueeze(src, dim))


@implements_operator(aten.slice_scatter)
def slice_scatter(
    self: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    places = torch.arange(*slice(start, end, step).indices(self.shape[dim]))
    return torch.index_copy(self, dim, places, src)


@implements_operator(aten.scatter_add)
def scatter_add(self: SparseTensor, dim: int, index: torch.Tensor, src: Any) -> Any:
    return _scattered(self, dim, index, src, True)


def _scattered(self: SparseTensor, dim: int, index: torch.Tensor, src: Any, adds: bool) -> Any:
    if not isinstance(self, SparseTensor):
        func = torch.scatter_add if adds else torch.scatter
        return func(self, dim, index, src.to_dense() if isinstance(src, SparseTensor) else src)
    shell = (
        torch.empty(tuple(src.shape), dtype=src.dtype, device="meta")
        if isinstance(src, torch.Tensor)
        else src
    )
    func = aten.scatter_add.default if adds else aten.scatter.value
    func = aten.scatter.src if isinstance(src, torch.Tensor) and not adds else func
    shape_after(func, self, dim, index.to("meta"), shell)
    dim %= max(self.dim(), 1)
    _checked(index, self.shape[dim], dim)
    shape = tuple(index.shape)
    grid = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
    columns = [(index if d == dim else column).reshape(-1) for d, column in enumerate(grid)]
    return written(self, keys_of(columns, tuple(self.shape)), _source_at(src, shape, self.dtype), adds)


@implements_operator(aten.index_add)
def index_add(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> Any:
    if not isinstance(self, SparseTensor):
        return torch.index_add(self, dim, index, source.to_dense(), alpha=alpha)
    return written(self, *_moved(self, dim, index, source, alpha), adds=True)


@implements_operator(aten.index_copy)
def index_copy(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    if not isinstance(self, SparseTensor):
        return torch.index_copy(self, dim, index, source.to_dense())
    cleared = index_fill(self, dim, index, 0)
    return written(cleared, *_moved(self, dim, index, source, 1), adds=False)


def _moved(
    self: SparseTensor, dim: int, index: torch.Tensor, source: torch.Tensor, alpha: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The entries of ``source`` at the places along ``dim`` that ``index`` names."""
    dim %= max(self.dim(), 1)
    _checked(index, self.shape[dim], dim)
    if isinstance(source, SparseTensor):
        entries = entries_of(source)
        crd, values = entries.coordinates, entries.values
    else:
        is_taken = torch.ones_like(source) if are_patterns_fixed() else source  # zeros have gradients too
        where = torch.nonzero(is_taken, as_tuple=True)
        crd, values = list(where), source[where]
    columns = [index.reshape(-1)[c] if d == dim else c for d, c in enumerate(crd)]
    return keys_of(columns, tuple(self.shape)), values * alpha if alpha != 1 else values


@implements_operator(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self: SparseTensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    dim %= max(self.dim(), 1)
    shape = tuple(self.shape)
    _checked(index, shape[dim], dim)
    number = value.item() if isinstance(value, torch.Tensor) else value
    entries = entries_of(self)
    chosen = torch.unique(index.reshape(-1) % max(shape[dim], 1))
    kept = ~torch.isin(entries.coordinates[dim], chosen)
    left = Entries(entries.keys[kept], entries.values[kept], shape)
    cleared = from_entries(left, self.format)
    if number == 0 and not (isinstance(value, torch.Tensor) and are_patterns_fixed()):
        return cleared
    sizes = [chosen if d == dim else torch.arange(size) for d, size in enumerate(shape)]
    grid = torch.meshgrid(*sizes, indexing="ij")
    keys = keys_of([column.reshape(-1) for column in grid], shape)
    return written(cleared, keys, torch.full(keys.shape, number, dtype=self.dtype), adds=False)


@implements_operator(aten.index_put)
def index_put(
    self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> Any:
    dense = values.to_dense() if isinstance(values, SparseTensor) else values
    if not isinstance(self, SparseTensor):
        return aten.index_put(self, _plain_indices(self, indices), dense, accumulate)
    wanted = _plain_indices(self, indices)
    asked = _Points(self, wanted)
    grid = coordinates_of(torch.arange(math.prod(asked.result)), asked.result)
    first, last = len(asked.before), len(asked.before) + len(asked.shape)
    inside = keys_of(grid[first:last], asked.shape).expand(math.prod(asked.result))
    columns = dict(zip((*asked.before, *asked.after), (*grid[:first], *grid[last:]), strict=True))
    picked = coordinates_of(asked.keys, asked.sizes)
    columns |= {dim: crd[inside] for dim, crd in zip(asked.dims, picked, strict=True)}
    shape = tuple(self.shape)
    keys = keys_of([columns[dim] for dim in range(len(shape))], shape)
    return written(self, keys, dense.expand(asked.result).reshape(-1), accumulate)
