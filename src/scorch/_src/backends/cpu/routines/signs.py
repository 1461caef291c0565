"""Functions of few values that only look at their signs: torch takes longer to choose a kernel than to run it."""

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
