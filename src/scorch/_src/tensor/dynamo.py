"""Functions that ``torch.compile`` does not read.

Where a graph ends, torch runs the next call as it is, and tries to compile the functions below it one by one.
Those of Scorch are full of tables and caches; it is told to leave them, and all that they call, alone.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, TypeVar

from scorch._src.torch_internals import FrameAction, FrameExecStrategy, set_code_exec_strategy

Function = TypeVar("Function")

_skip: Any = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)


def unread(function: Function) -> Function:
    """``function``, which is run as it is inside of programs that are compiled."""
    if isinstance(function, types.FunctionType):
        set_code_exec_strategy(function.__code__, _skip)
    return function


def unread_all(values: Iterable[Any]) -> None:
    """All functions among ``values``; others are left alone."""
    for value in values:
        unread(value)
