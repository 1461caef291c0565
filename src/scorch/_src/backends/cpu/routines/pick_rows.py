"""Rows picked from compressed ones: counted, allocated and copied in one call.

    pos 0 2 3 6        rows 2, 0      pos 0 3 5
    crd 1 4 0 1 2 3    ------->       crd 1 2 3 1 4

The two functions are called as those of a generated kernel that appends rows (``backends.cpu.launch``).
"""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.launch import BITS, builtins, pack, row_facts
from scorch._src.events import told

SOURCE = """\
typedef long long i64;
enum { ROWS, ASKED, INDEX_BYTES, VALUE_BYTES, PICKED, POS, CRD, VALUES, NEW_POS, COUNT,
       DISCARD = NEW_POS + 6, NEW_CRD, NEW_VALUES };

#define POINTER(args, i) \\
    ((args)[INDEX_BYTES] == 4 ? ((const int *)(args)[POS])[i] : ((const i64 *)(args)[POS])[i])

/* Where each picked row begins; 1 if one is not there. Rows may be counted from the end. */
i64 scorch_count_rows(i64 *args) {
    const i64 *picked = (const i64 *)args[PICKED];
    i64 *pos = (i64 *)args[NEW_POS], count = 0;
    for (i64 i = 0; i < args[ASKED]; i++) {
        i64 row = picked[i] < 0 ? picked[i] + args[ROWS] : picked[i];
        if (row < 0 || row >= args[ROWS]) return 1;
        pos[i] = count;
        count += POINTER(args, row + 1) - POINTER(args, row);
    }
    pos[args[ASKED]] = args[COUNT] = count;
    return 0;
}

#define COPY(T) static void copy_##T(i64 *args, const T *from, T *to) { \\
    const i64 *picked = (const i64 *)args[PICKED], *begin = (const i64 *)args[NEW_POS]; \\
    for (i64 i = 0; i < args[ASKED]; i++) { \\
        const i64 row = picked[i] < 0 ? picked[i] + args[ROWS] : picked[i]; \\
        const i64 count = begin[i + 1] - begin[i]; \\
        const T *source = from + POINTER(args, row); \\
        T *target = to + begin[i]; \\
        for (i64 k = 0; k < count; k++) target[k] = source[k]; \\
    } \\
}
typedef unsigned char bits8;
typedef unsigned short bits16;
typedef unsigned int bits32;
typedef unsigned long long bits64;
COPY(bits8)
COPY(bits16)
COPY(bits32)
COPY(bits64)

static void copy(i64 *args, i64 bytes, i64 from, i64 to) {
    if (bytes == 1) copy_bits8(args, (const bits8 *)from, (bits8 *)to);
    if (bytes == 2) copy_bits16(args, (const bits16 *)from, (bits16 *)to);
    if (bytes == 4) copy_bits32(args, (const bits32 *)from, (bits32 *)to);
    if (bytes == 8) copy_bits64(args, (const bits64 *)from, (bits64 *)to);
}

i64 scorch_copy_rows(i64 *args) {
    if (args[DISCARD]) return 0;
    copy(args, args[INDEX_BYTES], args[CRD], args[NEW_CRD]);
    copy(args, args[VALUE_BYTES], args[VALUES], args[NEW_VALUES]);
    return 0;
}
"""

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@told("rows taken out")
def picked_rows(
    pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, picked: torch.Tensor
) -> Rows | None:
    """``pos``, ``crd`` and ``values`` of the rows numbered ``picked`` (int64, without gaps).

    None where this machine has no means for it, or a row is not there.
    """
    found, addresses = builtins(), _addresses()
    size = values.element_size()
    if found is None or addresses is None or size not in BITS:
        return None
    index, count = BITS[pos.element_size()], picked.numel()
    first = pack([pos.numel() - 1, count, index.bytes, size])
    try:
        made = found.rows(
            addresses, first, row_facts(count, index, BITS[size]), None, picked, pos, crd, values
        )
    except MemoryError:  # or a row that is not there
        return None
    return made[0], made[1], made[2].view(values.dtype)


def _addresses() -> tuple[int, int] | None:
    """Where the two functions are; None if this compiler cannot make them."""
    what = "the copy of rows of a sparse tensor"
    count, copy = (jit.function_address(SOURCE, what, f"scorch_{name}_rows") for name in ("count", "copy"))
    return (count, copy) if count and copy else None
