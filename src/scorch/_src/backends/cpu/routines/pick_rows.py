"""Rows picked from compressed ones: counted, allocated and copied in one call.

    pos 0 2 3 6        rows 2, 0      pos 0 3 5
    crd 1 4 0 1 2 3    ------->       crd 1 2 3 1 4

The two functions are called as those of a generated kernel that appends rows (``backends.cpu.launch``).
"""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.launch import BITS, builtins, pack, row_descriptor
from scorch._src.events import emits

SOURCE = jit.read_source("pick_rows.c")

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@emits("rows taken out")
def picked_rows(
    pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, picked: torch.Tensor
) -> Rows | None:
    """Copy ``pos``, ``crd`` and ``values`` of the rows numbered ``picked`` (int64, without gaps).

    None where this machine cannot compile it, or a row is out of range.
    """
    functions, addresses = builtins(), _addresses()
    size = values.element_size()
    if functions is None or addresses is None or size not in BITS:
        return None
    index, count = BITS[pos.element_size()], picked.numel()
    first = pack([pos.numel() - 1, count, index.bytes, size])
    try:
        arrays = functions.rows(
            addresses, first, row_descriptor(count, index, BITS[size]), None, picked, pos, crd, values
        )
    except MemoryError:  # or a row that is not there
        return None
    return arrays[0], arrays[1], arrays[2].view(values.dtype)


def _addresses() -> tuple[int, int] | None:
    """Return the addresses of the two functions; None if no compiler can build them."""
    what = "the copy of rows of a sparse tensor"
    count, copy = (jit.function_address(SOURCE, what, f"scorch_{name}_rows") for name in ("count", "copy"))
    return (count, copy) if count and copy else None
