"""The bytes that a call may move.

A call that would move more than ``settings(exchange_budget=)`` is refused on all ranks alike, before anything
is sent. The gradients of a call are another call in each backward pass.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from torch.autograd import Function

from scorch._src.torch_internals import current_graph_task_id
from scorch.errors import CommunicationError
from scorch.settings import current

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
NO_BACKWARD = -1  # PyTorch's number of the backward pass outside of any


class _Call:
    """The bytes that the exchanges of a call have moved so far, or those of its gradients."""

    def __init__(self) -> None:
        self.backward, self.received = NO_BACKWARD, 0

    def add(self, received: int) -> int:
        """Return the bytes moved so far and these; those of each backward pass are counted anew."""
        backward = current_graph_task_id()
        if backward != self.backward:
            self.backward, self.received = backward, 0
        self.received += received
        return self.received


class _Active(threading.local):
    call: _Call | None = None


_active = _Active()


@contextlib.contextmanager
def _counting(call: _Call | None) -> Iterator[None]:
    before, _active.call = _active.call, call
    try:
        yield
    finally:
        _active.call = before


def one_call(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function whose exchanges count as one call against the budget."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with _counting(_active.call or _Call()):
            return function(*args, **kwargs)

    return run


def gradients_of_call(function: type[Function]) -> type[Function]:
    """Decorate an autograd function: the gradients of a call count as one call against the budget."""
    forward, backward = function.forward, function.backward

    @functools.wraps(forward)
    def run_forward(ctx: Any, *args: Any) -> Any:
        ctx.call = _active.call
        return forward(ctx, *args)

    @functools.wraps(backward)
    def run_backward(ctx: Any, *grads: Any) -> Any:
        with _counting(ctx.call):
            return backward(ctx, *grads)

    function.forward = staticmethod(run_forward)  # type: ignore[method-assign]
    function.backward = staticmethod(run_backward)  # type: ignore[method-assign]
    return function


def check_budget(what: str, received: int) -> None:
    """Refuse a call in which a rank would receive more bytes than the settings allow.

    All ranks give the same number, the most that one of them receives.
    """
    if _active.call is not None:
        received = _active.call.add(received)
    budget = current().exchange_budget
    if budget is not None and received > budget:
        raise CommunicationError(
            f"{what} would move {received:,} bytes to one rank; settings(exchange_budget={budget}) allows "
            f"{budget:,}. Partition the tensor (scorch.distributed.partition), or raise the budget"
        )
