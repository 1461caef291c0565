"""Features of edges, in the order of the entries of a graph; loops that are added get some too.

Features have a row for each edge of an ``edge_index``, a row for each stored entry of a matrix
in the order of its ``values()``, or as the last dimension of a tensor (targets, sources, features) whose
entries have all of them. Edges that repeat are edges of their own here: each has its own features.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from scorch._src.backends.sort_entries import stable_sort
from scorch._src.engine.execute import convert_cached
from scorch._src.formats import Format
from scorch._src.grad_state import outside_modes
from scorch._src.ops.graph.graph import (
    Graph,
    as_matrix_or_edges,
    cached_with,
    graph_of,
    rows_of_keys,
    split_edge_index,
)
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError, UnsupportedError

Tensor = torch.Tensor
FILLS = {"mean": "mean", "add": "sum", "sum": "sum", "max": "amax", "min": "amin", "mul": "prod"}

_matrices: weakref.WeakKeyDictionary[Pattern, Pattern] = weakref.WeakKeyDictionary()


def graph_with_features(
    adj: Any, shape: tuple[int, int], edge_attr: Tensor | None, fill: str | None, filled: Tensor | None
) -> tuple[Graph, Tensor]:
    """Return the graph with one entry for each edge, and the features of its entries.

    With ``fill`` (one of ``FILLS``) loops are replaced by one of each node. Its features are ``filled``, or
    what ``fill`` makes of those of the other edges that end there.
    """
    matrix_or_edges, source = as_matrix_or_edges(adj), edge_attr
    if source is None:
        matrix_or_edges, source, width = _split_features(matrix_or_edges)
        attributes = source.view(-1, width)
    else:
        attributes = source.unsqueeze(1) if source.dim() == 1 else source
    edges, count = _edges_of(matrix_or_edges, shape, fill is not None)
    if attributes.dim() != 2 or attributes.shape[0] != count:
        noun = "stored entries" if isinstance(matrix_or_edges, SparseTensor) else "edges"
        raise ShapeError(
            f"edge_attr has shape {tuple(source.shape)}, but the graph has {count} {noun}: pass one row of "
            "features for each"
        )
    graph, positions = edges

    def make() -> Tensor:
        if fill is None:
            return attributes.index_select(0, positions)
        loops = _fill_loops(graph, positions, attributes, fill, filled)
        return torch.cat([attributes, loops]).index_select(0, positions)

    if filled is not None:
        return graph, make()
    return graph, graph.cached(source, ("features", fill), make)


def _split_features(adj: Tensor) -> tuple[SparseTensor, Tensor, int]:
    """Split a tensor with features into a matrix, all features, and the number per entry."""
    if not isinstance(adj, SparseTensor):
        raise ArgumentError("edge_index has no edge features: pass edge_attr")
    if adj.dim() == 2:
        return adj, values_of(adj), 1
    pattern = adj.storage.pattern
    form = pattern.format
    if not form.dense_tail or form.order[-1] != 2 or form.is_blocked or form.is_dense:
        raise UnsupportedError(
            "edge features must be the last, dense dimension of the tensor, as in format 'dsd', but got "
            f"{form}; use .to_format('dsd')"
        )
    matrix = _matrices.get(pattern)
    if matrix is None:
        flat, arrays = Format(form.levels[:2], order=form.order[:2]), (pattern.pos[:2], pattern.crd[:2])
        matrix = _matrices[pattern] = Pattern(flat, pattern.shape[:2], *arrays, pattern.counts[:2])
    return SparseTensor(Storage(matrix, matrix.present)), values_of(adj), adj.shape[2]


def _edges_of(adj: Tensor, shape: tuple[int, int], loops: bool) -> tuple[tuple[Graph, Tensor], int]:
    """Return the graph of all edges, the row of each entry's features, and the number of edges passed.

    Features of loops follow those of all edges.
    """
    if not isinstance(adj, SparseTensor):
        key = ("edges", loops, shape)
        edges = cached_with(adj, key, lambda: _sort_edges(*split_edge_index(adj, shape), None, shape, loops))
        return edges, adj.shape[1]
    storage = adj.storage
    if storage.pattern.format.is_padded:
        raise UnsupportedError(
            "a graph with edge features cannot be stored in blocks or bands, which are padded with zeros: "
            "use .to_format('csr')"
        )
    plain = SparseTensor(Storage(storage.pattern, storage.pattern.present))
    graph = graph_of(plain, shape)[0]

    def make() -> tuple[Graph, Tensor]:
        numbers = Storage(storage.pattern, torch.arange(storage.pattern.size, device=storage.device))
        order = convert_cached(numbers, graph.pattern.format).values
        return _sort_edges(graph.sources, graph.targets, order, shape, loops)

    return graph.cached(graph.crd, ("edges", loops), make), storage.pattern.size


@outside_modes
def _sort_edges(
    sources: Tensor, targets: Tensor, numbers: Tensor | None, shape: tuple[int, int], loops: bool
) -> tuple[Graph, Tensor]:
    """Sort edges as rows of sources; ``numbers`` are their original numbers, unless they are in order."""
    count = sources.numel()
    if numbers is None:
        numbers = torch.arange(count, device=sources.device)
    if loops:
        others = sources != targets
        nodes = torch.arange(min(shape), device=sources.device)
        sources, targets = torch.cat([sources[others], nodes]), torch.cat([targets[others], nodes])
        numbers = torch.cat([numbers[others], count + nodes])
    keys, order = stable_sort(targets * shape[1] + sources)
    return Graph(shape, *rows_of_keys(keys, shape)), numbers[order]


def _fill_loops(
    graph: Graph, positions: Tensor, features: Tensor, fill: str, filled: Tensor | None
) -> Tensor:
    """Compute the features of loops, for each node."""
    count = min(graph.shape)
    if filled is not None:
        return filled.to(features.dtype).expand(count, features.shape[1])
    is_edge = positions < features.shape[0]
    targets, edge_features = graph.targets[is_edge], features.index_select(0, positions[is_edge])
    is_product = fill == "mul"
    start = edge_features.new_full((graph.shape[0], edge_features.shape[1]), float(is_product))
    index = targets.unsqueeze(1).expand_as(edge_features)
    total = start.scatter_reduce(0, index, edge_features, FILLS[fill], include_self=is_product)
    return total[:count]
