"""Attention whose scores depend jointly on both ends of an edge: GATv2's, and that of graph transformers.

Like the functions of ``ops.graph.neighbours``, ``attend_additively`` and ``attend_by_products`` are operators
inside a traced program. The others also return the attention weights, or what these are computed from.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.by_torch.graphs import Scores
from scorch._src.ops.graph.aggregate import attend, sum_heads
from scorch._src.ops.graph.edge_attention import (
    additive_scores,
    additive_scores_with,
    attention_weights,
    inner_products,
    sum_edge_features,
)
from scorch._src.ops.graph.edge_features import graph_with_features
from scorch._src.ops.graph.graph import Graph
from scorch._src.ops.graph.neighbours import as_operator, attended_edges
from scorch.errors import ShapeError

Tensor = torch.Tensor


def _edges(
    adj: Any,
    shape: tuple[int, int],
    loops: bool,
    edge_attr: Tensor | None,
    edge_weight: Tensor | None,
    fill: str,
    filled: Tensor | None,
) -> tuple[Graph, Tensor | None]:
    """Return the graph and, if there is an ``edge_weight`` that projects them, the features of its edges."""
    if edge_weight is None:
        return attended_edges(adj, shape, loops)[0], None
    graph, features = graph_with_features(adj, shape, edge_attr, fill if loops else None, filled)
    if features.shape[1] != edge_weight.shape[1]:
        raise ShapeError(
            f"edge_attr has {features.shape[1]} features, but edge_dim is {edge_weight.shape[1]}"
        )
    return graph, features.to(edge_weight.dtype)


def score_additively(
    adj: Any,
    sources: Tensor,
    targets: Tensor,
    attention: Tensor,
    slope: float,
    loops: bool,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
    fill: str = "mean",
    filled: Tensor | None = None,
) -> tuple[Graph, Scores]:
    """Return the graph and ``attention @ leaky_relu(sources[j] + targets[i] + edge_weight @ e[i,j])``."""
    shape = targets.shape[0], sources.shape[0]
    graph, features = _edges(adj, shape, loops, edge_attr, edge_weight, fill, filled)
    if features is None or edge_weight is None:
        return graph, additive_scores(graph, sources, targets, attention, slope)
    edges = (features @ edge_weight.t()).view(-1, *sources.shape[1:])
    return graph, additive_scores_with(graph, sources, targets, attention, slope, edges)


@as_operator
def attend_additively(
    adj: Tensor,
    sources: Tensor,
    targets: Tensor,
    attention: Tensor,
    slope: float,
    dropout: float = 0.0,
    loops: bool = False,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
    fill: str = "mean",
    filled: Tensor | None = None,
) -> Tensor:
    """Sum the rows of ``sources`` (nodes, heads, features), weighted by a softmax of ``score_additively``."""
    features = edge_attr, edge_weight, fill, filled
    graph, scores = score_additively(adj, sources, targets, attention, slope, loops, *features)
    return attend(graph, sources, scores, 1.0, dropout)


@as_operator
def attend_by_products(
    adj: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    dropout: float = 0.0,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Sum the rows of ``values`` (nodes, heads, features), weighted by a softmax of queries times keys.

    Edges that have features add ``edge_weight @ edge_attr[e]`` to their key and to their value.
    """
    if edge_weight is not None:
        return attend_with_products(adj, queries, keys, values, dropout, edge_attr, edge_weight)[1]
    graph = attended_edges(adj, (queries.shape[0], keys.shape[0]))[0]
    return attend(
        graph, values, _as_scores(queries, keys, inner_products(graph, queries, keys)), 1.0, dropout
    )


def _as_scores(queries: Tensor, keys: Tensor, products: Tensor) -> Scores:
    return Scores(keys.new_zeros(keys.shape[:2]), queries.new_zeros(queries.shape[:2]), products)


def attend_with_products(
    adj: Any,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    dropout: float,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
) -> tuple[Graph, Tensor, Tensor]:
    """Return the graph, what ``attend_by_products`` computes, and the attention weights before dropout."""
    shape = queries.shape[0], keys.shape[0]
    graph, features = _edges(adj, shape, False, edge_attr, edge_weight, "mean", None)
    products, weight = inner_products(graph, queries, keys), None
    if features is not None and edge_weight is not None:
        weight = edge_weight.view(*keys.shape[1:], edge_weight.shape[1])
        # q W e is (q W) e, so that nothing as wide as the heads is made for each edge
        towards = torch.einsum("ihc,hcd->ihd", queries, weight)[graph.targets]
        products = products + torch.einsum("ehd,ed->eh", towards, features)
    weights = attention_weights(graph, _as_scores(queries, keys, products), 1.0)
    kept = F.dropout(weights, dropout)
    heads = sum_heads(graph, kept, values)
    if weight is not None and features is not None:
        summed = sum_edge_features(graph, kept, features)
        heads = heads + torch.einsum("ihd,hcd->ihc", summed, weight)
    return graph, heads, weights
