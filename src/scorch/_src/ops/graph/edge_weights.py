"""Weights of the edges of a graph: those that are given, counts, means, and those that GCN normalises."""

from __future__ import annotations

import functools

import torch

from scorch._src.ops.graph.graph import Graph, is_learned, kept
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError

Tensor = torch.Tensor


class Weighted:
    """A graph with a number for each entry, as matrices: targets x sources, and transposed.

    ``learned`` are those numbers if gradients flow back to them.
    """

    def __init__(self, graph: Graph, values: torch.Tensor) -> None:
        self.graph, self.values = graph, values.detach()
        self.learned = values if is_learned(values) else None

    @functools.cached_property
    def matrix(self) -> SparseTensor:
        return SparseTensor(Storage(self.graph.pattern, self.values))

    @functools.cached_property
    @kept
    def turned(self) -> SparseTensor:
        graph, places = self.graph.turned
        values = self.values[places]
        if graph.pos is self.graph.pos and torch.equal(values, self.values):
            return self.matrix
        return SparseTensor(Storage(graph.pattern, values))

    def turned_by(self, values: torch.Tensor) -> SparseTensor:
        """The transposed matrix, connected to its values, which are in the order of ``matrix``."""
        graph, places = self.graph.turned
        return sparse_of(graph.pattern, values[places])


def edge_weights(graph: Graph, values: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A number for each entry: the values, or how often each pair is an edge."""
    if values is not None:
        return values.to(dtype)
    counts = graph.counts_as(dtype)
    return torch.ones(graph.size, dtype=dtype, device=graph.crd.device) if counts is None else counts


def given_weights(graph: Graph, edge_weight: Tensor) -> Tensor:
    """A number for each entry, from one for each edge; the weights of edges that repeat add up."""
    if graph.given is None:
        raise ArgumentError("edge_weight belongs to an edge_index; a sparse matrix has its weights as values")
    if edge_weight.shape != graph.given.shape:
        raise ShapeError(
            f"edge_weight has shape {tuple(edge_weight.shape)}, but edge_index has {graph.given.numel()} "
            "edges: give one weight for each"
        )
    return edge_weight.new_zeros(graph.size).index_add(0, graph.given, edge_weight)


def normalised(graph: Graph, values: Tensor | None, dtype: torch.dtype, loop: float | None) -> Tensor:
    """``d[i]^-1/2 * w[i,j] * d[j]^-1/2``, d the sum of each row, for each entry of the graph.

    With a weight of loops, for each entry of ``graph.with_loops``; those already there keep their ``values``.
    """
    weights = edge_weights(graph, values, dtype)
    if loop is not None:
        within, places = graph.with_loops
        is_new = places < 0
        if values is None:
            is_new = within.targets == within.sources
        padded = torch.cat([weights, weights.new_zeros(1)])  # place -1
        weights, graph = torch.where(is_new, loop, padded[places]), within
    degree = weights.new_zeros(graph.shape[0]).index_add(0, graph.targets, weights)
    factor = torch.where(degree == 0, 0.0, degree.pow(-0.5))
    return factor[graph.targets] * weights * factor[graph.sources]


def mean_weights(graph: Graph, dtype: torch.dtype) -> Tensor:
    """The weights of which the sum is the mean over all edges that end at a target."""
    return edge_weights(graph, None, dtype) / graph.degrees.to(dtype)[graph.targets]
