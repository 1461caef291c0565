"""The lines of a sparse tensor along a dimension, each in the order of its values.

What sorting knows of a line needs no dense copy of it. Its entries are sorted, and its zeros are a number:
they stand together, behind the negative entries and before the positive ones. The element of any rank is an
entry or a zero, and the place of a zero follows from the places of the entries: as many zeros stand before an
entry at place ``p``, the ``i``-th of its line, as ``p - i``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.tensor.entries import Entries, entries_of, format_for, from_entries
from scorch._src.tensor.sparse_tensor import SparseTensor


class Lines:
    """The lines of ``tensor`` along ``dim``, or with ``dim`` None all of it as one line.

    Lines that have an entry other than zero are counted 0, 1, ... in the order of ``keys``, their keys in
    ``shape``. NaN is the largest value, and equal values stand in the order of their places.
    """

    def __init__(self, tensor: SparseTensor, dim: int | None, descending: bool = False) -> None:
        entries = entries_of(tensor)
        kept = entries.values != 0
        self.tensor = tensor
        self.dim = None if dim is None else dim % len(entries.shape)
        if self.dim is None:
            self.shape: tuple[int, ...] = ()
            self.size = math.prod(entries.shape)
            place = entries.keys[kept]
        else:
            crd = [column[kept] for column in entries.coordinates]
            place = crd.pop(self.dim)
            self.shape = tuple(size for d, size in enumerate(entries.shape) if d != self.dim)
            self.size = entries.shape[self.dim]
        values, order = torch.sort(entries.values[kept], stable=True, descending=descending)
        line = torch.zeros_like(place)
        if self.dim is not None:
            line, again = torch.sort(keys_of(crd, self.shape).expand(place.shape)[order], stable=True)
            values, order = values[again], order[again]
        self.values, self.place = values, place[order]
        is_last = self.dim is None or self.dim == len(self.shape)
        self._by_place = place if is_last else None  # as entries come
        found = torch.unique_consecutive(line, return_inverse=True, return_counts=True)
        self.keys, self.line, self.stored = found
        self.first = torch.cumsum(self.stored, 0) - self.stored
        self.zeros = self.size - self.stored
        self.front = self.number((values > 0) | values.isnan() if descending else values < 0)

    @property
    def count(self) -> int:
        """How many lines there are, those without entries included."""
        return math.prod(self.shape)

    def number(self, which: torch.Tensor) -> torch.Tensor:
        """For each line how many of its entries ``which`` says."""
        return torch.zeros_like(self.stored).index_add_(0, self.line, which.to(torch.int64))

    def rank_of(self, entry: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
        """The ranks of some entries, given with their lines, among all elements of these."""
        inside = entry - self.first[line]
        return torch.where(inside < self.front[line], inside, inside + self.zeros[line])

    def values_at(self, line: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
        """The elements of some ranks in their lines."""
        entry, zero = self._entry_or_zero(line, rank)
        return self.values[entry].masked_fill(zero >= 0, 0)

    def places_at(self, line: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
        """The places of the elements of some ranks in their lines."""
        entry, zero = self._entry_or_zero(line, rank)
        asked = line * self.size + zero.clamp(min=0)
        before = torch.searchsorted(self._zeros_before, asked, right=True) - self.first[line]
        return torch.where(zero >= 0, zero + before, self.place[entry])

    def _entry_or_zero(self, line: torch.Tensor, rank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which entry has a rank, or else which zero of its line; -1 where it is no zero."""
        zero = rank - self.front[line]
        is_zero = (zero >= 0) & (zero < self.zeros[line])
        inside = torch.where(zero < 0, rank, rank - self.zeros[line]).masked_fill(is_zero, 0)
        return self.first[line] + inside, zero.masked_fill(~is_zero, -1)

    @functools.cached_property
    def _zeros_before(self) -> torch.Tensor:
        """For every entry, by place, how many zeros of its line stand before it, counted on from the line."""
        places = self.line * self.size + (self.place if self._by_place is None else self._by_place)
        places = torch.sort(places).values if self._by_place is None else places
        inside: torch.Tensor = torch.arange(places.numel(), device=places.device) - self.first[self.line]
        return places - inside

    # results -----------------------------------------------------------------------------------------

    def reduced(self, rank: torch.Tensor, keepdim: bool, empty: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The element of one rank in each line: ``rank`` has those of lines with entries, else ``empty``."""
        shape = self.shape
        if keepdim and self.dim is not None:
            shape = (*shape[: self.dim], 1, *shape[self.dim :])
        cure = "the values alone are torch.quantile(S, q, dim, interpolation='lower')"
        check_budget(8 * self.count, f"the places of shape {shape}", cure)
        lines = torch.arange(self.keys.numel(), device=self.keys.device)
        places = torch.full(shape, empty, dtype=torch.int64, device=self.keys.device)
        places.view(-1)[self.keys] = self.places_at(lines, rank)
        return self.stored_at(self.keys, self.values_at(lines, rank), shape), places

    def stored_at(self, keys: torch.Tensor, values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """A result with ``values`` at ``keys``, which increase, and zeros elsewhere; sparse if it can be."""
        shape = tuple(shape)
        if not shape:
            return values.reshape(()) if values.numel() else values.new_zeros(())
        kept = values != 0
        entries = Entries(keys[kept], values[kept], shape)
        return from_entries(entries, format_for(self.tensor, shape))

    def first_values(self, k: int) -> torch.Tensor:
        """The values of ranks below ``k``, along the dimension of the lines."""
        assert self.dim is not None
        ranks = self.rank_of(torch.arange(self.line.numel(), device=self.line.device), self.line)
        kept = ranks < k
        columns = coordinates_of(self.keys[self.line[kept]], self.shape)
        columns.insert(self.dim, ranks[kept])
        shape = (*self.shape[: self.dim], k, *self.shape[self.dim :])
        found = Entries(keys_of(columns, shape), self.values[kept], shape)
        return from_entries(found, format_for(self.tensor, shape), in_order=False)

    def first_places(self, k: int) -> torch.Tensor:
        """The places of ranks below ``k``, along the dimension of the lines: a dense tensor.

        The place of the next zero is one further, and one more for each entry between them.
        """
        assert self.dim is not None
        made = torch.ones((self.count, k), dtype=torch.int64, device=self.keys.device)
        if k:
            made[:, 0] = 0
            made[self.keys, 0] = -self.front
            steps, row = made.view(-1), self.keys[self.line] * k
            after = self.front[self.line] + self._zeros_before - self.line * self.size  # the rank of a zero
            steps.index_add_(0, (row + after)[after < k], torch.ones_like(after[after < k]))
            torch.cumsum(made, 1, out=made)
            rank = self.rank_of(torch.arange(row.numel(), device=row.device), self.line)
            steps[(row + rank)[rank < k]] = self.place[rank < k]
        return made.reshape(*self.shape, k).movedim(-1, self.dim).contiguous()
