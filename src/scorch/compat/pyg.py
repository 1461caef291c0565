"""Let PyG's layers, pooling and mini-batches accept a ``scorch.SparseTensor`` as adjacency matrix.

``import scorch`` does so as soon as PyG is imported. A layer that is called with a matrix gets its edges and
their weights, so that the result is that of an ``edge_index``. Layers that only multiply by the matrix get
one that PyG supports instead, which is faster: PyTorch's, or torch_sparse's if
``scorch.compat.torch_sparse.install()`` was called. Both provide gradients of the values. A batch of graphs
gets the block diagonal matrix of theirs, which is Scorch's.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.devices import HOST
from scorch._src.ops.graph.graph import check_adjacency
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.interop.torch_layouts import silence_beta_warning
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.compat import torch_sparse
from scorch.errors import CallError, UnsupportedError, add_note

_entries: WeakKeyDictionary[Pattern, torch_sparse.SparseStorage] = WeakKeyDictionary()
_with_loops: WeakKeyDictionary[Pattern, bool] = WeakKeyDictionary()
_ONLY_EDGES = (torch.Tensor, "Tensor", "torch.Tensor")  # annotations of what takes no matrix
_MULTIPLYING = frozenset(
    {
        "APPNP",
        "ClusterGCNConv",
        "GCN2Conv",
        "GCNConv",
        "GINConv",
        "GatedGraphConv",
        "GraphConv",
        "LGConv",
        "MixHopConv",
        "SAGEConv",
        "SGConv",
        "SSGConv",
        "TAGConv",
    }
)  # PyG's layers that compute with a matrix what they compute with its edges
_CALL_INSTALL = (
    "PyG uses matrices of scorch.compat.torch_sparse only after scorch.compat.torch_sparse.install(); call "
    "it first, or pass matrix.to_scorch() to a layer"
)
_replaced: list[tuple[Any, str, Any]] = []  # an attribute of PyG's, and what it was; None: inherited


def install() -> None:
    """Let every layer of PyG and every ``Data`` accept a ``scorch.SparseTensor`` as adjacency matrix.

    ``import scorch`` calls it once PyG is imported, so that you only need it after ``uninstall``, or to see
    why a version of PyG is not supported. The matrix has shape (targets, sources), like PyG's ``adj_t``; the
    layers of ``scorch.nn`` take the same matrix. As the attribute ``adj`` or ``adj_t`` of a ``Data`` or
    ``HeteroData``, it is batched like an adjacency matrix, not like features. A second call has no effect.

    Raises:
        ImportError: PyG is not installed, or its version is not supported.

    Example::

        layer = torch_geometric.nn.GCNConv(16, 8)
        layer(x, scorch.from_edge_index(edge_index).T)
    """
    if _replaced:
        return
    try:
        _install()
    except (AttributeError, ImportError):
        uninstall()
        raise


def _install() -> None:
    from torch_geometric import loader, nn  # type: ignore[import-untyped]
    from torch_geometric.data import (  # type: ignore[import-untyped]
        collate,
        data,
        hetero_data,
        separate,
        storage,
    )
    from torch_geometric.loader import utils  # type: ignore[import-untyped]

    for module in (nn.MessagePassing, nn.WLConv, *_modules_of_edges(nn)):
        _replace(module, "__call__", _call_with_sparse_tensors(module))
    _replace(collate, "_collate", _collate_with_sparse_tensors(collate._collate))
    _replace(separate, "_separate", _separate_with_sparse_tensors(separate._separate))
    _replace(storage, "is_torch_sparse_tensor", _or_scorch_s(storage.is_torch_sparse_tensor))
    for module in (data, hetero_data):
        _replace(module, "is_sparse", _or_scorch_s(module.is_sparse))
    for graph in (data.Data, hetero_data.HeteroData):
        _replace(graph, "subgraph", _subgraph_with_sparse_tensors(graph.subgraph))
    for sampler in (loader.GraphSAINTSampler, loader.ClusterData):
        _replace(sampler, "__init__", _refusing_matrices(sampler.__init__))
    sampler = loader.NeighborSampler
    _replace(sampler, "__init__", _sampling_from_sparse_tensors(sampler.__init__))
    _replace(utils, "filter_edge_store_", _sample_sparse_tensors(utils.filter_edge_store_))


def _modules_of_edges(nn: Any) -> list[Any]:
    """Return PyG's modules that take edges and are not message passing: poolings, and some layers."""
    modules = [each for each in vars(nn).values() if inspect.isclass(each)]
    return [
        module
        for module in modules
        if issubclass(module, torch.nn.Module) and not issubclass(module, nn.MessagePassing)
        if any(
            _is_for_edges(parameter.name) and parameter.annotation in _ONLY_EDGES
            for parameter in _signature_of(module.forward).parameters.values()
        )
    ]


