"""Functions of few values that torch takes longer to choose a kernel for than to compute."""

from __future__ import annotations

from collections.abc import Callable

import torch

from scorch._src.backends.cpu.launch import builtins

Function = Callable[[torch.Tensor], torch.Tensor]


def of_few(code: int, by_torch: Function) -> Function:
    """Return a function of values: a builtin, and torch's where they are many, or no list of floats."""
    functions = builtins()
    if functions is None:
        return by_torch
    of_list = functions.map

    def compute(values: torch.Tensor) -> torch.Tensor:
        result = of_list(code, values)
        return by_torch(values) if result is None else result

    return compute


def add_row(result: torch.Tensor, row: torch.Tensor) -> torch.Tensor | None:
    """Add ``row`` to every row of a small ``result``, in place; None where torch must."""
    functions = builtins()
    is_added = functions is not None and not row.is_neg() and functions.add(result, row)
    return result if is_added else None
