"""The bytes that a call may move.

A call that would move more than ``settings(exchange_budget=)`` is refused on all ranks alike, before anything
is sent.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from scorch.errors import CommunicationError
from scorch.settings import current

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


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
