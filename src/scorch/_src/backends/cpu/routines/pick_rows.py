"""Rows picked from compressed ones: counted, allocated and copied in one call.

    pos 0 2 3 6        rows 2, 0      pos 0 3 5
    crd 1 4 0 1 2 3    ------->       crd 1 2 3 1 4

The two functions are called as those of a generated kernel that appends rows (``backends.cpu.launch``).
"""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import BITS, builtins, pack, row_descriptor
from scorch._src.events import emits

SOURCE = jit.read_source("pick_rows.c")

MIN_ELEMENTS_PER_THREAD = 1 << 13
MAX_THREADS = 256
_C_TYPES = {1: "char", 2: "short", 4: "int", 8: "long long"}

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@emits("rows taken out")
def picked_rows(
    pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, picked: torch.Tensor, from_end: bool = True
) -> Rows | None:
    """Copy ``pos``, ``crd`` and ``values`` of the rows numbered ``picked``.

    None where this machine cannot compile it, or a row is out of range.
    """
    functions, size = builtins(), values.element_size()
    if functions is None or size not in BITS:
        return None
    index, count, rows = BITS[pos.element_size()], picked.numel(), pos.numel() - 1
    addresses = _addresses(index.bytes, size)
    if addresses is None:
        return None
    work = count + count * crd.numel() // max(rows, 1)
    runtime, threads = parallel.shared_by(work, MIN_ELEMENTS_PER_THREAD)
    least = -rows if from_end else 0
    first = pack([runtime, max(1, min(threads, MAX_THREADS)), rows, count, least])
    picked = picked.to(torch.int64).contiguous()
    try:
        arrays = functions.rows(
            addresses, first, row_descriptor(count, index, BITS[size]), None, picked, pos, crd, values
        )
    except MemoryError:  # or a row that is not there
        return None
    return arrays[0], arrays[1], arrays[2].view(values.dtype)


def _addresses(index: int, value: int) -> tuple[int, int] | None:
    """Return the addresses of the two functions for indices and values of so many bytes; None if none."""
    what, text = "the copy of rows of a sparse tensor", source_for(index, value)
    count, copy = (jit.function_address(text, what, f"scorch_{name}_rows") for name in ("count", "copy"))
    return (count, copy) if count and copy else None


def source_for(index: int, value: int) -> str:
    return jit.with_types(SOURCE, index_t=_C_TYPES[index], value_t=f"unsigned {_C_TYPES[value]}")
