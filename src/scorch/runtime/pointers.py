"""The rows of sorted entries as pointers and as one number for each entry, each made from the other."""

from __future__ import annotations

import functools

import torch

from scorch.errors import CompilationError
from scorch.loops.types import INT32, INT64
from scorch.runtime import invoke, jit
from scorch.runtime.fill import builtins, pack, result_facts
from scorch.settings import current

SOURCE = """\
typedef long long i64;
typedef int i32;
enum { PARALLEL, THREADS, ROWS, ENTRIES, FROM, TO };

/* Each entry writes the pointers of the rows that begin with it. */
#define POINTERS(T) \\
static void some_pointers_##T(i64 begin, i64 end, void *context) { \\
    const i64 *args = context, entries = args[ENTRIES], threads = args[THREADS]; \\
    const T *rows = (const T *)args[FROM]; \\
    T *pos = (T *)args[TO]; \\
    const i64 first = entries * begin / threads, last = entries * end / threads; \\
    i64 row = first ? rows[first - 1] : -1; \\
    for (i64 entry = first; entry < last; entry++) \\
        while (row < rows[entry]) pos[++row] = (T)entry; \\
    if (last == entries) \\
        while (row < args[ROWS]) pos[++row] = (T)entries; \\
} \\
static void some_rows_##T(i64 begin, i64 end, void *context) { \\
    const i64 *args = context, rows = args[ROWS], threads = args[THREADS]; \\
    const T *pos = (const T *)args[FROM]; \\
    T *found = (T *)args[TO]; \\
    for (i64 row = rows * begin / threads; row < rows * end / threads; row++) \\
        for (i64 entry = pos[row]; entry < pos[row + 1]; entry++) found[entry] = (T)row; \\
} \\
i64 scorch_pointers_##T(i64 *args) { return shared(args, some_pointers_##T); } \\
i64 scorch_rows_##T(i64 *args) { return shared(args, some_rows_##T); }

typedef void (*work_t)(i64, i64, void *);
static i64 shared(i64 *args, work_t work) {
    if (args[THREADS] <= 1) work(0, 1, args);
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, work, args);
    return 0;
}
POINTERS(i32)
POINTERS(i64)
"""

EACH = 1 << 16  # entries for each thread
_TYPES = {torch.int32: INT32, torch.int64: INT64}


def pointers_of(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Where each of ``count`` rows begins among entries with the sorted numbers ``rows``, and the end."""
    found = _run("pointers", rows, count, rows.numel(), count + 1)
    if found is not None:
        return found
    return torch._convert_indices_from_coo_to_csr(rows, count, out_int32=rows.dtype == torch.int32)


def rows_of(pos: torch.Tensor, entries: int) -> torch.Tensor:
    """For each of ``entries`` entries the row that it lies in."""
    found = _run("rows", pos, pos.numel() - 1, entries, entries)
    if found is not None:
        return found
    numbers = torch.arange(pos.numel() - 1, dtype=pos.dtype, device="cpu")
    return numbers.repeat_interleave(pos.diff(), output_size=entries)


def _run(what: str, given: torch.Tensor, rows: int, entries: int, length: int) -> torch.Tensor | None:
    """The result of one of the functions; None where this machine has no means for them."""
    made, address = builtins(), _address(what, given.dtype)
    if made is None or not address:
        return None
    facts = result_facts(_TYPES[given.dtype], (length,), zero=False)
    parallel = invoke.parallel_runtime()
    threads = current().threads or torch.get_num_threads()
    shared = max(1, min(threads, (rows + entries) // EACH)) if parallel else 1
    return made.fill(address, pack([parallel, shared, rows, entries]), facts, None, given)


@functools.cache
def _address(what: str, dtype: torch.dtype) -> int:
    """Where a function is; 0 if this compiler cannot make it."""
    try:
        library = jit.load(SOURCE, "rows and pointers from each other")
    except CompilationError:
        return 0
    return library.address(f"scorch_{what}_{'i32' if dtype == torch.int32 else 'i64'}")
