"""Events of kernels and routines: ``explain`` of a function listens here.

Kernels, routines written by hand, products left to torch and exchanges between processes emit what ran and
how long. Without listeners, which is nearly always, that costs the test of an empty list.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

from scorch._src.dataclass import dataclass

Kind = Literal["kernel", "fused", "routine", "torch", "dense copy", "exchange", "product"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Event:
    """A run from ``start`` to ``end`` (seconds), with ``converted`` seconds for converting its operands.

    ``subject``: the prepared step, the fused kernel, the name of a routine, what an exchange moved, or the
    plan of a sharded product.
    """

    kind: Kind
    subject: Any
    operands: tuple[Any, ...]
    result: Any
    start: float
    end: float
    converted: float = 0.0


LISTENERS: list[Callable[[Event], None]] = []


def emit(
    kind: Kind, subject: Any, operands: Sequence[Any], result: Any, start: float, converted: float = 0.0
) -> None:
    """Emit an event that began at ``start`` and has just ended."""
    event = Event(kind, subject, tuple(operands), result, start, time.perf_counter(), converted)
    for listener in tuple(LISTENERS):
        listener(event)


def emits(
    what: str, kind: Kind = "routine", watch: Callable[[], AbstractContextManager[object]] | None = None
) -> Callable[[Function], Function]:
    """Emit an event named ``what`` on every call; and by what ``watch``, which runs around it, says of it."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not LISTENERS:
                return function(*args, **kwargs)
            start = time.perf_counter()
            if watch is None:
                result, subject = function(*args, **kwargs), what
            else:
                with watch() as watched:
                    result = function(*args, **kwargs)
                subject = f"{what}, {watched}"
            emit(kind, subject, (*args, *kwargs.values()), result, start)
            return result

        return run  # type: ignore[return-value]

    return decorate
