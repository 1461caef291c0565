"""Values of given ranks, selected by counting digits on all threads, where torch sorts on one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import builtins, pack, result_descriptor
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.events import emits

SOURCE = jit.read_source("select.c")
MIN_VALUES = 1 << 11  # below, torch is as fast
MIN_VALUES_PER_THREAD = 1 << 14
MAX_RANKS = 32  # from there on it is cheaper to sort
DIGITS = 1 << 11  # that tables of each thread have room for, as in the source
SIGNS = 3

_TYPES = {
    torch.float32: ("float", "unsigned"),
    torch.float64: ("double", "unsigned long long"),
    torch.int64: ("long long", "unsigned long long"),
    torch.int32: ("int", "unsigned"),
}
_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int16: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
}
SELECTED_DTYPES = (*_TYPES, *_WIDE)


@emits("values of given ranks")
def selected(values: torch.Tensor, ranks: Sequence[int]) -> torch.Tensor | None:
    """Select as ``Routines.select``; None where torch has to, or is as fast."""
    if len(ranks) > MAX_RANKS:
        return None
    ranked = _run("scorch_select", values, ranks, _WIDE.get(values.dtype, values.dtype), len(ranks))
    return None if ranked is None else ranked.to(values.dtype)


def signs_counted(values: torch.Tensor) -> tuple[int, int, int] | None:
    """Count as ``Routines.count_signs``; None where torch has to, or is as fast."""
    counts = _run("scorch_count_signs", values, (), torch.int64, SIGNS)
    if counts is None:
        return None
    negatives, nonzeros, nans = counts.tolist()
    return negatives, nonzeros, nans


def _run(
    name: str, values: torch.Tensor, ranks: Sequence[int], dtype: torch.dtype, size: int
) -> torch.Tensor | None:
    is_plain = values.dim() == 1 and values.is_contiguous() and not values.is_neg()
    if values.dtype not in SELECTED_DTYPES or values.numel() < MIN_VALUES or not is_plain:
        return None
    functions = builtins()
    if functions is None:
        return None
    values = values.to(_WIDE.get(values.dtype, values.dtype))
    address = jit.function_address(source_of_selection(values.dtype), "the selection of values", name)
    if not address:
        return None
    runtime, threads = parallel.shared_by(values.numel(), MIN_VALUES_PER_THREAD)
    header = pack([runtime, threads, values.numel(), len(ranks)])
    at = torch.tensor(ranks, dtype=torch.int64, device="cpu")
    tables = torch.empty(max(threads, 1) * DIGITS, dtype=torch.int64, device="cpu")
    descriptor = result_descriptor(type_of_dtype(dtype), (size,), zero=False)
    return functions.fill(address, header, descriptor, None, values, at, tables)


def source_of_selection(dtype: torch.dtype) -> str:
    """Return the C source that selects values of a dtype."""
    value, key = _TYPES[dtype]
    return jit.with_types(SOURCE, value_t=value, key_t=key)
