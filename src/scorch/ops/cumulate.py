"""Sums and products of all elements up to each: zero until the first entry, so they are sparse too."""

from __future__ import annotations

from typing import Any

import torch

from scorch.ops.generic import densely
from scorch.tensor.budget import check_budget
from scorch.tensor.dispatch import implements_operator
from scorch.tensor.entries import Entries, entries_of, format_for, from_entries, keys_of
from scorch.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


@implements_operator(aten.cumsum.default)
def cumsum(self: SparseTensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Each entry's sum stands from its place to the one before the next entry."""
    like = aten.cumsum(torch.zeros((2,) * self.dim(), dtype=self.dtype), dim, dtype=dtype)
    values = self.storage.values
    if not self.numel() or not bool(values.isfinite().all()):
        return densely(aten.cumsum.default, (self, dim), {"dtype": dtype})
    shape, dim = tuple(self.shape), dim % self.dim()
    entries = entries_of(self)
    crd = entries.coordinates
    along = crd.pop(dim)
    rest = tuple(size for d, size in enumerate(shape) if d != dim)
    group = keys_of(crd, rest).expand(along.shape)
    order = torch.argsort(group, stable=True)
    group, along = group[order], along[order]
    wide = torch.float64 if like.dtype.is_floating_point else like.dtype  # one sum over all lines
    stored = entries.values[order].to(wide)
    total = torch.cumsum(stored, 0)
    is_first = torch.ones_like(group, dtype=torch.bool)
    is_first[1:] = group[1:] != group[:-1]
    before = torch.where(is_first, total - stored, 0)
    start = torch.cummax(torch.where(is_first, torch.arange(group.numel()), 0), 0).values
    total = total - before[start]
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
    made = Entries(keys_of(columns, shape), total[place].to(like.dtype), shape)
    return from_entries(made, format_for(self, shape), in_order=False)


@implements_operator(aten.cumprod.default)
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
    keys, values, line = entries.keys[order][kept], entries.values[order][kept].to(like.dtype), along[kept]
    step = 1
    while step <= (int(line.max()) if line.numel() else 0):  # products of 2, 4, 8 ... neighbours in a line
        at = torch.nonzero(line >= step, as_tuple=True)[0]
        values[at] = values[at] * values[at - step]
        step *= 2
    made = Entries(keys, values, shape)
    return from_entries(made, format_for(self, shape), in_order=False)
