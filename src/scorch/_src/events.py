"""Who wants to know what runs: ``explain`` of a whole function listens here.

Kernels, routines written by hand and products left to torch tell the listeners what ran and how long. While
nobody listens, which is nearly always, it costs a look at an empty list.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Kind = Literal["kernel", "fused", "routine", "torch", "dense copy"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Event:
    """Something that ran from ``start`` to ``end`` (seconds); ``converted`` of them went into its operands.

    ``subject``: the prepared step, the fused kernel, or the name of a routine.
    """

    kind: Kind
    subject: Any
    operands: tuple[Any, ...]
    result: Any
    start: float
    end: float
    converted: float = 0.0


LISTENERS: list[Callable[[Event], None]] = []


def tell(
    kind: Kind, subject: Any, operands: Sequence[Any], result: Any, start: float, converted: float = 0.0
) -> None:
    """Tell all listeners of something that began at ``start`` and has just ended."""
    event = Event(kind, subject, tuple(operands), result, start, time.perf_counter(), converted)
    for listener in tuple(LISTENERS):
        listener(event)


def told(what: str, kind: Kind = "routine") -> Callable[[Function], Function]:
    """Have a function told of under the name ``what`` whenever somebody listens."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not LISTENERS:
                return function(*args, **kwargs)
            start = time.perf_counter()
            found = function(*args, **kwargs)
            tell(kind, what, (*args, *kwargs.values()), found, start)
            return found

        return run  # type: ignore[return-value]

    return decorate
