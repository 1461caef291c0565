"""Indexing: entries are found by their keys, and tensors are built from entries.

Reading ``S[rows, columns]`` joins the entries with the indexed positions by their coordinates in the indexed
dimensions. Every index of a user is checked by ``check_indices``; ``scatter`` writes to positions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.devices import HOST
from scorch._src.formats import as_format
from scorch._src.ops.fallback import as_dense, run_densely, run_torch, store_like
from scorch._src.ops.movement.infer_shape import infer_shape
from scorch._src.ops.movement.shape import build_from_coordinates, build_from_keys
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.storage.slices import outer_dim, select_rows
from scorch._src.tensor.broadcast import broadcast_shape, expanded
from scorch._src.tensor.entries import Entries, Shape, entries_of, format_for, from_entries, stored_as
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, IndexRangeError

aten = torch.ops.aten
MAX_TABLE = 4  # elements for each number that is looked up, up to which a table costs less than a search
MIN_TRANSPOSED = 1 << 13  # entries of a matrix, to select what lies across what it stores
_COMPRESSED = tuple(as_format(name, 2) for name in ("csr", "csc"))
Indices = Sequence[torch.Tensor | None]  # for each dimension; None for those left alone


def join(stored: torch.Tensor, requested: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find all pairs of equal numbers below ``size``: the position in ``stored`` and ``requested``."""
    ordered, order = torch.sort(requested, stable=True)
    if size <= MAX_TABLE * (stored.numel() + requested.numel()):
        counts = torch.bincount(requested, minlength=size)
        first, count = (counts.cumsum(0) - counts)[stored], counts[stored]
    else:
        first = torch.searchsorted(ordered, stored)
        count = torch.searchsorted(ordered, stored, right=True) - first
    stored_numbers = torch.repeat_interleave(torch.arange(stored.numel(), device=stored.device), count)
    begin = (torch.cumsum(count, 0) - count)[stored_numbers]
    inside = torch.arange(stored_numbers.numel(), device=stored.device) - begin
    return stored_numbers, order[first[stored_numbers] + inside]


@implements(aten.index_select)
def index_select(self: SparseTensor, dim: int, index: torch.Tensor) -> Any:
    if index.dtype not in (torch.int32, torch.int64):
        raise CallError(f"index_select expected an int32 or int64 index, but got {index.dtype}")
    if index.dim() > 1:
        raise IndexRangeError(f"index_select expected a 1-D index, but got a {index.dim()}-D tensor")
    shape = infer_shape(aten.index_select.default, self, dim, index)
    if not self.numel():
        return run_on_empty(aten.index_select.default, self, dim, index)
    dim %= self.dim()
    if (rows := _select_rows(self, dim, index.reshape(-1), from_end=False)) is not None:
        return rows
    index = check_indices(index, self.shape[dim], dim)
    if (across := _select_across(self, dim, index.reshape(-1))) is not None:
        return across
    entries = entries_of(self)
    crd = entries.coordinates
    stored_numbers, requested_numbers = join(crd[dim], index.reshape(-1).to(torch.int64), self.shape[dim])
    columns = [requested_numbers if d == dim else c[stored_numbers] for d, c in enumerate(crd)]
    return build_from_coordinates(self, columns, entries.values[stored_numbers], shape, False)


def _select_rows(
    self: SparseTensor, dim: int, index: torch.Tensor, from_end: bool = True
) -> SparseTensor | None:
    """Copy whole rows; None if they are not contiguous, or one of them does not exist."""
    if dim != outer_dim(self.format) or index.dtype not in (torch.int64, torch.int32):
        return None
    rows = select_rows(self.storage, index, from_end)
    return None if rows is None else SparseTensor(rows)


