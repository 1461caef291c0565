"""Whether torch keeps track of what is computed: for autograd, or inside ``torch.func``."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack

_depth = threading.local()

any_requires_grad = torch._C._any_requires_grad
is_grad_enabled = torch.is_grad_enabled


def is_transformed() -> bool:
    """Whether ``torch.func`` is at work."""
    return peek_interpreter_stack() is not None


def is_learning(*tensors: Any, **named: Any) -> bool:
    """Whether a result of these tensors must be connected to them, for autograd or ``torch.func``."""
    if peek_interpreter_stack() is not None:
        return True
    return is_grad_enabled() and any_requires_grad(*tensors, **named)


def untracked() -> contextlib.AbstractContextManager[Any]:
    """Where index arrays are made: nothing is tracked there, even inside of ``torch.func``.

    All that is computed inside of ``torch.func`` would be tracked, index arrays too, and patterns outlive it.
    """
    if peek_interpreter_stack() is None:
        return contextlib.nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    cleared: contextlib.AbstractContextManager[Any] = temporarily_clear_interpreter_stack()
    return cleared


@contextlib.contextmanager
def fixed_patterns() -> Iterator[None]:
    """Where torch differentiates by formulas: results whose zeros are there by chance stay dense.

    A gradient is sampled at the pattern of a tensor, which is right only if the pattern does not depend on
    values.
    """
    _depth.number = getattr(_depth, "number", 0) + 1
    try:
        yield
    finally:
        _depth.number -= 1


def are_patterns_fixed() -> bool:
    return getattr(_depth, "number", 0) > 0


def is_asked_by(module: str, depth: int) -> bool:
    """Whether a function was called from a module: torch, where it makes graphs, looks at tensors itself."""
    name: str = sys._getframe(depth + 1).f_globals.get("__name__", "")
    return name == module or name.startswith(f"{module}.")
