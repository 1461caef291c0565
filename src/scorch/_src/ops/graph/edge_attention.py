"""Attention whose scores are computed edge by edge: inner products, and sums of a nonlinear function.

Scores have a row for each entry of a graph and a column for each head. Each kind is one statement over the
entries, so that features of nodes are never copied to edges, unless a nonlinear function is applied to their
sum with features that edges have of their own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.by_torch.graphs import Scores
from scorch._src.backends.by_torch.rows import sum_rows, take_rows
from scorch._src.ops.graph.aggregate import attend, softmax_of_sources, sum_heads
from scorch._src.ops.graph.graph import Graph, as_matrix_or_edges, split_edge_index
from scorch._src.statements.autocast import without_autocast
from scorch._src.statements.evaluate import evaluate
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.sparse_tensor import SparseTensor

Tensor = torch.Tensor


def inner_products(graph: Graph, queries: Tensor, keys: Tensor) -> Tensor:
    """Compute ``queries[i,h,:] @ keys[j,h,:]`` for each entry (i, j) and head h."""
    return _sample(graph, "S[i,j,h] = M[i,j,h] * Q[i,h,k] * K[j,h,k]", Q=queries, K=keys)


def additive_scores(
    graph: Graph, sources: Tensor, targets: Tensor, attention: Tensor, slope: float
) -> Scores:
    """Compute ``attention[h,:] @ leaky_relu(sources[j,h,:] + targets[i,h,:])``.

    With leaky_relu(z) = slope * z + (1 - slope) * relu(z) the first term is one number for each node.
    """
    positive = "S[i,j,h] = M[i,j,h] * A[h,k] * relu(L[j,h,k] + R[i,h,k])"
    edges = (1 - slope) * _sample(graph, positive, A=attention, L=sources, R=targets)
    linear = slope * attention
    return Scores((sources * linear).sum(-1), (targets * linear).sum(-1), edges)


def additive_scores_with(
    graph: Graph, sources: Tensor, targets: Tensor, attention: Tensor, slope: float, edges: Tensor
) -> Scores:
    """Compute the same with ``edges`` (entries, heads, features) added inside leaky_relu."""
    total = take_rows(sources, graph.sources) + take_rows(targets, graph.targets) + edges
    scores = (F.leaky_relu(total, slope) * attention).sum(-1)
    return Scores(sources.new_zeros(sources.shape[:2]), targets.new_zeros(targets.shape[:2]), scores)


def _sample(graph: Graph, statement: str, **operands: Any) -> Tensor:
    """Evaluate a statement at the entries of the graph: a row for each, a number for each head."""
    coalesced, entry_numbers = graph.coalesced
    like = next(iter(operands.values()))
    heads = like.shape[-2]
    pattern = coalesced.pattern_with_features(heads)
    ones = torch.ones(coalesced.size * heads, dtype=like.dtype, device=like.device)
    mask = sparse_of(pattern, ones)
    with without_autocast(like.device):
        found = evaluate(statement, M=mask, format=pattern.format, **operands)
    assert isinstance(found, SparseTensor)
    scores = values_of(found).view(-1, heads)
    return scores if entry_numbers is None else take_rows(scores, entry_numbers)


def attention_weights(graph: Graph, scores: Scores, slope: float) -> Tensor:
    """Compute the softmax of ``leaky_relu(scores, slope)`` over the sources of each target."""
    sources, targets, edges = scores
    total = take_rows(sources, graph.sources) + take_rows(targets, graph.targets)
    return softmax_of_sources(graph, F.leaky_relu(total if edges is None else total + edges, slope))


def attend_with_weights(
    graph: Graph, x: Tensor, scores: Scores, slope: float, dropout: float, wants_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute ``attend``, and where they are wanted its weights, of which some may have been dropped."""
    if not wants_weights:
        return attend(graph, x, scores, slope, dropout), None
    weights = F.dropout(attention_weights(graph, scores, slope), dropout)
    return sum_heads(graph, weights, x), weights


def sum_edge_features(graph: Graph, weights: Tensor, features: Tensor) -> Tensor:
    """Compute ``out[i,h,:] = sum_e weights[e,h] * features[e,:]`` over the entries e of each target."""
    products = (weights.unsqueeze(2) * features.unsqueeze(1)).flatten(1)
    return sum_rows(graph.targets, products, graph.shape[0]).view(-1, weights.shape[1], features.shape[1])


def weights_as_given(adj: Any, graph: Graph, weights: Tensor, loops: bool) -> Any:
    """Return weights of entries in the form of ``adj``, as PyG does.

    For an ``edge_index`` a pair of the edges and a row of weights for each; with ``loops`` these come last.
    For a matrix a tensor (targets, sources, heads).
    """
    edge_index = as_matrix_or_edges(adj)
    if isinstance(edge_index, SparseTensor):
        return sparse_of(graph.pattern_with_features(weights.shape[1]), weights.flatten())
    sources, targets = split_edge_index(edge_index, graph.shape)
    if loops:
        others, nodes = sources != targets, torch.arange(min(graph.shape), device=sources.device)
        sources, targets = torch.cat([sources[others], nodes]), torch.cat([targets[others], nodes])
    columns = graph.shape[1]
    keys, edges = targets * columns + sources, torch.stack([sources, targets]) if loops else edge_index
    if graph.counts is None and graph.size == keys.numel():  # an entry for each edge, in the order of keys
        return edges, take_rows(weights, keys.argsort(stable=True).argsort())
    counts = graph.counts_as(weights.dtype)
    each = weights if counts is None else weights / counts.unsqueeze(1)
    return edges, take_rows(each, torch.searchsorted(graph.targets * columns + graph.sources, keys))
