"""Entries put in order by their coordinates, and those that repeat added up, in torch's own operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from scorch._src.loops.types import LAST_INT32

MAX_KEYS = 2**62  # that an int64 distinguishes
MAX_SHORT = 16  # entries of one place that are added up in as many steps

Tensor = torch.Tensor


def is_sorted(columns: Sequence[Tensor]) -> bool:
    """Check whether entries with these coordinates are sorted and none repeats."""
    if columns[0].numel() < 2:
        return True
    rises, equal = columns[0][1:] > columns[0][:-1], columns[0][1:] == columns[0][:-1]
    for column in columns[1:]:
        rises |= equal & (column[1:] > column[:-1])
        equal &= column[1:] == column[:-1]
    return bool(rises.all())


class Sorted(NamedTuple):
    """The order of entries, and the coordinates of each place in it.

    ``first``: where the entries of each place begin in that order, where some repeat.
    """

    order: Tensor
    columns: list[Tensor]
    first: Tensor | None = None


def sum_runs(values: Tensor, first: Tensor) -> Tensor:
    """Add up the values from each of ``first`` to the next, in order."""
    if values.dtype == torch.bool:
        return sum_runs(values.to(torch.int64), first) > 0
    if values.is_complex():
        return torch.view_as_complex(sum_runs(torch.view_as_real(values), first))
    end = torch.cat([first[1:], first.new_full((1,), values.shape[0])])
    if values.is_floating_point():
        wide = values.float() if values.element_size() < 4 else values
        return torch.segment_reduce(wide, "sum", lengths=end - first, unsafe=True).to(values.dtype)
    totals = values.cumsum(0, dtype=torch.int64)
    totals = torch.cat([totals.new_zeros(1, *values.shape[1:]), totals])
    return (totals[end] - totals[first]).to(values.dtype)


def sum_short_runs(values: Tensor, order: Tensor, first: Tensor) -> Tensor | None:
    """Add up values in ``order``, from each of ``first`` to the next, one after another.

    The n-th step adds the n-th value of every run, so that a sum has the bits of a loop over its run. None
    where a run is longer than ``MAX_SHORT``.
    """
    end = torch.cat([first[1:], first.new_full((1,), order.numel())])
    longest = int((end - first).max())
    if longest > MAX_SHORT:
        return None
    sums = values[order[first]]
    for step in range(1, longest):
        place = first + step
        more = sums + values[order[place.clamp(max=order.numel() - 1)]]
        has_more = (place < end).view(-1, *[1] * (values.dim() - 1))
        sums = torch.where(has_more, more, sums)
    return sums


def begins_of_runs(ordered: Tensor) -> Tensor:
    """Return where each run of equal numbers begins."""
    is_first = torch.ones(ordered.numel(), dtype=torch.bool, device=ordered.device)
    torch.ne(ordered[1:], ordered[:-1], out=is_first[1:])
    return is_first.nonzero().squeeze(1)


def sorted_by_keys(columns: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    """Sort entries by position; return the order, and where each position begins in it.

    None where they are sorted and none repeats.
    """
    dtype = torch.int32 if math.prod(sizes) <= LAST_INT32 else torch.int64
    key = columns[0].to(dtype)
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        key = key * size + column
    if bool((key[1:] > key[:-1]).all()):
        return None
    ordered, order = torch.sort(key, stable=True)
    return order, begins_of_runs(ordered)


def sorted_by_columns(columns: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Do the same for tensors with more elements than can be numbered."""
    if is_sorted(columns):
        return None
    order = torch.arange(columns[0].numel(), device=columns[0].device)
    for column in reversed(columns):
        order = order[torch.argsort(column[order], stable=True)]
    is_first = torch.ones(order.numel(), dtype=torch.bool, device=order.device)
    moved = (column[order] for column in columns)
    is_first[1:] = torch.stack([column[1:] != column[:-1] for column in moved]).any(0)
    return order, is_first.nonzero().squeeze(1)
