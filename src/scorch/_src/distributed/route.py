"""Rows that each rank sends to others: which, to whom, and their gradients on the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.distributed.collectives import (
    Group,
    Handle,
    agree,
    check_budget,
    exchange_counts,
    gather_numbers,
    is_debugging,
    rank_in,
    row_bytes,
    size_of,
    start_exchange,
)
from scorch._src.tensor.create.construct import sparse_csr_tensor

MAX_AGREED = 256  # kinds of rows: their shape and dtype

Tensor = torch.Tensor


class Route:
    """Where rows of a local array go: ``picks`` in the order of the receivers, ``sent`` to each of them.

    ``send`` moves rows along the route, and ``send_back`` takes rows from their receivers to where they
    came from and adds up those that came from one row, in the order of ranks. Each is the gradient of the
    other.
    """

    def __init__(
        self,
        picks: Tensor,
        sent: Sequence[int],
        rows: int,
        group: Group,
        received: Sequence[int] | None = None,
    ) -> None:
        self.picks, self.sent, self.rows, self.group = picks, list(sent), rows, group
        self.received = exchange_counts(self.sent, group, picks) if received is None else list(received)
        own = [sum(self.sent), sum(self.received), self.peers, max([*self.sent, *self.received])]
        sent, received, peers, blocks = zip(*gather_numbers(own, group, picks), strict=True)
        self.total: int = sum(sent)  # rows that all processes send together
        self.most: int = max(sent + received)  # rows that one process sends or receives
        self.most_peers: int = max(peers)  # processes that one process receives rows from
        self.block: int = max(blocks)  # rows that one process sends to another
        self._sums: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._agreed: BoundedCache[Any, bool] = BoundedCache(MAX_AGREED)  # kinds of rows that all have sent

    @property
    def incoming(self) -> int:
        """The number of rows that this rank receives."""
        return sum(self.received)

    @property
    def peers(self) -> int:
        """The number of other ranks that this one receives rows from."""
        rank = rank_in(self.group)
        return sum(1 for other, count in enumerate(self.received) if count and other != rank)

    def check_same(self, x: Tensor, wire: torch.dtype | None) -> None:
        """Raise an error in all processes if rows of another kind are exchanged here for the first time.

        With ``TORCH_DISTRIBUTED_DEBUG`` set, all exchanges are compared.
        """
        kind = tuple(x.shape[1:]), x.dtype, wire
        if self._agreed.get(kind) is None or is_debugging():
            agree(self.group, "exchange of rows", kind, _describe_kind)
            self._agreed[kind] = True

    # without gradients ---------------------------------------------------------------------------------

    def start(self, x: Tensor, out: Tensor, wire: torch.dtype | None = None) -> Pending:
        """Begin to send the picked rows of ``x``; those received are in ``out`` after ``wait``."""
        if not self.total:
            return Pending(out, out, None)
        self.check_same(x, wire)
        check_budget("exchange of rows", self.most * row_bytes(x, wire))
        rows = x.detach().index_select(0, self._picks(x))
        if size_of(self.group) == 1:
            return Pending(out, rows, None)
        rows = rows if wire is None else rows.to(wire)
        received = out if rows.dtype == out.dtype else out.new_empty(out.shape, dtype=rows.dtype)
        handle = start_exchange(received, rows, self.received, self.sent, self.group)
        return Pending(out, received, handle, rows)

    def start_back(self, g: Tensor, wire: torch.dtype | None = None) -> Pending:
        """Begin to return received rows; after ``wait`` those that came back, in the order of ``picks``."""
        returned = g.new_empty((len(self.picks), *g.shape[1:]))
        if not self.total:
            return Pending(returned, returned, None)
        self.check_same(g, wire)
        check_budget("exchange of gradients", self.most * row_bytes(g, wire))
        rows = (g.detach() if wire is None else g.detach().to(wire)).contiguous()
        if size_of(self.group) == 1:
            return Pending(returned, rows, None)
        received = returned if rows.dtype == g.dtype else returned.new_empty(returned.shape, dtype=rows.dtype)
        handle = start_exchange(received, rows, self.sent, self.received, self.group)
        return Pending(returned, received, handle, rows)

    def add_up(self, returned: Tensor) -> Tensor:
        """Return the sum of the returned rows for each row of the array that they came from."""
        shape = (self.rows, *returned.shape[1:])
        if not returned.numel():
            return returned.new_zeros(shape)
        if not (returned.dtype.is_floating_point or returned.dtype.is_complex):
            return returned.new_zeros(shape).index_add_(0, self._picks(returned), returned)
        result: Tensor = self._sum_matrix(returned) @ returned.reshape(len(returned), -1)
        return result.reshape(shape)

    def _picks(self, x: Tensor) -> Tensor:
        if self.picks.device != x.device:
            self.picks = self.picks.to(x.device)
        return self.picks

    def _sum_matrix(self, like: Tensor) -> Tensor:
        """The matrix that adds up returned rows: its kernel adds in the order of ranks, always the same."""
        key = like.dtype, like.device
        found = self._sums.get(key)
        if found is None:
            picks = self._picks(like)
            pos = torch.zeros(self.rows + 1, dtype=torch.int64, device=like.device)
            pos[1:] = torch.bincount(picks, minlength=self.rows).cumsum(0)
            order = torch.sort(picks, stable=True).indices
            ones = torch.ones(len(picks), dtype=like.dtype, device=like.device)
            found = self._sums[key] = sparse_csr_tensor(pos, order, ones, (self.rows, len(picks)))
        return found

    # with gradients ------------------------------------------------------------------------------------

    def send(self, x: Tensor, wire: torch.dtype | None = None) -> Tensor:
        """Send the picked rows of ``x``, with higher-order gradients; ``wire`` is their dtype on the wire."""
        return _Send.apply(x, self, narrower(x, wire), False)  # type: ignore[no-any-return]

    def send_back(self, g: Tensor, wire: torch.dtype | None = None) -> Tensor:
        """Return received rows to where they came from and add them up, with higher-order gradients."""
        return _SendBack.apply(g, self, narrower(g, wire), False)  # type: ignore[no-any-return]

    def extend(self, x: Tensor, wire: torch.dtype | None = None) -> Tensor:
        """Return ``x`` with the received rows below its own, with higher-order gradients."""
        return _Send.apply(x, self, narrower(x, wire), True)  # type: ignore[no-any-return]

    def fold(self, g: Tensor, wire: torch.dtype | None = None) -> Tensor:
        """Return own rows plus what others hold of them: the gradient of ``extend``."""
        return _SendBack.apply(g, self, narrower(g, wire), True)  # type: ignore[no-any-return]


def _describe_kind(kind: tuple[tuple[int, ...], torch.dtype, torch.dtype | None]) -> str:
    shape, dtype, wire = kind
    sent = "" if wire is None else f", sent as {wire}"
    return f"rows of shape {shape} and dtype {dtype}{sent}"


class Pending:
    """Rows on their way into ``out``."""

    def __init__(
        self, out: Tensor, received: Tensor, handle: Handle | None, sent: Tensor | None = None
    ) -> None:
        self.out, self.received, self.handle = out, received, handle
        self._sent = sent  # kept until they are gone

    def wait(self) -> Tensor:
        if self.handle is not None:
            self.handle.wait()
        if self.received is not self.out:
            self.out.copy_(self.received)
        return self.out


def narrower(x: Tensor, wire: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype to send numbers in, where that is another one."""
    is_narrower = wire is not None and x.dtype.is_floating_point and wire.itemsize < x.dtype.itemsize
    return wire if is_narrower else None


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, wire: torch.dtype | None, keeps_own: bool) -> Tensor:
        ctx.how = route, wire, keeps_own
        own = len(x) if keeps_own else 0
        out = x.new_empty((own + route.incoming, *x.shape[1:]))
        pending = route.start(x, out[own:], wire)
        out[:own] = x.detach() if keeps_own else out[:0]
        pending.wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _SendBack.apply(grad, *ctx.how), None, None, None


class _SendBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, route: Route, wire: torch.dtype | None, keeps_own: bool) -> Tensor:
        ctx.how = route, wire, keeps_own
        own = route.rows if keeps_own else 0
        returned = route.start_back(g[own:], wire).wait()
        if not keeps_own:
            return route.add_up(returned)
        if not route.total:
            return g[:own].clone()
        return route.add_up(returned).add_(g[:own].detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Send.apply(grad, *ctx.how), None, None, None
