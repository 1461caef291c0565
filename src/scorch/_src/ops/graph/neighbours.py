"""Sums, maxima and attention over neighbors, for layers.

``adj`` is a sparse matrix of targets x sources or an ``edge_index`` (see ``ops.graph``). Inside a program
that ``torch.compile`` or ``torch.export`` traces, each of the three is one operator (``compile.capture``),
which looks up the graph when it runs.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch.compiler import is_compiling

from scorch._src.backends.by_torch.graphs import Scores
from scorch._src.backends.by_torch.rows import sum_rows
from scorch._src.ops.graph.aggregate import WeightedGraph, attend, maximum, sum_weighted
from scorch._src.ops.graph.edge_features import graph_with_features
from scorch._src.ops.graph.graph import Graph, as_matrix_or_edges, graph_of
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad, is_functorch_wrapped_tensor
from scorch.errors import ArgumentError, ShapeError, UnsupportedError, warn_deprecated

Tensor = torch.Tensor
Run = TypeVar("Run", bound=Callable[..., Tensor])


class ShardedGraph(abc.ABC):
    """A graph sharded over several processes: it defines how they sum over neighbors."""

    @abc.abstractmethod
    def over_neighbors(
        self, run: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """Compute ``run``, one of the functions below, for this process's nodes."""

    def over_neighbours(
        self, run: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """Call ``over_neighbors``; this name is deprecated."""
        warn_deprecated(f"{type(self).__name__}.over_neighbours", "over_neighbors")
        return self.over_neighbors(run, args, kwargs)


def refuse_shards(adj: Any, what: str) -> None:
    """Raise where ``adj`` is shared by several processes and ``what`` has no rule for that."""
    if isinstance(adj, ShardedGraph):
        raise UnsupportedError(
            f"{what} is not supported for row-sharded graphs; GCNConv, SAGEConv, GINConv and GATConv are"
        )


def as_operator(run: Run) -> Run:
    """Return ``run``, which inside a traced program is the operator of its name."""
    name = run.__name__
    defaults = [(each.name, each.default) for each in inspect.signature(run).parameters.values()]

    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        if type(args[0]) is not SparseTensor and isinstance(args[0], ShardedGraph):
            return args[0].over_neighbors(call, args, kwargs)
        if is_compiling():
            graph = args[0] if isinstance(args[0], torch.Tensor) else as_matrix_or_edges(args[0])
            others = [kwargs.get(option, default) for option, default in defaults[len(args) :]]
            return getattr(torch.ops.scorch, name)(graph, *args[1:], *others)
        return run(*args, **kwargs)

    return call  # type: ignore[return-value]


@as_operator
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
    return sum_weighted(weighted_graph_of(adj, x, targets, how, loop, edge_weight), x, bias)


def weighted_graph_of(
    adj: Tensor, x: Tensor, targets: int, how: str, loop: float | None, edge_weight: Tensor | None
) -> WeightedGraph:
    """Return the matrix w that ``sum_neighbours`` multiplies by ``x``; cached unless w has gradients."""
    if type(adj) is not SparseTensor or edge_weight is not None or any_requires_grad(adj):
        return _find_weighted_graph(adj, x, targets, how, loop, edge_weight)
    storage, key, known = adj.storage, (how, loop, targets, x.shape[0], x.dtype), adj.weighted_graphs
    pattern, values = storage.pattern, storage.values
    if known is not None and (known.pattern is not pattern or known.values is not values):
        known = None
    if known is not None and known.version == values._version:
        found = known.graphs.get(key)
        if found is not None:
            return found  # type: ignore[no-any-return]
    found = _find_weighted_graph(adj, x, targets, how, loop, None)
    if not values.is_inference() and not is_functorch_wrapped_tensor(values):
        version = values._version
        if known is None or known.version != version:
            known = adj.weighted_graphs = _WeightedGraphs(pattern, values, version, {})
        known.graphs[key] = found
    return found


class _WeightedGraphs(NamedTuple):
    """Those of a matrix, as long as it has this pattern and these values, by what determines them besides."""

    pattern: Pattern
    values: Tensor
    version: int
    graphs: dict[Any, WeightedGraph]


def _find_weighted_graph(
    adj: Tensor, x: Tensor, targets: int, how: str, loop: float | None, edge_weight: Tensor | None
) -> WeightedGraph:
    graph, values = graph_of(adj, (targets, x.shape[0]))
    if how == "sum" or how == "mean":  # of edges, whatever their weights are
        values = edge_weight = loop = None
    source, dtype = values if edge_weight is None else edge_weight, x.dtype
    owner = graph.crd if source is None else source
    args = graph, values, edge_weight, how, loop, dtype
    return graph.cached(owner, (how, loop, dtype), _weighted_graph, *args)


def _weighted_graph(
    graph: Graph,
    values: Tensor | None,
    edge_weight: Tensor | None,
    how: str,
    loop: float | None,
    dtype: torch.dtype,
) -> WeightedGraph:
    """Compute the weights of a graph, perhaps with loops."""
    weights = values if edge_weight is None else sum_edge_weights(graph, edge_weight)
    if how == "normalised":
        normalised = normalise_weights(graph, weights, dtype, loop)
        return WeightedGraph(graph if loop is None else graph.with_loops[0], normalised)
    weights = edge_weights(graph, weights, dtype)
    is_mean = how == "mean"
    return WeightedGraph(graph, weights / graph.degrees.to(dtype)[graph.targets] if is_mean else weights)


def edge_weights(graph: Graph, values: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return a number for each entry: the values, or how often each pair is an edge."""
    if values is not None:
        return values.to(dtype)
    counts = graph.counts_as(dtype)
    return torch.ones(graph.size, dtype=dtype, device=graph.crd.device) if counts is None else counts


def sum_edge_weights(graph: Graph, edge_weight: Tensor) -> Tensor:
    """Return a number for each entry, from one for each edge; weights of repeated edges add up."""
    if graph.entry_of_edge is None:
        raise ArgumentError(
            "edge_weight is only supported with an edge_index; the values of a sparse matrix are its weights"
        )
    edges = graph.entry_of_edge.numel()
    if edge_weight.shape == (edges, 1):  # a single feature of each edge
        edge_weight = edge_weight.squeeze(1)
    if edge_weight.shape != (edges,):
        raise ShapeError(
            f"edge_weight has shape {tuple(edge_weight.shape)}, but edge_index has {edges} edges: pass one "
            "weight for each"
        )
    return sum_rows(graph.entry_of_edge, edge_weight, graph.size)


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
    degree = sum_rows(graph.targets, weights, graph.shape[0])
    factor = torch.where(degree == 0, 0.0, degree.pow(-0.5))
    return factor[graph.targets] * weights * factor[graph.sources]


@as_operator
def max_neighbours(adj: Tensor, x: Tensor, targets: int) -> Tensor:
    """Compute the maximum over the neighbors' rows of ``x``; zeros where there are none."""
    return maximum(graph_of(adj, (targets, x.shape[0]))[0], x)


@as_operator
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
    graph, edges = attended_edges(
        adj, (targets.shape[0], x.shape[0]), loops, edge_attr, edge_weight, fill, filled
    )
    return attend(graph, x, Scores(sources, targets, edges), slope, dropout)


def attended_edges(
    adj: Tensor,
    shape: tuple[int, int],
    loops: bool = False,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
    fill: str = "mean",
    filled: Tensor | None = None,
) -> tuple[Graph, Tensor | None]:
    """Return the graph that ``attend_neighbours`` looks at, and with an ``edge_weight`` its edges' scores."""
    if edge_weight is None:
        graph = graph_of(adj, shape)[0]
        return graph.with_loops[0] if loops else graph, None
    graph, features = graph_with_features(adj, shape, edge_attr, fill if loops else None, filled)
    if features.shape[1] != edge_weight.shape[0]:
        raise ShapeError(f"edges have {features.shape[1]} features, but edge_dim is {edge_weight.shape[0]}")
    return graph, features.to(edge_weight.dtype) @ edge_weight
