"""A graph as layers read it: for each target its sources, and what is computed from it once.

A graph is passed as a sparse matrix of targets x sources (PyG's ``adj_t``), or as PyG's ``edge_index``, whose
first row has sources and whose second has targets. What is computed from it (rows, transposed rows, loops,
normalized weights) is cached as long as the tensor it comes from lives, and recomputed when that was changed.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

from scorch._src.backends.base import routines_for
from scorch._src.backends.by_torch.graphs import Rows
from scorch._src.backends.sort_entries import stable_sort
from scorch._src.engine.execute import convert_cached
from scorch._src.formats import as_format
from scorch._src.grad_state import cached_outside_modes, has_tangents, outside_modes
from scorch._src.loops.types import LAST_INT32
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.create.build import check_edge_index
from scorch._src.tensor.create.check import advice_on, check_device
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad
from scorch._src.torch_internals import is_functorch_wrapped_tensor as is_wrapped
from scorch.errors import DtypeError, IndexRangeError, OperandError, ShapeError, UnsupportedError, kind_of

CSR = as_format("csr", 2)
CSR_WITH_FEATURES = as_format("dsd", 3)
MAX_CACHED_PER_GRAPH = 8
Result = TypeVar("Result")


def is_tracked(weights: torch.Tensor) -> bool:
    """Whether what is computed of ``weights`` must be connected to them, by gradients or tangents."""
    if isinstance(weights, SparseTensor) and is_wrapped(weights.storage.values):
        return True
    if torch.is_grad_enabled() and any_requires_grad(weights):
        return True
    return is_wrapped(weights) or has_tangents(weights)


class Graph:
    """Compressed rows of sources for each target, in order, and each pair once unless edges have features.

    ``counts``: how often each pair is an edge, None if once. ``entry_of_edge``: the entry of each edge of the
    edge_index; None where edges are entries.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        pos: torch.Tensor,
        crd: torch.Tensor,
        counts: torch.Tensor | None = None,
        entry_of_edge: torch.Tensor | None = None,
    ) -> None:
        self.shape, self.pos, self.crd = shape, pos, crd
        self.counts, self.entry_of_edge = counts, entry_of_edge
        self._cached: list[tuple[torch.Tensor, int, object, Any]] = []
        self._cast: dict[torch.dtype, torch.Tensor] = {}

    @property
    def size(self) -> int:
        """The number of pairs."""
        return self.crd.numel()

    @functools.cached_property
    def pattern(self) -> Pattern:
        return Pattern(CSR, self.shape, (None, self.pos), (None, self.crd), (self.shape[0], self.size))

    @cached_outside_modes
    def targets(self) -> torch.Tensor:
        """The target of each entry."""
        numbers = torch.arange(self.shape[0], device=self.crd.device)
        return numbers.repeat_interleave(self.pos.diff(), output_size=self.size)

    @cached_outside_modes
    def sources(self) -> torch.Tensor:
        """The source of each entry."""
        return self.crd.to(torch.int64)

    @cached_outside_modes
    def edge_ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Target and source of each edge: entries, as often as they count."""
        if self.counts is None:
            return self.targets, self.sources
        return self.targets.repeat_interleave(self.counts), self.sources.repeat_interleave(self.counts)

    def pattern_with_features(self, size: int) -> Pattern:
        """Return the pattern of a tensor with ``size`` numbers for each entry."""
        shape, counts = (*self.shape, size), (self.shape[0], self.size, self.size * size)
        return Pattern(CSR_WITH_FEATURES, shape, (None, self.pos, None), (None, self.crd, None), counts)

    def counts_as(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Return how often each pair is an edge, in ``dtype``."""
        counts = self.counts
        if counts is None:
            return None
        converted = self._cast.get(dtype)
        if converted is None:
            converted = self._cast[dtype] = outside_modes(lambda: counts.to(dtype))()
        return converted

    def rows(self, dtype: torch.dtype) -> Rows:
        return Rows(self.pos, self.crd, self.counts_as(dtype))

    @cached_outside_modes
    def degrees(self) -> torch.Tensor:
        """The number of edges that end at each target."""
        if self.counts is None:
            return self.pos.diff()
        return self.pos.new_zeros(self.shape[0]).index_add_(0, self.targets, self.counts.to(self.pos.dtype))

    @cached_outside_modes
    def coalesced(self) -> tuple[Graph, torch.Tensor | None]:
        """The graph with each pair once, and the entry that each becomes part of; None if it is this one."""
        if self.size < 2:
            return self, None
        is_same = (self.targets[1:] == self.targets[:-1]) & (self.crd[1:] == self.crd[:-1])
        is_new = torch.cat([is_same.new_ones(1), ~is_same])
        if bool(is_new.all()):
            return self, None
        targets = self.targets[is_new]
        pos = routines_for(targets).row_pointers(targets, self.shape[0]).to(self.pos.dtype)
        return Graph(self.shape, pos, self.crd[is_new]), is_new.cumsum(0) - 1

    @cached_outside_modes
    def transposed(self) -> tuple[Graph, torch.Tensor]:
        """The graph with all edges reversed, and the entry that each of its entries is here.

        The transpose of a symmetric graph shares its arrays.
        """
        crd, positions = stable_sort(self.crd)
        targets = self.targets[positions].to(self.crd.dtype)
        pos = routines_for(crd).row_pointers(crd, self.shape[1]).to(self.pos.dtype)
        if self.shape[0] == self.shape[1] and torch.equal(pos, self.pos) and torch.equal(targets, self.crd):
            pos, targets = self.pos, self.crd
        counts = None if self.counts is None else self.counts[positions]
        return Graph((self.shape[1], self.shape[0]), pos, targets, counts), positions.to(self.crd.dtype)

    def columns(self, dtype: torch.dtype) -> Rows:
        """Return the transposed rows."""
        graph, positions = self.transposed
        return Rows(graph.pos, graph.crd, graph.counts_as(dtype), positions)

    @cached_outside_modes
    def with_loops(self) -> tuple[Graph, torch.Tensor]:
        """The graph in which each node is its own source, once, and where each entry was; -1 for new ones."""
        rows, columns = self.shape
        added = torch.arange(min(rows, columns), device=self.crd.device)
        is_loop = self.targets == self.sources
        has_loop = torch.zeros_like(added, dtype=torch.bool).index_fill_(0, self.sources[is_loop], 1)
        missing = added[~has_loop]
        keys = torch.cat([self.targets * columns + self.sources, missing * (columns + 1)])
        keys, order = torch.sort(keys)
        positions = torch.where(order < self.size, order, -1)
        targets = keys.div(max(columns, 1), rounding_mode="floor")
        crd = (keys - targets * columns).to(self.crd.dtype)
        pos = routines_for(targets).row_pointers(targets, rows).to(self.pos.dtype)
        counts = None
        if self.counts is not None:
            counts = torch.where(positions < 0, 1, self.counts[positions.clamp(min=0)] if self.size else 1)
            counts = torch.where(targets == crd, 1, counts)
        return Graph(self.shape, pos, crd, counts), positions

    def cached(self, weights: torch.Tensor, key: object, make: Callable[..., Result], *args: Any) -> Result:
        """Return ``make(*args)`` for ``weights``, cached until they change."""
        if not weights.requires_grad:
            for tensor, version, cached_key, result in self._cached:
                if tensor is weights and cached_key == key and version == weights._version:
                    cached: Result = result
                    return cached
        if weights.is_inference() or weights.requires_grad or is_wrapped(weights):
            return make(*args)
        version, new_result = weights._version, outside_modes(make)(*args)
        self._cached = [(weights, version, key, new_result), *self._cached[: MAX_CACHED_PER_GRAPH - 1]]
        return new_result


