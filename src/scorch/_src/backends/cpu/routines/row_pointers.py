"""Convert the rows of sorted entries between pointers and one number for each entry."""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import builtins, pack, result_descriptor, slot_descriptor
from scorch._src.events import emits
from scorch._src.loops.types import INT32, INT64

SOURCE = jit.read_source("row_pointers.c")

MIN_ENTRIES_PER_THREAD = 1 << 14
_TYPES = {torch.int32: INT32, torch.int64: INT64}


@emits("row pointers")
def pointers_of(rows: torch.Tensor, count: int) -> torch.Tensor | None:
    functions, address = builtins(), _address("pointers", rows.dtype)
    if functions is None or not address:
        return None
    descriptor = result_descriptor(_TYPES[rows.dtype], (count + 1,), zero=False)
    return functions.fill(address, _header(count, rows.numel()), descriptor, None, rows)


@emits("rows of entries")
def rows_of(pos: torch.Tensor, crd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    functions, address = builtins(), _address("rows", pos.dtype)
    rows, entries = pos.numel() - 1, crd.numel()
    if functions is None or not address:
        return None
    descriptor = slot_descriptor(1, _TYPES[pos.dtype], _TYPES[pos.dtype], 0, (1,))
    ends, row_numbers, _ = functions.slots((address, 0), _header(rows, entries), descriptor, None, pos, crd)
    return ends, row_numbers


def _header(rows: int, entries: int) -> bytes:
    """Pack the arguments of the functions before the arrays."""
    return pack([*parallel.shared_by(rows + entries, MIN_ENTRIES_PER_THREAD), rows, entries])


def _address(what: str, dtype: torch.dtype) -> int:
    name = f"scorch_{what}_i{8 * dtype.itemsize}"
    return jit.function_address(SOURCE, "rows and pointers from each other", name)
