"""Tell ``torch.compile`` what it may trace: functions that it skips, attributes that are no constants.

At a graph break torch runs the next call eagerly, and tries to compile the functions below it one by one.
Those of Scorch are full of tables and caches: dynamo skips them and all that they call.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from scorch._src.grad_state import is_called_from
from scorch._src.torch_internals import (
    ATTRIBUTE_READER,
    FrameAction,
    FrameExecStrategy,
    set_code_exec_strategy,
)

Function = TypeVar("Function")

_skip: Any = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)


def skip_tracing(function: Function) -> Function:
    """Let dynamo run a function, or what reads a property, eagerly inside compiled programs; return it."""
    code: Any = function.fget if isinstance(function, property) else function
    if isinstance(code, types.FunctionType):
        set_code_exec_strategy(code.__code__, _skip)
    return function


def skip_tracing_all(values: Iterable[Any]) -> None:
    """Let dynamo run all functions among ``values`` eagerly."""
    for value in values:
        skip_tracing(value)


def refuse_constant(name: str, size: Any, alternative: str) -> None:
    """Refuse an attribute to ``torch.compile`` where it would be a constant, though patterns differ.

    It knows the size of an array that it was given, and compiles again where that changes.
    """
    is_known = size is not None and (isinstance(size, int) or size.node.has_hint())
    if (torch.compiler.is_exporting() or not is_known) and is_called_from(ATTRIBUTE_READER, 2):
        from scorch._src.torch_internals import GraphBreak

        raise GraphBreak(
            f"S.{name} depends on the sparsity pattern, which torch.compile does not know of a result, and "
            f"torch.export(strict=True) of no tensor; use {alternative} instead, or strict=False"
        )


def refuse_gradient() -> None:
    """Refuse ``.grad`` to ``torch.compile``: that of the weight of a layer is known outside graphs."""
    if any(is_called_from(ATTRIBUTE_READER, depth) for depth in range(2, 5)):
        from scorch._src.torch_internals import GraphBreak

        raise GraphBreak("S.grad is not known to torch.compile where S is computed in the graph")
