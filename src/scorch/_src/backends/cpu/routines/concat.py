"""Arrays one after the other, and integers each shifted by some amount, in one call.

torch allocates new memory for every result; here large results lie in memory that was used before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.launch import BITS, MAX_SLOTS, builtins, pack, result_descriptor
from scorch._src.events import emits

SOURCE = jit.read_source("concat.c")

MIN_BYTES = 1 << 18  # from which on torch's own cat, which allocates anew, is slower


@emits("arrays joined")
def joined(arrays: Sequence[torch.Tensor], offsets: Sequence[int] | None = None) -> torch.Tensor | None:
    size, count = arrays[0].element_size(), sum([array.numel() for array in arrays])
    is_small = size * count < MIN_BYTES or 3 * len(arrays) + 8 >= MAX_SLOTS
    if is_small or size not in BITS or (functions := builtins()) is None:
        return None
    address = jit.function_address(SOURCE, "the joining of arrays", "scorch_concat")
    if not address:
        return None
    offsets = offsets if offsets is not None else [0] * len(arrays)
    parts = [number for array, more in zip(arrays, offsets, strict=True) for number in (array.numel(), more)]
    descriptor = result_descriptor(BITS[size], (count,), zero=False)
    result = functions.fill(address, pack([len(arrays), size, *parts]), descriptor, None, *arrays)
    return result if result.dtype == arrays[0].dtype else result.view(arrays[0].dtype)
