"""The segments of a sparse tensor along a dimension, each sorted by value.

Sorting needs no dense segment. Its entries are sorted, and its zeros are a count: they stand
together, after the negative entries and before the positive ones. The element of any rank is an entry or a
zero, and the index of a zero follows from the indices of the entries: as many zeros stand before an entry at
position ``p``, the ``i``-th of its segment, as ``p - i``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from scorch._src.backends.by_torch.rows import take_rows
from scorch._src.ops.reduction.groups import groups_of_nonzeros
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.tensor.entries import Entries, format_for, from_entries
from scorch._src.tensor.sparse_tensor import SparseTensor


class SortedSegments:
    """The segments of ``tensor`` along ``dim``.

    Segments are numbered 0, 1, ... in the order of ``keys``, their keys in ``shape``; some without a nonzero
    entry may be left out. NaN is the largest value, and equal values stand in the order of their positions.
    """

    def __init__(self, tensor: SparseTensor, dim: int, descending: bool = False) -> None:
        groups = groups_of_nonzeros(tensor, dim)
        self.tensor, self._groups = tensor, groups
        self.dim = dim % tensor.dim()
        self.shape: tuple[int, ...] = groups.kept_shape
        self.size = groups.length
        values = groups.values(tensor).detach()
        order = groups.sorted(values, descending)
        self.values, self.position = take_rows(values, order), take_rows(groups.inside, order)
        (self.segment,) = groups.in_order(groups.group)
        self.keys, self.stored, self.first = groups.keys, groups.stored, groups.begins[:-1]
        self.zeros = self.size - self.stored
        self.front = self.count_in_segments((values > 0) | values.isnan() if descending else values < 0)

    @property
    def count(self) -> int:
        """The number of segments, those without entries included."""
        return math.prod(self.shape)

    def count_in_segments(self, which: torch.Tensor) -> torch.Tensor:
        """Count the nonzero entries of each segment that ``which`` selects, before they are sorted."""
        return self._groups.sum(which.to(torch.int64))

    def count_nans(self) -> torch.Tensor:
        """Count what is not a number in each segment."""
        return self.count_in_segments(self._groups.values(self.tensor).detach().isnan())

    def rank_of(self, entry: torch.Tensor, segment: torch.Tensor | None = None) -> torch.Tensor:
        """Return the ranks of some entries among all elements of their segments, by default one of each."""
        first, front, zeros = self.first, self.front, self.zeros
        if segment is not None:
            first, front, zeros = (take_rows(array, segment) for array in (first, front, zeros))
        inside = entry - first
        return torch.where(inside < front, inside, inside + zeros)

    def values_at(self, rank: torch.Tensor) -> torch.Tensor:
        """Return the elements of some ranks, or of several rows of ranks, one in each segment."""
        return self._values_of(*self._entry_or_zero(rank))

    def _values_of(self, entry: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        return take_rows(self.values, entry.flatten()).view(entry.shape).masked_fill(zero >= 0, 0)

    def _entry_or_zero(self, rank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the entry that has a rank, or else the zero of its segment; -1 where it is no zero."""
        zero = rank - self.front
        is_zero = (zero >= 0) & (zero < self.zeros)
        inside = torch.where(zero < 0, rank, rank - self.zeros).masked_fill(is_zero, 0)
        entry = (self.first + inside).clamp(max=max(self.values.numel() - 1, 0))
        return entry, zero.masked_fill(~is_zero, -1)

    def _positions_of(self, entry: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        """Return the positions of one element of each segment, an entry or a zero."""
        numbers = torch.arange(self.keys.numel(), device=self.keys.device)
        zero_key = numbers * self.size + zero.clamp(min=0)
        entries_before = torch.searchsorted(self._zeros_before, zero_key, right=True) - self.first
        return torch.where(zero >= 0, zero + entries_before, take_rows(self.position, entry))

    @functools.cached_property
    def _zeros_before(self) -> torch.Tensor:
        """For every entry, by position, the zeros of its segment before it, offset by its segment."""
        (positions,) = self._groups.in_order(self._groups.inside)
        inside = torch.arange(positions.numel(), device=positions.device)
        inside -= take_rows(self.first, self.segment)
        return self.segment * self.size + positions - inside

    def select_rank(self, rank: torch.Tensor, keepdim: bool, empty: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Select the element of one rank in each segment: ``rank``, or ``empty`` without entries."""
        shape = self.shape
        if keepdim:
            shape = (*shape[: self.dim], 1, *shape[self.dim :])
        hint = "use torch.quantile(S, q, dim, interpolation='lower') for the values alone"
        check_budget(8 * self.count, self.keys.device, f"a tensor of indices of shape {shape}", hint)
        entry, zero = self._entry_or_zero(rank)
        positions = self._positions_of(entry, zero)
        if self.keys.numel() < self.count:
            some = torch.full((self.count,), empty, dtype=torch.int64, device=self.keys.device)
            positions = some.index_copy_(0, self.keys, positions)
        return nonzeros_at(self.keys, self._values_of(entry, zero), shape, self.tensor), positions.view(shape)

    def first_values(self, k: int) -> torch.Tensor:
        """Return the values of ranks below ``k``, along the dimension of the segments."""
        ranks = self.rank_of(torch.arange(self.segment.numel(), device=self.segment.device), self.segment)
        is_first = ranks < k
        columns = coordinates_of(self.keys[self.segment[is_first]], self.shape)
        columns.insert(self.dim, ranks[is_first])
        shape = (*self.shape[: self.dim], k, *self.shape[self.dim :])
        entries = Entries(keys_of(columns, shape), self.values[is_first], shape)
        return from_entries(entries, format_for(self.tensor, shape), in_order=False)

    def first_positions(self, k: int) -> torch.Tensor:
        """Return the positions of ranks below ``k``, along the dimension of the segments: a dense tensor.

        The position of the next zero is one further, and one more for each entry between them.
        """
        result = torch.ones((self.count, k), dtype=torch.int64, device=self.keys.device)
        if k:
            result[:, 0] = 0
            result[self.keys, 0] = -self.front
            steps, row = result.view(-1), self.keys[self.segment] * k
            zeros_before = self._zeros_before - self.segment * self.size
            after = self.front[self.segment] + zeros_before  # the rank of a zero
            steps.index_add_(0, (row + after)[after < k], torch.ones_like(after[after < k]))
            torch.cumsum(result, 1, out=result)
            rank = self.rank_of(torch.arange(row.numel(), device=row.device), self.segment)
            steps[(row + rank)[rank < k]] = self.position[rank < k]
        return result.reshape(*self.shape, k).movedim(-1, self.dim).contiguous()


def nonzeros_at(
    keys: torch.Tensor, values: torch.Tensor, shape: Sequence[int], like: SparseTensor
) -> torch.Tensor:
    """Build a result with ``values`` at increasing ``keys``, and zeros elsewhere; sparse if possible."""
    shape = tuple(shape)
    if not shape:
        return values.reshape(()) if values.numel() else values.new_zeros(())
    is_nonzero = values != 0
    entries = Entries(keys[is_nonzero], values[is_nonzero], shape)
    return from_entries(entries, format_for(like, shape))
