"""Weights of the edges of a graph: explicit ones, counts, and those that GCN normalises."""

from __future__ import annotations

import functools

import torch

from scorch._src.ops.graph.graph import Graph, is_tracked, outside_modes
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError

Tensor = torch.Tensor


class WeightedGraph:
    """A graph with a number for each entry, as matrices: targets x sources, and transposed.

    ``tracked_values`` are those numbers if they require gradients.
    """

    def __init__(self, graph: Graph, values: torch.Tensor) -> None:
        self.graph, self.values = graph, values.detach()
        self.tracked_values = values if is_tracked(values) else None

    @functools.cached_property
    def matrix(self) -> SparseTensor:
        return SparseTensor(Storage(self.graph.pattern, self.values))

    @functools.cached_property
    @outside_modes
    def transposed(self) -> SparseTensor:
        graph, positions = self.graph.transposed
        values = self.values[positions]
        if graph.pos is self.graph.pos and torch.equal(values, self.values):
            return self.matrix
        return SparseTensor(Storage(graph.pattern, values))

    def transpose_with(self, values: torch.Tensor) -> SparseTensor:
        """Return the transposed matrix, connected to ``values``, which are in the order of ``matrix``."""
        graph, positions = self.graph.transposed
        return sparse_of(graph.pattern, values[positions])


def edge_weights(graph: Graph, values: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return a number for each entry: the values, or how often each pair is an edge."""
    if values is not None:
        return values.to(dtype)
    counts = graph.counts_as(dtype)
    return torch.ones(graph.size, dtype=dtype, device=graph.crd.device) if counts is None else counts


def sum_edge_weights(graph: Graph, edge_weight: Tensor) -> Tensor:
    """Return a number for each entry, from one for each edge; weights of repeated edges add up."""
    if graph.entry_of_edge is None:
        raise ArgumentError("edge_weight belongs to an edge_index; a sparse matrix has its weights as values")
    if edge_weight.shape != graph.entry_of_edge.shape:
        edges = graph.entry_of_edge.numel()
        raise ShapeError(
            f"edge_weight has shape {tuple(edge_weight.shape)}, but edge_index has {edges} "
            "edges: give one weight for each"
        )
    return edge_weight.new_zeros(graph.size).index_add(0, graph.entry_of_edge, edge_weight)


def normalise_weights(graph: Graph, values: Tensor | None, dtype: torch.dtype, loop: float | None) -> Tensor:
    """Compute ``d[i]^-1/2 * w[i,j] * d[j]^-1/2``, d the sum of each row, for each entry of the graph.

    With ``loop``, a weight of loops, for each entry of ``graph.with_loops``; existing loops keep their
    ``values``.
    """
    weights = edge_weights(graph, values, dtype)
    if loop is not None:
        with_loops, positions = graph.with_loops
        is_new = positions < 0
        if values is None:
            is_new = with_loops.targets == with_loops.sources
        padded = torch.cat([weights, weights.new_zeros(1)])  # position -1
        weights, graph = torch.where(is_new, loop, padded[positions]), with_loops
    degree = weights.new_zeros(graph.shape[0]).index_add(0, graph.targets, weights)
    factor = torch.where(degree == 0, 0.0, degree.pow(-0.5))
    return factor[graph.targets] * weights * factor[graph.sources]
