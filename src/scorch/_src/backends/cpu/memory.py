"""Memory for results: large ones in pages that an earlier result has left, if there are some."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.launch import builtins, pack, result_facts
from scorch._src.compiler.bounds import HUGE_PAGE
from scorch._src.compiler.typing import type_of_dtype


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor with any values."""
    made = builtins()
    if made is None or math.prod(shape) * dtype.itemsize < HUGE_PAGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    facts = result_facts(type_of_dtype(dtype), shape, zero=False)
    found: torch.Tensor = made.fill(_nothing(), pack([]), facts, None)
    return found


@functools.cache
def _nothing() -> int:
    """A kernel that leaves its result as it is."""
    source = "long long scorch_compute(long long *args) { (void)args; return 0; }\n"
    return jit.load(source, label="nothing").address("scorch_compute")
