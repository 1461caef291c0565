"""Copy index arrays on as many threads as their length is worth, into pooled memory.

torch starts all of its threads for little more than 32,000 elements, which take one thread less time.
"""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import builtins, pack, result_descriptor
from scorch._src.loops.types import INT32, INT64

SOURCE = jit.read_source("copy_indices.c")

MIN_ENTRIES = 1 << 13  # below, torch copies on one thread as well
MIN_ENTRIES_PER_THREAD = 1 << 18
_TYPES = {torch.int32: INT32, torch.int64: INT64}


def copied_indices(array: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Copy an array as ``Routines.copy_indices``; None where it is short, or only torch can read it."""
    count, given = array.numel(), array.dtype
    if count < MIN_ENTRIES or array.dim() != 1 or not array.is_contiguous():
        return None
    if given not in _TYPES or dtype not in _TYPES:
        return None
    name = f"scorch_copy_i{8 * given.itemsize}_i{8 * dtype.itemsize}"
    functions, address = builtins(), jit.function_address(SOURCE, "the copy of index arrays", name)
    if functions is None or not address:
        return None
    header = pack([*parallel.shared_by(count, MIN_ENTRIES_PER_THREAD), count])
    descriptor = result_descriptor(_TYPES[dtype], (count,), zero=False)
    return functions.fill(address, header, descriptor, None, array)
