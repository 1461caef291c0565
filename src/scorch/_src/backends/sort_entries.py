"""Entries put in order by their coordinates, and those that repeat added up, in torch's own operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from scorch._src.loops.types import LAST_INT32

MAX_KEYS = 2**62  # that an int64 distinguishes
MAX_SHORT = 16  # entries of one place that are added up in as many steps
MAX_AT_ONCE = LAST_INT32  # elements that torch sorts at once on a GPU
PART = 1 << 28  # elements of an array whose places are computed at once

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


def _are_sorted_at_once(keys: Tensor) -> bool:
    return keys.is_cpu or keys.numel() <= MAX_AT_ONCE


def stable_sort(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return sorted keys, and the place of each before; those that are equal keep their order.

    More than torch sorts at once are sorted in parts, which are merged.
    """
    if _are_sorted_at_once(keys):
        ordered, order = torch.sort(keys, stable=True)
        return ordered, order
    merged: tuple[Tensor, Tensor] | None = None
    most = (MAX_AT_ONCE + 1) // 2
    for begin in range(0, keys.numel(), most):
        ordered, order = torch.sort(keys[begin : begin + most], stable=True)
        order += begin
        merged = (ordered, order) if merged is None else _merge(*merged, ordered, order)
    assert merged is not None
    return merged


def _merge(keys: Tensor, order: Tensor, more: Tensor, their_order: Tensor) -> tuple[Tensor, Tensor]:
    """Merge sorted keys with others, which come behind those that they are equal to."""
    found = keys.new_empty(keys.numel() + more.numel()), order.new_empty(order.numel() + more.numel())
    for one, its_order, other, is_right in ((keys, order, more, False), (more, their_order, keys, True)):
        for begin in range(0, one.numel(), PART):
            part = slice(begin, begin + PART)
            place = torch.searchsorted(other, one[part], right=is_right)
            place += torch.arange(begin, begin + place.numel(), device=place.device)
            found[0][place], found[1][place] = one[part], its_order[part]
    return found


def distinct(keys: Tensor, is_sorted: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return each key once, in order, which of these each of ``keys`` is, and how often each occurs."""
    if _are_sorted_at_once(keys):
        unique: Any = torch.unique_consecutive if is_sorted else torch.unique
        once, number, counts = unique(keys, return_inverse=True, return_counts=True)
        return once, number, counts
    ordered, order = (keys, None) if is_sorted else stable_sort(keys)
    is_first = _are_first(ordered)
    number, first = is_first.cumsum(0).sub_(1), is_first.nonzero().squeeze(1)
    counts = torch.diff(first, append=first.new_full((1,), keys.numel()))
    return (
        ordered[first],
        number if order is None else torch.empty_like(number).scatter_(0, order, number),
        counts,
    )


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
    return _are_first(ordered).nonzero().squeeze(1)


def _are_first(ordered: Tensor) -> Tensor:
    """Check for each of ordered numbers whether a run of equal ones begins there."""
    is_first = torch.ones(ordered.numel(), dtype=torch.bool, device=ordered.device)
    torch.ne(ordered[1:], ordered[:-1], out=is_first[1:])
    return is_first


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
    ordered, order = stable_sort(key)
    return order, begins_of_runs(ordered)


def sorted_by_columns(columns: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Do the same for tensors with more elements than can be numbered."""
    if is_sorted(columns):
        return None
    order = torch.arange(columns[0].numel(), device=columns[0].device)
    for column in reversed(columns):
        order = order[stable_sort(column[order])[1]]
    is_first = torch.ones(order.numel(), dtype=torch.bool, device=order.device)
    moved = (column[order] for column in columns)
    is_first[1:] = torch.stack([column[1:] != column[:-1] for column in moved]).any(0)
    return order, is_first.nonzero().squeeze(1)
