"""Arrays one after the other, and in whole numbers each further by some amount, in one call.

torch allocates what it joins anew every time; here large results lie in memory that was used before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.launch import BITS, MOST_SLOTS, builtins, pack, result_facts
from scorch._src.events import told

SOURCE = """\
typedef long long i64;
typedef int i32;
void *memcpy(void *, const void *, unsigned long);

/* args: how many arrays, bytes of an element; the length of each and what is added; addresses; result */
#define MOVED(T) \\
static void moved_##T(T *to, const T *from, i64 count, T by) { \\
    for (i64 i = 0; i < count; i++) to[i] = from[i] + by; \\
}
MOVED(i32)
MOVED(i64)

i64 scorch_concat(i64 *args) {
    const i64 count = args[0], bytes = args[1], *part = args + 2, *from = part + 2 * count;
    char *to = (char *)from[count];
    for (i64 i = 0; i < count; i++) {
        const i64 length = part[2 * i], by = part[2 * i + 1];
        if (!by) memcpy(to, (const void *)from[i], (unsigned long)(length * bytes));
        else if (bytes == 4) moved_i32((i32 *)to, (const i32 *)from[i], length, (i32)by);
        else moved_i64((i64 *)to, (const i64 *)from[i], length, by);
        to += length * bytes;
    }
    return 0;
}
"""

LEAST = 1 << 18  # bytes from which on torch's own cat, which allocates anew, is slower


@told("arrays joined")
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
