"""The routines over the rows of a compressed matrix, by torch, for machines without a compiler.

``backends.cpu.routines.neighbour_max`` and ``backends.cpu.routines.graph_attention`` say what each of them
is; here entries are numbered with their rows, and rows are gathered by ``index_add`` and ``scatter_reduce``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

Tensor = torch.Tensor


class Draws(NamedTuple):
    """Which entries dropout leaves out: those whose 32 random bits are below ``below``."""

    below: int
    seed: int


def rows_of(pos: Tensor, entries: int) -> Tensor:
    """Return the row of each entry."""
    rows = torch.arange(pos.numel() - 1, device=pos.device)
    return rows.repeat_interleave(pos.diff().to(torch.int64), output_size=entries)


def sums(row: Tensor, values: Tensor, count: int) -> Tensor:
    """Sum the values of each row."""
    out = values.new_zeros(count, *values.shape[1:])
    return out.index_add_(0, row, values)


def maxima(row: Tensor, values: Tensor, count: int) -> Tensor:
    """Compute the maximum of the values of each row; minus infinity for a row without entries."""
    out = values.new_full((count, *values.shape[1:]), float("-inf"))
    places = row.view(-1, *(1,) * (values.dim() - 1)).expand_as(values)
    return out.scatter_reduce_(0, places, values, "amax")


# the largest of picked rows ------------------------------------------------------------------------------


def largest(
    pos: Tensor, crd: Tensor, counts: Tensor | None, x: Tensor, with_ties: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute the maximum of the rows of ``x`` that each row picks, and perhaps how many reach it."""
    count, row, picked = pos.numel() - 1, rows_of(pos, crd.numel()), x[crd.long()]
    out = maxima(row, picked, count)
    is_empty = (pos.diff() == 0).unsqueeze(1)
    ties = None
    if with_ties:
        reached = (picked == out[row]).to(x.dtype)
        ties = sums(row, reached if counts is None else reached * counts.unsqueeze(1), count)
        ties = ties.masked_fill_(is_empty, 1)
    return out.masked_fill_(is_empty, 0), ties


def largest_backward(
    pos: Tensor, crd: Tensor, counts: Tensor | None, x: Tensor, out: Tensor, shared: Tensor
) -> Tensor:
    """Compute the gradient of ``x``; the rows are transposed."""
    row, column = rows_of(pos, crd.numel()), crd.long()
    flow = torch.where(x[row] == out[column], shared[column], x.new_zeros(()))
    return sums(row, flow if counts is None else flow * counts.unsqueeze(1), x.shape[0])


# attention over neighbours -------------------------------------------------------------------------------


def attend(
    pos: Tensor,
    crd: Tensor,
    counts: Tensor | None,
    x: Tensor,
    scores: Tensor,
    slope: float,
    draws: Draws,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the result, and the probability of each entry, (entries, heads), negative where dropped."""
    count, row = pos.numel() - 1, rows_of(pos, crd.numel())
    score = torch.where(scores > 0, scores, scores * slope)
    weight = torch.exp(score - maxima(row, score, count)[row])
    if counts is not None:
        weight = weight * counts.unsqueeze(1)
    P = weight / sums(row, weight, count)[row]
    if draws.below:
        P = torch.where(
            _bits(draws.seed, P).view_as(P) < draws.below,
            -P,
            P,
        )
    out = sums(row, _positive(P).unsqueeze(2) * x[crd.long()], count) * scale
    return out, P


def scores_backward(
    pos: Tensor,
    crd: Tensor,
    x: Tensor,
    scores: Tensor,
    slope: float,
    scale: float,
    probabilities: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradient of each score, (entries, heads), and its sum for each row."""
    count, row = pos.numel() - 1, rows_of(pos, crd.numel())
    dots = (grad[row] * x[crd.long()]).sum(2)
    flow = torch.where(probabilities.signbit(), x.new_zeros(()), dots * scale)
    mean = sums(row, probabilities * flow, count)[row]
    each = torch.where(scores > 0, flow - mean, slope * (flow - mean)) * probabilities.abs()
    return each, sums(row, each, count)


def features_backward(
    pos: Tensor, crd: Tensor, places: Tensor, scale: float, probabilities: Tensor, each: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the gradient of ``x``, and the sum of those of scores for each source; rows are transposed."""
    count, row, place = pos.numel() - 1, rows_of(pos, crd.numel()), places.long()
    flow = _positive(probabilities)[place].unsqueeze(2) * grad[crd.long()]
    return sums(row, flow, count) * scale, sums(row, each[place], count)


def _positive(probabilities: Tensor) -> Tensor:
    return torch.where(probabilities < 0, probabilities.new_zeros(()), probabilities)


def _bits(seed: int, like: Tensor) -> Tensor:
    """Draw 32 random bits for each entry by splitmix64, as the routine in C does."""
    z = _signed(seed) + (torch.arange(like.numel(), device=like.device) + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _right(z, 27)) * _signed(0x94D049BB133111EB)
    return _right(z ^ _right(z, 31), 32)


def _right(bits: Tensor, by: int) -> Tensor:
    """Shift right as if there were no sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: int) -> int:
    bits &= 2**64 - 1
    return bits - 2**64 if bits >= 2**63 else bits
