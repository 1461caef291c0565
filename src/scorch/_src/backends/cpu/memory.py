"""Allocate results: large ones in the pooled pages of earlier results, if there are some."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.launch import builtins, pack, result_descriptor
from scorch._src.compiler.bounds import HUGE_PAGE
from scorch._src.compiler.typing import type_of_dtype


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor."""
    functions = builtins()
    if functions is None or math.prod(shape) * dtype.itemsize < HUGE_PAGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    descriptor = result_descriptor(type_of_dtype(dtype), shape, zero=False)
    tensor: torch.Tensor = functions.fill(_nothing(), pack([]), descriptor, None)
    return tensor


@functools.cache
def _nothing() -> int:
    """Return the address of a kernel that leaves its result as it is."""
    source = "long long scorch_compute(long long *args) { (void)args; return 0; }\n"
    return jit.load(source, label="nothing").address("scorch_compute")
