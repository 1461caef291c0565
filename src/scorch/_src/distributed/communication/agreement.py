"""What ranks have in common before they exchange anything.

A backend that receives more or fewer bytes than it expects hangs or aborts the process, so descriptions of
what each rank is about to send are compared first.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from scorch._src.devices import HOST
from scorch._src.distributed.communication.collectives import (
    Group,
    carrier,
    gather_numbers,
    reporting,
    size_of,
)
from scorch.errors import CommunicationError, ScorchError
from scorch.settings import current

Tensor = torch.Tensor
Facts = TypeVar("Facts")


def is_debugging() -> bool:
    """Whether ``TORCH_DISTRIBUTED_DEBUG`` asks for checks that cost time."""
    return dist.is_available() and dist.get_debug_level() != dist.DebugLevel.OFF


def all_say(answer: bool, group: Group, like: Tensor) -> bool:
    """Return whether all ranks give the answer yes; all of them ask."""
    return all(found for (found,) in gather_numbers([int(answer)], group, like))


def agree(group: Group, what: str, own: Facts, describe: Callable[[Facts], str] = str) -> None:
    """Raise an error on all ranks if one describes a tensor differently than rank 0."""
    size = size_of(group)
    if size == 1:
        return
    gathered: list[Any] = [None] * size
    with reporting(what, group):
        dist.all_gather_object(gathered, own, group=group)
    for rank, other in enumerate(gathered):
        if isinstance(other, _Raised):
            raise CommunicationError(f"{what}: rank {rank} raised {other.error}")
    for rank, other in enumerate(gathered):
        if other != gathered[0]:
            raise CommunicationError(
                f"{what}: rank {rank} has {describe(other)}, but rank 0 has {describe(gathered[0])}. All "
                "ranks must make the same calls with the same global shapes, dtypes, cuts and options"
            )


class _Raised:
    """An error in place of a description."""

    def __init__(self, error: Exception) -> None:
        self.error = f"{type(error).__name__}: {error}"

    def __repr__(self) -> str:
        return self.error


class Comparison:
    """A comparison of descriptions that has begun; ``wait`` raises an error on all ranks if one differs.

    Ranks send each other a checksum, which takes one message between any two of them.
    """

    def __init__(self, group: Group, what: str, own: Facts, describe: Callable[[Facts], str] = str) -> None:
        self._own = group, what, own, describe
        self._sent = torch.full((size_of(group),), zlib.crc32(repr(own).encode()), device=HOST)
        self._found = torch.empty_like(self._sent)
        with reporting(what, group):
            self._work = dist.all_to_all_single(self._found, self._sent, group=group, async_op=True)

    def wait(self) -> None:
        with reporting(self._own[1], self._own[0]):
            self._work.wait()
        if not torch.equal(self._found, self._sent):
            agree(*self._own)


def compare(
    group: Group, what: str, own: Facts, device: torch.device, describe: Callable[[Facts], str] = str
) -> None:
    """Raise an error on all ranks if one describes what it sends differently, where they compare always."""
    if compares_always(group, device):
        facts = own, current().exchange_budget
        Comparison(group, what, facts, lambda found: describe(found[0]) + with_budget(found[1])).wait()


def with_budget(budget: int | None) -> str:
    """Return how a description ends where bytes are limited."""
    return "" if budget is None else f", exchange_budget={budget}"


def compares_always(group: Group, device: torch.device) -> bool:
    """Return whether ranks compare every exchange; on an accelerator, that would wait for its queue."""
    return size_of(group) > 1 and carrier(group, device) == HOST


@contextlib.contextmanager
def sharing_errors(group: Group, what: str, device: torch.device) -> Iterator[None]:
    """Report an error that is raised inside to the other ranks, whose next call is a ``Comparison``.

    They raise an error that quotes it, instead of waiting for this rank.
    """
    try:
        yield
    except ScorchError as error:
        if compares_always(group, device):
            with contextlib.suppress(CommunicationError):
                Comparison(group, what, _Raised(error)).wait()
        raise


@contextlib.contextmanager
def validating(group: Group, what: str) -> Iterator[None]:
    """Raise an error on all ranks if one of them raises an error inside, where nothing is exchanged."""
    problem: Exception | None = None
    try:
        yield
    except Exception as error:
        problem = error
    try:
        agree(group, what, None if problem is None else _Raised(problem))
    except CommunicationError:
        if problem is None:
            raise
    if problem is not None:
        raise problem
