"""Concatenate matrices of compressed rows, vertically or horizontally, in one call.

Vertically their arrays follow each other; horizontally each row is the rows of all, one after the
other, with the columns moved on. Where rows of the result begin is known before, so threads share them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import BITS, MAX_SLOTS, builtins, pack, slot_descriptor
from scorch._src.events import emits
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, INT64

SOURCE = jit.read_source("join_matrices.c")

MIN_ENTRIES_PER_THREAD = {"below": 1 << 17, "beside": 1 << 16}
_INDEX = {torch.int32: INT32, torch.int64: INT64}
_ELEMENTS = {torch.float32: FLOAT32, torch.float64: FLOAT64, **_INDEX}
Arrays = tuple[torch.Tensor, ...]  # pos, crd, values


def below(matrices: Sequence[Arrays], rows: Sequence[int], entries: int) -> Arrays | None:
    """Concatenate the ``rows`` of matrices; None where this machine cannot compile it."""
    return _run("below", matrices, rows, sum(rows), entries)


def beside(matrices: Sequence[Arrays], widths: Sequence[int], rows: int, entries: int) -> Arrays | None:
    """Concatenate matrices of as many rows and ``widths`` columns along columns; None as above."""
    return _run("beside", matrices, widths, rows, entries)


@emits("matrices put together")
def _run(
    what: str, matrices: Sequence[Arrays], sizes: Sequence[int], rows: int, entries: int
) -> Arrays | None:
    count, (pos, _, values) = len(matrices), matrices[0]
    index, dtype = pos.dtype, values.dtype
    bytes = dtype.itemsize
    name = f"scorch_{what}_i{8 * index.itemsize}"
    functions, address = builtins(), jit.function_address(SOURCE, "matrices put together", name)
    if 4 * count + 12 > MAX_SLOTS or bytes not in BITS or functions is None or not address:
        return None
    threads = parallel.shared_by(rows + entries, MIN_ENTRIES_PER_THREAD[what])
    first = pack([*threads, count, rows, entries, bytes, *sizes])
    element = _ELEMENTS.get(dtype)
    descriptor = slot_descriptor(rows, _INDEX[index], element or BITS[bytes], 1, range(2, 3 * count, 3))
    arrays = [array for matrix in matrices for array in matrix]
    pos, crd, values, _ = functions.slots((address, 0), first, descriptor, None, *arrays)
    return pos, crd, values if element is not None else values.view(dtype)
