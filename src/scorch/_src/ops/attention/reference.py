"""Sparse attention pair by pair, with torch's own operations on lists of pairs.

It can be differentiated any number of times, on any device, and takes memory for each pair and feature. It
serves double backward and machines without a compiler.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from scorch._src.backends.by_torch.attention import Heads
from scorch._src.backends.by_torch.rows import sum_rows
from scorch._src.devices import HOST
from scorch._src.ops.attention.mask_pairs import MaskPairs

_MASK_32_BITS = 0xFFFFFFFF


def attend(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, pairs: MaskPairs, heads: Heads) -> torch.Tensor:
    """Compute what ``Routines.attention`` does: a row for each query of each head."""
    Q, K, V = (tensor.expand(*heads.batch, *tensor.shape[-2:]) for tensor in (Q, K, V))  # one for each head
    heads_out = []
    for number, (position, rows, columns) in enumerate(entries(pairs, heads)):
        weights = _weights(Q[position], K[position], rows, columns, heads.scale)
        if heads.dropout:
            weights = weights * _dropout_factors(heads, number, rows, columns).to(weights)
        heads_out.append(sum_rows(rows, weights[:, None] * V[position][columns], Q.shape[-2]))
    if not heads_out:
        return V.new_zeros(*heads.batch, Q.shape[-2], V.shape[-1])
    return torch.stack(heads_out).view(*heads.batch, Q.shape[-2], V.shape[-1])


def entries(pairs: MaskPairs, heads: Heads) -> Iterator[tuple[tuple[int, ...], torch.Tensor, torch.Tensor]]:
    """Yield the position of each head in the batch, and its pairs."""
    skipped = None if heads.skipped is None else heads.skipped.expand(*heads.batch, -1)
    for number, position in enumerate(itertools.product(*(range(size) for size in heads.batch))):
        rows, columns = pairs.entries(heads.masks[number])
        if skipped is not None:
            is_visible = ~skipped[position][columns]
            rows, columns = rows[is_visible], columns[is_visible]
        yield position, rows, columns


def _weights(
    q: torch.Tensor, k: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, scale: float
) -> torch.Tensor:
    """Compute the softmax of the scores of each query's pairs."""
    rows, columns = rows.to(q.device), columns.to(q.device)
    scores = (q[rows] * k[columns]).sum(-1) * scale
    maxima = scores.new_full((q.shape[0],), -math.inf).scatter_reduce(0, rows, scores.detach(), "amax")
    exponentials = torch.exp(scores - maxima[rows])
    return exponentials / sum_rows(rows, exponentials, q.shape[0])[rows]


# dropout, as in the C source -------------------------------------------------------------------------


def _dropout_factors(heads: Heads, head: int, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return 0 for dropped pairs, and the scale of the others."""
    seed = _mix_bits(torch.tensor(head ^ heads.seed[1], device=HOST))
    row_bits = _mix_bits((_mix_bits(rows ^ heads.seed[0]) + seed) & _MASK_32_BITS)
    random_bits = _mix_bits(row_bits ^ (columns * 0x9E3779B1 & _MASK_32_BITS))
    scale = 1 / (1 - heads.dropout) if heads.dropout < 1 else 0.0
    return (random_bits >= math.ceil(heads.dropout * 2**32)) * scale


def _mix_bits(x: torch.Tensor) -> torch.Tensor:
    """Mix 32 bits, in int64."""
    x = (x ^ x >> 16) * 0x85EBCA6B & _MASK_32_BITS
    x = (x ^ x >> 13) * 0xC2B2AE35 & _MASK_32_BITS
    return x ^ x >> 16
