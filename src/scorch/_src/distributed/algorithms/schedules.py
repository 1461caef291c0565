"""In how many exchanges the rows of other ranks are fetched: all at once, or peer by peer."""

from __future__ import annotations

from typing import Protocol

import torch

from scorch._src.distributed.communication.budget import check_budget
from scorch._src.distributed.communication.collectives import rank_in, row_bytes, size_of, start_exchange_with
from scorch._src.distributed.communication.route import ROWS, SUMS, Names, Pending, Route, Wire, finish

Tensor = torch.Tensor


class Schedule(Protocol):
    """The rounds of an exchange along a route.

    ``widths`` has the rows of each block that is received, as they are numbered; ``order`` says which block
    comes in which round.
    """

    route: Route
    widths: list[int]
    order: list[int]
    keeps_rows: bool  # whether rows stay for gradients, or are fetched again

    def start(self, x: Tensor, number: int, wire: Wire) -> Pending:
        """Begin to fetch the rows of a round."""
        ...

    def start_back(self, g: Tensor, number: int, wire: Wire) -> Pending:
        """Begin to return rows to where those of a round came from."""
        ...

    def add(self, out: Tensor, returned: Tensor, number: int) -> None:
        """Add rows that came back to those that they belong to."""
        ...


class AtOnce:
    """One exchange with all ranks, which runs while own entries are multiplied."""

    keeps_rows = True

    def __init__(self, route: Route, tracked: Names = ()) -> None:
        self.route, self.widths, self.order = route, [route.incoming], [0]
        self._tracked = tracked

    def start(self, x: Tensor, number: int, wire: Wire) -> Pending:
        out = x.new_empty((self.route.incoming, *x.shape[1:]))
        return self.route.start(x, out, wire, self._tracked)

    def start_back(self, g: Tensor, number: int, wire: Wire) -> Pending:
        return self.route.start_back(g, wire, self._tracked)

    def add(self, out: Tensor, returned: Tensor, number: int) -> None:
        out += self.route.add_up(returned)


class PeerByPeer:
    """An exchange with one rank after the other: only one block of rows is in memory at a time.

    In round ``k`` a rank receives from the one ``k`` ranks after it and sends to the one ``k`` before.
    """

    keeps_rows = False

    def __init__(self, route: Route, tracked: Names = ()) -> None:
        self.route, self._tracked = route, tracked
        rank, size = rank_in(route.group), size_of(route.group)
        self._peers = [((rank + k) % size, (rank - k) % size) for k in range(1, size)]
        self.widths = route.received
        self.order = [source for source, _ in self._peers]
        runs = torch.split(route.picks, route.sent)
        self._picks = [runs[target] for _, target in self._peers]

    def start(self, x: Tensor, number: int, wire: Wire) -> Pending:
        source, target = self._peers[number]
        if not number:
            self._check(ROWS, x, wire)
        rows = x.detach().index_select(0, self._picks[number].to(x.device))
        out = x.new_empty((self.widths[source], *x.shape[1:]))
        return self._exchange(out, source, rows, target, wire)

    def start_back(self, g: Tensor, number: int, wire: Wire) -> Pending:
        source, target = self._peers[number]
        if not number:
            self._check(SUMS, g, wire)
        out = g.new_empty((len(self._picks[number]), *g.shape[1:]))
        return self._exchange(out, target, g.detach().contiguous(), source, wire)

    def _check(self, what: str, x: Tensor, wire: Wire) -> None:
        """Compare the rows of all ranks and their bytes with the budget, before the first round."""
        finish(self.route.compare(what, x, wire, self._tracked))
        check_budget(f"exchange of {what}", self.route.most * row_bytes(x, wire))

    def _exchange(self, out: Tensor, source: int, rows: Tensor, target: int, wire: Wire) -> Pending:
        sent = rows if wire is None else rows.to(wire)
        received = out if wire is None else out.new_empty(out.shape, dtype=wire)
        handle = start_exchange_with(received, source, sent, target, self.route.group)
        return Pending(out, received, handle, sent)

    def add(self, out: Tensor, returned: Tensor, number: int) -> None:
        out.index_add_(0, self._picks[number].to(out.device), returned)  # each row comes back once
