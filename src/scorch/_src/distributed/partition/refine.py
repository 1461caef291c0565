"""Moves of vertices between parts, so that fewer edges are cut and no part is too large."""

from __future__ import annotations

import torch

from scorch._src.distributed.communication.replicate import sum_over
from scorch._src.distributed.partition.choose import admit, awake, favourite
from scorch._src.distributed.partition.level import Level

Tensor = torch.Tensor


def refine(level: Level, parts: Tensor, most: Tensor, sweeps: int) -> Tensor:
    """Return a better part for each vertex; no part grows above ``most``."""
    quiet = 0  # sweeps in which nobody wanted to move; about half of all are awake in each
    for sweep in range(sweeps):
        parts, moves = _sweep(level, parts, most, sweep)
        quiet = 0 if moves else quiet + 1
        if quiet == 2:
            break
    return parts


def cut_weight(level: Level, parts: Tensor) -> int:
    """Return the weight of edges between parts, each counted from both ends."""
    (everywhere,) = level.plan.extend([parts])
    is_cut = parts[level.rows] != everywhere[level.columns]
    return int(sum_over(level.weights[is_cut].sum(), level.group))


def part_sizes(level: Level, parts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the sizes of parts on this rank, and over all."""
    own = level.sizes.new_zeros(count).index_add_(0, parts, level.sizes)
    return own, sum_over(own, level.group)


def _sweep(level: Level, parts: Tensor, most: Tensor, sweep: int) -> tuple[Tensor, bool]:
    count = len(most)
    own, total = part_sizes(level, parts, count)
    found = level.neighbor_labels(parts, count)
    rows, near, weights = found
    is_here = near == parts[rows]
    here = level.sizes.new_zeros(level.plan.own).index_add_(0, rows[is_here], weights[is_here])
    fits = (total[near] + level.sizes[rows] <= most[near]) & ~is_here
    best, there = favourite(level, found, fits, sweep)
    gains = there - here
    excess = (total - most).clamp(min=0)
    must_leave = _leavers(level, parts, gains, best, own, total, excess)
    movers = ((best >= 0) & awake(level, sweep) & ((gains > 0) | must_leave)).nonzero().squeeze(1)
    targets, sizes = best[movers], level.sizes[movers]
    wanted = total.new_zeros(count).index_add_(0, targets, sizes)
    everybody = sum_over(wanted, level.group)
    if not bool(everybody.any()):
        return parts, False
    room = (most - total).clamp(min=0)
    share = (room.double() * (wanted.double() / everybody.clamp(min=1).double())).floor().to(torch.int64)
    joins = admit(targets, sizes, gains[movers], torch.where(everybody <= room, wanted, share))
    parts = parts.clone()
    parts[movers[joins]] = targets[joins]
    return parts, True


def _leavers(
    level: Level, parts: Tensor, gains: Tensor, best: Tensor, own: Tensor, total: Tensor, excess: Tensor
) -> Tensor:
    """Return the vertices of parts that are too large which lose least by leaving them."""
    share = (2 * excess.double() * (own.double() / total.clamp(min=1).double())).ceil().to(torch.int64)
    is_candidate = ((best >= 0) & (excess > 0)[parts]).nonzero().squeeze(1)
    result = torch.zeros_like(parts, dtype=torch.bool)
    leave = admit(parts[is_candidate], level.sizes[is_candidate], gains[is_candidate], share)
    result[is_candidate[leave]] = True
    return result
