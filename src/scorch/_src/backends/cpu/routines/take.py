"""Values taken from positions of an array on all threads; torch's ``index_select`` does it on one."""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import BITS, builtins, pack, result_descriptor

SOURCE = jit.read_source("take.c")

MIN_VALUES = 1 << 14  # below, torch is as fast
MIN_VALUES_PER_THREAD = 1 << 14
_C_TYPES = {1: "char", 2: "short", 4: "int", 8: "long long"}


def taken(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor | None:
    """Take values as ``Routines.take``; None where torch is as fast, or values are not in memory."""
    count, size = places.numel(), values.element_size()
    is_plain = values.dim() == 1 and values.is_contiguous() and places.dtype == torch.int64
    is_lazy = values.is_conj() or values.is_neg() or values._is_zerotensor()
    if count < MIN_VALUES or size not in BITS or not is_plain or is_lazy:
        return None
    functions = builtins()
    address = jit.function_address(source_for(size), "values at places", "scorch_take")
    if functions is None or not address:
        return None
    header = pack([*parallel.shared_by(count, MIN_VALUES_PER_THREAD), count])
    descriptor = result_descriptor(BITS[size], (count,), zero=False)
    return functions.fill(address, header, descriptor, None, values, places).view(values.dtype)


def source_for(size: int) -> str:
    """Return the C source for values of so many bytes."""
    return jit.with_types(SOURCE, value_t=_C_TYPES[size])
