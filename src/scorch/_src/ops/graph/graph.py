"""A graph as layers read it: for each target the sources it takes from, and what is found out about it once.

A graph is given as a sparse matrix of targets x sources (PyG's ``adj_t``), or as PyG's ``edge_index``, whose
first row has sources and whose second has targets. What is made of it (rows, the transposed rows, loops,
normalised weights) is kept as long as the tensor it comes from, and made anew when that was changed.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

from scorch._src.backends.base import routines_for
from scorch._src.backends.routines import Rows
from scorch._src.engine.execute import convert_cached
from scorch._src.formats import as_format
from scorch._src.grad_state import is_transformed, untracked
from scorch._src.loops.types import LAST_INT32
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.create.check import check_device
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad
from scorch._src.torch_internals import is_functorch_wrapped_tensor as is_wrapped
from scorch.errors import DtypeError, IndexRangeError, OperandError, ShapeError, UnsupportedError

CSR = as_format("csr", 2)
ROWS = as_format("dsd", 3)
MOST_KEPT = 8  # things made of weights that a graph remembers
Made = TypeVar("Made")


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """``make``, whose tensors outlive blocks of ``torch.inference_mode`` and ``torch.func``: not theirs."""

    @functools.wraps(make)
    def normally(*args: Any) -> Made:
        is_inference = torch.is_inference_mode_enabled()
        if not is_inference and not is_transformed():
            return make(*args)
        with torch.inference_mode(False) if is_inference else contextlib.nullcontext(), untracked():
            return make(*args)

    return normally


def is_learned(weights: torch.Tensor) -> bool:
    """Whether what is made of ``weights`` must be connected to them, for autograd or ``torch.func``."""
    if isinstance(weights, SparseTensor) and is_wrapped(weights.storage.values):
        return True
    return (torch.is_grad_enabled() and any_requires_grad(weights)) or is_wrapped(weights)


class Graph:
    """Compressed rows of sources for each target, in order, and each pair once unless edges have features.

    ``counts`` has how often each pair is an edge, None if once. ``given`` has for each edge as it was given
    the entry that it is part of; None where edges are entries.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        pos: torch.Tensor,
        crd: torch.Tensor,
        counts: torch.Tensor | None = None,
        given: torch.Tensor | None = None,
    ) -> None:
        self.shape, self.pos, self.crd = shape, pos, crd
        self.counts, self.given = counts, given
        self._kept: list[tuple[torch.Tensor, int, object, Any]] = []
        self._cast: dict[torch.dtype, torch.Tensor] = {}

    @property
    def size(self) -> int:
        """How many pairs there are."""
        return self.crd.numel()

    @functools.cached_property
    def pattern(self) -> Pattern:
        return Pattern(CSR, self.shape, (None, self.pos), (None, self.crd), (self.shape[0], self.size))

    @functools.cached_property
    @kept
    def targets(self) -> torch.Tensor:
        """The target of each entry."""
        numbers = torch.arange(self.shape[0], device=self.crd.device)
        return numbers.repeat_interleave(self.pos.diff(), output_size=self.size)

    @functools.cached_property
    @kept
    def sources(self) -> torch.Tensor:
        """The source of each entry."""
        return self.crd.to(torch.int64)

    @functools.cached_property
    @kept
    def each(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Target and source of each edge: of entries, as often as they count."""
        if self.counts is None:
            return self.targets, self.sources
        return self.targets.repeat_interleave(self.counts), self.sources.repeat_interleave(self.counts)

    def rows_of(self, size: int) -> Pattern:
        """The pattern of a tensor with ``size`` numbers for each entry."""
        shape, counts = (*self.shape, size), (self.shape[0], self.size, self.size * size)
        return Pattern(ROWS, shape, (None, self.pos, None), (None, self.crd, None), counts)

    def counts_as(self, dtype: torch.dtype) -> torch.Tensor | None:
        """How often each pair is an edge."""
        counts = self.counts
        if counts is None:
            return None
        found = self._cast.get(dtype)
        if found is None:
            found = self._cast[dtype] = kept(lambda: counts.to(dtype))()
        return found

    def rows(self, dtype: torch.dtype) -> Rows:
        return Rows(self.pos, self.crd, self.counts_as(dtype))

    @functools.cached_property
    @kept
    def degrees(self) -> torch.Tensor:
        """How many edges end at each target."""
        if self.counts is None:
            return self.pos.diff()
        return self.pos.new_zeros(self.shape[0]).index_add_(0, self.targets, self.counts.to(self.pos.dtype))

    @functools.cached_property
    @kept
    def merged(self) -> tuple[Graph, torch.Tensor | None]:
        """The graph with each pair once, and which of its entries each is part of; None if it is this one."""
        if self.size < 2:
            return self, None
        is_same = (self.targets[1:] == self.targets[:-1]) & (self.crd[1:] == self.crd[:-1])
        is_new = torch.cat([is_same.new_ones(1), ~is_same])
        if bool(is_new.all()):
            return self, None
        targets = self.targets[is_new]
        pos = routines_for(targets).row_pointers(targets, self.shape[0]).to(self.pos.dtype)
        return Graph(self.shape, pos, self.crd[is_new]), is_new.cumsum(0) - 1

    # other graphs ------------------------------------------------------------------------------------

    @functools.cached_property
    @kept
    def turned(self) -> tuple[Graph, torch.Tensor]:
        """The graph with all edges turned round, and which entry each of its entries is here.

        That of a symmetric graph has the same arrays, not copies.
        """
        crd, places = torch.sort(self.crd, stable=True)
        targets = self.targets[places].to(self.crd.dtype)
        pos = routines_for(crd).row_pointers(crd, self.shape[1]).to(self.pos.dtype)
        if self.shape[0] == self.shape[1] and torch.equal(pos, self.pos) and torch.equal(targets, self.crd):
            pos, targets = self.pos, self.crd
        counts = None if self.counts is None else self.counts[places]
        return Graph((self.shape[1], self.shape[0]), pos, targets, counts), places.to(self.crd.dtype)

    def columns(self, dtype: torch.dtype) -> Rows:
        """The transposed rows."""
        graph, places = self.turned
        return Rows(graph.pos, graph.crd, graph.counts_as(dtype), places)

    @functools.cached_property
    @kept
    def with_loops(self) -> tuple[Graph, torch.Tensor]:
        """The graph in which each node is its own source, once, and where each entry was; -1 for new ones."""
        rows, columns = self.shape
        added = torch.arange(min(rows, columns), device=self.crd.device)
        is_loop = self.targets == self.sources
        missing = added[
            ~torch.zeros(added.numel(), dtype=torch.bool, device=added.device).index_fill_(
                0, self.sources[is_loop], 1
            )
        ]
        keys = torch.cat([self.targets * columns + self.sources, missing * (columns + 1)])
        keys, order = torch.sort(keys)
        places = torch.where(order < self.size, order, -1)
        targets = keys.div(max(columns, 1), rounding_mode="floor")
        crd = (keys - targets * columns).to(self.crd.dtype)
        pos = routines_for(targets).row_pointers(targets, rows).to(self.pos.dtype)
        counts = None
        if self.counts is not None:
            counts = torch.where(places < 0, 1, self.counts[places.clamp(min=0)] if self.size else 1)
            counts = torch.where(targets == crd, 1, counts)
        return Graph(self.shape, pos, crd, counts), places

    # what depends on weights -------------------------------------------------------------------------

    def keep(self, weights: torch.Tensor, key: object, make: Callable[[], Made]) -> Made:
        """What ``make`` gives for ``weights``, from the last time if they have not changed since."""
        if weights.is_inference() or weights.requires_grad or is_wrapped(weights):
            return make()
        version = weights._version
        for tensor, seen, name, found in self._kept:
            if tensor is weights and seen == version and name == key:
                known: Made = found
                return known
        made = kept(make)()
        self._kept = [(weights, version, key, made), *self._kept[: MOST_KEPT - 1]]
        return made


# where graphs come from --------------------------------------------------------------------------------

_of_patterns: weakref.WeakKeyDictionary[Pattern, Graph] = weakref.WeakKeyDictionary()
_of_tensors: Any = WeakIdKeyDictionary()  # a tensor of edges -> its version and the graphs made of it


def graph_of(adj: Any, shape: tuple[int, int]) -> tuple[Graph, torch.Tensor | None]:
    """The graph that ``adj`` is, which must have ``shape`` (targets, sources), and its values if it has any.

    ``adj`` is a sparse matrix, or an ``edge_index`` of shape (2, edges).
    """
    given = matrix_or_edges(adj)
    if isinstance(given, SparseTensor):
        return _of_matrix(given, shape)
    return kept_with(given, shape, lambda: _of_edges(given, shape)), None


def matrix_or_edges(adj: Any) -> torch.Tensor:
    """A graph as one of the two things that it may be: a matrix of ours, or an ``edge_index``."""
    if isinstance(adj, SparseTensor):
        return adj
    if not isinstance(adj, torch.Tensor):
        raise OperandError(
            f"a graph is a sparse matrix or an edge_index of shape (2, edges), not a {type(adj).__name__}"
        )
    if adj.layout is not torch.strided:
        return kept_with(adj, None, lambda: from_torch(adj))
    if adj.dtype not in (torch.int64, torch.int32):
        raise DtypeError(
            f"a dense {tuple(adj.shape)} tensor of {adj.dtype} is no graph: edge_index has whole numbers, "
            "and a matrix must be sparse (scorch.from_torch)"
        )
    if adj.dim() != 2 or adj.shape[0] != 2:
        raise ShapeError(f"edge_index has shape {tuple(adj.shape)}; it must be (2, number of edges)")
    return adj


def _of_matrix(adj: SparseTensor, shape: tuple[int, int]) -> tuple[Graph, torch.Tensor]:
    if tuple(adj.shape) != shape:
        raise ShapeError(
            f"the matrix of the graph has shape {tuple(adj.shape)}, but x says (targets, sources) = {shape}; "
            "rows are targets: from_edge_index has them as columns, so take its .T"
        )
    storage = adj.storage
    if is_learned(adj):
        return _of_learned(adj, shape)
    if storage.pattern.format.is_padded:  # blocks and bands are filled up with zeros, which are no edges
        made = kept_with(storage.values, storage.pattern, lambda: _entries(adj))
        return _of_matrix(made, shape)
    graph = _of_pattern(storage, shape)
    if storage.pattern.format.has_row_pointers:
        return graph, storage.values
    return graph, graph.keep(storage.values, CSR, lambda: _in_rows(storage).values)


def _of_pattern(storage: Storage, shape: tuple[int, int]) -> Graph:
    graph = _of_patterns.get(storage.pattern)
    if graph is None:
        stored = _in_rows(storage).pattern
        pos, crd = stored.pos[1], stored.crd[1]
        assert pos is not None and crd is not None
        graph = _of_patterns[storage.pattern] = Graph(shape, pos, crd)
    return graph


@kept
def _in_rows(storage: Storage) -> Storage:
    return convert_cached(storage, CSR)


def _of_learned(adj: SparseTensor, shape: tuple[int, int]) -> tuple[Graph, torch.Tensor]:
    """With values that pass gradients on."""
    if adj.format.is_padded:
        raise UnsupportedError(
            "a graph whose weights are learned has no blocks or bands, which are filled up with zeros: "
            "use .to_format('csr')"
        )
    rows = adj.to_format(CSR)
    assert isinstance(rows, SparseTensor)
    return _of_pattern(rows.storage, shape), values_of(rows)


@kept
def _entries(adj: SparseTensor) -> SparseTensor:
    found = SparseTensor(adj.storage).to_format(CSR)
    assert isinstance(found, SparseTensor)
    return found.eliminate_zeros()


def ends_of(edges: torch.Tensor, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets of an edge_index, whose nodes must be within ``shape`` (targets, sources)."""
    rows, columns = shape
    check_device("edge_index", edges.device)
    sources, targets = edges.detach().to(torch.int64)
    for name, nodes, count in (("sources, row 0,", sources, columns), ("targets, row 1,", targets, rows)):
        if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < count:
            raise IndexRangeError(
                f"edge_index names nodes {int(nodes.min())} to {int(nodes.max())} as {name} "
                f"but x has {count} rows"
            )
    return sources, targets


@kept
def _of_edges(edges: torch.Tensor, shape: tuple[int, int]) -> Graph:
    rows, columns = shape
    sources, targets = ends_of(edges, shape)
    keys, given, counts = torch.unique(targets * columns + sources, return_inverse=True, return_counts=True)
    found = keys.div(max(columns, 1), rounding_mode="floor")
    index = torch.int32 if max(rows, columns, keys.numel()) <= LAST_INT32 else torch.int64
    pos, crd = routines_for(found).row_pointers(found, rows).to(index), (keys - found * columns).to(index)
    return Graph(shape, pos, crd, counts if keys.numel() < edges.shape[1] else None, given)


def kept_with(tensor: torch.Tensor, key: object, make: Callable[[], Made]) -> Made:
    """What ``make`` gives, from the last time if the tensor has not changed since."""
    if tensor.is_inference():
        return make()
    version, known = tensor._version, _of_tensors.get(tensor)
    if known is None or known[0] != version:
        known = _of_tensors[tensor] = (version, {})
    if key not in known[1]:
        known[1][key] = make()
    found: Made = known[1][key]
    return found
