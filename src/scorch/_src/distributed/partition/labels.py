"""Parts by label propagation on shards: coarsen by clusters, divide the small graph, refine it back."""

from __future__ import annotations

import torch

from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.communication.replicate import sum_over
from scorch._src.distributed.partition.clusters import find_clusters
from scorch._src.distributed.partition.level import Level, contract
from scorch._src.distributed.partition.one_process import solve_in_one
from scorch._src.distributed.partition.orders import cuthill_mckee
from scorch._src.distributed.partition.refine import cut_weight, part_sizes, refine

Tensor = torch.Tensor
SMALL = 200  # clusters for each part in the smallest graph, and
LARGEST_CLUSTER = 30  # how many of the largest make a part
CLUSTER_SWEEPS, REFINE_SWEEPS = 4, 10
TRIES = 128  # at the smallest graph, over the number of parts: a try takes as long as it is large


def divide_by_labels(level: Level, count: int, imbalance: float) -> Tensor:
    """Return the part of each vertex of this rank; parts are at most ``imbalance`` too large."""
    total = int(sum_over(level.sizes.sum(), level.group))
    most = torch.full((count,), int(total / count * (1 + imbalance)) + 1, device=level.sizes.device)
    levels, clusters = [level], []
    while levels[-1].count > SMALL * count:
        found = find_clusters(levels[-1], max(total // (count * LARGEST_CLUSTER), 1), CLUSTER_SWEEPS)
        coarse, cluster = contract(levels[-1], found)
        if coarse.count > 0.95 * levels[-1].count:
            break
        levels.append(coarse)
        clusters.append(cluster)
    parts = solve_in_one(levels[-1], lambda whole: _divide(whole, most))
    for finer, coarser, cluster in zip(levels[-2::-1], levels[:0:-1], clusters[::-1], strict=True):
        plan = HaloPlan(cluster.unique(), coarser.plan.cuts, level.group)
        parts = plan.extend([parts])[0][plan.to_local(cluster)]
        parts = refine(finer, parts, most, REFINE_SWEEPS)
    return parts


def _divide(level: Level, most: Tensor) -> Tensor:
    """Return the best of some divisions of a small graph: an order of its vertices, cut and refined."""
    best: tuple[tuple[int, int], Tensor] | None = None
    for number in range(max(TRIES // len(most), 4)):
        parts = cut_order(level, cuthill_mckee(level, number), len(most))
        parts = refine(level, parts, most, 2 * REFINE_SWEEPS)
        _, sizes = part_sizes(level, parts, len(most))
        cost = int((sizes - most).clamp(min=0).sum()), cut_weight(level, parts)
        if best is None or cost < best[0]:
            best = cost, parts
    assert best is not None
    return best[1]


def cut_order(level: Level, order: Tensor, count: int) -> Tensor:
    """Return the parts of vertices on one rank, cut by their sizes in this order."""
    sizes = level.sizes[order].double()
    ends = sizes.sum() * torch.arange(1, count + 1, device=order.device) / count
    parts = torch.empty_like(order)
    parts[order] = torch.searchsorted(ends, torch.cumsum(sizes, 0) - sizes / 2).clamp(max=count - 1)
    return parts
