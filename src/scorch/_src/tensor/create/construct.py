"""Construct tensors from dense tensors, torch's sparse layouts, lists, coordinates and edges.

The five constructors have torch's signatures, with ``format`` added; unlike torch's, they always check their
arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from scorch._src.compiler.typing import type_of_dtype
from scorch._src.engine.execute import from_dense
from scorch._src.formats import Format, as_format
from scorch._src.grad_state import is_differentiable
from scorch._src.name_hints import keywords_of, suggests_keywords, unknown_keyword
from scorch._src.tensor import (  # noqa: F401 - fills the table that sparse tensors look in
    metadata,
)
from scorch._src.tensor.autograd import stored
from scorch._src.tensor.create.build import (
    check_edge_index,
    from_checked_values,
    from_compressed,
    from_coordinates,
)
from scorch._src.tensor.create.check import (
    as_differentiable_values,
    as_indices,
    as_shape,
    check_device,
    device_for,
    refuse_freed,
    refuse_pinning,
    sparse_advice_on,
)
from scorch._src.tensor.flatten import call_captured, is_captured, spelled
from scorch._src.tensor.interop.torch_layouts import LAYOUTS, from_scipy, is_scipy
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FormatError, OperandError, ShapeError, UnsupportedError, kind_of

Constructor = TypeVar("Constructor", bound=Callable[..., Any])

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
    if isinstance(t, SparseTensor):
        return t if format is None else t.to_format(format)
    if not isinstance(t, torch.Tensor):
        raise OperandError(f"from_torch expected a torch.Tensor, but got {kind_of(t)}; {sparse_advice_on(t)}")
    check_device("the tensor", t.device)
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
    where = _checked_device("the tensor", device, pin_memory)
    dense = (
        _moved(data.detach().clone(), where)
        if isinstance(data, torch.Tensor)
        else torch.tensor(data, device=device_for("the tensor", where))
    )
    return _leaf(from_torch(dense if dtype is None else dense.to(dtype), format), requires_grad)


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
        raise ShapeError(
            f"edge_weight has shape {tuple(weights.shape)}, but edge_index has {edges.shape[1]} edges: "
            "pass one weight for each edge"
        )
    if size is None:
        size = (int(edges.max()) + 1 if edges.numel() else 0,) * 2
    elif isinstance(size, int):
        size = (size, size)
    shape = (*as_shape("size", size), *weights.shape[1:])
    return from_coordinates(edges, weights, shape, as_format(format, len(shape)), name="edge_index")


# torch's constructors --------------------------------------------------------------------------------


def _in_graph(
    kind: str, index: list[torch.Tensor], values: torch.Tensor, size: Any, format: str | Format | None
) -> SparseTensor:
    """Construct a tensor inside a compiled program, from tensors there."""
    arguments = kind, index, values, list(size), spelled(format)
    return call_captured(torch.ops.scorch.sparse, *arguments)  # type: ignore[no-any-return]


@suggests_keywords
def sparse_coo_tensor(
    indices: Any = None,
    values: Any = None,
    size: Any = None,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
    format: str | Format | None = None,
) -> SparseTensor | torch.Tensor:
    """Build a sparse tensor from coordinates, like ``torch.sparse_coo_tensor``, in any storage format.

    Args:
        indices: one row per sparse dimension and one column per entry, in any order; values of repeated
            coordinates are summed.
        values: one value per entry.
        size: the shape; without it, the smallest that holds all indices.
        format: the storage format; ``coo`` without it.
        dtype, device, pin_memory, requires_grad, check_invariants, is_coalesced: as for
            ``torch.sparse_coo_tensor``; indices are always checked.

    Returns:
        A ``SparseTensor``.

    Raises:
        ShapeError: indices, values and size do not match.
        IndexRangeError: an index is outside the shape.

    Example:

        >>> import scorch
        >>> scorch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3)).to_dense()
        tensor([[0., 0., 3.],
                [4., 0., 5.]])
    """
    is_in_graph = size is not None and values is not None and dtype is None
    if is_in_graph and is_captured((indices, values)):
        return _in_graph("coo", [indices], values, size, format)
    where = _checked_device("sparse_coo_tensor", device, pin_memory)
    if values is None:  # torch's other form: an empty tensor of that size
        shape = as_shape("size", indices if size is None else size)
        values = torch.zeros(
            0, dtype=dtype or torch.get_default_dtype(), device=device_for("sparse_coo_tensor", where)
        )
        indices, size = torch.zeros(len(shape), 0, dtype=torch.int64, device=values.device), shape
    checked = as_differentiable_values("values", _moved(values, where), dtype, where)
    return _leaf(from_checked_values(_moved(indices, where), checked, size, format), requires_grad)


def sparse_compressed(
    kind: str,
    pointers: Any,
    plain: Any,
    values: Any,
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    format: str | Format | None = None,
    **unknown: Any,
) -> SparseTensor | torch.Tensor:
    """Construct a tensor from the arrays of torch's layout ``kind``: csr, csc, bsr or bsc."""
    if unknown:
        known = [name for name in keywords_of(sparse_compressed) if name not in ("kind", "pointers", "plain")]
        raise unknown_keyword(f"sparse_{kind}_tensor", next(iter(unknown)), known)
    is_in_graph = kind[0] == "c" and size is not None and values is not None and dtype is None
    if is_in_graph and is_captured((pointers, plain, values)):
        return _in_graph(kind, [pointers, plain], values, size, format)
    where = _checked_device(f"sparse_{kind}_tensor", device, pin_memory)
    checked = as_differentiable_values("values", _moved(values, where), dtype, where)
    arrays = _moved(pointers, where), _moved(plain, where)
    return _leaf(from_compressed(kind, *arrays, checked, size, format), requires_grad)


