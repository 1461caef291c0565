"""One sweep of label propagation: which label each vertex prefers, and who may adopt it."""

from __future__ import annotations

import torch

from scorch._src.distributed.partition.level import Level

Tensor = torch.Tensor
LARGEST = torch.iinfo(torch.int64).max


def scramble(numbers: Tensor, sweep: int) -> Tensor:
    """Return pseudorandom non-negative numbers: the same on all ranks and in every run."""
    mixed = (numbers + 7919 * (sweep + 1)) * -7046029254386353131  # an odd number: no two become the same
    mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
    return (mixed ^ (mixed >> 32)) & LARGEST


def awake(level: Level, sweep: int) -> Tensor:
    """Return which vertices may move in a sweep, about half: neighbors that all move would swap labels."""
    return scramble(level.ids, sweep) % 2 == 0


def favourite(
    level: Level, found: tuple[Tensor, Tensor, Tensor], allowed: Tensor, sweep: int
) -> tuple[Tensor, Tensor]:
    """Return for each vertex the allowed label with the heaviest edges, and their weight; -1 without any."""
    rows, labels, weights = found
    heaviest = torch.full_like(level.sizes, -1)
    counted = torch.where(allowed, weights, -1)
    heaviest = heaviest.scatter_reduce(0, rows, counted, "amax")
    is_heaviest = allowed & (weights == heaviest[rows])
    rows, labels = rows[is_heaviest], labels[is_heaviest]
    ties = scramble(labels * 31 + rows, sweep)
    first = torch.full_like(level.sizes, LARGEST).scatter_reduce(0, rows, ties, "amin")
    is_first = ties == first[rows]
    best = torch.full_like(level.sizes, -1)
    best[rows[is_first]] = labels[is_first]
    return best, heaviest


def admit(targets: Tensor, sizes: Tensor, gains: Tensor, room: Tensor) -> Tensor:
    """Return which vertices may go to their targets: those that gain most, as many as there is room for."""
    by_gain = torch.argsort(gains, descending=True, stable=True)
    order = by_gain[torch.argsort(targets[by_gain], stable=True)]
    total = torch.cumsum(sizes[order], 0)
    counts = torch.bincount(targets, minlength=len(room))
    begins = torch.cumsum(counts, 0) - counts
    before = torch.cat([total.new_zeros(1), total])[begins]
    result = torch.zeros_like(targets, dtype=torch.bool)
    result[order] = total - before[targets[order]] <= room[targets[order]]
    return result
