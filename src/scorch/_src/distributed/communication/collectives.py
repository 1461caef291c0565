"""The collectives of ``torch.distributed`` that sharded tensors use, with errors that say what to do.

Bytes that leave a rank are counted here, and nowhere else: ``count_bytes`` reads the counters. ``explain`` of
a function listens to exchanges as to kernels.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.events import LISTENERS, emit
from scorch._src.name_hints import suggests_keywords
from scorch.errors import CommunicationError, counted

Tensor = torch.Tensor
Group = Any  # torch.distributed.ProcessGroup; None in a process that has started no group


@dataclass
class Traffic:
    """The communication of this rank inside a ``with`` block of ``count_bytes``.

    Attributes:
        sent: the number of bytes sent.
        received: the number of bytes received.
        exchanges: the number of exchanges.

    Example:

        >>> import scorch.distributed as sd
        >>> with sd.count_bytes() as traffic:
        ...     pass
        >>> traffic.exchanges
        0
    """

    sent: int = 0
    received: int = 0
    exchanges: int = 0


_counters: list[Traffic] = []


@suggests_keywords
@contextlib.contextmanager
def count_bytes() -> Iterator[Traffic]:
    """Count the bytes that sharded tensors exchange inside a ``with`` block, on this rank.

    Returns:
        A context manager that returns a ``Traffic``.

    Example:

        >>> import scorch.distributed as sd
        >>> with sd.count_bytes() as traffic:
        ...     pass
        >>> traffic.sent
        0
    """
    traffic = Traffic()
    _counters.append(traffic)
    try:
        yield traffic
    finally:
        _counters[:] = [counter for counter in _counters if counter is not traffic]


@dataclass(frozen=True)
class Exchange:
    """One exchange: the bytes from and to this rank, and the number of peers."""

    what: str
    sent: int
    received: int
    peers: int


def _count(exchange: Exchange) -> None:
    for traffic in _counters:
        traffic.sent += exchange.sent
        traffic.received += exchange.received
        traffic.exchanges += 1


# groups ----------------------------------------------------------------------------------------------


def rank_in(group: Group) -> int:
    """Return the rank of this process in a group; 0 without a group."""
    return 0 if group is None else dist.get_rank(group)


def size_of(group: Group) -> int:
    """Return the number of ranks in a group; 1 without a group."""
    return 1 if group is None else dist.get_world_size(group)


def carrier(group: Group, device: torch.device) -> torch.device:
    """Return the device on which tensors of a device are exchanged: gloo needs host memory."""
    is_gloo = group is not None and dist.get_backend(group) == dist.Backend.GLOO
    return HOST if is_gloo else device


@contextlib.contextmanager
def reporting(what: str, group: Group) -> Iterator[None]:
    """Raise a ``CommunicationError`` that names the call when a collective inside fails."""
    try:
        yield
    except CommunicationError:
        raise
    except RuntimeError as error:  # DistBackendError and gloo's own errors are among these
        size, rank = size_of(group), rank_in(group)
        raise CommunicationError(
            f"{what}: an exchange among {counted(size, 'rank')} failed on rank {rank}. A rank has exited, "
            "missed the timeout of the process group, or made a different call; its own output says which. "
            "The process group is no longer usable: restart all ranks (torchrun does) and load the last "
            "checkpoint. "
            f"{type(error).__name__}: {error}"
        ) from error


# exchanges -------------------------------------------------------------------------------------------


def exchange_rows(
    out: Tensor, rows: Tensor, received: Sequence[int], sent: Sequence[int], group: Group
) -> None:
    """Send runs of rows to all ranks, as many as ``sent`` says, and receive those of ``received``."""
    start_exchange(out, rows, received, sent, group).wait()


def start_exchange(
    out: Tensor, rows: Tensor, received: Sequence[int], sent: Sequence[int], group: Group
) -> Handle:
    """Begin what ``exchange_rows`` does: ``out`` is read after the handle's ``wait``."""
    width, rank = row_bytes(out), rank_in(group)  # what a rank sends to itself does not leave it
    peers = sum(1 for other, count in enumerate(received) if count and other != rank)
    moved = (sum(sent) - sent[rank]) * width, (sum(received) - received[rank]) * width
    here = carrier(group, out.device)
    arrived, leaving = out.to(here), rows.to(here)
    return Handle(
        Exchange("exchange of rows", *moved, peers),
        group,
        lambda: [
            dist.all_to_all_single(
                as_bytes(arrived),
                as_bytes(leaving),
                [count * width for count in received],
                [count * width for count in sent],
                group=group,
                async_op=True,
            )
        ],
        (out, arrived),
    )


