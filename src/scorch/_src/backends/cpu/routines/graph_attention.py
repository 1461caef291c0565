"""Graph attention over the stored entries of a sparse matrix, forwards and back, one row after the other.

With scores of sources ``s[j,h]``, of targets ``t[i,h]`` and perhaps of entries ``e[i,j,h]``, for each stored
entry (i, j) and head h

    z = s[j,h] + t[i,h] + e[i,j,h]
    P[i,j,h] = softmax over j of leaky_relu(z)      out[i,h,:] = P[i,j,h] * X[j,h,:]

Nothing is as large as entries times features: a row's probabilities are made while its features are read.
For the way back they are kept, one number for each entry and head; one that dropout has dropped has a minus.
The way back is two routines: over rows for the gradients of scores, over columns for that of ``X``.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import torch

from scorch._src.backends.cpu.routines import by_rows
from scorch._src.backends.cpu.routines.by_rows import address, empty
from scorch._src.backends.cpu.routines.graph_attention_source import SOURCE
from scorch._src.backends.reference import rows as by_torch
from scorch._src.compiler.target import target
from scorch._src.events import told

_WHAT = "attention over the neighbours in a graph"


class Options(NamedTuple):
    """The slope of leaky_relu below zero; the probability of dropout and the number its draws begin with."""

    slope: float
    dropout: float = 0.0
    seed: int = 0

    @property
    def scale(self) -> float:
        """What makes up for those that are left out."""
        return 1.0 / (1.0 - self.dropout) if self.dropout != 1.0 else 0.0

    @property
    def draws(self) -> by_torch.Draws:
        return by_torch.Draws(int(self.dropout * 2.0**32), self.seed)

    def numbers(self) -> list[int]:
        return [_bits(self.slope), self.draws.below, self.seed, _bits(self.scale)]


class Scores(NamedTuple):
    """Of sources and of targets, (nodes, heads) each, and of edges, (entries, heads), if those have any."""

    sources: torch.Tensor
    targets: torch.Tensor
    edges: torch.Tensor | None = None

    def of_entries(self, rows: Rows) -> torch.Tensor:
        """Of each entry and head, their sum."""
        row = by_torch.rows_of(rows.pos, rows.crd.numel())
        found = self.sources[rows.crd.long()] + self.targets[row]
        return found if self.edges is None else found + self.edges


class Rows(NamedTuple):
    """Compressed rows: where they begin, their columns, and how often each entry counts unless once.

    ``places`` says of transposed rows where each entry is among the others.
    """

    pos: torch.Tensor
    crd: torch.Tensor
    counts: torch.Tensor | None = None
    places: torch.Tensor | None = None


@told("attention of neighbours")
def attend(
    rows: Rows, x: torch.Tensor, scores: Scores, options: Options, keep: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``out`` (targets, heads, features), and the probabilities (entries, heads) if they are to be kept.

    ``x`` is (sources, heads, features).
    """
    count, entries, (_, heads, width) = rows.pos.numel() - 1, rows.crd.numel(), x.shape
    at = _address("attend", x, rows.crd)
    if not at:
        given = (x, scores.of_entries(rows), options.slope, options.draws, options.scale)
        return by_torch.attend(rows.pos, rows.crd, rows.counts, *given)
    out = empty(x.dtype, count, heads, width)
    kept = empty(x.dtype, entries, heads) if keep else None
    longest = 0 if keep or not count else int(rows.pos.diff().max())
    own = heads * longest  # of each thread: the scores of a row
    scratch = torch.empty(by_rows.most_threads() * own, dtype=x.dtype, device="cpu")
    arrays = (rows.pos, rows.crd, rows.counts, x, *scores, out, kept, scratch)
    work = (entries + count) * heads * (width + 8)
    by_rows.run(at, work, count, arrays, [own, *options.numbers()])
    return out, kept


@told("gradients of neighbours' scores")
def scores_back(
    rows: Rows, x: torch.Tensor, scores: Scores, options: Options, kept: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of each ``z``, (entries, heads), and its sum for each target."""
    count, entries, (_, heads, width) = rows.pos.numel() - 1, rows.crd.numel(), x.shape
    at = _address("scores", x, rows.crd)
    if not at:
        given = (scores.of_entries(rows), options.slope, options.scale, kept, grad)
        return by_torch.scores_back(rows.pos, rows.crd, x, *given)
    each, total = empty(x.dtype, entries, heads), empty(x.dtype, count, heads)
    arrays = (rows.pos, rows.crd, x, *scores, kept, grad, each, total)
    work = (entries + count) * heads * (width + 4)
    by_rows.run(at, work, count, arrays, options.numbers())
    return each, total


@told("gradients of neighbours' features")
def features_back(
    columns: Rows, options: Options, kept: torch.Tensor, each: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of ``x``, and the sum of that of each ``z`` for each source."""
    assert columns.places is not None
    count, entries, (_, heads, width) = columns.pos.numel() - 1, columns.crd.numel(), grad.shape
    at = _address("features", grad, columns.crd)
    if not at:
        return by_torch.features_back(
            columns.pos, columns.crd, columns.places, options.scale, kept, each, grad
        )
    dx, total = empty(grad.dtype, count, heads, width), empty(grad.dtype, count, heads)
    arrays = (columns.pos, columns.crd, columns.places, kept, each, grad, dx, total)
    work = (entries + count) * heads * (width + 4)
    by_rows.run(at, work, count, arrays, options.numbers())
    return dx, total


def _address(name: str, x: torch.Tensor, crd: torch.Tensor) -> int:
    _, heads, width = x.shape
    lanes = max(1, target().vector_bytes // x.element_size())
    turns = math.lcm(heads, lanes) // lanes
    known = f"#define KNOWN_HEADS {heads}\n#define KNOWN_WIDTH {width}\n#define TURNS {turns}\n"
    return address(known + SOURCE, _WHAT, name, x.dtype, crd.dtype)


def _bits(number: float) -> int:
    """A number as the slot of an argument."""
    found: int = struct.unpack("q", struct.pack("d", number))[0]
    return found
