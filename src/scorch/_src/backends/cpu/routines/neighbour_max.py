"""The maximum of the rows of a dense matrix that each row of a sparse one picks, and its backward pass.

    out[i,k] = max over stored (i,j) of X[j,k]        ties[i,k] = how many entries reach it

The gradient of a maximum goes to all entries that reach it in equal parts, as torch does it for
``scatter_reduce``. The backward pass reads the transposed pattern, so that each row is written by one thread.
Rows without entries are zero.
"""

from __future__ import annotations

import torch

from scorch._src.backends.cpu.jit import read_source
from scorch._src.backends.cpu.launch import empty
from scorch._src.backends.cpu.routines import by_rows
from scorch._src.backends.cpu.routines.by_rows import address
from scorch._src.events import emits

_SOURCE = read_source("neighbour_max.c")
_WHAT = "the largest of picked rows"
Arrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]  # pos, crd, how often each entry counts


@emits("largest of the neighbors")
def largest(
    rows: Arrays, x: torch.Tensor, with_ties: bool
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    pos, crd, counts = rows
    count, width = pos.numel() - 1, x.shape[1]
    at = address(_SOURCE, _WHAT, "largest", x.dtype, crd.dtype)
    if not at:
        return None
    out = empty((count, width), x.dtype)
    ties = empty((count, width), x.dtype) if with_ties else None
    by_rows.run(at, (crd.numel() + count) * width, count, (pos, crd, counts, x, out, ties), [width])
    return out, ties


@emits("gradient of the largest of the neighbors")
def largest_backward(
    rows: Arrays, x: torch.Tensor, out: torch.Tensor, shared: torch.Tensor
) -> torch.Tensor | None:
    pos, crd, counts = rows
    at = address(_SOURCE, _WHAT, "back", x.dtype, crd.dtype)
    if not at:
        return None
    dx = empty(x.shape, x.dtype)
    width = x.shape[1]
    work = 2 * crd.numel() * width + x.numel()
    by_rows.run(at, work, x.shape[0], (pos, crd, counts, x, out, shared, dx), [width])
    return dx