def start_exchange_with(out: Tensor, source: int, rows: Tensor, target: int, group: Group) -> Handle:
    """Begin to send rows to one rank and to receive rows from another.

    Empty messages are not sent; both ranks know.
    """
    width, here = row_bytes(out), carrier(group, out.device)
    arrived, leaving = out.to(here), rows.to(here)
    calls = []
    if out.numel():
        calls.append(dist.P2POp(dist.irecv, as_bytes(arrived), group=group, group_peer=source))
    if rows.numel():
        calls.append(dist.P2POp(dist.isend, as_bytes(leaving), group=group, group_peer=target))
    exchange = Exchange("exchange with one rank", len(rows) * width, len(out) * width, int(len(out) > 0))
    return Handle(exchange, group, lambda: dist.batch_isend_irecv(calls) if calls else [], (out, arrived))


class Handle:
    """An exchange that has begun, and is over after ``wait``; its time is that of both calls.

    ``copied`` is an array and its receive buffer, if that is another one.
    """

    def __init__(
        self,
        exchange: Exchange,
        group: Group,
        begin: Callable[[], list[Any]],
        copied: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self._exchange, self._group, self._copied = exchange, group, copied
        _count(exchange)
        start = time.perf_counter()
        with reporting(exchange.what, group):
            self._works = begin()
        self._begun = time.perf_counter() - start

    def wait(self) -> None:
        start = time.perf_counter()
        with reporting(self._exchange.what, self._group):
            for work in self._works:
                work.wait()
        if self._copied is not None and self._copied[0] is not self._copied[1]:
            self._copied[0].copy_(self._copied[1])
        if LISTENERS:
            emit("exchange", self._exchange, (), None, start - self._begun)


def row_bytes(array: Tensor, wire: torch.dtype | None = None) -> int:
    """Return the bytes of a row, as it is or in the dtype in which it is sent."""
    return math.prod(array.shape[1:]) * (wire or array.dtype).itemsize


def as_bytes(array: Tensor) -> Tensor:
    """View a contiguous array as bytes: backends exchange these for any dtype."""
    flat = array.detach().reshape(-1)
    if not flat.numel():
        return flat.new_empty(0, dtype=torch.uint8)
    return flat.as_strided((len(flat),), (1,)).view(torch.uint8)  # one element may have any stride


def exchange_counts(counts: Sequence[int], group: Group, like: Tensor) -> list[int]:
    """Send one number to each rank, and return the numbers received."""
    if group is None:
        return list(counts)
    given = torch.tensor(counts, dtype=torch.int64, device=carrier(group, like.device))
    found = torch.empty_like(given)
    with reporting("exchange of counts", group):
        dist.all_to_all_single(found, given, group=group)
    return [int(count) for count in found.tolist()]


def gather_numbers(numbers: Sequence[int], group: Group, like: Tensor) -> list[list[int]]:
    """Return a few numbers of each rank, in order of rank."""
    own = torch.tensor(list(numbers), dtype=torch.int64, device=carrier(group, like.device))
    if group is None or size_of(group) == 1:
        return [own.tolist()]
    parts = [torch.empty_like(own) for _ in range(size_of(group))]
    with reporting("gathering of numbers", group):
        dist.all_gather(parts, own, group=group)
    return [part.tolist() for part in parts]
