"""Sparse attention pair by pair, with torch's own operations on lists of pairs.

It can be differentiated any number of times, on any device, and takes memory for each pair and feature. It
serves gradients of gradients and machines without a compiler.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from scorch._src.backends.routines import Heads
from scorch._src.devices import HOST
from scorch._src.ops.attention.mask_pairs import Pairs

_BITS = 0xFFFFFFFF


def attend(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, pairs: Pairs, heads: Heads) -> torch.Tensor:
    """What ``Routines.attention`` gives: a row for each query of each head."""
    Q, K, V = (spread(tensor, heads.batch) for tensor in (Q, K, V))
    found = []
    for number, (place, rows, columns) in enumerate(entries(pairs, heads)):
        weights = _weights(Q[place], K[place], rows, columns, heads.scale)
        if heads.dropout:
            weights = weights * _kept(heads, number, rows, columns).to(weights)
        zeros = V.new_zeros(Q.shape[-2], V.shape[-1])
        found.append(zeros.index_add(0, rows, weights[:, None] * V[place][columns]))
    if not found:
        return V.new_zeros(*heads.batch, Q.shape[-2], V.shape[-1])
    return torch.stack(found).view(*heads.batch, Q.shape[-2], V.shape[-1])


def spread(tensor: torch.Tensor, batch: tuple[int, ...]) -> torch.Tensor:
    """A tensor for each head."""
    return tensor.expand(*batch, *tensor.shape[-2:])


def entries(pairs: Pairs, heads: Heads) -> Iterator[tuple[tuple[int, ...], torch.Tensor, torch.Tensor]]:
    """The place of each head in the batch, and its pairs."""
    skipped = None if heads.skipped is None else heads.skipped.expand(*heads.batch, -1)
    for number, place in enumerate(itertools.product(*(range(size) for size in heads.batch))):
        rows, columns = pairs.entries(heads.masks[number])
        if skipped is not None:
            seen = ~skipped[place][columns]
            rows, columns = rows[seen], columns[seen]
        yield place, rows, columns


def _weights(
    q: torch.Tensor, k: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, scale: float
) -> torch.Tensor:
    """The softmax of the scores of each query's pairs."""
    rows, columns = rows.to(q.device), columns.to(q.device)
    scores = (q[rows] * k[columns]).sum(-1) * scale
    top = scores.new_full((q.shape[0],), -math.inf).scatter_reduce(0, rows, scores.detach(), "amax")
    powers = torch.exp(scores - top[rows])
    return powers / powers.new_zeros(q.shape[0]).index_add(0, rows, powers)[rows]


# dropout, as in the C text ---------------------------------------------------------------------------


def _kept(heads: Heads, head: int, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """0 for the pairs that are left out, for the others what makes up for them."""
    seed = _mixed(torch.tensor(head ^ heads.seed[1], device=HOST))
    of_rows = _mixed((_mixed(rows ^ heads.seed[0]) + seed) & _BITS)
    drawn = _mixed(of_rows ^ (columns * 0x9E3779B1 & _BITS))
    made_up = 1 / (1 - heads.dropout) if heads.dropout < 1 else 0.0
    return (drawn >= math.ceil(heads.dropout * 2**32)) * made_up


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """The mixing of 32 bits, in int64."""
    x = (x ^ x >> 16) * 0x85EBCA6B & _BITS
    x = (x ^ x >> 13) * 0xC2B2AE35 & _BITS
    return x ^ x >> 16
