"""Check the arrays of a compressed level in one pass."""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import invoke, jit, parallel
from scorch._src.backends.launcher import address_of

SOURCE = jit.read_source("sorted_rows.c")

MIN_ENTRIES_PER_THREAD = 1 << 18


def has_sorted_rows(pos: torch.Tensor, crd: torch.Tensor, size: int) -> bool | None:
    """Check pointers and the coordinates below them; None where only torch can read them."""
    is_plain = pos.dtype == crd.dtype and pos.is_contiguous() and crd.is_contiguous()
    if not is_plain or pos.dtype not in (torch.int32, torch.int64):
        return None
    name = f"scorch_sorted_rows_i{8 * pos.dtype.itemsize}"
    at = jit.function_address(SOURCE, "the check of rows", name)
    if not at:
        return None
    rows, entries = pos.numel() - 1, crd.numel()
    shared = parallel.shared_by(rows + entries, MIN_ENTRIES_PER_THREAD)
    places = address_of(pos), address_of(crd)
    return bool(invoke.make_caller().call(at, *shared, rows, entries, size, *places))
