"""Features of edges, in the order of the entries of a graph; loops that are added get some too.

Features are given with a row for each edge of an ``edge_index``, with a row for each stored entry of a matrix
in the order of its ``values()``, or as the last dimension of a tensor (targets, sources, features) whose
entries have all of them. Edges that repeat are edges of their own here: each has its own features.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from scorch._src.backends.base import routines_for
from scorch._src.engine.execute import convert_cached
from scorch._src.formats import Format
from scorch._src.loops.types import LAST_INT32
from scorch._src.ops.graph.graph import Graph, ends_of, graph_of, kept, kept_with, matrix_or_edges
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError, UnsupportedError

Tensor = torch.Tensor
FILLS = {"mean": "mean", "add": "sum", "sum": "sum", "max": "amax", "min": "amin", "mul": "prod"}

_matrices: weakref.WeakKeyDictionary[Pattern, Pattern] = weakref.WeakKeyDictionary()


def with_features(
    adj: Any, shape: tuple[int, int], edge_attr: Tensor | None, fill: str | None, filled: Tensor | None
) -> tuple[Graph, Tensor]:
    """The graph with one entry for each edge, and the features of its entries.

    With ``fill`` (one of ``FILLS``) loops are replaced by one of each node. Its features are ``filled``, or
    what ``fill`` makes of those of the other edges that end there.
    """
    given, source = matrix_or_edges(adj), edge_attr
    if source is None:
        given, source, width = _apart(given)
        attributes = source.view(-1, width)
    else:
        attributes = source.unsqueeze(1) if source.dim() == 1 else source
    known, count = _entries(given, shape, fill is not None)
    if attributes.dim() != 2 or attributes.shape[0] != count:
        what = "stored entries" if isinstance(given, SparseTensor) else "edges"
        raise ShapeError(
            f"edge_attr has shape {tuple(source.shape)}, but the graph has {count} {what}: give a row of "
            "features for each"
        )
    graph, places = known

    def make() -> Tensor:
        if fill is None:
            return attributes.index_select(0, places)
        loops = _filled(graph, places, attributes, fill, filled)
        return torch.cat([attributes, loops]).index_select(0, places)

    if filled is not None:
        return graph, make()
    return graph, graph.keep(source, ("features", fill), make)


def _apart(adj: Tensor) -> tuple[SparseTensor, Tensor, int]:
    """A tensor with features for each entry as a matrix, all features, and how many an entry has."""
    if not isinstance(adj, SparseTensor):
        raise ArgumentError("edge_index has no features of edges: give edge_attr")
    if adj.dim() == 2:
        return adj, values_of(adj), 1
    pattern = adj.storage.pattern
    form = pattern.format
    if not form.dense_tail or form.order[-1] != 2 or form.is_blocked or form.is_dense:
        raise UnsupportedError(
            f"features of edges in a tensor are its last, dense dimension, as in format 'dsd', not {form}; "
            "use .to_format('dsd')"
        )
    matrix = _matrices.get(pattern)
    if matrix is None:
        flat = Format(form.levels[:2], order=form.order[:2])
        counts = pattern.counts[:2]
        matrix = Pattern(flat, pattern.shape[:2], pattern.pos[:2], pattern.crd[:2], counts)
        matrix = _matrices.setdefault(pattern, matrix)
    return SparseTensor(Storage(matrix, matrix.present)), values_of(adj), adj.shape[2]


def _entries(adj: Tensor, shape: tuple[int, int], loops: bool) -> tuple[tuple[Graph, Tensor], int]:
    """The graph of all edges, for each entry the row of its features, and how many edges were given.

    Features of loops follow those of all edges.
    """
    if not isinstance(adj, SparseTensor):
        key = ("edges", loops, shape)
        made = kept_with(adj, key, lambda: _sorted(*ends_of(adj, shape), None, shape, loops))
        return made, adj.shape[1]
    storage = adj.storage
    if storage.pattern.format.is_padded:
        raise UnsupportedError(
            "a graph whose edges have features has no blocks or bands, which are filled up with zeros: "
            "use .to_format('csr')"
        )
    plain = SparseTensor(Storage(storage.pattern, storage.pattern.present))
    graph = graph_of(plain, shape)[0]

    def make() -> tuple[Graph, Tensor]:
        numbers = Storage(storage.pattern, torch.arange(storage.pattern.size, device=storage.device))
        order = convert_cached(numbers, graph.pattern.format).values
        return _sorted(graph.sources, graph.targets, order, shape, loops)

    return graph.keep(graph.crd, ("edges", loops), make), storage.pattern.size


@kept
def _sorted(
    sources: Tensor, targets: Tensor, numbers: Tensor | None, shape: tuple[int, int], loops: bool
) -> tuple[Graph, Tensor]:
    """Edges as rows of sources; ``numbers`` says which edge each was, unless they are in order."""
    rows, columns = shape
    count = sources.numel()
    if numbers is None:
        numbers = torch.arange(count, device=sources.device)
    if loops:
        others = sources != targets
        nodes = torch.arange(min(rows, columns), device=sources.device)
        sources, targets = torch.cat([sources[others], nodes]), torch.cat([targets[others], nodes])
        numbers = torch.cat([numbers[others], count + nodes])
    keys, order = torch.sort(targets * columns + sources, stable=True)
    found = keys.div(max(columns, 1), rounding_mode="floor")
    index = torch.int32 if max(rows, columns, keys.numel()) <= LAST_INT32 else torch.int64
    pos, crd = routines_for(found).row_pointers(found, rows).to(index), (keys - found * columns).to(index)
    return Graph(shape, pos, crd), numbers[order]


def _filled(graph: Graph, places: Tensor, features: Tensor, fill: str, filled: Tensor | None) -> Tensor:
    """The features of loops, for each node."""
    count = min(graph.shape)
    if filled is not None:
        return filled.to(features.dtype).expand(count, features.shape[1])
    is_edge = places < features.shape[0]
    targets, own = graph.targets[is_edge], features.index_select(0, places[is_edge])
    start = own.new_ones if fill == "mul" else own.new_zeros
    found = start(graph.shape[0], own.shape[1])
    index = targets.unsqueeze(1).expand(-1, own.shape[1])
    return found.scatter_reduce(0, index, own, FILLS[fill], include_self=fill == "mul")[:count]
