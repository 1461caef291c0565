"""Indexing: entries are found by their keys, and tensors are put together from entries.

Reading ``S[rows, columns]`` joins the entries with the places asked for by their coordinates in the indexed
dimensions. Every place that a user names is checked by ``check_places``; ``scatter`` writes to places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.ops.fallback import densely, stored
from scorch._src.ops.movement.shape import made, made_at, shape_after
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.storage.slices import outer_dim, rows_of
from scorch._src.tensor.broadcast import expanded
from scorch._src.tensor.entries import Entries, Shape, entries_of, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, IndexRangeError

aten = torch.ops.aten


def join(stored: torch.Tensor, asked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of equal numbers: for each its place in ``stored`` and in ``asked``."""
    ordered, order = torch.sort(asked, stable=True)
    first = torch.searchsorted(ordered, stored)
    count = torch.searchsorted(ordered, stored, right=True) - first
    left = torch.repeat_interleave(torch.arange(stored.numel(), device=stored.device), count)
    begin = torch.repeat_interleave(torch.cumsum(count, 0) - count, count)
    right = first[left] + torch.arange(left.numel(), device=left.device) - begin
    return left, order[right]


# reading ---------------------------------------------------------------------------------------------


@implements(aten.index_select)
def index_select(self: SparseTensor, dim: int, index: torch.Tensor) -> Any:
    if index.dtype not in (torch.int32, torch.int64):
        raise CallError(f"index_select takes places of int32 or int64, not of {index.dtype}")
    if index.dim() > 1:
        raise IndexRangeError(
            f"index_select takes a list of places, not a tensor of {index.dim()} dimensions"
        )
    shape = shape_after(aten.index_select.default, self, dim, index.to("meta"))
    if not self.numel():
        return of_nothing(aten.index_select.default, self, dim, index)
    dim %= self.dim()
    index = check_places(index, self.shape[dim], dim)
    if (rows := _rows(self, dim, index)) is not None:
        return rows
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


def check_places(index: torch.Tensor, size: int, dim: int, from_end: bool = False) -> torch.Tensor:
    """``index``, of which every place must be in a dimension ``dim`` of ``size``.

    With ``from_end`` negative places count from the end, as where users write brackets; the result counts
    from the beginning. Whatever makes entries at places that users name asks this first.
    """
    if not index.numel():
        return index
    least, most = (int(value) for value in torch.aminmax(index))
    first = -size if from_end else 0
    if most >= size or least < first:
        worst = most if most >= size else least
        allowed = f"places go from {first} to {size - 1}" if size else "it has no places"
        raise IndexRangeError(
            f"index {worst} is out of bounds for dimension {dim} with size {size}: {allowed}"
        )
    return index % size if least < 0 else index


def check_long(name: str, index: torch.Tensor) -> None:
    if index.dtype != torch.int64:
        raise CallError(f"{name} takes places of int64, not of {index.dtype}")


def of_nothing(func: Any, self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """``func`` of a tensor without elements, of which torch needs no memory and accepts the oddest places."""
    return stored(densely(func, (self, *args), kwargs), self)


@implements(aten.index.Tensor)
def index(self: SparseTensor, indices: Sequence[torch.Tensor | None]) -> Any:
    """``self[...]`` with tensors: places in some dimensions, broadcast together."""
    wanted = plain_indices(self, indices)
    if not isinstance(self, SparseTensor):
        return aten.index.Tensor(self, wanted)
    if not self.numel():
        return of_nothing(aten.index.Tensor, self, wanted)
    places = [dim for dim, value in enumerate(wanted) if value is not None]
    tensors = [value for value in wanted if value is not None]
    if len(tensors) == 1 and tensors[0].dim() == 1:
        (dim,) = places
        if (rows := _rows(self, dim, tensors[0])) is not None:
            return rows
        return index_select(self, dim, check_places(tensors[0], self.shape[dim], dim, from_end=True))
    asked = Points(self, wanted)
    entries = entries_of(self)
    crd = entries.coordinates
    left, right = join(keys_of([crd[dim] for dim in asked.dims], asked.sizes), asked.keys)
    columns = [crd[d][left] for d in asked.before] + coordinates_of(right, asked.shape)
    columns += [crd[d][left] for d in asked.after]
    result = asked.result
    if not result:
        return entries.values[left].sum(dtype=entries.values.dtype)
    return made_at(self, columns, entries.values[left], result, False)


class Points:
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
        counted = [
            check_places(point, whole[dim], dim, from_end=True)
            for point, dim in zip(points, self.dims, strict=True)
        ]
        self.keys = keys_of([point.reshape(-1) for point in counted], self.sizes)
        rest = [dim for dim in range(len(whole)) if dim not in self.dims]
        is_together = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        self.before = [dim for dim in rest if dim < self.dims[0]] if is_together else []
        self.after = [dim for dim in rest if dim not in self.before]
        self.result = (*(whole[d] for d in self.before), *self.shape, *(whole[d] for d in self.after))


def plain_indices(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
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


@implements(aten.gather)
def gather(self: SparseTensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    shape = shape_after(aten.gather.default, self, dim, index.to("meta"))
    if len(shape) != self.dim() or not self.numel():
        return of_nothing(aten.gather.default, self, dim, index)
    dim %= self.dim()
    check_places(index, self.shape[dim], dim)
    grid = torch.meshgrid(*(torch.arange(size, device=index.device) for size in shape), indexing="ij")
    columns = [index if d == dim else column for d, column in enumerate(grid)]
    return _looked_up(self, keys_of(columns, tuple(self.shape)), shape)


@implements(aten.take)
def take(self: SparseTensor, index: torch.Tensor) -> Any:
    check_long("take", index)
    if not self.numel():
        return of_nothing(aten.take.default, self, index)
    places = check_places(index, self.numel(), 0, from_end=True)
    return _looked_up(self, places, tuple(index.shape))


@implements(aten.masked_select)
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


@implements(aten.nonzero)
def nonzero(self: SparseTensor) -> torch.Tensor:
    entries = entries_of(self)
    keys = entries.keys[entries.values != 0]
    return torch.stack(coordinates_of(keys, entries.shape), 1)


@implements(aten.embedding)
def embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rows of ``weight``."""
    if weight.dim() != 2:
        raise CallError(f"embedding takes rows of a matrix, but weight has shape {tuple(weight.shape)}")
    places = indices.to_dense() if isinstance(indices, SparseTensor) else indices
    rows = torch.index_select(weight, 0, places.reshape(-1))
    return rows.reshape(*places.shape, *weight.shape[1:])
