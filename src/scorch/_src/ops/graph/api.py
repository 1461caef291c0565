"""What layers ask of a graph, given as they are given it: sums, maxima and attention over neighbours.

``adj`` is a sparse matrix of targets x sources or an ``edge_index`` (see ``ops.graph``). Inside of a program
that ``torch.compile`` or ``torch.export`` reads, each of the three is one operator (``compile.capture``),
which finds what is known of the graph when it runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_compiling

from scorch._src.ops.graph.aggregate import attend, maximum, total
from scorch._src.ops.graph.edge_features import with_features
from scorch._src.ops.graph.edge_weights import (
    Weighted,
    edge_weights,
    given_weights,
    mean_weights,
    normalised,
)
from scorch._src.ops.graph.graph import Graph, graph_of
from scorch.errors import ShapeError

Tensor = torch.Tensor

WAYS = ("sum", "mean", "weights", "normalised")  # to weigh edges


def sum_neighbours(
    adj: Tensor,
    x: Tensor,
    targets: int,
    how: str = "sum",
    loop: float | None = None,
    edge_weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """``out[i,:] = sum_j w[i,j] * x[j,:] + bias`` for so many ``targets``.

    ``how`` says what w is: 1 for each edge (``sum``), the same divided by how many end at i (``mean``), the
    values of ``adj`` or the ``edge_weight`` (``weights``), or these ``normalised`` as GCN does it, after
    loops of weight ``loop`` were added.
    """
    if is_compiling():
        found = torch.ops.scorch.sum_neighbours(adj, x, targets, how, loop, edge_weight, bias)
        return found  # type: ignore[no-any-return]
    return summed(adj, x, targets, how, loop, edge_weight, bias)


def max_neighbours(adj: Tensor, x: Tensor, targets: int) -> Tensor:
    """The largest of the rows of ``x`` that each target takes from; zeros where there are none."""
    if is_compiling():
        return torch.ops.scorch.max_neighbours(adj, x, targets)  # type: ignore[no-any-return]
    return largest(adj, x, targets)


def attend_neighbours(
    adj: Tensor,
    x: Tensor,
    sources: Tensor,
    targets: Tensor,
    slope: float,
    dropout: float = 0.0,
    loops: bool = False,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
    fill: str = "mean",
    filled: Tensor | None = None,
) -> Tensor:
    """Sums of the rows of ``x`` (sources, heads, features), weighted by a softmax over each target's sources.

    Scores are ``leaky_relu(sources[j,h] + targets[i,h] + edge_attr[e,:] @ edge_weight[:,h])``. With ``loops``
    each node is its own source once; features of those loops are ``filled``, or the ``fill`` (mean, add, max
    ...) of those of the edges that end there.
    """
    more = slope, dropout, loops, edge_attr, edge_weight, fill, filled
    if is_compiling():
        return torch.ops.scorch.attend_neighbours(adj, x, sources, targets, *more)  # type: ignore[no-any-return]
    return attended(adj, x, sources, targets, *more)


# what runs -------------------------------------------------------------------------------------------


def summed(
    adj: Tensor,
    x: Tensor,
    targets: int,
    how: str = "sum",
    loop: float | None = None,
    edge_weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    graph, values = graph_of(adj, (targets, x.shape[0]))
    if how == "sum" or how == "mean":
        return total(_counted(graph, how, x.dtype), x, bias)
    return total(_weighted(graph, values, edge_weight, how, loop, x.dtype), x, bias)


def _counted(graph: Graph, how: str, dtype: torch.dtype) -> Weighted:
    """A graph of which weighted sums are the ``sum`` or ``mean`` over all edges; made once."""

    def make() -> Weighted:
        return Weighted(
            graph, mean_weights(graph, dtype) if how == "mean" else edge_weights(graph, None, dtype)
        )

    return graph.keep(graph.crd, (how, dtype), make)


def _weighted(
    graph: Graph,
    values: Tensor | None,
    edge_weight: Tensor | None,
    how: str,
    loop: float | None,
    dtype: torch.dtype,
) -> Weighted:
    """A graph with its weights, perhaps with loops; made once unless the weights are learned."""
    source = edge_weight if edge_weight is not None else values

    def make() -> Weighted:
        given = values if edge_weight is None else given_weights(graph, edge_weight)
        if how == "weights":
            return Weighted(graph, edge_weights(graph, given, dtype))
        made = normalised(graph, given, dtype, loop)
        return Weighted(graph if loop is None else graph.with_loops[0], made)

    return graph.keep(graph.crd if source is None else source, (how, loop, dtype), make)


def largest(adj: Tensor, x: Tensor, targets: int) -> Tensor:
    return maximum(graph_of(adj, (targets, x.shape[0]))[0], x)


def attended(
    adj: Tensor,
    x: Tensor,
    sources: Tensor,
    targets: Tensor,
    slope: float,
    dropout: float = 0.0,
    loops: bool = False,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
    fill: str = "mean",
    filled: Tensor | None = None,
) -> Tensor:
    shape = targets.shape[0], x.shape[0]
    edges: Any = None
    if edge_weight is None:
        graph = graph_of(adj, shape)[0]
        graph = graph.with_loops[0] if loops else graph
    else:
        graph, features = with_features(adj, shape, edge_attr, fill if loops else None, filled)
        if features.shape[1] != edge_weight.shape[0]:
            raise ShapeError(
                f"edges have {features.shape[1]} features, but edge_dim is {edge_weight.shape[0]}"
            )
        edges = features.to(x.dtype) @ edge_weight
    return attend(graph, x, sources, targets, slope, dropout, edges)