def _select_across(self: SparseTensor, dim: int, index: torch.Tensor) -> SparseTensor | None:
    """Copy whole columns of a matrix of compressed rows, or rows of one of columns, by transposing it twice.

    What that costs grows with the entries and the size of the dimension, whatever ``index`` is; None where it
    is much, or little enough that it does not matter.
    """
    form, entries = self.format, self.storage.pattern.size
    if form not in _COMPRESSED or not entries >= MIN_TRANSPOSED or self.shape[dim] > entries:
        return None
    other = stored_as(self.storage, _COMPRESSED[1 - _COMPRESSED.index(form)])
    rows = select_rows(other, index, from_end=False)
    return None if rows is None else SparseTensor(stored_as(rows, form))


def _rows_at(self: SparseTensor, index: torch.Tensor | None) -> SparseTensor | None:
    """Copy whole rows, the usual case; None where it is another."""
    is_plain = type(index) is torch.Tensor and index.dim() == 1 and index.device == self.storage.device
    if not is_plain or not all(self.storage.pattern.shape):
        return None
    assert index is not None
    return _select_rows(self, 0, index)


def check_indices(index: torch.Tensor, size: int, dim: int, from_end: bool = False) -> torch.Tensor:
    """Check that every index is within a dimension ``dim`` of ``size``, and return them.

    With ``from_end`` negative indices count from the end, as where users write brackets; the result counts
    from the beginning. Whatever writes entries at indices of a user must call this first.
    """
    if not index.numel():
        return index
    smallest, largest = (int(value) for value in torch.aminmax(index))
    first_allowed = -size if from_end else 0
    if largest >= size or smallest < first_allowed:
        offending = largest if largest >= size else smallest
        allowed = f"expected an index from {first_allowed} to {size - 1}" if size else "it has no places"
        raise IndexRangeError(
            f"index {offending} is out of bounds for dimension {dim} with size {size}: {allowed}"
        )
    return index % size if smallest < 0 else index


def check_int64(name: str, index: torch.Tensor) -> None:
    if index.dtype != torch.int64:
        raise CallError(f"{name} expected an int64 index, but got {index.dtype}")


