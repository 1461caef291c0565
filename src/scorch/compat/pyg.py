"""``install()`` lets PyG's own layers accept a ``scorch.SparseTensor`` as adjacency matrix.

PyG supports two kinds of sparse matrices, PyTorch's and torch_sparse's. A layer that is called with one of
Scorch's gets the second kind if ``scorch.compat.torch_sparse.install()`` was called, and then sums over
neighbors with Scorch's kernels; otherwise it gets the first kind, and uses PyTorch's kernels. Both provide
gradients of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

from scorch._src.storage.storage import Pattern
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.compat import torch_sparse

_entries: WeakKeyDictionary[Pattern, torch_sparse.SparseStorage] = WeakKeyDictionary()
_originals: dict[type, Callable[..., Any] | None] = {}  # None: inherited


def install() -> None:
    """Let every layer of PyG (every ``MessagePassing``) accept a ``scorch.SparseTensor``.

    The matrix has shape (targets, sources), like PyG's ``adj_t``; the layers of ``scorch.nn`` take the same
    matrix. A second call has no effect.

    Raises:
        ImportError: PyG is not installed.

    Example::

        scorch.compat.pyg.install()
        layer = torch_geometric.nn.GCNConv(16, 8)
        layer(x, scorch.from_edge_index(edge_index).T)
    """
    from torch_geometric.nn import MessagePassing  # type: ignore[import-untyped]

    if MessagePassing in _originals:
        return
    own = _originals[MessagePassing] = vars(MessagePassing).get("__call__")

    @wraps(MessagePassing.__call__)
    def with_sparse_tensors(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, SparseTensor) for value in (*args, *kwargs.values())):
            args = tuple(map(_as_adjacency, args))
            kwargs = {name: _as_adjacency(value) for name, value in kwargs.items()}
        if own is not None:
            return own(layer, *args, **kwargs)
        return super(MessagePassing, layer).__call__(*args, **kwargs)  # looked up now: tracers replace it

    MessagePassing.__call__ = with_sparse_tensors


def uninstall() -> None:
    """Undo ``install``."""
    while _originals:
        layer, own = _originals.popitem()
        if own is None:
            del layer.__call__
        else:
            setattr(layer, "__call__", own)  # noqa: B010  (mypy takes methods for constant)


def _as_adjacency(value: Any) -> Any:
    """Convert one of Scorch's matrices to one that PyG supports; return anything else unchanged."""
    if not isinstance(value, SparseTensor):
        return value
    from torch_geometric import typing  # type: ignore[import-untyped]

    if typing.SparseTensor is torch_sparse.SparseTensor:
        return _as_torch_sparse(value)
    rowptr, col, values = value.csr()
    return torch.sparse_csr_tensor(rowptr, col, values, tuple(value.shape), check_invariants=False)


def _as_torch_sparse(matrix: SparseTensor) -> torch_sparse.SparseTensor:
    """Return torch_sparse's matrix; what it caches for a sparsity pattern serves all matrices with it."""
    pattern = matrix.storage.pattern
    if pattern not in _entries:
        _entries[pattern] = torch_sparse.SparseTensor.from_scorch(matrix, has_value=False).storage
    return torch_sparse.SparseTensor.from_storage(_entries[pattern]).set_value(matrix.csr()[2])
