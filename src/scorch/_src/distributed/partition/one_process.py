"""Solve for the whole graph on one rank, and send the result to the others."""

from __future__ import annotations

from collections.abc import Callable

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.communication.collectives import rank_in
from scorch._src.distributed.communication.moves import send_to
from scorch._src.distributed.cuts import owners_in
from scorch._src.distributed.partition.level import Level, level_of

Tensor = torch.Tensor


def solve_in_one(level: Level, solve: Callable[[Level], Tensor]) -> Tensor:
    """Return a number for each vertex of this rank, computed by rank 0 from the whole graph."""
    plan = level.plan
    one, other = plan.to_global(level.rows), plan.to_global(level.columns)
    once = one < other
    edges = torch.stack([one[once], other[once], level.weights[once]], 1)
    (edges,) = send_to(torch.zeros_like(edges[:, 0]), [edges], level.group)
    (sizes,) = send_to(torch.zeros_like(level.ids), [level.sizes], level.group)
    numbers = sizes.new_empty(0)
    if rank_in(level.group) == 0:
        ends = edges[:, 0].contiguous(), edges[:, 1].contiguous()
        numbers = solve(level_of(ends, edges[:, 2], sizes, torch.tensor([0, level.count], device=HOST), None))
    owners = owners_in(torch.arange(len(numbers), device=numbers.device), plan.cuts)
    (own,) = send_to(owners, [numbers], level.group)
    return own