def _is_for_edges(name: str) -> bool:
    """Whether a parameter of this name takes the edges of a graph."""
    return name.endswith("edge_index")


def uninstall() -> None:
    """Undo ``install``."""
    while _replaced:
        owner, name, old = _replaced.pop()
        if old is None:
            delattr(owner, name)
        else:
            setattr(owner, name, old)


def _replace(owner: Any, name: str, new: Any) -> None:
    _replaced.append((owner, name, vars(owner).get(name)))
    setattr(owner, name, new)


def _call_with_sparse_tensors(cls: Any) -> Callable[..., Any]:
    """Return the ``__call__`` of PyG's layers that converts Scorch's matrices."""
    own = vars(cls).get("__call__")

    def proceed(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if own is not None:
            return own(layer, *args, **kwargs)
        return super(cls, layer).__call__(*args, **kwargs)  # looked up now: tracers replace it

    @wraps(cls.__call__)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        if any(map(_holds_matrix, values)):
            args, kwargs = _with_edges(layer, args, kwargs, only_edges=is_dynamo_compiling())
        elif any(map(_is_unknown_to_pyg, values)):
            try:
                return proceed(layer, *args, **kwargs)
            except Exception as error:
                add_note(error, _CALL_INSTALL)
                raise
        return proceed(layer, *args, **kwargs)

    return call


def _is_unknown_to_pyg(value: Any) -> bool:
    """Whether this is a matrix of our torch_sparse, which PyG does not know before it is installed."""
    return isinstance(value, torch_sparse.SparseTensor) and not _is_torch_sparse_installed()


def _holds_matrix(value: Any) -> bool:
    if isinstance(value, dict):  # of the matrices of a heterogeneous graph
        return any(isinstance(each, SparseTensor) for each in value.values())
    return isinstance(value, SparseTensor)


def _collate_with_sparse_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyG's function that batches one attribute, with Scorch's tensors as blocks or concatenated.

    It returns the batched value, where each graph begins in it, and what was added to indices, as PyG's does.
    """

    @wraps(original)
    def collate(key: Any, values: list[Any], graphs: Any, stores: Any, increment: bool) -> Any:
        if not isinstance(values[0], SparseTensor):
            return original(key, values, graphs, stores, increment)
        dim = graphs[0].__cat_dim__(str(key), values[0], stores[0])
        if isinstance(dim, tuple):
            return _on_diagonal(values) if increment else (values, _starts([1] * len(values)), None)
        added = [graph.__inc__(str(key), *of) for graph, *of in zip(graphs, values, stores, strict=True)]
        if not isinstance(dim, int) or any(number != 0 for number in added):
            return original(key, values, graphs, stores, increment)
        return torch.cat(values, dim), _starts([value.shape[dim] for value in values]), None

    return collate


def _on_diagonal(matrices: list[Any]) -> tuple[SparseTensor, torch.Tensor, None]:
    blocks: Any = torch.block_diag(*matrices)
    return blocks, _starts([tuple(matrix.shape) for matrix in matrices]), None


def _starts(sizes: list[Any]) -> torch.Tensor:
    """Return where each part begins in the whole, and the size of the whole."""
    lengths = torch.tensor(sizes, device=HOST)
    return torch.cat([torch.zeros_like(lengths[:1]), lengths.cumsum(0)])


def _separate_with_sparse_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyG's function that takes one graph's attribute out of a batch, with blocks of matrices."""

    @wraps(original)
    def separate(key: Any, values: Any, idx: int, slices: Any, *rest: Any, **named: Any) -> Any:
        is_matrix = isinstance(values, SparseTensor) and isinstance(slices, torch.Tensor)
        if not is_matrix or slices.dim() != 2:
            return original(key, values, idx, slices, *rest, **named)
        for dim, (start, end) in enumerate(slices[idx : idx + 2].T.tolist()):
            values = values.narrow(dim, start, end - start)
        return values

    return separate


def _sample_sparse_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyG's function that gives a sampled subgraph its edges, with an ``adj_t`` in the same format."""

    @wraps(original)
    def sample(store: Any, out: Any, row: Any, col: Any, index: Any, perm: Any = None) -> None:
        matrix = store.get("adj_t")
        if not isinstance(matrix, SparseTensor):
            original(store, out, row, col, index, perm)
            return
        rest = copy.copy(store)
        del rest["adj_t"]
        original(rest, out, row, col, index, perm)
        values = matrix.csr()[2]  # which PyG counts edges by
        places = torch.stack([col, row]).to(values.device)  # targets, sources
        chosen = values.new_ones(row.numel()) if index is None else values[index.to(values.device)]
        entries = torch.sparse_coo_tensor(places, chosen, out.size()[::-1], check_invariants=False)
        out["adj_t"] = from_torch(entries, format=matrix.format)

    return sample


def _subgraph_with_sparse_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyG's method that chooses nodes of a graph, and with them rows and columns of its matrices."""

    @wraps(original)
    def subgraph(graph: Any, subset: Any) -> Any:
        out = original(graph, subset)
        for store in graph.edge_stores:
            of_all = not isinstance(subset, dict)  # the nodes have no types
            source, target = (subset, subset) if of_all else (subset.get(kind) for kind in store._key[::2])
            part = out if of_all else out[store._key]
            for key, value in store.items():
                is_on_diagonal = isinstance(graph.__cat_dim__(key, value, store), tuple)
                if isinstance(value, SparseTensor) and is_on_diagonal:
                    part[key] = _choose(_choose(value, 0, target), 1, source)
        return out

    return subgraph


def _choose(matrix: Any, dim: int, nodes: torch.Tensor | None) -> Any:
    """Select the rows or columns of some nodes, given by numbers or by a mask; None: of all nodes."""
    if nodes is None:
        return matrix
    return matrix.index_select(dim, nodes.nonzero().flatten() if nodes.dtype == torch.bool else nodes)


def _refusing_matrices(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the constructor of a loader that needs an edge_index, with an error for a graph without it."""

    @wraps(original)
    def init(loader: Any, data: Any, *args: Any, **kwargs: Any) -> None:
        for key, value in data.to_dict().items() if "edge_index" not in data else ():
            if isinstance(value, (SparseTensor, torch_sparse.SparseTensor)):
                raise UnsupportedError(
                    f"{type(loader).__name__} needs an edge_index, and this graph has the matrix {key} "
                    f"instead; with row, col, value = data.{key}.coo(), set data.edge_index = "
                    f"torch.stack([col, row]) and data.edge_weight = value, and delete data.{key}"
                )
        original(loader, data, *args, **kwargs)

    return init


def _sampling_from_sparse_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the constructor of the loader that takes a matrix itself, which it gets as torch_sparse's."""

    @wraps(original)
    def init(loader: Any, edge_index: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(edge_index, SparseTensor):
            edge_index = torch_sparse.SparseTensor.from_scorch(edge_index)
        if _is_unknown_to_pyg(edge_index):
            raise CallError(f"{type(loader).__name__} cannot sample from a matrix: {_CALL_INSTALL}")
        original(loader, edge_index, *args, **kwargs)

    return init


def _or_scorch_s(is_sparse: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return PyG's question whether something is a sparse matrix, which Scorch's are, too."""
    return lambda value: isinstance(value, SparseTensor) or is_sparse(value)


def _with_edges(
    layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], only_edges: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace each matrix that stands for a graph by its edges, or by a matrix that the layer multiplies.

    ``only_edges``: in compiled layers, since graphs of ``torch.compile`` take no matrix of PyTorch's.
    """
    signature = _signature_of(type(layer).forward)
    try:
        bound = signature.bind(layer, *args, **kwargs)
    except TypeError:  # which the layer raises, too
        return args, kwargs
    arguments = bound.arguments
    for name, value in list(arguments.items()):
        if _is_for_edges(name) and isinstance(value, SparseTensor):
            if name == "edge_index" and not only_edges and _is_of_pyg(layer):  # others may be of hyperedges
                _check_nodes(arguments, value)
            if not only_edges and _multiplies(layer, arguments, value):
                arguments[name] = _as_adjacency(value, is_weighted="edge_weight" in signature.parameters)
            else:
                arguments[name] = _add_edges(layer, signature, arguments, value, is_compiled=only_edges)
        elif name.endswith("edge_index_dict") and _holds_matrix(value):
            arguments[name] = {
                key: _edges_of(each)[0] if isinstance(each, SparseTensor) else each
                for key, each in value.items()
            }
    return bound.args[1:], bound.kwargs


def _is_of_pyg(layer: Any) -> bool:
    return type(layer).__module__.startswith("torch_geometric.nn.")


def _check_nodes(arguments: dict[str, Any], matrix: SparseTensor) -> None:
    """Refuse a matrix of other nodes than ``x``: features of all nodes, or a pair, of sources and targets."""
    x = arguments.get("x")
    parts = x if isinstance(x, (tuple, list)) else (x, x)
    if arguments.get("size") is None and len(parts) == 2 and matrix.dim() >= 2:
        nodes = [
            part.shape[0] if isinstance(part, torch.Tensor) and part.dim() == 2 else own
            for part, own in zip(parts, (matrix.shape[1], matrix.shape[0]), strict=True)
        ]
        check_adjacency(tuple(matrix.shape[:2]), (nodes[1], nodes[0]))


_signature_of = functools.lru_cache(maxsize=None)(inspect.signature)


def _edges_of(matrix: SparseTensor) -> tuple[torch.Tensor, torch.Tensor]:
    targets, sources, weight = matrix.coo()
    return torch.stack([sources, targets]), weight


def _add_edges(
    layer: Any,
    signature: inspect.Signature,
    arguments: dict[str, Any],
    matrix: SparseTensor,
    is_compiled: bool,
) -> torch.Tensor:
    """Return the edges of a matrix; set the arguments for the size, and for weights, types or features.

    Values that are all one are no weights. Compiled layers get ones instead: ``torch.compile`` cannot decide
    by values.
    """
    edges, weight = _edges_of(matrix)

    def is_open(name: str) -> bool:
        return name in signature.parameters and arguments.get(name) is None

    if is_open("size"):
        arguments["size"] = (matrix.shape[1], matrix.shape[0])
    if is_open("edge_type"):
        arguments["edge_type"] = weight.long()
    may_be_ones = is_compiled and getattr(_first_of(arguments.get("x")), "dtype", None) == weight.dtype
    if is_open("edge_weight"):
        if may_be_ones or _are_weights(weight):
            arguments["edge_weight"] = weight
    elif is_open("edge_attr") and _takes_values_as_features(layer, weight) and _are_weights(weight):
        arguments["edge_attr"] = weight
    return edges


def _are_weights(values: torch.Tensor) -> bool:
    return values.requires_grad or values.dim() > 1 or bool((values != 1).any())


def _first_of(x: Any) -> Any:
    """Return the features of the sources."""
    return x[0] if isinstance(x, (tuple, list)) else x


def _takes_values_as_features(layer: Any, values: torch.Tensor) -> bool:
    """Whether the values of a matrix are the features of the edges, where a layer has no other weights."""
    is_pooling = not hasattr(layer, "propagate")
    return is_pooling or values.dim() > 1 or getattr(layer, "edge_dim", None) is not None


def _multiplies(layer: Any, arguments: dict[str, Any], matrix: SparseTensor) -> bool:
    """Whether a layer multiplies by the matrix, with the result that it has with the edges."""
    cls, x = type(layer), _first_of(arguments.get("x"))
    if cls.__name__ not in _MULTIPLYING or not _is_of_pyg(layer):
        return False
    if not layer.fuse or layer.explain or layer.flow != "source_to_target":
        return False
    if not isinstance(x, torch.Tensor) or isinstance(x, SparseTensor) or x.dim() != 2 or matrix.dim() != 2:
        return False
    if x.dtype != matrix.dtype or torch.is_autocast_enabled(x.device.type):
        return False
    if arguments.get("edge_weight") is not None:
        return False
    # PyG counts self-loops twice in a matrix of PyTorch's, and replaces their weights in one of torch_sparse.
    return not getattr(layer, "add_self_loops", False) or not _has_loops(matrix)


def _has_loops(matrix: SparseTensor) -> bool:
    pattern = matrix.storage.pattern
    if pattern not in _with_loops:
        targets, sources, _ = matrix.coo()
        _with_loops[pattern] = bool((targets == sources).any())
    return _with_loops[pattern]


def _is_torch_sparse_installed() -> bool:
    from torch_geometric import typing

    return typing.SparseTensor is torch_sparse.SparseTensor


def _as_adjacency(matrix: SparseTensor, is_weighted: bool) -> Any:
    """Convert one of Scorch's matrices to one that PyG supports, with its values or none as weights."""
    if _is_torch_sparse_installed():
        return _as_torch_sparse(matrix, is_weighted)
    rowptr, col, values = matrix.csr()
    silence_beta_warning()
    if not is_weighted:
        values = torch.ones_like(values, requires_grad=False)
    return torch.sparse_csr_tensor(rowptr, col, values, tuple(matrix.shape), check_invariants=False)


def _as_torch_sparse(matrix: SparseTensor, is_weighted: bool) -> torch_sparse.SparseTensor:
    """Return torch_sparse's matrix; what it caches for a sparsity pattern serves all matrices with it."""
    pattern = matrix.storage.pattern
    if pattern not in _entries:
        _entries[pattern] = torch_sparse.SparseTensor.from_scorch(matrix, has_value=False).storage
    result = torch_sparse.SparseTensor.from_storage(_entries[pattern])
    return result.set_value(matrix.csr()[2]) if is_weighted else result
