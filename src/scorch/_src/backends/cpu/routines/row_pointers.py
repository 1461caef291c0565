"""The rows of sorted entries as pointers and as one number for each entry, each made from the other."""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import invoke, jit
from scorch._src.backends.cpu.launch import builtins, pack, result_facts, slot_facts
from scorch._src.events import told
from scorch._src.loops.types import INT32, INT64

SOURCE = """\
typedef long long i64;
typedef int i32;
enum { PARALLEL, THREADS, ROWS, ENTRIES, FROM, TO };
enum { BESIDE = FROM + 1, ENDS, FOUND, COUNT }; /* of rows: what is as long as they, the result, its length */

/* Each entry writes where its row ends: the last one wins. Rows without entries end where those before do. */
#define POINTERS(T) \\
static void some_pointers_##T(i64 begin, i64 end, void *context) { \\
    const i64 *args = context, entries = args[ENTRIES], threads = args[THREADS]; \\
    const T *rows = (const T *)args[FROM]; \\
    T *pos = (T *)args[TO]; \\
    const i64 first = entries * begin / threads; \\
    i64 last = entries * end / threads; \\
    while (last > first && last < entries && rows[last - 1] == rows[last]) last--; /* the next thread's */ \\
    for (i64 entry = first; entry < last; entry++) pos[rows[entry] + 1] = (T)(entry + 1); \\
} \\
static void ends_##T(const i64 *args) { \\
    T *pos = (T *)args[TO], reached = 0; \\
    for (i64 row = 1; row <= args[ROWS]; row++) { \\
        if (pos[row] > reached) reached = pos[row]; \\
        pos[row] = reached; \\
    } \\
} \\
static void some_rows_##T(i64 begin, i64 end, void *context) { \\
    const i64 *args = context, rows = args[ROWS], threads = args[THREADS]; \\
    const T *pos = (const T *)args[FROM]; \\
    T *found = (T *)args[FOUND]; \\
    for (i64 row = rows * begin / threads; row < rows * end / threads; row++) \\
        for (i64 entry = pos[row]; entry < pos[row + 1]; entry++) found[entry] = (T)row; \\
} \\
i64 scorch_pointers_##T(i64 *args) { \\
    shared(args, some_pointers_##T); \\
    ends_##T(args); \\
    return 0; \\
} \\
i64 scorch_rows_##T(i64 *args) { \\
    ((T *)args[ENDS])[0] = 0, ((T *)args[ENDS])[1] = (T)args[ENTRIES]; \\
    args[COUNT] = args[ENTRIES]; \\
    return shared(args, some_rows_##T); \\
}

typedef void (*work_t)(i64, i64, void *);
static i64 shared(i64 *args, work_t work) {
    if (args[THREADS] <= 1) work(0, 1, args);
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, work, args);
    return 0;
}
POINTERS(i32)
POINTERS(i64)
"""

EACH = 1 << 14  # entries for each thread
_TYPES = {torch.int32: INT32, torch.int64: INT64}


@told("row pointers")
def pointers_of(rows: torch.Tensor, count: int) -> torch.Tensor | None:
    made, address = builtins(), _address("pointers", rows.dtype)
    if made is None or not address:
        return None
    facts = result_facts(_TYPES[rows.dtype], (count + 1,))
    return made.fill(address, _first(count, rows.numel()), facts, None, rows)


@told("rows of entries")
def rows_of(pos: torch.Tensor, crd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    made, address = builtins(), _address("rows", pos.dtype)
    rows, entries = pos.numel() - 1, crd.numel()
    if made is None or not address:
        return None
    facts = slot_facts(1, _TYPES[pos.dtype], _TYPES[pos.dtype], 0, (1,))
    ends, found, _ = made.slots(address, _first(rows, entries), facts, None, pos, crd)
    return ends, found


def _first(rows: int, entries: int) -> bytes:
    """The arguments of the functions before the arrays."""
    return pack([*invoke.threads_for(rows + entries, EACH), rows, entries])


def _address(what: str, dtype: torch.dtype) -> int:
    name = f"scorch_{what}_{'i32' if dtype == torch.int32 else 'i64'}"
    return jit.function_address(SOURCE, "rows and pointers from each other", name)
