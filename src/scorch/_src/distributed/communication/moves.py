"""Rows and entries that move to other ranks for good."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.communication.collectives import Group, gather_numbers, rank_in, size_of
from scorch._src.distributed.communication.route import Route
from scorch._src.distributed.cuts import owners_in

Tensor = torch.Tensor


def send_to(owners: Tensor, arrays: Sequence[Tensor], group: Group) -> list[Tensor]:
    """Send each row of some arrays to its owner, differentiably; those of rank 0 come first."""
    if size_of(group) == 1:
        return list(arrays)
    picks = torch.argsort(owners, stable=True)
    sent = torch.bincount(owners, minlength=size_of(group)).tolist()
    route = Route(picks, sent, len(owners), group)
    return [route.send(array) for array in arrays]


class RowMove:
    """Rows that are renumbered: ``numbers`` has the new number of each row of this rank."""

    def __init__(self, numbers: Tensor, cuts: Tensor, group: Group) -> None:
        self.numbers, self.cuts, self.group = numbers, cuts, group
        self.owners = owners_in(numbers, cuts)
        (arrived,) = send_to(self.owners, [numbers], group)
        order = torch.argsort(arrived)
        self._order = None if bool((arrived.diff() > 0).all()) else order

    def move(self, rows: Tensor) -> Tensor:
        """Return the rows that this rank has afterwards, in the order of their new numbers."""
        (arrived,) = send_to(self.owners, [rows], self.group)
        return arrived if self._order is None else arrived[self._order]


def move_to_cuts(begin: int, end: int, cuts: Tensor, group: Group, device: torch.device) -> RowMove:
    """Return how rows from ``begin`` to ``end`` of this rank move to other cuts, with their numbers."""
    return RowMove(torch.arange(begin, end, device=device), cuts, group)


def move_to_parts(parts: Tensor, count: int, group: Group) -> RowMove:
    """Return how rows move that are numbered by their parts, in their old order within each part.

    Every rank owns equally many of the ``count`` parts, one after the other.
    """
    own = torch.bincount(parts, minlength=count)
    counts = torch.tensor(gather_numbers(own.tolist(), group, parts), device=HOST)  # by rank, and by part
    ends = torch.cat([counts.new_zeros(1), counts.sum(0).cumsum(0)])
    first = (ends[:-1] + counts[: rank_in(group)].sum(0)).to(parts.device)
    order = torch.argsort(parts, stable=True)
    begins = own.cumsum(0) - own
    numbers = torch.empty_like(parts)
    numbers[order] = torch.arange(len(parts), device=parts.device) + (first - begins)[parts[order]]
    return RowMove(numbers, ends[:: count // size_of(group)], group)
