"""Construct tensors from dense tensors, torch's sparse layouts, lists, and edges."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.compiler.typing import type_of_dtype
from scorch._src.engine.execute import from_dense
from scorch._src.formats import Format, as_format
from scorch._src.grad_state import is_differentiable, refuse_jit
from scorch._src.name_hints import suggests_keywords
from scorch._src.tensor import (  # noqa: F401 - fills the table that sparse tensors look in
    metadata,
)
from scorch._src.tensor.autograd import stored
from scorch._src.tensor.create.build import check_edge_index, from_compressed, from_coordinates
from scorch._src.tensor.create.check import (
    as_differentiable_values,
    as_indices,
    as_shape,
    check_device,
    checked_device,
    device_for,
    moved,
    refuse_freed,
    refuse_nested,
    sparse_advice_on,
)
from scorch._src.tensor.flatten import call_captured, is_captured, spelled
from scorch._src.tensor.interop.torch_layouts import LAYOUTS, from_scipy, is_scipy
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import OperandError, ShapeError, UnsupportedError, kind_of

COMPRESSED = {layout: kind for kind, layout in LAYOUTS.items()}


@suggests_keywords
def from_torch(t: torch.Tensor, format: str | Format | None = None) -> SparseTensor | torch.Tensor:
    """Convert a PyTorch tensor, dense or in one of PyTorch's sparse layouts, to a sparse tensor.

    Args:
        t: the tensor. The nonzeros of a dense tensor are stored; values of a sparse one are shared if the
            layout stays the same.
        format: the storage format; without it, a sparse layout is kept and a dense tensor becomes ``coo``.

    Returns:
        A ``SparseTensor``, or a dense tensor if ``format`` is dense.

    Raises:
        FormatError: the format is unknown or has another number of dimensions.

    Example:

        >>> import torch, scorch
        >>> scorch.from_torch(torch.eye(3), format="csr").nnz
        3
    """
    if not isinstance(t, SparseTensor) and is_captured((t,)):
        return call_captured(torch.ops.scorch.from_torch, t, spelled(format))  # type: ignore[no-any-return]
    refuse_jit("from_torch")
    if isinstance(t, SparseTensor):
        return t if format is None else t.to_format(format)
    if not isinstance(t, torch.Tensor):
        raise OperandError(f"from_torch expected a torch.Tensor, but got {kind_of(t)}; {sparse_advice_on(t)}")
    check_device("the tensor", t.device)
    refuse_nested("the tensor", t)
    refuse_freed(t)
    type_of_dtype(t.dtype)
    if is_differentiable(t):
        return _connected(t, format)
    t = t.detach()
    if t.layout == torch.strided:
        form = as_format("coo" if format is None else format, t.dim())
        return t if form.is_dense else SparseTensor(from_dense(t.resolve_conj().resolve_neg(), form))
    if t.layout == torch.sparse_coo:
        return from_coordinates(t._indices(), t._values(), t.shape, format)
    kind = COMPRESSED.get(t.layout)
    if kind is None:
        raise UnsupportedError(
            f"tensors of layout {t.layout} are not supported; convert with .to_dense() first"
        )
    by_row = kind[-1] == "r"
    pointers, plain = (t.crow_indices(), t.col_indices()) if by_row else (t.ccol_indices(), t.row_indices())
    return from_compressed(kind, pointers.detach(), plain.detach(), t.values().detach(), t.shape, format)


def _connected(t: torch.Tensor, format: str | Format | None) -> SparseTensor | torch.Tensor:
    """Convert as ``from_torch`` does, connected to ``t``: its gradient has the entries that are stored."""
    if t.layout != torch.strided:
        t = t.to_dense()
    form = as_format("coo" if format is None else format, t.dim())
    return t if form.is_dense else stored(t, form)


@suggests_keywords
def tensor(
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    format: str | Format | None = None,
) -> SparseTensor | torch.Tensor:
    """Create a tensor from nested lists, numbers or arrays, like ``torch.tensor``, in any storage format.

    Args:
        data: the values; with a sparse ``format``, the nonzeros are stored.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        dtype, device, requires_grad, pin_memory: as for ``torch.tensor``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.tensor`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        ValueError: nested lists have different lengths.

    Example:

        >>> import scorch
        >>> scorch.tensor([[0.0, 2.0], [0.0, 0.0]], format="csr").nnz
        1
    """
    if is_scipy(data):
        data = from_scipy(data)
    if isinstance(data, SparseTensor):
        copied = data.clone() if dtype is None else data.to(dtype)
        return from_torch(copied, format)
    if format is None:
        return torch.tensor(
            data, dtype=dtype, device=device, requires_grad=requires_grad, pin_memory=pin_memory
        )
    where = checked_device("the tensor", device, pin_memory)
    dense = (
        moved(data.detach().clone(), where)
        if isinstance(data, torch.Tensor)
        else torch.tensor(data, device=device_for("the tensor", where))
    )
    return as_leaf(from_torch(dense if dtype is None else dense.to(dtype), format), requires_grad)


@suggests_keywords
def from_edge_index(
    edge_index: Any, edge_weight: Any = None, size: Any = None, format: str | Format = "coo"
) -> SparseTensor | torch.Tensor:
    """Build the adjacency matrix of a graph from an edge list: entry (source, target) for each column.

    PyG's layers, and those of ``scorch.nn``, take the transposed matrix, with targets as rows: pass ``A.T``,
    or the ``edge_index`` itself.

    Args:
        edge_index: integers of shape (2, number of edges): sources and targets.
        edge_weight: one weight per edge; 1 without it. Weights of repeated edges are summed.
        size: the number of nodes, or (sources, targets) for bipartite graphs; without it, as many as occur.
        format: the storage format.

    Returns:
        A ``SparseTensor``.

    Raises:
        ShapeError: ``edge_index`` has another shape, or there are more or fewer weights than edges.
        DtypeError: ``edge_index`` does not hold integers.
        IndexRangeError: a node is outside ``size``.

    Example:

        >>> import torch, scorch
        >>> scorch.from_edge_index(torch.tensor([[0, 1, 1], [1, 0, 2]]), size=3).to_dense()
        tensor([[0., 1., 0.],
                [1., 0., 1.],
                [0., 0., 0.]])
    """
    edges = as_indices("edge_index", edge_index)
    check_edge_index(edges)
    weights = (
        torch.ones(edges.shape[1], device=edges.device)
        if edge_weight is None
        else as_differentiable_values("edge_weight", edge_weight, device=edges.device)
    )
    if weights.shape[:1] != edges.shape[1:]:
        is_size = isinstance(edge_weight, int) or (
            isinstance(edge_weight, tuple) and all(isinstance(number, int) for number in edge_weight)
        )
        raise ShapeError(
            f"edge_weight has shape {tuple(weights.shape)}, but edge_index has {edges.shape[1]} edges: "
            + (f"pass the number of nodes by name, size={edge_weight}" if is_size else "")
            + ("" if is_size else "pass one weight for each edge")
        )
    if size is None:
        size = (int(edges.max()) + 1 if edges.numel() else 0,) * 2
    elif isinstance(size, int):
        size = (size, size)
    shape = (*as_shape("size", size), *weights.shape[1:])
    return from_coordinates(edges, weights, shape, as_format(format, len(shape)), name="edge_index")


def as_leaf(tensor: SparseTensor | torch.Tensor, requires_grad: bool) -> SparseTensor | torch.Tensor:
    """Return a new leaf if it ``requires_grad``, connected to nothing else; or the tensor as it is."""
    return tensor.detach().requires_grad_() if requires_grad else tensor
