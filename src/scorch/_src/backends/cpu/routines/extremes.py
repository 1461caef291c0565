"""The largest or smallest value of each run of values, on all threads; torch's ``scatter_reduce`` has one."""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import builtins, pack, result_descriptor
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.events import emits

SOURCE = jit.read_source("extremes.c")

MIN_VALUES_PER_THREAD = 1 << 13
_C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "unsigned char",
}
RUN_DTYPES = tuple(_C_TYPES)
_NAMES = {"amax": "largest", "amin": "smallest"}


@emits("extremes of runs")
def extremes_of(values: torch.Tensor, begins: torch.Tensor, how: str) -> torch.Tensor | None:
    """Reduce runs as ``Routines.reduce_runs``; None where torch has to."""
    is_plain = values.dim() == 1 and values.is_contiguous() and begins.dtype == torch.int64
    if how not in _NAMES or values.dtype not in _C_TYPES or not is_plain or _is_lazy(values):
        return None
    functions = builtins()
    address = jit.function_address(source_for(values.dtype), "the extremes of runs", f"scorch_{_NAMES[how]}")
    if functions is None or not address:
        return None
    runs = begins.numel() - 1
    header = pack([*parallel.shared_by(values.numel() + runs, MIN_VALUES_PER_THREAD), runs])
    descriptor = result_descriptor(type_of_dtype(values.dtype), (runs,), zero=False)
    found: torch.Tensor = functions.fill(address, header, descriptor, None, values, begins)
    return found


def _is_lazy(values: torch.Tensor) -> bool:
    return values.is_neg() or values._is_zerotensor()


def source_for(dtype: torch.dtype) -> str:
    """Return the C source for values of a dtype."""
    return jit.with_types(SOURCE, value_t=_C_TYPES[dtype])
