"""Values at positions of an array, and reductions of runs of them, on all threads, faster than torch."""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import BITS, builtins, pack, result_descriptor
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.events import emits

SOURCE = jit.read_source("take.c")
REDUCE_RUNS = jit.read_source("reduce_runs.c")

MIN_VALUES = 1 << 14  # below, torch is as fast
MIN_VALUES_PER_THREAD = 1 << 14
MIN_REDUCED_PER_THREAD = 1 << 13
PIECE = 4096  # runs and values that a thread takes at once, as in ``c/reduce_runs.c``
_C_TYPES = {1: "char", 2: "short", 4: "int", 8: "long long"}

C_TYPES_OF_RUNS = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "unsigned char",
}
RUN_DTYPES = tuple(C_TYPES_OF_RUNS)
TOTALS = {
    "sum": "TOTAL(sum, ADDED, ADDED)",
    "prod": "TOTAL(prod, MULTIPLIED, MULTIPLIED)",
    "amax": "TOTAL(amax, LARGEST, LARGEST_OF_EACH)",
    "amin": "TOTAL(amin, SMALLEST, SMALLEST_OF_EACH)",
}
SCANNED = {"cumsum": "SCANNED(cumsum, ADDED)", "cumprod": "SCANNED(cumprod, MULTIPLIED)"}
SORTED = {"ascending": "SORTED(ascending, RISES)", "descending": "SORTED(descending, FALLS)"}
PLACES = {"argmax": "PLACE(argmax, LARGER)", "argmin": "PLACE(argmin, SMALLER)"}
ADDING = ("sum", "prod", "cumsum", "cumprod")  # of bool, PyTorch computes in other dtypes
KINDS = TOTALS | PLACES | SCANNED | SORTED


def taken(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor | None:
    """Take values as ``Routines.take``; None where torch is as fast, or values are not in memory."""
    count, size = places.numel(), values.element_size()
    is_plain = values.dim() == 1 and values.is_contiguous() and places.dtype == torch.int64
    if count < MIN_VALUES or size not in BITS or not is_plain or _is_lazy(values):
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


@emits("runs reduced")
def reduced_runs(
    values: torch.Tensor, begins: torch.Tensor, how: str, order: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Reduce runs as ``Routines.reduce_runs``; None where torch has to."""
    is_plain = values.dim() == 1 and values.is_contiguous() and begins.dtype == torch.int64
    is_plain = is_plain and (order is None or order.dtype == torch.int64)
    if how not in KINDS or values.dtype not in C_TYPES_OF_RUNS or not is_plain or _is_lazy(values):
        return None
    if values.dtype == torch.bool and how in ADDING:
        return None
    moved = taken(values, order) if order is not None and how in TOTALS else None
    if moved is not None:  # a loop of its own reads many values in another order faster
        values, order = moved, None
    functions = builtins()
    address = jit.function_address(source_of_runs(values.dtype, how), "a reduction of runs", f"scorch_{how}")
    if functions is None or not address:
        return None
    runs, work = begins.numel() - 1, values.numel() + begins.numel() - 1
    used = 4 * values.numel() if how in SORTED else 2 * (work // PIECE + 1)
    carried = torch.empty(used, dtype=torch.int64, device="cpu")
    header = pack([*parallel.shared_by(work, MIN_REDUCED_PER_THREAD), runs, order is not None])
    dtype = values.dtype if how in TOTALS | SCANNED else torch.int64
    size = values.numel() if how in SCANNED | SORTED else runs
    descriptor = result_descriptor(type_of_dtype(dtype), (size,), zero=False)
    arrays = values, begins, begins if order is None else order, carried
    found: torch.Tensor = functions.fill(address, header, descriptor, None, *arrays)
    return found


def _is_lazy(values: torch.Tensor) -> bool:
    return values.is_conj() or values.is_neg() or values._is_zerotensor()


def source_of_runs(dtype: torch.dtype, how: str) -> str:
    """Return the C source that reduces or sorts runs of values of a dtype."""
    name = C_TYPES_OF_RUNS[dtype]
    wide = "double" if dtype == torch.float32 else name  # in which torch scans
    return jit.with_types(REDUCE_RUNS, value_t=name, wide_t=wide) + KINDS[how] + "\n"
