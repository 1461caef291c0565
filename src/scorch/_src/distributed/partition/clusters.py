"""Clusters of vertices by label propagation, none larger than a given size.

Meyerhenke, Sanders and Schulz, "Partitioning complex networks via size-constrained clustering", 2014.
"""

from __future__ import annotations

import torch

from scorch._src.distributed.communication.collectives import exchange_rows, size_of
from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.partition.choose import admit, awake, favourite, scramble
from scorch._src.distributed.partition.level import Level

Tensor = torch.Tensor


def find_clusters(level: Level, most: int, sweeps: int) -> Tensor:
    """Return for each vertex the cluster it belongs to, named by one of its vertices."""
    labels = level.ids
    totals = level.sizes.clone()  # of the clusters that are named by vertices of this rank
    for sweep in range(sweeps):
        labels, totals = _sweep(level, labels, totals, most, sweep)
    return _join_lonely(level, labels, most)


def _sweep(level: Level, labels: Tensor, totals: Tensor, most: int, sweep: int) -> tuple[Tensor, Tensor]:
    found = level.neighbor_labels(labels, level.count)
    rows, near, _ = found
    plan = HaloPlan(torch.cat([near, labels]).unique(), level.plan.cuts, level.group)
    (everywhere,) = plan.extend([totals])
    fits = everywhere[plan.to_local(near)] + level.sizes[rows] <= most
    best, _ = favourite(level, found, fits | (near == labels[rows]), sweep)
    movers = ((best >= 0) & (best != labels) & awake(level, sweep)).nonzero().squeeze(1)
    targets, sizes = plan.to_local(best[movers]), level.sizes[movers]
    wanted = totals.new_zeros(plan.size).index_add_(0, targets, sizes)
    room = _share(plan, wanted, most - totals)
    joins = admit(targets, sizes, scramble(level.ids[movers], sweep), room)
    movers, targets, sizes = movers[joins], targets[joins], sizes[joins]
    change = totals.new_zeros(plan.size).index_add_(0, targets, sizes)
    change.index_add_(0, plan.to_local(labels[movers]), -sizes)
    labels = labels.clone()
    labels[movers] = best[movers]
    return labels, totals + plan.fold(change)


def _share(plan: HaloPlan, wanted: Tensor, room: Tensor) -> Tensor:
    """Divide the room in clusters among the ranks that want some, lower ranks first."""
    room = room.clamp(min=0)
    granted = torch.minimum(wanted[: plan.own], room)
    route = plan.route
    if not route.total:
        return granted
    asked = route.start_back(wanted[plan.own :]).wait()
    order = torch.argsort(route.picks, stable=True)
    total = torch.cumsum(asked[order], 0) - asked[order]
    counts = torch.bincount(route.picks, minlength=plan.own)
    before = torch.cat([total, total.new_zeros(1)])[torch.cumsum(counts, 0) - counts]
    left = (room - granted)[route.picks[order]] - (total - before[route.picks[order]])
    answers = torch.empty_like(asked)
    answers[order] = torch.minimum(left.clamp(min=0), asked[order])
    received = wanted.new_empty(route.incoming)
    if size_of(plan.group) > 1:
        exchange_rows(received, answers, route.received, route.sent, plan.group)
    return torch.cat([granted, received])


def _join_lonely(level: Level, labels: Tensor, most: int) -> Tensor:
    """Put vertices without edges together, as many as fit into a cluster."""
    is_lonely = torch.bincount(level.rows, minlength=level.plan.own) == 0
    vertices = is_lonely.nonzero().squeeze(1)
    if not len(vertices):
        return labels
    bins = torch.cumsum(level.sizes[vertices], 0) // max(most, 1)
    names = torch.full((int(bins[-1]) + 1,), level.count, device=labels.device)
    names.scatter_reduce_(0, bins, level.ids[vertices], "amin")
    labels = labels.clone()
    labels[vertices] = names[bins]
    return labels
