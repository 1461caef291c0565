"""Arrays one after the other, and in whole numbers each further by some amount, in one call.

torch allocates what it joins anew every time; here large results lie in memory that was used before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.launch import BITS, MOST_SLOTS, builtins, pack, result_facts
from scorch._src.backends.cpu.sources import read_source
from scorch._src.events import emits

SOURCE = read_source("concat.c")

LEAST = 1 << 18  # bytes from which on torch's own cat, which allocates anew, is slower


@emits("arrays joined")
def joined(arrays: Sequence[torch.Tensor], further: Sequence[int] | None = None) -> torch.Tensor | None:
    size, count = arrays[0].element_size(), sum([array.numel() for array in arrays])
    is_small = size * count < LEAST or 3 * len(arrays) + 8 >= MOST_SLOTS
    made, address = (None, 0) if is_small else (builtins(), _address())
    if not address or made is None or size not in BITS:
        return None
    by = further if further is not None else [0] * len(arrays)
    parts = [number for array, more in zip(arrays, by, strict=True) for number in (array.numel(), more)]
    facts = result_facts(BITS[size], (count,), zero=False)
    found = made.fill(address, pack([len(arrays), size, *parts]), facts, None, *arrays)
    return found if found.dtype == arrays[0].dtype else found.view(arrays[0].dtype)


def _address() -> int:
    return jit.function_address(SOURCE, "the joining of arrays", "scorch_concat")