def run_on_empty(func: Any, self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """Run ``func`` of a tensor without elements, for which torch needs no memory and accepts any index."""
    return store_like(run_densely(func, (self, *args), kwargs), self)


@implements(aten.index.Tensor)
def index(self: SparseTensor, indices: Indices) -> Any:
    """Compute ``self[...]`` with tensors: indices in some dimensions, broadcast together."""
    if isinstance(self, SparseTensor) and len(indices) == 1:
        selected = _rows_at(self, indices[0])
        if selected is not None:
            return selected
    normalized = normalize_indices(self, indices)
    if not isinstance(self, SparseTensor):
        return aten.index.Tensor(self, normalized)
    if not self.numel():
        return run_on_empty(aten.index.Tensor, self, normalized)
    indexed_dims = [(dim, value) for dim, value in enumerate(normalized) if value is not None]
    if len(indexed_dims) == 1 and indexed_dims[0][1].dim() == 1:
        ((dim, rows),) = indexed_dims
        selected = _select_rows(self, dim, rows)
        if selected is not None:
            return selected
        return index_select(self, dim, check_indices(rows, self.shape[dim], dim, from_end=True))
    indexed = IndexedPositions(self, normalized)
    entries = entries_of(self)
    crd = entries.coordinates
    keys = keys_of([crd[dim] for dim in indexed.dims], indexed.sizes)
    stored_numbers, requested_numbers = join(keys, indexed.keys, math.prod(indexed.sizes))
    values = entries.values[stored_numbers]
    if not indexed.result:
        return values.sum(dtype=values.dtype)
    before, after = ([crd[d][stored_numbers] for d in dims] for dims in (indexed.before, indexed.after))
    columns = [*before, *coordinates_of(requested_numbers, indexed.shape), *after]
    return build_from_coordinates(self, columns, values, indexed.result, False)


class IndexedPositions:
    """The positions that index tensors name together, in ``dims``, of which the tensor has ``sizes``.

    ``keys`` numbers them within ``sizes``. The ``result`` has the dimensions ``before``, those of the indices
    (``shape``) and those ``after``; indexed dimensions that are not adjacent come first, as in torch.
    """

    def __init__(self, tensor: SparseTensor, indices: Indices) -> None:
        full_shape = tuple(tensor.shape)
        self.dims = [dim for dim, value in enumerate(indices) if value is not None]
        self.sizes = tuple(full_shape[dim] for dim in self.dims)
        tensors = [value for value in indices if value is not None]
        try:
            broadcast = torch.broadcast_tensors(*tensors)
        except RuntimeError:
            shapes = ", ".join(str(tuple(value.shape)) for value in tensors)
            raise IndexRangeError(f"indices of shapes {shapes} cannot be broadcast together") from None
        self.shape = tuple(broadcast[0].shape)
        checked = [
            check_indices(index, full_shape[dim], dim, from_end=True).reshape(-1)
            for index, dim in zip(broadcast, self.dims, strict=True)
        ]
        self.keys = keys_of(checked, self.sizes)
        rest = [dim for dim in range(len(full_shape)) if dim not in self.dims]
        is_adjacent = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        self.before = [dim for dim in rest if dim < self.dims[0]] if is_adjacent else []
        self.after = [dim for dim in rest if dim not in self.before]
        before, after = ([full_shape[dim] for dim in dims] for dims in (self.before, self.after))
        self.result = (*before, *self.shape, *after)


def normalize_indices(self: torch.Tensor, indices: Indices) -> list[torch.Tensor | None]:
    """Convert masks to the coordinates where they hold, with None for dimensions left alone.

    Indices may be on the host, wherever the tensor is.
    """
    device = self.device
    normalized: list[torch.Tensor | None] = []
    for value in indices:
        if value is None:
            normalized.append(None)
        elif value.dtype in (torch.bool, torch.uint8):
            size = tuple(self.shape[len(normalized) : len(normalized) + value.dim()])
            if tuple(value.shape) != size:
                raise IndexRangeError(
                    f"the shape of the mask {tuple(value.shape)} does not match the indexed dimensions {size}"
                )
            places = torch.nonzero(value)  # of a sparse mask, by its entries
            normalized += list(_from_host(places, device).unbind(1))
        elif value.dtype not in (torch.int32, torch.int64):
            raise IndexRangeError(
                f"tensors used as indices must be int64, int32, uint8 or bool, but got {value.dtype}"
            )
        else:
            normalized.append(_from_host(as_dense(value), device))
    return normalized + [None] * (self.dim() - len(normalized))


def _from_host(index: torch.Tensor, device: torch.device) -> torch.Tensor:
    return index.to(device) if index.device == HOST else index


def _gather_at_keys(self: SparseTensor, keys: torch.Tensor, shape: Shape) -> Any:
    """Gather the values at ``keys`` as a tensor of ``shape``, of which only those stored are kept."""
    values, stored = entries_of(self).find(keys.reshape(-1))
    stored_positions = torch.nonzero(stored, as_tuple=True)[0]
    if not shape:
        return values.reshape(())
    return from_entries(Entries(stored_positions, values[stored_positions], shape), format_for(self, shape))


def keys_along(self: SparseTensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Return the key in ``self`` of each element of ``index``, its coordinates in ``dim``."""
    dim %= self.dim()
    index = check_indices(index if index.dim() else index.reshape(1), self.shape[dim], dim)
    grid = torch.meshgrid(*(torch.arange(size, device=index.device) for size in index.shape), indexing="ij")
    columns = [(index if d == dim else column).reshape(-1) for d, column in enumerate(grid)]
    return keys_of(columns, tuple(self.shape))


@implements(aten.gather)
def gather(self: SparseTensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    shape = infer_shape(aten.gather.default, self, dim, index.to("meta"))
    if len(shape) != self.dim() or not self.numel():
        return run_on_empty(aten.gather.default, self, dim, index)
    return _gather_at_keys(self, keys_along(self, dim, index), shape)


@implements(aten.take)
def take(self: SparseTensor, index: torch.Tensor) -> Any:
    check_int64("take", index)
    if not self.numel():
        return run_on_empty(aten.take.default, self, index)
    positions = check_indices(index, self.numel(), 0, from_end=True)
    return _gather_at_keys(self, positions, tuple(index.shape))


@implements(aten.masked_select)
def masked_select(self: torch.Tensor, mask: torch.Tensor) -> Any:
    if not isinstance(self, SparseTensor):
        return torch.masked_select(self, mask.to_dense())
    if mask.dtype != torch.bool:
        raise CallError(f"masked_select expected a boolean mask, but got {mask.dtype}")
    shape = broadcast_shape(tuple(self.shape), tuple(mask.shape))
    if not self.dim():
        return torch.masked_select(self.to_dense(), mask)
    keys = torch.nonzero(mask.expand(shape).reshape(-1)).reshape(-1)  # of a sparse mask, by its entries
    wide = expanded(entries_of(self), shape)
    return _gather_at_keys(build_from_keys(self, wide.keys, wide.values, shape, True), keys, (keys.numel(),))


@implements(aten.nonzero)
def nonzero(self: SparseTensor) -> torch.Tensor:
    entries = entries_of(self)
    keys = entries.keys[entries.values != 0]
    return torch.stack(coordinates_of(keys, entries.shape), 1)


@implements(aten.embedding)
def embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any) -> Any:
    """Gather rows of ``weight``; the other arguments are about its gradient."""
    if weight.dim() != 2:
        raise CallError(f"embedding expected weight to be 2-D, but got shape {tuple(weight.shape)}")
    row_numbers = as_dense(indices)
    rows = torch.index_select(weight, 0, row_numbers.reshape(-1))
    return rows.reshape(*row_numbers.shape, *weight.shape[1:])


# padding by the tensor's own content: each dimension is indexed again, as the mode says ---------------
#
#     reflect      2 1 | 0 1 2 3 | 2 1
#     replicate    0 0 | 0 1 2 3 | 3 3
#     circular     2 3 | 0 1 2 3 | 0 1


@implements(F.pad)
def pad(input: SparseTensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    """Pad circularly, which torch does in a dense tensor; everything else is an operator of its own."""
    if mode != "circular":
        return run_torch(F.pad, input, pad, mode, value)
    return _pad(mode, input, pad, value)


def _pad(mode: str, self: SparseTensor, padding: Sequence[int], value: Any = None) -> Any:
    infer_shape(F.pad, self, padding, mode, value)  # raises torch's error
    if not any(padding):
        return torch.clone(self)
    for number in range(len(padding) // 2):
        dim = self.dim() - 1 - number
        before, after = padding[2 * number], padding[2 * number + 1]
        if before or after:
            positions = _padded_indices(self.shape[dim], before, after, mode, self.storage.device)
            self = index_select(self, dim, positions)
    return self


def _padded_indices(size: int, before: int, after: int, mode: str, device: torch.device) -> torch.Tensor:
    """Return the indices of a padded dimension; a negative padding crops first."""
    if mode == "circular":
        first, last = max(-before, 0), size - max(-after, 0)
        index = torch.arange(-max(before, 0), last - first + max(after, 0), device=device)
        return index % (last - first) + first
    index = torch.arange(-before, size + after, device=device)
    if mode == "replicate":
        return index.clamp(0, size - 1)
    return size - 1 - (size - 1 - index.abs()).abs()


for _dims in ("1d", "2d", "3d"):
    for _kind, _mode in (("reflection", "reflect"), ("replication", "replicate")):
        implements(getattr(aten, f"{_kind}_pad{_dims}").default)(functools.partial(_pad, _mode))