def _shows_options(function: Constructor) -> Constructor:
    """Show in the signature of a constructor the options that it passes to ``sparse_compressed``."""
    signature = inspect.signature(function)
    options = inspect.signature(sparse_compressed).parameters.values()
    own = [*signature.parameters.values()][:-1]
    shown = [*own, *(option for option in options if option.kind is option.KEYWORD_ONLY)]
    vars(function)["__signature__"] = signature.replace(parameters=shown)
    return function


@_shows_options
def sparse_compressed_tensor(
    compressed_indices: Any,
    plain_indices: Any,
    values: Any,
    size: Any = None,
    *,
    layout: torch.layout | None = None,
    **options: Any,
) -> SparseTensor | torch.Tensor:
    """Build a matrix in CSR, CSC, BSR or BSC, as ``layout`` says, like ``torch.sparse_compressed_tensor``.

    Args:
        compressed_indices: where the entries of each row or column begin, and where the last one ends.
        plain_indices: the column or row of each entry.
        values: the value of each entry, or the blocks.
        size: the shape; without it, the smallest that holds all entries.
        layout: ``torch.sparse_csr``, ``sparse_csc``, ``sparse_bsr`` or ``sparse_bsc``.
        dtype, device, pin_memory, requires_grad, check_invariants: as in PyTorch; arrays are always
            checked.
        format: another storage format for the result.

    Returns:
        A ``SparseTensor``.

    Raises:
        ShapeError: ``compressed_indices``, ``plain_indices``, ``values`` and ``size`` do not match.
        IndexRangeError: an index is outside the shape, or the pointers do not increase.
        FormatError: ``layout`` is missing or not a compressed one.

    Example:

        >>> import torch, scorch
        >>> scorch.sparse_compressed_tensor([0, 1], [2], [5.0], (1, 3), layout=torch.sparse_csr).to_dense()
        tensor([[0., 0., 5.]])
    """
    kind = None if layout is None else COMPRESSED.get(layout)
    if kind is None:
        raise FormatError(
            f"{layout} is not a compressed layout; choose from torch.sparse_csr, torch.sparse_csc, "
            "torch.sparse_bsr and torch.sparse_bsc"
        )
    return sparse_compressed(kind, compressed_indices, plain_indices, values, size, **options)


@_shows_options
def sparse_csr_tensor(
    crow_indices: Any, col_indices: Any, values: Any, size: Any = None, **options: Any
) -> SparseTensor | torch.Tensor:
    """Build a sparse matrix from CSR arrays, like ``torch.sparse_csr_tensor``.

    Args:
        crow_indices: where the entries of each row begin, and where the last row ends.
        col_indices: the column of each entry, in any order within a row; repeated columns are summed.
        values: the value of each entry.
        size: the shape; without it, the smallest that holds all entries.
        dtype, device, pin_memory, requires_grad, check_invariants: as in PyTorch; arrays are always
            checked.
        format: another storage format for the result.

    Returns:
        A ``SparseTensor``.

    Raises:
        ShapeError: ``crow_indices``, ``col_indices``, ``values`` and ``size`` do not match.
        IndexRangeError: an index is outside the shape, or the pointers do not increase.

    Example:

        >>> import scorch
        >>> scorch.sparse_csr_tensor([0, 1, 3], [2, 0, 2], [3.0, 4.0, 5.0], (2, 3)).to_dense()
        tensor([[0., 0., 3.],
                [4., 0., 5.]])
    """
    return sparse_compressed("csr", crow_indices, col_indices, values, size, **options)


