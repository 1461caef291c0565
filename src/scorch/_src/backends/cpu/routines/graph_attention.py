"""Graph attention over the stored entries of a sparse matrix, forward and backward, one row after the other.

With scores of sources ``s[j,h]``, of targets ``t[i,h]`` and perhaps of entries ``e[i,j,h]``, for each stored
entry (i, j) and head h

    z = s[j,h] + t[i,h] + e[i,j,h]
    P[i,j,h] = softmax over j of leaky_relu(z)      out[i,h,:] = P[i,j,h] * X[j,h,:]

Nothing is as large as entries times features: a row's probabilities are computed while its features are read.
For the backward pass they are saved, one number for each entry and head, negative where dropout dropped it.
The backward pass is two routines: over rows for the gradients of scores, over columns for that of ``X``.
"""

from __future__ import annotations

import math
import struct

import torch

from scorch._src.backends.by_torch.graphs import Options, Rows, Scores
from scorch._src.backends.cpu.jit import read_source
from scorch._src.backends.cpu.launch import empty
from scorch._src.backends.cpu.routines import by_rows
from scorch._src.backends.cpu.routines.by_rows import address
from scorch._src.compiler.target import target
from scorch._src.events import emits

SOURCE = read_source("graph_attention.c")
_WHAT = "attention over the neighbors in a graph"


@emits("attention of neighbors")
def attend(
    rows: Rows, x: torch.Tensor, scores: Scores, options: Options, keep: bool
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    count, entries, (_, heads, width) = rows.pos.numel() - 1, rows.crd.numel(), x.shape
    at = _address("attend", x, rows.crd)
    if not at:
        return None
    out = empty((count, heads, width), x.dtype)
    probabilities = empty((entries, heads), x.dtype) if keep else None
    longest = 0 if keep or not count else int(rows.pos.diff().max())
    own = heads * longest  # of each thread: the scores of a row
    scratch = torch.empty(by_rows.max_threads() * own, dtype=x.dtype, device="cpu")
    arrays = (rows.pos, rows.crd, rows.counts, x, *scores, out, probabilities, scratch)
    work = (entries + count) * heads * (width + 8)
    by_rows.run(at, work, count, arrays, [own, *_numbers(options)])
    return out, probabilities


@emits("gradients of neighbors' scores")
def scores_backward(
    rows: Rows,
    x: torch.Tensor,
    scores: Scores,
    options: Options,
    probabilities: torch.Tensor,
    grad: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    count, entries, (_, heads, width) = rows.pos.numel() - 1, rows.crd.numel(), x.shape
    at = _address("scores", x, rows.crd)
    if not at:
        return None
    each, total = empty((entries, heads), x.dtype), empty((count, heads), x.dtype)
    arrays = (rows.pos, rows.crd, x, *scores, probabilities, grad, each, total)
    work = (entries + count) * heads * (width + 4)
    by_rows.run(at, work, count, arrays, _numbers(options))
    return each, total


@emits("gradients of neighbors' features")
def features_backward(
    columns: Rows, options: Options, probabilities: torch.Tensor, each: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    assert columns.places is not None
    count, entries, (_, heads, width) = columns.pos.numel() - 1, columns.crd.numel(), grad.shape
    at = _address("features", grad, columns.crd)
    if not at:
        return None
    dx, total = empty((count, heads, width), grad.dtype), empty((count, heads), grad.dtype)
    arrays = (columns.pos, columns.crd, columns.places, probabilities, each, grad, dx, total)
    work = (entries + count) * heads * (width + 4)
    by_rows.run(at, work, count, arrays, _numbers(options))
    return dx, total


def _address(name: str, x: torch.Tensor, crd: torch.Tensor) -> int:
    _, heads, width = x.shape
    lanes = max(1, target().vector_bytes // x.element_size())
    turns = math.lcm(heads, lanes) // lanes
    known = f"#define KNOWN_HEADS {heads}\n#define KNOWN_WIDTH {width}\n#define TURNS {turns}\n"
    return address(known + SOURCE, _WHAT, name, x.dtype, crd.dtype)


def _numbers(options: Options) -> list[int]:
    return [_bits(options.slope), options.drop_below, options.seed, _bits(options.scale)]


def _bits(number: float) -> int:
    """Return a number as the slot of an argument."""
    bits: int = struct.unpack("q", struct.pack("d", number))[0]
    return bits
