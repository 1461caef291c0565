"""``install()`` lets PyG's layers and mini-batches accept a ``scorch.SparseTensor`` as adjacency matrix.

PyG supports two kinds of sparse matrices, PyTorch's and torch_sparse's. A layer that is called with one of
Scorch's gets the second kind if ``scorch.compat.torch_sparse.install()`` was called, and then sums over
neighbors with Scorch's kernels; otherwise it gets the first kind, and uses PyTorch's kernels. Both provide
gradients of the values. Where PyG has no such route, or counts self-loops twice, a layer gets the edges. A
batch of graphs gets the block diagonal matrix of theirs, which is Scorch's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

from scorch._src.devices import HOST
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.interop.torch_layouts import silence_beta_warning
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.compat import torch_sparse

_entries: WeakKeyDictionary[Pattern, torch_sparse.SparseStorage] = WeakKeyDictionary()
_with_loops: WeakKeyDictionary[Pattern, bool] = WeakKeyDictionary()
_ONLY_EDGES = (torch.Tensor, "Tensor", "torch.Tensor")  # annotations of a layer that takes no matrix
_replaced: list[tuple[Any, str, Any]] = []  # an attribute of PyG's, and what it was; None: inherited


def install() -> None:
    """Let every layer of PyG (every ``MessagePassing``) and every ``Data`` accept a ``scorch.SparseTensor``.

    The matrix has shape (targets, sources), like PyG's ``adj_t``; the layers of ``scorch.nn`` take the same
    matrix. As the attribute ``adj`` or ``adj_t`` of a ``Data`` or ``HeteroData``, it is batched like an
    adjacency matrix, not like features. Call it in every process that batches graphs. A second call has no
    effect.

    Raises:
        ImportError: PyG is not installed.

    Example::

        scorch.compat.pyg.install()
        layer = torch_geometric.nn.GCNConv(16, 8)
        layer(x, scorch.from_edge_index(edge_index).T)
    """
    from torch_geometric.data import (  # type: ignore[import-untyped]
        collate,
        data,
        hetero_data,
        separate,
        storage,
    )
    from torch_geometric.nn import DirGNNConv, MessagePassing  # type: ignore[import-untyped]

    if _replaced:
        return
    for layer in (MessagePassing, DirGNNConv):
        _replace(layer, "__call__", _call_with_sparse_tensors(layer))
    _replace(collate, "_collate", _collate_with_sparse_tensors(collate._collate))
    _replace(separate, "_separate", _separate_with_sparse_tensors(separate._separate))
    _replace(storage, "is_torch_sparse_tensor", _or_scorch_s(storage.is_torch_sparse_tensor))
    for module in (data, hetero_data):
        _replace(module, "is_sparse", _or_scorch_s(module.is_sparse))


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

    @wraps(cls.__call__)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, SparseTensor) for value in (*args, *kwargs.values())):
            args, kwargs = _with_edges(layer, args, kwargs)
            args = tuple(map(_as_adjacency, args))
            kwargs = {name: _as_adjacency(value) for name, value in kwargs.items()}
        if own is not None:
            return own(layer, *args, **kwargs)
        return super(cls, layer).__call__(*args, **kwargs)  # looked up now: tracers replace it

    return call


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


def _or_scorch_s(is_sparse: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return PyG's question whether something is a sparse matrix, which Scorch's are, too."""
    return lambda value: isinstance(value, SparseTensor) or is_sparse(value)


def _with_edges(
    layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace the matrix of a layer by its edges and their weights, if PyG's layer needs them."""
    signature = _signature_of(type(layer).forward)
    try:
        bound = signature.bind(layer, *args, **kwargs)
    except TypeError:  # which the layer raises, too
        return args, kwargs
    matrix = bound.arguments.get("edge_index")
    if not isinstance(matrix, SparseTensor) or not _needs_edges(layer, signature, matrix):
        return args, kwargs
    targets, sources, weight = matrix.coo()
    bound.arguments["edge_index"] = torch.stack([sources, targets])
    if "edge_weight" in signature.parameters and bound.arguments.get("edge_weight") is None:
        is_weighted = weight.requires_grad or bool((weight != 1).any())
        bound.arguments["edge_weight"] = weight if is_weighted else None
    return bound.args[1:], bound.kwargs


_signature_of = functools.lru_cache(maxsize=None)(inspect.signature)


def _needs_edges(layer: Any, signature: inspect.Signature, matrix: SparseTensor) -> bool:
    """Whether a layer takes no matrix, or adds self-loops to a matrix of PyTorch's that has some."""
    if signature.parameters["edge_index"].annotation in _ONLY_EDGES:
        return True
    adds_loops = getattr(layer, "add_self_loops", False) and not _is_torch_sparse_installed()
    return bool(adds_loops) and _has_loops(matrix)


def _has_loops(matrix: SparseTensor) -> bool:
    pattern = matrix.storage.pattern
    if pattern not in _with_loops:
        targets, sources, _ = matrix.coo()
        _with_loops[pattern] = bool((targets == sources).any())
    return _with_loops[pattern]


def _is_torch_sparse_installed() -> bool:
    from torch_geometric import typing  # type: ignore[import-untyped]

    return typing.SparseTensor is torch_sparse.SparseTensor


def _as_adjacency(value: Any) -> Any:
    """Convert one of Scorch's matrices to one that PyG supports; return anything else unchanged."""
    if not isinstance(value, SparseTensor):
        return value
    if _is_torch_sparse_installed():
        return _as_torch_sparse(value)
    rowptr, col, values = value.csr()
    silence_beta_warning()
    return torch.sparse_csr_tensor(rowptr, col, values, tuple(value.shape), check_invariants=False)


def _as_torch_sparse(matrix: SparseTensor) -> torch_sparse.SparseTensor:
    """Return torch_sparse's matrix; what it caches for a sparsity pattern serves all matrices with it."""
    pattern = matrix.storage.pattern
    if pattern not in _entries:
        _entries[pattern] = torch_sparse.SparseTensor.from_scorch(matrix, has_value=False).storage
    return torch_sparse.SparseTensor.from_storage(_entries[pattern]).set_value(matrix.csr()[2])
