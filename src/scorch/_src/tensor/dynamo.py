"""Exclude functions from tracing by ``torch.compile``.

At a graph break torch runs the next call eagerly, and tries to compile the functions below it one by one.
Those of Scorch are full of tables and caches: dynamo skips them and all that they call.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, TypeVar

from scorch._src.torch_internals import FrameAction, FrameExecStrategy, set_code_exec_strategy

Function = TypeVar("Function")

_skip: Any = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)


def skip_tracing(function: Function) -> Function:
    """Let dynamo run ``function`` eagerly inside compiled programs, and return it."""
    if isinstance(function, types.FunctionType):
        set_code_exec_strategy(function.__code__, _skip)
    return function


def skip_tracing_all(values: Iterable[Any]) -> None:
    """Let dynamo run all functions among ``values`` eagerly."""
    for value in values:
        skip_tracing(value)
