"""A graph over ranks: vertices with sizes, edges with weights, as label propagation reads it."""

from __future__ import annotations

import torch

from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.distributed.communication.collectives import Group, gather_numbers, rank_in
from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.communication.moves import send_to
from scorch._src.distributed.cuts import owners_in

Tensor = torch.Tensor


@dataclass(frozen=True)
class Level:
    """The vertices of this rank, and their edges to vertices of all ranks.

    ``rows`` and ``columns`` are the local numbers of the two ends of an edge, which both ends have.
    """

    rows: Tensor
    columns: Tensor
    weights: Tensor
    sizes: Tensor
    plan: HaloPlan

    @property
    def count(self) -> int:
        """The number of vertices over all ranks."""
        return self.plan.extent

    @property
    def group(self) -> Group:
        return self.plan.group

    @property
    def ids(self) -> Tensor:
        """The global numbers of this rank's vertices."""
        return torch.arange(self.plan.begin, self.plan.end, device=self.rows.device)

    def neighbor_labels(self, labels: Tensor, extent: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the labels, below ``extent``, next to each vertex: vertex, label, weight of its edges."""
        (everywhere,) = self.plan.extend([labels])
        extent = max(extent, 1)
        keys, weights = add_up(self.rows * extent + everywhere[self.columns], self.weights)
        return keys // extent, keys % extent, weights


def level_of(
    ends: tuple[Tensor, Tensor], weights: Tensor, sizes: Tensor, cuts: Tensor, group: Group
) -> Level:
    """Build a level from edges by the numbers of their ends, which may be on any rank, each in one
    direction.

    Self-loops are dropped, and repeated edges are added up.
    """
    extent = max(int(cuts[-1]), 1)
    is_edge = ends[0] != ends[1]
    one, other, weights = ends[0][is_edge], ends[1][is_edge], weights[is_edge]
    keys = torch.cat([one * extent + other, other * extent + one])
    keys, weights = add_up(keys, torch.cat([weights, weights]))
    keys, weights = add_up(*send_to(owners_in(keys // extent, cuts), [keys, weights], group))
    rows, columns = keys // extent, keys % extent
    plan = HaloPlan(columns.unique(), cuts, group)
    return Level(rows - plan.begin, plan.to_local(columns), weights, sizes, plan)


def add_up(keys: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return each key once, in order, and the sum of its weights."""
    found, places = torch.unique(keys, return_inverse=True)
    return found, weights.new_zeros(len(found)).index_add_(0, places, weights)


def contract(level: Level, labels: Tensor) -> tuple[Level, Tensor]:
    """Return the graph of clusters, which labels name by one of their vertices, and each vertex's cluster."""
    plan = HaloPlan(labels.unique(), level.plan.cuts, level.group)
    at = plan.to_local(labels)
    sizes = plan.fold(level.sizes.new_zeros(plan.size).index_add_(0, at, level.sizes))
    members = plan.fold(level.sizes.new_zeros(plan.size).index_add_(0, at, torch.ones_like(level.sizes)))
    is_used = members > 0
    counts = [count for (count,) in gather_numbers([int(is_used.sum())], level.group, labels)]
    cuts = torch.tensor([0, *counts], dtype=torch.int64, device=HOST).cumsum(0)
    numbers = is_used.to(torch.int64).cumsum(0) - 1 + int(cuts[rank_in(level.group)])
    cluster = plan.extend([numbers])[0][at]
    (everywhere,) = level.plan.extend([cluster])
    one, other = cluster[level.rows], everywhere[level.columns]
    once = one < other  # both ends have the edge
    ends = one[once], other[once]
    return level_of(ends, level.weights[once], sizes[is_used], cuts, level.group), cluster
