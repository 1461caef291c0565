"""Cumulative sums and products: zero until the first entry of a row, so they are sparse too."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.ops.fallback import run_densely
from scorch._src.ops.reduction.groups import Groups, groups_of
from scorch._src.ops.reduction.reduction import direct
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.tensor.entries import Entries, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


@direct(torch.cumsum, torch.Tensor.cumsum, takes="dim dtype")
@implements(aten.cumsum.default)
def cumsum(self: SparseTensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Sum cumulatively: each entry's sum extends to the position before the next entry."""
    like = aten.cumsum(torch.zeros((2,) * self.dim(), dtype=self.dtype, device=HOST), dim, dtype=dtype)
    if not self.numel():
        return run_densely(aten.cumsum.default, (self, dim), {"dtype": dtype})
    shape, dim = tuple(self.shape), dim % self.dim()
    groups = groups_of(self, dim)
    total = groups.scan(groups.values(self).to(like.dtype), "cumsum")
    group, along, total = groups.in_order(groups.group, groups.inside, total)
    next_entry = torch.full_like(along, shape[dim])
    next_entry[:-1] = torch.where(group[1:] != group[:-1], shape[dim], along[1:])
    length = next_entry - along
    size = (64 + 16 * len(shape)) * int(length.sum())
    check_budget(size, group.device, f"cumsum of {shape}", "", "it fills every row after its first entry")
    entry_number = torch.repeat_interleave(torch.arange(group.numel(), device=group.device), length)
    begin = (torch.cumsum(length, 0) - length)[entry_number]
    offset = torch.arange(entry_number.numel(), device=entry_number.device) - begin
    keys = _keys(groups, shape, group[entry_number], along[entry_number] + offset)
    return from_entries(Entries(keys, total[entry_number], shape), format_for(self, shape), in_order=False)


@implements(aten.cumprod.default)
def cumprod(self: SparseTensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Multiply cumulatively: not zero only in rows that are stored from their first position on."""
    like = aten.cumprod(torch.zeros((1,) * self.dim(), dtype=self.dtype, device=HOST), dim, dtype=dtype)
    if not self.numel() or not bool(self.storage.values.isfinite().all()):
        return run_densely(aten.cumprod.default, (self, dim), {"dtype": dtype})
    shape, groups = tuple(self.shape), groups_of(self, dim)
    product = groups.scan(groups.values(self).to(like.dtype), "cumprod")
    group, along, values = groups.in_order(groups.group, groups.inside, product)
    first = groups.begins[group]
    has_no_gap = along == torch.arange(group.numel(), device=group.device) - first  # from the first place on
    values = values[has_no_gap]
    if not bool(values.isfinite().all()):  # times zero, at the first gap, it is not a number
        return run_densely(aten.cumprod.default, (self, dim), {"dtype": dtype})
    entries = Entries(_keys(groups, shape, group[has_no_gap], along[has_no_gap]), values, shape)
    return from_entries(entries, format_for(self, shape), in_order=False)


def _keys(groups: Groups, shape: tuple[int, ...], group: torch.Tensor, along: torch.Tensor) -> torch.Tensor:
    """Return the keys of positions in the rows ``group``, ``along`` the scanned dimension."""
    columns = [column[group] for column in coordinates_of(groups.keys, groups.kept_shape)]
    columns.insert(groups.reduced[0], along)
    return keys_of(columns, shape)