# building graphs -------------------------------------------------------------------------------------

_graphs_by_pattern: weakref.WeakKeyDictionary[Pattern, Graph] = weakref.WeakKeyDictionary()
_cached_by_tensor: Any = WeakIdKeyDictionary()  # its version and the graphs built of it


def graph_of(adj: Any, shape: tuple[int, int]) -> tuple[Graph, torch.Tensor | None]:
    """Return the graph of ``adj``, which must have ``shape`` (targets, sources), and its values, if any.

    ``adj`` is a sparse matrix, or an ``edge_index`` of shape (2, edges).
    """
    matrix_or_edges = as_matrix_or_edges(adj)
    if isinstance(matrix_or_edges, SparseTensor):
        return _graph_of_matrix(matrix_or_edges, shape)
    return cached_with(matrix_or_edges, shape, _graph_of_edges, matrix_or_edges, shape), None


def as_matrix_or_edges(adj: Any) -> torch.Tensor:
    """Return a graph as one of its two forms: a sparse matrix of Scorch, or an ``edge_index``."""
    if isinstance(adj, SparseTensor):
        return adj
    if hasattr(adj, "to_scorch"):  # scorch.compat.torch_sparse.SparseTensor
        return adj.to_scorch()  # type: ignore[no-any-return]
    if not isinstance(adj, torch.Tensor):
        raise OperandError(
            "a graph must be a sparse matrix or an edge_index of shape (2, edges), but got "
            f"{kind_of(adj)}; {advice_on(adj, 'edge_index')}"
        )
    if adj.layout is not torch.strided:
        return cached_with(adj, None, from_torch, adj)
    if adj.dtype not in (torch.int64, torch.int32):
        if adj.dim() == 2 and adj.shape[0] == adj.shape[1]:
            raise DtypeError(
                f"a graph must be sparse, but got a dense matrix of shape {tuple(adj.shape)}; use "
                "scorch.from_torch(adjacency, format='csr')"
            )
        raise DtypeError(f"edge_index must be int64 or int32, but got {adj.dtype}; use edge_index.long()")
    check_edge_index(adj)
    return adj