@_shows_options
def sparse_csc_tensor(
    ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, **options: Any
) -> SparseTensor | torch.Tensor:
    """Build a sparse matrix from CSC arrays, like ``torch.sparse_csc_tensor``.

    Args:
        ccol_indices: where the entries of each column begin, and where the last column ends.
        row_indices: the row of each entry, in any order within a column; repeated rows are summed.
        values: the value of each entry.
        size: the shape; without it, the smallest that holds all entries.
        dtype, device, pin_memory, requires_grad, check_invariants: as in PyTorch; arrays are always
            checked.
        format: another storage format for the result.

    Returns:
        A ``SparseTensor``.

    Raises:
        ShapeError: ``ccol_indices``, ``row_indices``, ``values`` and ``size`` do not match.
        IndexRangeError: an index is outside the shape, or the pointers do not increase.

    Example:

        >>> import scorch
        >>> scorch.sparse_csc_tensor([0, 1, 3], [2, 0, 2], [3.0, 4.0, 5.0], (3, 2)).to_dense()
        tensor([[0., 4.],
                [0., 0.],
                [3., 5.]])
    """
    return sparse_compressed("csc", ccol_indices, row_indices, values, size, **options)


@_shows_options
def sparse_bsr_tensor(
    crow_indices: Any, col_indices: Any, values: Any, size: Any = None, **options: Any
) -> SparseTensor | torch.Tensor:
    """Build a block-sparse matrix from BSR arrays, like ``torch.sparse_bsr_tensor``.

    Args:
        crow_indices: where the blocks of each block row begin, and where the last one ends.
        col_indices: the block column of each block.
        values: the blocks, of shape (blocks, rows, columns).
        size: the shape; without it, the smallest that holds all entries.
        dtype, device, pin_memory, requires_grad, check_invariants: as in PyTorch; arrays are always
            checked.
        format: another storage format for the result.

    Returns:
        A ``SparseTensor``.

    Raises:
        ShapeError: ``crow_indices``, ``col_indices``, ``values`` and ``size`` do not match.
        IndexRangeError: an index is outside the shape, or the pointers do not increase.

    Example:

        >>> import torch, scorch
        >>> scorch.sparse_bsr_tensor([0, 1], [1], torch.ones(1, 2, 2), (2, 4)).to_dense()
        tensor([[0., 0., 1., 1.],
                [0., 0., 1., 1.]])
    """
    return sparse_compressed("bsr", crow_indices, col_indices, values, size, **options)


@_shows_options
def sparse_bsc_tensor(
    ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, **options: Any
) -> SparseTensor | torch.Tensor:
    """Build a block-sparse matrix from BSC arrays, like ``torch.sparse_bsc_tensor``.

    Args:
        ccol_indices: where the blocks of each block column begin, and where the last one ends.
        row_indices: the block row of each block.
        values: the blocks, of shape (blocks, rows, columns).
        size: the shape; without it, the smallest that holds all entries.
        dtype, device, pin_memory, requires_grad, check_invariants: as in PyTorch; arrays are always
            checked.
        format: another storage format for the result.

    Returns:
        A ``SparseTensor``.

    Raises:
        ShapeError: ``ccol_indices``, ``row_indices``, ``values`` and ``size`` do not match.
        IndexRangeError: an index is outside the shape, or the pointers do not increase.

    Example:

        >>> import torch, scorch
        >>> scorch.sparse_bsc_tensor([0, 0, 1], [0], torch.ones(1, 2, 2), (2, 4)).to_dense()
        tensor([[0., 0., 1., 1.],
                [0., 0., 1., 1.]])
    """
    return sparse_compressed("bsc", ccol_indices, row_indices, values, size, **options)


def _checked_device(name: str, device: Any, pin_memory: bool) -> torch.device | None:
    """Check the device, if one is named: lists become tensors there, or on torch's default device."""
    chosen = None if device is None else device_for(name, device)
    refuse_pinning(pin_memory)
    return chosen


def _moved(data: Any, where: torch.device | None) -> Any:
    """Return a tensor, or a list of some, on the device that was named, if one was."""
    if where is None:
        return data
    if isinstance(data, torch.Tensor):
        return data.to(where)
    is_list = isinstance(data, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in data)
    return [_moved(part, where) for part in data] if is_list else data


def _leaf(tensor: SparseTensor | torch.Tensor, requires_grad: bool) -> SparseTensor | torch.Tensor:
    """Return a new leaf if it ``requires_grad``, connected to nothing else; or the tensor as it is."""
    return tensor.detach().requires_grad_() if requires_grad else tensor
