"""Functions of few values that torch takes longer to choose a kernel for than to compute."""

from __future__ import annotations

from collections.abc import Callable

import torch

from scorch._src.backends.cpu.launch import builtins

RELU, NEG, ABS = range(3)


def of_few(code: int) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Return a function of values; its result is None where they are many, or no list of floats."""

    def compute(values: torch.Tensor) -> torch.Tensor | None:
        functions = builtins()
        return None if functions is None else functions.map(code, values)

    return compute


def add_row(result: torch.Tensor, row: torch.Tensor) -> torch.Tensor | None:
    """Add ``row`` to every row of a small ``result``, in place; None where torch must."""
    functions = builtins()
    return result if functions is not None and functions.add(result, row) else None
