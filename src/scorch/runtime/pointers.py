"""The rows of sorted entries as pointers and as one number for each entry, each made from the other."""

from __future__ import annotations

import functools

import torch

from scorch.errors import CompilationError
from scorch.loops.types import INT32, INT64
from scorch.runtime import jit
from scorch.runtime.fill import builtins, pack, result_facts

SOURCE = """\
typedef long long i64;
typedef int i32;
enum { ROWS, ENTRIES, FROM, TO };

#define POINTERS(T) \\
i64 scorch_pointers_##T(i64 *args) { \\
    const T *rows = (const T *)args[FROM]; \\
    T *pos = (T *)args[TO]; \\
    i64 row = 0; \\
    pos[0] = 0; \\
    for (i64 entry = 0; entry < args[ENTRIES]; entry++) \\
        while (row < rows[entry]) pos[++row] = (T)entry; \\
    while (row < args[ROWS]) pos[++row] = (T)args[ENTRIES]; \\
    return 0; \\
} \\
i64 scorch_rows_##T(i64 *args) { \\
    const T *pos = (const T *)args[FROM]; \\
    T *rows = (T *)args[TO]; \\
    for (i64 row = 0; row < args[ROWS]; row++) \\
        for (i64 entry = pos[row]; entry < pos[row + 1]; entry++) rows[entry] = (T)row; \\
    return 0; \\
}
POINTERS(i32)
POINTERS(i64)
"""

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
    return made.fill(address, pack([rows, entries]), facts, None, given)


@functools.cache
def _address(what: str, dtype: torch.dtype) -> int:
    """Where a function is; 0 if this compiler cannot make it."""
    try:
        library = jit.load(SOURCE, "rows and pointers from each other")
    except CompilationError:
        return 0
    return library.address(f"scorch_{what}_{'i32' if dtype == torch.int32 else 'i64'}")
