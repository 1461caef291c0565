"""The rows of sorted entries as pointers and as one number for each entry, each made from the other."""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import invoke, jit
from scorch._src.backends.cpu.launch import builtins, pack, result_facts, slot_facts
from scorch._src.backends.cpu.sources import read_source
from scorch._src.events import emits
from scorch._src.loops.types import INT32, INT64

SOURCE = read_source("row_pointers.c")

EACH = 1 << 14  # entries for each thread
_TYPES = {torch.int32: INT32, torch.int64: INT64}


@emits("row pointers")
def pointers_of(rows: torch.Tensor, count: int) -> torch.Tensor | None:
    made, address = builtins(), _address("pointers", rows.dtype)
    if made is None or not address:
        return None
    facts = result_facts(_TYPES[rows.dtype], (count + 1,))
    return made.fill(address, _first(count, rows.numel()), facts, None, rows)


@emits("rows of entries")
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
    return pack([*invoke.shared_by(rows + entries, EACH), rows, entries])


def _address(what: str, dtype: torch.dtype) -> int:
    name = f"scorch_{what}_{'i32' if dtype == torch.int32 else 'i64'}"
    return jit.function_address(SOURCE, "rows and pointers from each other", name)
