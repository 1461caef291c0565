"""Aggregations over neighbors by PyG's names.

Sums, means, maxima, variances and the softmax are kernels over the rows of a graph. Products and medians have
none: they copy the neighbors' features to the edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.backends.by_torch.graphs import Scores
from scorch._src.ops.graph.aggregate import attend
from scorch._src.ops.graph.graph import graph_of
from scorch._src.ops.graph.neighbours import max_neighbours, refuse_shards, sum_neighbours
from scorch.errors import ArgumentError

Tensor = torch.Tensor
Names = str | Sequence[str]


def aggregate_neighbours(adj: Any, x: Tensor, targets: int, aggr: Names) -> Tensor:
    """Aggregate the neighbors' rows of ``x`` for ``targets`` nodes; concatenate several aggregations."""
    names = [aggr] if isinstance(aggr, str) else aggr
    found = [AGGREGATIONS[name](adj, x, targets) for name in names]
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def check_aggr(aggr: Any) -> Names:
    """Return ``aggr``, a name of ``AGGREGATIONS`` or a list of them."""
    names = [aggr] if isinstance(aggr, str) else aggr
    if not isinstance(names, (list, tuple)) or not names:
        raise ArgumentError(f"aggr must be a name or a list of names, but got {aggr!r}")
    for name in names:
        if name not in AGGREGATIONS:
            raise ArgumentError(
                f"aggr is {name!r}; it may be one of {', '.join(AGGREGATIONS)}, or a list of these"
            )
    return aggr if isinstance(aggr, str) else list(aggr)


def _sum(adj: Any, x: Tensor, targets: int) -> Tensor:
    return sum_neighbours(adj, x, targets)


def _mean(adj: Any, x: Tensor, targets: int) -> Tensor:
    return sum_neighbours(adj, x, targets, "mean")


def _max(adj: Any, x: Tensor, targets: int) -> Tensor:
    return max_neighbours(adj, x, targets)


def _min(adj: Any, x: Tensor, targets: int) -> Tensor:
    return -max_neighbours(adj, -x, targets)


def _var(adj: Any, x: Tensor, targets: int) -> Tensor:
    return _mean(adj, x * x, targets) - _mean(adj, x, targets).square()


def _std(adj: Any, x: Tensor, targets: int) -> Tensor:
    """Compute the root of the variance, 0 where that is below 1e-5, as PyG does."""
    least = 1e-5
    variance = _var(adj, x, targets)
    return variance.clamp(min=least).sqrt().masked_fill(variance <= least, 0.0)


def _softmax(adj: Any, x: Tensor, targets: int) -> Tensor:
    """Compute for each feature the mean of neighbors, weighted by its own softmax over them."""
    refuse_shards(adj, "aggr='softmax'")
    graph = graph_of(adj, (targets, x.shape[0]))[0]
    scores = Scores(x, x.new_zeros(targets, x.shape[1]), None)
    return attend(graph, x.unsqueeze(2), scores, 1.0).squeeze(2)


def _mul(adj: Any, x: Tensor, targets: int) -> Tensor:
    """Compute the product of the neighbors' features; ones where there are none."""
    ends, sources = _edge_ends(adj, x, targets, "mul")
    index = ends.unsqueeze(1).expand(-1, x.shape[1])
    ones = x.new_ones(targets, x.shape[1])
    return ones.scatter_reduce(0, index, x.index_select(0, sources), "prod")


def _median(adj: Any, x: Tensor, targets: int) -> Tensor:
    """Compute the lower median of the neighbors' features; zeros where there are none."""
    ends, sources = _edge_ends(adj, x, targets, "median")
    features = x.index_select(0, sources)
    by_value = features.argsort(dim=0, stable=True)
    order = by_value.gather(0, ends[by_value].argsort(dim=0, stable=True))  # by target, then value
    counts = torch.bincount(ends, minlength=targets)
    middle = (counts.cumsum(0) - counts + (counts - 1).clamp(min=0) // 2)[counts > 0]
    found = features.gather(0, order[middle])
    return x.new_zeros(targets, x.shape[1]).index_copy(0, counts.nonzero().flatten(), found)


def _edge_ends(adj: Any, x: Tensor, targets: int, name: str) -> tuple[Tensor, Tensor]:
    """Return targets and sources of all edges, repeated ones too, in the order of targets."""
    refuse_shards(adj, f"aggr={name!r}")
    return graph_of(adj, (targets, x.shape[0]))[0].edge_ends


AGGREGATIONS: dict[str, Callable[[Any, Tensor, int], Tensor]] = {
    "sum": _sum,
    "add": _sum,
    "mean": _mean,
    "max": _max,
    "min": _min,
    "mul": _mul,
    "var": _var,
    "std": _std,
    "softmax": _softmax,
    "median": _median,
}
