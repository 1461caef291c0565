"""Whether torch keeps track of what is computed: for autograd, or inside ``torch.func``."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack

any_requires_grad = torch._C._any_requires_grad
is_grad_enabled = torch.is_grad_enabled


def is_learning(*tensors: Any) -> bool:
    """Whether a result of these tensors must be connected to them, for autograd or ``torch.func``."""
    if peek_interpreter_stack() is not None:
        return True
    return is_grad_enabled() and any_requires_grad(*tensors)


def untracked() -> contextlib.AbstractContextManager[Any]:
    """Where index arrays are made: nothing is tracked there, even inside of ``torch.func``.

    All that is computed inside of ``torch.func`` would be tracked, index arrays too, and patterns outlive it.
    """
    if peek_interpreter_stack() is None:
        return contextlib.nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    cleared: contextlib.AbstractContextManager[Any] = temporarily_clear_interpreter_stack()
    return cleared


def is_asked_by(module: str, depth: int) -> bool:
    """Whether a function was called from a module: torch, where it makes graphs, looks at tensors itself."""
    name: str = sys._getframe(depth + 1).f_globals.get("__name__", "")
    return name == module or name.startswith(f"{module}.")
