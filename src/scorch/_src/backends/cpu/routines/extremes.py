"""Extremes of groups whose values lie anywhere, as those of columns do in compressed rows."""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import builtins, pack, result_descriptor, scratch
from scorch._src.backends.cpu.routines.take import C_TYPES_OF_RUNS
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.events import emits
from scorch._src.loops.types import LAST_INT32

SOURCE = jit.read_source("extremes.c")
KINDS = ("amax", "amin", "argmax", "argmin")
MIN_VALUES_PER_THREAD = 1 << 14
MAX_COPIES = 2  # bests of all threads for each value: with more, it is cheaper to gather the values of groups


@emits("extremes of groups")
def scattered_extremes(
    values: torch.Tensor, group: torch.Tensor, begins: torch.Tensor, how: str
) -> torch.Tensor | None:
    """Compute ``Routines.scattered_extremes``; None where groups have to be gathered first."""
    groups, count = begins.numel() - 1, values.numel()
    is_plain = values.dim() == 1 and values.is_contiguous() and group.is_contiguous() and not values.is_neg()
    if how not in KINDS or values.dtype not in C_TYPES_OF_RUNS or not is_plain or not 0 < count <= LAST_INT32:
        return None
    functions = builtins()
    if functions is None or values._is_zerotensor():
        return None
    runtime, threads = parallel.shared_by(count, MIN_VALUES_PER_THREAD)
    threads = max(threads, 1)
    if groups * threads > MAX_COPIES * count:
        return None
    address = jit.function_address(source_of_extremes(values.dtype), "extremes of groups", f"scorch_{how}")
    if not address:
        return None
    bests = scratch(threads * groups * values.element_size())
    positions = scratch(threads * groups * torch.int32.itemsize) if how.startswith("arg") else bests
    dtype = torch.int64 if how.startswith("arg") else values.dtype
    header = pack([runtime, threads, count, groups])
    descriptor = result_descriptor(type_of_dtype(dtype), (groups,), zero=False)
    extremes: torch.Tensor = functions.fill(
        address, header, descriptor, None, values, group, begins, bests, positions
    )
    return extremes


def source_of_extremes(dtype: torch.dtype) -> str:
    """Return the C source for values of a dtype."""
    return jit.with_types(SOURCE, value_t=C_TYPES_OF_RUNS[dtype])