def check_adjacency(shape: tuple[int, ...], wanted: tuple[int, int]) -> None:
    """Refuse the ``shape`` of a matrix that does not match the nodes, ``wanted`` (targets, sources)."""
    if shape != wanted:
        is_transposed = shape[::-1] == wanted
        raise ShapeError(
            f"the adjacency matrix must have shape (targets, sources) = {wanted}, to match x, but got "
            f"{shape}; "
            + (
                "rows are targets, so pass the .T of a matrix from scorch.from_edge_index"
                if is_transposed
                else "to scorch.from_edge_index, pass the number of nodes as size="
            )
        )


def _graph_of_matrix(adj: SparseTensor, shape: tuple[int, int]) -> tuple[Graph, torch.Tensor]:
    storage = adj.storage
    pattern = storage.pattern
    check_adjacency(pattern.shape, shape)
    if is_tracked(adj):
        return _graph_of_tracked(adj, shape)
    if pattern.format.is_padded:  # blocks and bands are padded with zeros, which are no edges
        without_padding = cached_with(storage.values, pattern, _nonzero_entries, adj)
        return _graph_of_matrix(without_padding, shape)
    graph = _graph_of_pattern(storage, shape)
    if pattern.format.has_row_pointers:
        return graph, storage.values
    return graph, graph.cached(storage.values, CSR, _values_in_csr, storage)


def _graph_of_pattern(storage: Storage, shape: tuple[int, int]) -> Graph:
    graph = _graphs_by_pattern.get(storage.pattern)
    if graph is None:
        stored = outside_modes(_to_csr)(storage).pattern
        pos, crd = stored.pos[1], stored.crd[1]
        assert pos is not None and crd is not None
        graph = _graphs_by_pattern[storage.pattern] = Graph(shape, pos, crd)
    return graph


@outside_modes
def _to_csr(storage: Storage) -> Storage:
    return convert_cached(storage, CSR)


def _values_in_csr(storage: Storage) -> torch.Tensor:
    return _to_csr(storage).values


def _graph_of_tracked(adj: SparseTensor, shape: tuple[int, int]) -> tuple[Graph, torch.Tensor]:
    """Return the graph of a matrix whose values are differentiable."""
    if adj.format.is_padded:
        raise UnsupportedError(
            "a graph whose weights require gradients cannot be stored in blocks or bands, which are "
            "padded with zeros: use .to_format('csr')"
        )
    rows = adj.to_format(CSR)
    assert isinstance(rows, SparseTensor)
    return _graph_of_pattern(rows.storage, shape), values_of(rows)


@outside_modes
def _nonzero_entries(adj: SparseTensor) -> SparseTensor:
    rows = SparseTensor(adj.storage).to_format(CSR)
    assert isinstance(rows, SparseTensor)
    return rows.eliminate_zeros()


def split_edge_index(edges: torch.Tensor, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sources and targets of an edge_index, whose nodes must be within ``shape``."""
    rows, columns = shape
    check_device("edge_index", edges.device)
    sources, targets = edges.detach().to(torch.int64)
    for name, nodes, count in (("sources (row 0)", sources, columns), ("targets (row 1)", targets, rows)):
        if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < count:
            raise IndexRangeError(
                f"edge_index has {name} from {int(nodes.min())} to {int(nodes.max())}, but x has {count} "
                "rows; it needs one for each node, and nodes are numbered from 0"
            )
    return sources, targets


@outside_modes
def _graph_of_edges(edges: torch.Tensor, shape: tuple[int, int]) -> Graph:
    sources, targets = split_edge_index(edges, shape)
    keys = targets * shape[1] + sources
    keys, entry_of_edge, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    repeats = counts if keys.numel() < edges.shape[1] else None
    return Graph(shape, *rows_of_keys(keys, shape), repeats, entry_of_edge)


def rows_of_keys(keys: torch.Tensor, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row pointers and columns of entries at sorted ``keys``, positions counted row by row."""
    rows, columns = shape
    row = keys.div(max(columns, 1), rounding_mode="floor")
    index = torch.int32 if max(rows, columns, keys.numel()) <= LAST_INT32 else torch.int64
    return routines_for(row).row_pointers(row, rows).to(index), (keys - row * columns).to(index)


def cached_with(tensor: torch.Tensor, key: object, make: Callable[..., Result], *args: Any) -> Result:
    """Return ``make(*args)``, cached until the tensor changes."""
    if tensor.is_inference():
        return make(*args)
    version, entry = tensor._version, _cached_by_tensor.get(tensor)
    if entry is None or entry[0] != version:
        entry = _cached_by_tensor[tensor] = (version, {})
    if key not in entry[1]:
        entry[1][key] = outside_modes(make)(*args)
    result: Result = entry[1][key]
    return result
