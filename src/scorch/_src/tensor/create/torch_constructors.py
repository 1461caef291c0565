"""Construct tensors from coordinates and compressed arrays, by constructors with the signatures of torch's.

They add ``format``; unlike torch's, they always check their arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from scorch._src.formats import Format
from scorch._src.name_hints import keywords_of, suggests_keywords, unknown_keyword
from scorch._src.tensor.create.build import from_checked_compressed, from_checked_values
from scorch._src.tensor.create.check import (
    as_differentiable_values,
    as_shape,
    checked_device,
    device_for,
    moved,
)
from scorch._src.tensor.create.construct import COMPRESSED, as_leaf
from scorch._src.tensor.flatten import call_captured, is_captured, spelled
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import DtypeError, FormatError, ShapeError

Constructor = TypeVar("Constructor", bound=Callable[..., Any])


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
    where = checked_device("sparse_coo_tensor", device, pin_memory)
    if values is None:  # torch's other form: an empty tensor of that size
        shape = as_shape("size", indices if size is None else size)
        values = torch.zeros(
            0, dtype=dtype or torch.get_default_dtype(), device=device_for("sparse_coo_tensor", where)
        )
        indices, size = torch.zeros(len(shape), 0, dtype=torch.int64, device=values.device), shape
    checked = as_differentiable_values("values", moved(values, where), dtype, where)
    try:
        built = from_checked_values(moved(indices, where), checked, size, format)
    except (DtypeError, ShapeError) as error:
        if not _are_swapped(indices, checked):
            raise
        raise type(error)(
            f"{str(error).partition(';')[0]}; indices and values seem to be swapped: indices come first"
        ) from None
    return as_leaf(built, requires_grad)


def _are_swapped(indices: Any, values: torch.Tensor) -> bool:
    """Whether the indices could be values, and the values are integers with a row for each dimension."""
    try:
        count = torch.as_tensor(indices, device=values.device).shape[:1]
    except (TypeError, ValueError, RuntimeError):
        return False
    is_index = values.dim() == 2 and not values.is_floating_point() and not values.is_complex()
    return is_index and count == values.shape[1:]


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
    where = checked_device(f"sparse_{kind}_tensor", device, pin_memory)
    checked = as_differentiable_values("values", moved(values, where), dtype, where)
    arrays = moved(pointers, where), moved(plain, where)
    return as_leaf(from_checked_compressed(kind, *arrays, checked, size, format), requires_grad)


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
        IndexRangeError: an index is outside the shape, or a pointer is less than the one before.
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
        IndexRangeError: an index is outside the shape, or a pointer is less than the one before.

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
        IndexRangeError: an index is outside the shape, or a pointer is less than the one before.

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
        IndexRangeError: an index is outside the shape, or a pointer is less than the one before.

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
        IndexRangeError: an index is outside the shape, or a pointer is less than the one before.

    Example:

        >>> import torch, scorch
        >>> scorch.sparse_bsc_tensor([0, 0, 1], [0], torch.ones(1, 2, 2), (2, 4)).to_dense()
        tensor([[0., 0., 1., 1.],
                [0., 0., 1., 1.]])
    """
    return sparse_compressed("bsc", ccol_indices, row_indices, values, size, **options)
