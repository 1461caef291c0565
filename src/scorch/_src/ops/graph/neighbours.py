"""Sums, maxima and attention over neighbours, for layers.

``adj`` is a sparse matrix of targets x sources or an ``edge_index`` (see ``ops.graph``). Inside of a program
that ``torch.compile`` or ``torch.export`` traces, each of the three is one operator (``compile.capture``),
which looks up the graph when it runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_compiling

from scorch._src.ops.graph.aggregate import attend, maximum, sum_weighted
from scorch._src.ops.graph.edge_features import graph_with_features
from scorch._src.ops.graph.edge_weights import (
    WeightedGraph,
    edge_weights,
    mean_weights,
    normalise_weights,
    sum_edge_weights,
)
from scorch._src.ops.graph.graph import Graph, graph_of
from scorch.errors import ShapeError

Tensor = torch.Tensor

WEIGHTINGS = ("sum", "mean", "weights", "normalised")  # to weigh edges


def sum_neighbours(
    adj: Tensor,
    x: Tensor,
    targets: int,
    how: str = "sum",
    loop: float | None = None,
    edge_weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute ``out[i,:] = sum_j w[i,j] * x[j,:] + bias`` for so many ``targets``.

    ``how`` says what w is: 1 for each edge (``sum``), the same divided by how many end at i (``mean``), the
    values of ``adj`` or the ``edge_weight`` (``weights``), or these ``normalised`` as in GCN, after loops
    of weight ``loop`` were added.
    """
    if is_compiling():
        result = torch.ops.scorch.sum_neighbours(adj, x, targets, how, loop, edge_weight, bias)
        return result  # type: ignore[no-any-return]
    return run_sum(adj, x, targets, how, loop, edge_weight, bias)


def max_neighbours(adj: Tensor, x: Tensor, targets: int) -> Tensor:
    """Compute the maximum over the neighbours' rows of ``x``; zeros where there are none."""
    if is_compiling():
        return torch.ops.scorch.max_neighbours(adj, x, targets)  # type: ignore[no-any-return]
    return run_max(adj, x, targets)


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
    """Sum the rows of ``x`` (sources, heads, features), weighted by a softmax over each target's sources.

    Scores are ``leaky_relu(sources[j,h] + targets[i,h] + edge_attr[e,:] @ edge_weight[:,h])``. With ``loops``
    each node is its own source once; features of those loops are ``filled``, or the ``fill`` (mean, add, max
    ...) of those of the edges that end there.
    """
    options = slope, dropout, loops, edge_attr, edge_weight, fill, filled
    if is_compiling():
        return torch.ops.scorch.attend_neighbours(adj, x, sources, targets, *options)  # type: ignore[no-any-return]
    return run_attention(adj, x, sources, targets, *options)


# eager -----------------------------------------------------------------------------------------------


def run_sum(
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
        return sum_weighted(_count_weights(graph, how, x.dtype), x, bias)
    return sum_weighted(_edge_weighted(graph, values, edge_weight, how, loop, x.dtype), x, bias)


def _count_weights(graph: Graph, how: str, dtype: torch.dtype) -> WeightedGraph:
    """Return the graph whose weighted sums are the ``sum`` or ``mean`` over all edges; cached."""

    def make() -> WeightedGraph:
        return WeightedGraph(
            graph, mean_weights(graph, dtype) if how == "mean" else edge_weights(graph, None, dtype)
        )

    return graph.cached(graph.crd, (how, dtype), make)


def _edge_weighted(
    graph: Graph,
    values: Tensor | None,
    edge_weight: Tensor | None,
    how: str,
    loop: float | None,
    dtype: torch.dtype,
) -> WeightedGraph:
    """Return the graph with its weights, perhaps with loops; cached unless the weights require gradients."""
    source = edge_weight if edge_weight is not None else values

    def make() -> WeightedGraph:
        weights = values if edge_weight is None else sum_edge_weights(graph, edge_weight)
        if how == "weights":
            return WeightedGraph(graph, edge_weights(graph, weights, dtype))
        normalised = normalise_weights(graph, weights, dtype, loop)
        return WeightedGraph(graph if loop is None else graph.with_loops[0], normalised)

    return graph.cached(graph.crd if source is None else source, (how, loop, dtype), make)


def run_max(adj: Tensor, x: Tensor, targets: int) -> Tensor:
    return maximum(graph_of(adj, (targets, x.shape[0]))[0], x)


def run_attention(
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
        graph, features = graph_with_features(adj, shape, edge_attr, fill if loops else None, filled)
        if features.shape[1] != edge_weight.shape[0]:
            raise ShapeError(
                f"edges have {features.shape[1]} features, but edge_dim is {edge_weight.shape[0]}"
            )
        edges = features.to(x.dtype) @ edge_weight
    return attend(graph, x, sources, targets, slope, dropout, edges)
