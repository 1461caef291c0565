"""Sums and products of all elements up to each: zero until the first entry, so they are sparse too.

Each line is scanned by itself and in its order, as torch does: one sum over all of them, or products of
neighbours first, would lose what is small beside large numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.ops.fallback import densely
from scorch._src.ops.reduction.direct import direct
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import keys_of
from scorch._src.tensor.entries import Entries, entries_of, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


@direct(torch.cumsum, torch.Tensor.cumsum, takes="dim dtype")
@implements(aten.cumsum.default)
def cumsum(self: SparseTensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Each entry's sum stands from its place to the one before the next entry."""
    like = aten.cumsum(torch.zeros((2,) * self.dim(), dtype=self.dtype), dim, dtype=dtype)
    if not self.numel():
        return densely(aten.cumsum.default, (self, dim), {"dtype": dtype})
    shape, dim = tuple(self.shape), dim % self.dim()
    entries = entries_of(self)
    crd = entries.coordinates
    along = crd.pop(dim)
    rest = tuple(size for d, size in enumerate(shape) if d != dim)
    group = keys_of(crd, rest).expand(along.shape)
    order = torch.argsort(group, stable=True)
    group, along = group[order], along[order]
    total = scanned(torch.cumsum, entries.values[order].to(like.dtype), _lengths(group))
    is_first = torch.ones_like(group, dtype=torch.bool)
    is_first[1:] = group[1:] != group[:-1]
    until = torch.full_like(along, shape[dim])
    until[:-1] = torch.where(is_first[1:], shape[dim], along[1:])
    length = until - along
    check_budget(
        (64 + 16 * len(shape)) * int(length.sum()),
        f"cumsum of {shape}",
        "it fills every line from its first entry on",
    )
    place = torch.repeat_interleave(torch.arange(group.numel()), length)
    offset = torch.arange(place.numel()) - torch.repeat_interleave(torch.cumsum(length, 0) - length, length)
    columns = [column[order][place] for column in crd]
    columns.insert(dim, along[place] + offset)
    made = Entries(keys_of(columns, shape), total[place], shape)
    return from_entries(made, format_for(self, shape), in_order=False)


@implements(aten.cumprod.default)
def cumprod(self: SparseTensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Not zero only in lines that are stored from their first place on."""
    like = aten.cumprod(torch.empty(tuple(self.shape), dtype=self.dtype, device="meta"), dim, dtype=dtype)
    if not self.numel() or not bool(self.storage.values.isfinite().all()):
        return densely(aten.cumprod.default, (self, dim), {"dtype": dtype})
    shape, dim = tuple(self.shape), dim % self.dim()
    entries = entries_of(self)
    crd = entries.coordinates
    along = crd[dim]
    rest = tuple(size for d, size in enumerate(shape) if d != dim)
    group = keys_of([c for d, c in enumerate(crd) if d != dim], rest).expand(along.shape)
    order = torch.argsort(group, stable=True)
    group, along = group[order], along[order]
    first = torch.searchsorted(group, group)
    kept = along == torch.arange(group.numel()) - first  # stored without a gap from the first place on
    values = scanned(torch.cumprod, entries.values[order][kept].to(like.dtype), _lengths(group[kept]))
    if not bool(values.isfinite().all()):  # times zero, at the first gap, it is not a number
        return densely(aten.cumprod.default, (self, dim), {"dtype": dtype})
    made = Entries(entries.keys[order][kept], values, shape)
    return from_entries(made, format_for(self, shape), in_order=False)


def _lengths(group: torch.Tensor) -> torch.Tensor:
    """How many neighbours are the same, for each run of them."""
    found: torch.Tensor = torch.unique_consecutive(group, return_counts=True)[1]
    return found


def scanned(scan: Callable[..., torch.Tensor], values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """``scan`` (``torch.cumsum``, ``torch.cumprod``) of each line of values, which follow one another.

    Lines of about the same length are the rows of one matrix, filled up behind.
    """
    first = torch.cumsum(lengths, 0) - lengths
    widths: torch.Tensor = 2 ** torch.ceil(torch.log2(lengths.clamp(min=1).double())).long()
    places, parts = [], []
    for width in torch.unique(widths).tolist():
        lines = widths == width
        number = torch.arange(width)
        is_filled = number < lengths[lines].unsqueeze(1)
        place = first[lines].unsqueeze(1) + torch.where(is_filled, number, 0)
        parts.append(scan(values[place], 1, dtype=values.dtype)[is_filled])
        places.append(place[is_filled])
    if not parts:
        return values
    found: torch.Tensor = torch.empty_like(values).index_put((torch.cat(places),), torch.cat(parts))
    return found
