"""Rows that each rank sends to others: which, to whom, and their gradients on the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.dataclass import dataclass
from scorch._src.distributed.communication.agreement import (
    Comparison,
    agree,
    compares_always,
    is_debugging,
    with_budget,
)
from scorch._src.distributed.communication.budget import check_budget, gradients_of_call
from scorch._src.distributed.communication.collectives import (
    Group,
    Handle,
    exchange_counts,
    gather_numbers,
    rank_in,
    row_bytes,
    size_of,
    start_exchange,
)
from scorch._src.tensor.create.torch_constructors import sparse_csr_tensor
from scorch.settings import current

MAX_AGREED = 256  # kinds of rows: their shape and dtype
ROWS, SUMS = "rows", "partial sums"

Tensor = torch.Tensor
Wire = torch.dtype | None
Names = tuple[str, ...]


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
        facts = gather_numbers([*own, _Numbers.last + 1], group, picks)
        sent, received, peers, blocks, numbers = zip(*facts, strict=True)
        self.total: int = sum(sent)  # rows that all ranks send together
        self.most: int = max(sent + received)  # rows that one rank sends or receives
        self.most_peers: int = max(peers)  # ranks that one rank receives rows from
        self.block: int = max(blocks)  # rows that one rank sends to another
        self.number = _Numbers.last = max(numbers)  # the same on all ranks, and that of no other route
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

    def compare(self, what: str, x: Tensor, wire: Wire, tracked: Names = ()) -> Comparison | None:
        """Begin to compare the rows that ranks send; all of them raise an error if some are of another kind.

        ``tracked`` names the operands that require gradients, which travel back on all ranks or on none. On
        an accelerator, kinds are compared at their first use, and always with ``TORCH_DISTRIBUTED_DEBUG``.
        """
        kind = Kind(what, self.number, tuple(x.shape[1:]), x.dtype, wire, tracked, current().exchange_budget)
        if compares_always(self.group, x.device):
            return Comparison(self.group, f"exchange of {what}", kind, Kind.describe)
        if self._agreed.get(kind) is None or is_debugging():
            agree(self.group, f"exchange of {what}", kind, Kind.describe)
            self._agreed[kind] = True
        return None

    # without gradients ---------------------------------------------------------------------------------

    def start(self, x: Tensor, out: Tensor, wire: Wire = None, tracked: Names = ()) -> Pending:
        """Begin to send the picked rows of ``x``; those received are in ``out`` after ``wait``."""
        if not self.total:
            return Pending(out, out, None)
        comparison = self.compare(ROWS, x, wire, tracked)
        rows = x.detach().index_select(0, self._picks(x))
        rows = rows if wire is None else rows.to(wire)
        finish(comparison)
        check_budget("exchange of rows", self.most * row_bytes(x, wire))
        if size_of(self.group) == 1:
            return Pending(out, rows, None)
        received = out if rows.dtype == out.dtype else out.new_empty(out.shape, dtype=rows.dtype)
        handle = start_exchange(received, rows, self.received, self.sent, self.group)
        return Pending(out, received, handle, rows)

    def start_back(self, g: Tensor, wire: Wire = None, tracked: Names = ()) -> Pending:
        """Begin to return received rows; after ``wait`` those that came back, in the order of ``picks``."""
        returned = g.new_empty((len(self.picks), *g.shape[1:]))
        if not self.total:
            return Pending(returned, returned, None)
        comparison = self.compare(SUMS, g, wire, tracked)
        rows = (g.detach() if wire is None else g.detach().to(wire)).contiguous()
        finish(comparison)
        check_budget("exchange of partial sums", self.most * row_bytes(g, wire))
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

    def send(self, x: Tensor, wire: Wire = None) -> Tensor:
        """Send the picked rows of ``x``, with higher-order gradients; ``wire`` is their dtype on the wire."""
        return _Send.apply(x, self, narrower(x, wire), False, tracked_of(x=x))  # type: ignore[no-any-return]

    def send_back(self, g: Tensor, wire: Wire = None) -> Tensor:
        """Return received rows to where they came from and add them up, with higher-order gradients."""
        return _SendBack.apply(g, self, narrower(g, wire), False, tracked_of(x=g))  # type: ignore[no-any-return]

    def extend(self, x: Tensor, wire: Wire = None) -> Tensor:
        """Return ``x`` with the received rows below its own, with higher-order gradients."""
        return _Send.apply(x, self, narrower(x, wire), True, tracked_of(x=x))  # type: ignore[no-any-return]

    def fold(self, g: Tensor, wire: Wire = None) -> Tensor:
        """Return own rows plus what others hold of them: the gradient of ``extend``."""
        return _SendBack.apply(g, self, narrower(g, wire), True, tracked_of(x=g))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Kind:
    """Rows that ranks are about to exchange: all of them must have the same."""

    what: str
    route: int
    shape: tuple[int, ...]  # of a row
    dtype: torch.dtype
    wire: Wire
    tracked: Names
    budget: int | None

    def describe(self) -> str:
        sent = "" if self.wire is None else f", sent as {self.wire}"
        verb = "requires" if len(self.tracked) == 1 else "require"
        gradients = f", where {' and '.join(self.tracked)} {verb} gradients" if self.tracked else ""
        return (
            f"{self.what} of shape {self.shape} and dtype {self.dtype}{sent} for plan {self.route}"
            f"{gradients}{with_budget(self.budget)}"
        )


class _Numbers:
    """The number of the last route of this process."""

    last = 0


def finish(comparison: Comparison | None) -> None:
    """Wait for a comparison that was necessary."""
    if comparison is not None:
        comparison.wait()


def tracked_of(**operands: Tensor) -> Names:
    """Return the names of the operands that autograd tracks."""
    return tuple(name for name, x in operands.items() if torch.is_grad_enabled() and x.requires_grad)


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


def narrower(x: Tensor, wire: Wire) -> Wire:
    """Return the dtype to send numbers in, where that is another one."""
    is_narrower = wire is not None and x.dtype.is_floating_point and wire.itemsize < x.dtype.itemsize
    return wire if is_narrower else None


@gradients_of_call
class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, wire: Wire, keeps_own: bool, tracked: Names) -> Tensor:
        ctx.how = route, wire, keeps_own, ()
        own = len(x) if keeps_own else 0
        out = x.new_empty((own + route.incoming, *x.shape[1:]))
        pending = route.start(x, out[own:], wire, tracked)
        out[:own] = x.detach() if keeps_own else out[:0]
        pending.wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _SendBack.apply(grad, *ctx.how), None, None, None, None


@gradients_of_call
class _SendBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, route: Route, wire: Wire, keeps_own: bool, tracked: Names) -> Tensor:
        ctx.how = route, wire, keeps_own, ()
        own = route.rows if keeps_own else 0
        returned = route.start_back(g[own:], wire, tracked).wait()
        if not keeps_own:
            return route.add_up(returned)
        if not route.total:
            return g[:own].clone()
        return route.add_up(returned).add_(g[:own].detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Send.apply(grad, *ctx.how), None, None, None, None
