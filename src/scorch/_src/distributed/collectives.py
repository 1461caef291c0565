"""The collectives of ``torch.distributed`` that sharded tensors use, with errors that say what to do.

Bytes that leave a rank are counted here, and nowhere else: ``count_bytes`` reads the counters. A call that
would move more than ``settings(exchange_budget=)`` is refused on all ranks alike, before anything is sent.
``explain`` of a function listens to exchanges as to kernels.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from scorch._src.devices import HOST
from scorch._src.events import LISTENERS, emit
from scorch.errors import CommunicationError, counted
from scorch.settings import current

Tensor = torch.Tensor
Group = Any  # torch.distributed.ProcessGroup; None in a process that has started no group
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


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


def is_debugging() -> bool:
    """Whether ``TORCH_DISTRIBUTED_DEBUG`` asks for checks that cost time."""
    return dist.is_available() and dist.get_debug_level() != dist.DebugLevel.OFF


def _carrier(group: Group, device: torch.device) -> torch.device:
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
            f"{what}: an exchange among {counted(size, 'process', 'processes')} failed on rank {rank}. A "
            "process has exited, missed the timeout of the process group, or made a different call; its own "
            "output says which. The process group is no longer usable: restart all processes (torchrun does) "
            "and load the last checkpoint. "
            f"{type(error).__name__}: {error}"
        ) from error


class _Call(threading.local):
    depth = 0
    received = 0  # bytes of the exchanges so far


_call = _Call()


def one_call(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function whose exchanges count as one call against the budget."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not _call.depth:
            _call.received = 0
        _call.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            _call.depth -= 1

    return run


def check_budget(what: str, received: int) -> None:
    """Refuse a call in which a process would receive more bytes than the settings allow.

    All processes give the same number, the most that one of them receives.
    """
    if _call.depth:
        received = _call.received = _call.received + received
    budget = current().exchange_budget
    if budget is not None and received > budget:
        raise CommunicationError(
            f"{what} would move {received:,} bytes to one rank; settings(exchange_budget={budget}) allows "
            f"{budget:,}. Partition the tensor (scorch.distributed.partition), or raise the budget"
        )


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
    width, rank = row_bytes(out), rank_in(group)  # what a process sends to itself does not leave it
    peers = sum(1 for other, count in enumerate(received) if count and other != rank)
    moved = (sum(sent) - sent[rank]) * width, (sum(received) - received[rank]) * width
    here = _carrier(group, out.device)
    arrived, leaving = out.to(here), rows.to(here)
    return Handle(
        Exchange("exchange of rows", *moved, peers),
        group,
        lambda: [
            dist.all_to_all_single(
                _as_bytes(arrived),
                _as_bytes(leaving),
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
    width, here = row_bytes(out), _carrier(group, out.device)
    arrived, leaving = out.to(here), rows.to(here)
    calls = []
    if out.numel():
        calls.append(dist.P2POp(dist.irecv, _as_bytes(arrived), group=group, group_peer=source))
    if rows.numel():
        calls.append(dist.P2POp(dist.isend, _as_bytes(leaving), group=group, group_peer=target))
    exchange = Exchange("exchange with one process", len(rows) * width, len(out) * width, int(len(out) > 0))
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


def _as_bytes(array: Tensor) -> Tensor:
    """View a contiguous array as bytes: backends exchange these for any dtype."""
    flat = array.detach().reshape(-1)
    if not flat.numel():
        return flat.new_empty(0, dtype=torch.uint8)
    return flat.as_strided((len(flat),), (1,)).view(torch.uint8)  # one element may have any stride


def exchange_counts(counts: Sequence[int], group: Group, like: Tensor) -> list[int]:
    """Send one number to each rank, and return the numbers received."""
    if group is None:
        return list(counts)
    given = torch.tensor(counts, dtype=torch.int64, device=_carrier(group, like.device))
    found = torch.empty_like(given)
    with reporting("exchange of counts", group):
        dist.all_to_all_single(found, given, group=group)
    return [int(count) for count in found.tolist()]


def sum_over(array: Tensor, group: Group) -> Tensor:
    """Return the sum of an array over all ranks, bitwise identical on each and in every run."""
    result = array.clone(memory_format=torch.contiguous_format)
    if group is not None and size_of(group) > 1:
        _reduce(torch.view_as_real(result) if result.is_complex() else result, dist.ReduceOp.SUM, group)
    return result


def _reduce(array: Tensor, op: Any, group: Group) -> None:
    size = size_of(group)
    moved = 2 * (size - 1) * array.numel() * array.element_size() // size  # around a ring
    exchange = Exchange("reduction over processes", moved, moved, size - 1)
    check_budget(exchange.what, moved)
    part = array.to(_carrier(group, array.device))
    Handle(
        exchange, group, lambda: [dist.all_reduce(part, op, group=group, async_op=True)], (array, part)
    ).wait()


def largest_over(array: Tensor, group: Group) -> Tensor:
    """Return the elementwise maximum of an array over all ranks."""
    result = array.clone(memory_format=torch.contiguous_format)
    if group is not None and size_of(group) > 1:
        _reduce(result, dist.ReduceOp.MAX, group)
    return result


def gather_numbers(numbers: Sequence[int], group: Group, like: Tensor) -> list[list[int]]:
    """Return a few numbers of each rank, in order of rank."""
    own = torch.tensor(list(numbers), dtype=torch.int64, device=_carrier(group, like.device))
    if group is None or size_of(group) == 1:
        return [own.tolist()]
    parts = [torch.empty_like(own) for _ in range(size_of(group))]
    with reporting("gathering of numbers", group):
        dist.all_gather(parts, own, group=group)
    return [part.tolist() for part in parts]


def all_say(answer: bool, group: Group, like: Tensor) -> bool:
    """Return whether all processes give the answer yes; all of them ask."""
    return all(found for (found,) in gather_numbers([int(answer)], group, like))


def gather_rows(rows: Tensor, group: Group) -> Tensor:
    """Return the rows of all ranks, concatenated, on every rank."""
    counts = [count for (count,) in gather_numbers([len(rows)], group, rows)]
    if len(counts) == 1:
        return rows.clone()
    here = _carrier(group, rows.device)
    out = rows.new_empty((sum(counts), *rows.shape[1:]), device=here)
    rank, width, others = rank_in(group), row_bytes(rows), len(counts) - 1
    received = (sum(counts) - counts[rank]) * width
    check_budget("gathering of rows", (sum(counts) - min(counts)) * width)
    parts = out.split(counts)
    parts[rank].copy_(rows)
    exchange = Exchange("gathering of rows", counts[rank] * others * width, received, others)
    Handle(exchange, group, lambda: [_start_broadcast(*pair, group) for pair in enumerate(parts)]).wait()
    return out.to(rows.device)


def _start_broadcast(sender: int, part: Tensor, group: Group) -> Any:
    return dist.broadcast(_as_bytes(part), group=group, group_src=sender, async_op=True)


def agree(group: Group, what: str, own: Result, describe: Callable[[Result], str] = str) -> None:
    """Raise an error on all ranks if one describes a tensor differently than rank 0."""
    size = size_of(group)
    if size == 1:
        return
    gathered: list[Any] = [None] * size
    with reporting(what, group):
        dist.all_gather_object(gathered, own, group=group)
    for rank, other in enumerate(gathered):
        if other != gathered[0]:
            raise CommunicationError(
                f"{what}: rank {rank} has {describe(other)}, but rank 0 has {describe(gathered[0])}. All "
                "ranks must make the same calls with the same global shapes, dtypes and cuts"
            )
