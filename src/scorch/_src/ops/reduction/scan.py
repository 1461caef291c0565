"""Sums and products of all elements up to each: zero until the first entry, so they are sparse too.

Each line is scanned by itself and in its order, as torch does: one sum over all of them, or products of
neighbours first, would lose what is small beside large numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.ops.fallback import densely
from scorch._src.ops.reduction.direct import direct
from scorch._src.ops.reduction.groups import Groups, groups_of
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.tensor.entries import Entries, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


@direct(torch.cumsum, torch.Tensor.cumsum, takes="dim dtype")
@implements(aten.cumsum.default)
def cumsum(self: SparseTensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Each entry's sum stands from its place to the one before the next entry."""
    like = aten.cumsum(torch.zeros((2,) * self.dim(), dtype=self.dtype, device=HOST), dim, dtype=dtype)
    if not self.numel():
        return densely(aten.cumsum.default, (self, dim), {"dtype": dtype})
    shape, dim = tuple(self.shape), dim % self.dim()
    groups = groups_of(self, dim)
    order = torch.argsort(groups.group, stable=True)
    group, along = groups.group[order], groups.inside[order]
    total = scanned(torch.cumsum, groups.values(self)[order].to(like.dtype), groups.stored)
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
    place = torch.repeat_interleave(torch.arange(group.numel(), device=group.device), length)
    offset = torch.arange(place.numel(), device=place.device) - torch.repeat_interleave(
        torch.cumsum(length, 0) - length, length
    )
    keys = _keys(groups, shape, group[place], along[place] + offset)
    return from_entries(Entries(keys, total[place], shape), format_for(self, shape), in_order=False)


@implements(aten.cumprod.default)
def cumprod(self: SparseTensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Not zero only in lines that are stored from their first place on."""
    like = aten.cumprod(torch.empty(tuple(self.shape), dtype=self.dtype, device="meta"), dim, dtype=dtype)
    if not self.numel() or not bool(self.storage.values.isfinite().all()):
        return densely(aten.cumprod.default, (self, dim), {"dtype": dtype})
    shape, groups = tuple(self.shape), groups_of(self, dim)
    order = torch.argsort(groups.group, stable=True)
    group, along = groups.group[order], groups.inside[order]
    first = (torch.cumsum(groups.stored, 0) - groups.stored)[group]
    kept = (
        along == torch.arange(group.numel(), device=group.device) - first
    )  # stored without a gap from the first place on
    values = groups.values(self)[order][kept].to(like.dtype)
    values = scanned(torch.cumprod, values, torch.unique_consecutive(group[kept], return_counts=True)[1])
    if not bool(values.isfinite().all()):  # times zero, at the first gap, it is not a number
        return densely(aten.cumprod.default, (self, dim), {"dtype": dtype})
    made = Entries(_keys(groups, shape, group[kept], along[kept]), values, shape)
    return from_entries(made, format_for(self, shape), in_order=False)


def _keys(groups: Groups, shape: tuple[int, ...], group: torch.Tensor, along: torch.Tensor) -> torch.Tensor:
    """The keys of places in the lines ``group``, ``along`` the dimension that is scanned."""
    columns = [column[group] for column in coordinates_of(groups.keys, groups.kept_shape)]
    columns.insert(groups.reduced[0], along)
    return keys_of(columns, shape)


def scanned(scan: Callable[..., torch.Tensor], values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """``scan`` (``torch.cumsum``, ``torch.cumprod``) of each line of values, which follow one another.

    Lines of about the same length are the rows of one matrix, filled up behind.
    """
    first = torch.cumsum(lengths, 0) - lengths
    widths: torch.Tensor = 2 ** torch.ceil(torch.log2(lengths.clamp(min=1).double())).long()
    places, parts = [], []
    for width in torch.unique(widths).tolist():
        lines = widths == width
        number = torch.arange(width, device=lengths.device)
        is_filled = number < lengths[lines].unsqueeze(1)
        place = first[lines].unsqueeze(1) + torch.where(is_filled, number, 0)
        parts.append(scan(values[place], 1, dtype=values.dtype)[is_filled])
        places.append(place[is_filled])
    if not parts:
        return values
    found: torch.Tensor = torch.empty_like(values).index_put((torch.cat(places),), torch.cat(parts))
    return found
