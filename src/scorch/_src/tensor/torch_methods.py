"""The methods of torch's own sparse tensors for a ``SparseTensor``, and two more from SciPy.

Entries are always sorted and no place is stored twice, so every tensor is coalesced. Conversions return
sparse tensors of Scorch in the format that torch's layout is; nothing is changed in place.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.formats import Format
from scorch._src.grad_state import is_differentiable, refuse_jit
from scorch._src.storage.coordinates import coordinates, inside, keys_of
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import sparse_of, values_at, values_of
from scorch._src.tensor.create.build import compressed_format
from scorch._src.tensor.create.check import as_differentiable_values, own
from scorch._src.tensor.create.construct import COMPRESSED, from_torch
from scorch._src.tensor.entries import Entries, as_sparse, entries_of, from_entries
from scorch._src.tensor.entries_autograd import differentiable_entries, from_differentiable_entries
from scorch._src.tensor.flatten import LIVE, any_traced
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.interop.torch_layouts import compressed_arrays, compressed_kind
from scorch._src.tensor.registry import Handler, implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch._src.tensor.traced import as_symbol, recorded
from scorch.errors import (
    ArgumentError,
    DtypeError,
    FormatError,
    OperandError,
    ShapeError,
    is_integer,
    kind_of,
)


def implements_method(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for methods of ``torch.Tensor``, in the table of functions and on the class.

    Below PyTorch functions, which bypass the table, the methods of the class still work.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            implements(getattr(torch.Tensor, name), differentiable=True)(handler)
            setattr(SparseTensor, name, _named(handler, name))
        return handler

    return register


def _named(handler: Any, name: str) -> Any:
    """Return a copy of a function with another name, by which ``torch.compile`` recognises methods."""
    copy = types.FunctionType(handler.__code__, handler.__globals__, name, closure=handler.__closure__)
    functools.update_wrapper(copy, handler, assigned=("__module__", "__doc__", "__annotations__"))
    del copy.__wrapped__  # type: ignore[attr-defined]
    copy.__defaults__, copy.__kwdefaults__ = handler.__defaults__, handler.__kwdefaults__
    copy.__qualname__ = f"SparseTensor.{name}"
    return copy


# facts -----------------------------------------------------------------------------------------------


@implements_method("coalesce")
def coalesce(self: SparseTensor) -> SparseTensor:
    """Return the tensor itself: its entries are sorted, and repeats are summed on construction."""
    return self


@implements_method("is_coalesced")
def is_coalesced(self: SparseTensor) -> bool:
    return as_symbol(self, True)


@implements_method("sparse_dim", "_dimI")
def sparse_dim(self: SparseTensor) -> int:
    """Count the sparse dimensions; in batches of matrices two, as in torch."""
    form = self.storage.pattern.format
    return as_symbol(self, 2 if compressed_kind(form) else form.dims - _count_dense_dims(form))


@implements_method("dense_dim", "_dimV")
def dense_dim(self: SparseTensor) -> int:
    """Count the last dimensions that are dense below the sparse ones: those of each value."""
    return as_symbol(self, _count_dense_dims(self.storage.pattern.format))


def _count_dense_dims(form: Format) -> int:
    layout = compressed_kind(form)
    if layout:
        return form.dims - layout[1] - 2
    dense = 0
    for level in reversed(range(len(form) - form.dense_tail, len(form))):
        if form.order[level] != form.dims - 1 - dense or form.part(level) != "whole":
            break
        dense += 1
    return dense


@implements_method("_nnz")
def nnz(self: SparseTensor) -> int:
    return as_symbol(self, self.storage.pattern.size)


# arrays ----------------------------------------------------------------------------------------------


@implements_method("values")
def values(self: SparseTensor) -> torch.Tensor:
    """Return the stored values, one for each entry; blocks and dense dimensions below keep their shape.

    Example:

        >>> import torch, scorch
        >>> S = scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), format="csr")
        >>> S.values()
        tensor([2., 3.])
    """
    refuse_jit("values")
    pattern = self.storage.pattern
    stored = values_of(self) if is_differentiable(self) else self.storage.values.detach()
    arrays = compressed_arrays(pattern)
    batches = () if arrays is None else arrays[0].shape[:-1]
    form = pattern.format
    tail = [form.level_size(n, pattern.shape) for n in range(len(form) - form.dense_tail, len(form))]
    entries = -1 if all((*tail, *batches)) else 0
    return stored.view(*batches, entries, *tail)


@implements_method("_indices")
def coo_indices(self: SparseTensor) -> torch.Tensor:
    """Return ``indices`` of the tensor as COO: ``torch.testing`` and optimizers call it."""
    return indices(_as_coo(self))


@implements_method("_values")
def coo_values(self: SparseTensor) -> torch.Tensor:
    """Return the values in the order of ``_indices``."""
    return values(_as_coo(self))


def _as_coo(self: SparseTensor) -> SparseTensor:
    return self if self.format.is_coo else as_sparse(self.to_format("coo"))


@implements_method("indices")
def indices(self: SparseTensor) -> torch.Tensor:
    """Return the coordinates of a COO tensor, one row for each sparse dimension (int64, as in torch).

    Raises:
        FormatError: the format is not ``coo``.

    Example:

        >>> import torch, scorch
        >>> S = scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), format="csr")
        >>> S.to_format("coo").indices()
        tensor([[0, 1],
                [1, 0]])
    """
    refuse_jit("indices")
    pattern = self.storage.pattern
    if not pattern.format.is_coo:
        raise FormatError(
            f"indices() is only available for coo tensors, but got {pattern.format}; use .to_format('coo')"
        )
    return torch.stack([own(array, torch.int64) for array in pattern.crd if array is not None])


def _implement_array(method: str, kind: str, word: str, place: int) -> None:
    """Add the method that copies the pointers, at ``place`` 0, or the coordinates of a compressed matrix."""
    what = f"the {word} of each entry" if place else f"where the entries of each {word} begin and end"

    def array(self: SparseTensor) -> torch.Tensor:
        refuse_jit(method)
        form = self.storage.pattern.format
        layout = compressed_kind(form)
        if layout is None or layout[0][-1] != kind[-1]:
            raise FormatError(
                f"{method}() is only available for {kind} tensors, but got {form}; use .to_format({kind!r})"
            )
        arrays = compressed_arrays(self.storage.pattern)
        if arrays is None:
            raise FormatError(
                f"{method}() is only available for batches of matrices with the same number of entries; "
                "use .levels"
            )
        return own(arrays[place])

    array.__name__ = method
    array.__doc__ = f"Return {what}, in a {kind.upper()} or BS{kind[-1].upper()} matrix."
    implements_method(method)(array)


_implement_array("crow_indices", "csr", "row", 0)
_implement_array("col_indices", "csr", "column", 1)
_implement_array("ccol_indices", "csc", "column", 0)
_implement_array("row_indices", "csc", "row", 1)


# other formats ---------------------------------------------------------------------------------------


@implements_method("to_sparse", "to_sparse_coo")
def to_sparse(
    self: SparseTensor,
    sparse_dim: int | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """Convert to COO, or to one of PyTorch's other sparse layouts.

    Args:
        sparse_dim: the number of sparse dimensions; all without it.
        layout: one of PyTorch's sparse layouts.
        blocksize: the size of blocks, for ``torch.sparse_bsr`` and ``torch.sparse_bsc``.
        dense_dim: the number of dense dimensions of each value.

    Returns:
        A ``SparseTensor``.

    Example:

        >>> import torch, scorch
        >>> S = scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), format="csr")
        >>> S.to_sparse().format, S.to_sparse(layout=torch.sparse_csc).format
        (Format('coo'), Format('csc'))
    """
    dims = len(self.storage.pattern.shape)
    for name, value in (("sparse_dim", sparse_dim), ("dense_dim", dense_dim)):
        _check_number("to_sparse", name, value)
    if layout is not None and layout != torch.sparse_coo:
        if sparse_dim is not None:
            raise ArgumentError(
                f"to_sparse expected sparse_dim= or layout=, but got both ({sparse_dim} and {layout})"
            )
        if layout not in COMPRESSED:
            raise FormatError(
                f"{layout!r} is not a sparse layout; choose from torch.sparse_coo, torch.sparse_csr, "
                "torch.sparse_csc, torch.sparse_bsr and torch.sparse_bsc, or use S.to_format('csr')"
            )
        return _to_compressed(self, COMPRESSED[layout], blocksize, dense_dim)
    if blocksize is not None:
        raise ArgumentError("blocksize= is only supported for layout=torch.sparse_bsr and torch.sparse_bsc")
    if sparse_dim is None:
        sparse_dim = dims - (0 if dense_dim is None else dense_dim)
    if not 1 <= sparse_dim <= dims:
        raise ShapeError(
            f"sparse_dim must be between 1 and {dims}, the number of dimensions, but got {sparse_dim}"
        )
    return as_sparse(self.to_format(Format("o" * sparse_dim + "d" * (dims - sparse_dim))))


def _check_number(function: str, name: str, value: Any) -> None:
    """Refuse what is no number of dimensions, such as a format."""
    if value is not None and not is_integer(value):
        cure = f"; use S.to_format({value!r})" if isinstance(value, str) else ""
        raise OperandError(f"{function}: {name} must be an integer, but got {value!r}{cure}")


def _to_compressed(
    S: SparseTensor, kind: str, blocksize: Sequence[int] | None, dense_dim: int | None
) -> SparseTensor:
    _check_number(f"to_sparse_{kind}", "dense_dim", dense_dim)
    dims, dense = len(S.storage.pattern.shape), dense_dim or 0
    blocksize = (blocksize, blocksize) if isinstance(blocksize, int) else blocksize
    if not 0 <= dense <= dims - 2:
        raise ShapeError(
            f"{kind} has two sparse dimensions, but {dims} dimensions minus {dense} dense ones leave "
            f"{max(dims - dense, 0)}"
        )
    if (kind[0] == "b") != (blocksize is not None):
        raise ArgumentError(
            f"{kind} needs blocksize=, such as (4, 4)"
            if kind[0] == "b"
            else f"{kind} does not support blocksize="
        )
    blocks = () if blocksize is None else tuple(blocksize)
    if blocksize is not None and (len(blocks) != 2 or not all(isinstance(b, int) and b > 0 for b in blocks)):
        raise ArgumentError(
            f"blocksize must be the rows and columns of a block, such as (4, 4), but got {blocksize!r}"
        )
    return as_sparse(S.to_format(compressed_format(kind, dims - 2 - dense, blocks, dense)))


def _implement_conversion(kind: str) -> None:
    def plain(self: SparseTensor, dense_dim: int | None = None) -> SparseTensor:
        return _to_compressed(self, kind, None, dense_dim)

    def blocked(self: SparseTensor, blocksize: Sequence[int], dense_dim: int | None = None) -> SparseTensor:
        return _to_compressed(self, kind, blocksize, dense_dim)

    implements_method(f"to_sparse_{kind}")(blocked if kind[0] == "b" else plain)


for _kind in COMPRESSED.values():
    _implement_conversion(_kind)


# entries ---------------------------------------------------------------------------------------------


@implements_method("sparse_mask")
def sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> SparseTensor:
    """Return the elements at the stored positions of a mask.

    Args:
        mask: a sparse tensor of the same shape, whose values do not matter.

    Returns:
        A ``SparseTensor`` with the sparsity pattern and the format of ``mask``.

    Raises:
        ShapeError: the shapes differ.

    Example:

        >>> import torch, scorch
        >>> S = scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), format="csr")
        >>> S.sparse_mask(scorch.eye(2, format="coo")).values()
        tensor([0., 0.])
    """
    if LIVE and any_traced((self, mask)):
        return hooks.record(torch.Tensor.sparse_mask, (self, mask), {})  # type: ignore[no-any-return]
    if not isinstance(mask, torch.Tensor):
        raise OperandError(f"sparse_mask expected mask to be a sparse tensor, but got {kind_of(mask)}")
    if tuple(self.shape) != tuple(mask.shape):
        raise ShapeError(
            f"sparse_mask expected a mask of shape {tuple(self.shape)}, but got {tuple(mask.shape)}"
        )
    if not isinstance(mask, SparseTensor) and mask.layout == torch.strided:
        raise OperandError(
            "sparse_mask expected a sparse mask, but got a dense one; use mask.to_sparse(), or * to "
            "multiply elementwise"
        )
    pattern = as_sparse(from_torch(mask)).storage.pattern
    if is_differentiable(self):
        return sparse_of(pattern, values_at(self, pattern))
    columns = coordinates(pattern)
    is_inside = inside(pattern, columns)
    # the keys of padding are those of other places, not used below
    keys = keys_of([columns[dim] for dim in range(len(columns))], pattern.shape, pattern.device)
    if isinstance(self, SparseTensor) or self.layout != torch.strided:
        sampled = entries_of(as_sparse(from_torch(self))).at(keys)
    else:
        sampled = self.detach().reshape(-1)[keys if is_inside is None else keys * is_inside]
    if is_inside is not None:
        sampled = torch.where(is_inside, sampled, sampled.new_zeros(()))
    return SparseTensor(Storage(pattern, sampled))


@recorded
def eliminate_zeros(S: SparseTensor) -> SparseTensor:
    """Return the same tensor without its explicit zeros.

    Returns:
        A ``SparseTensor`` in the same format.

    Example:

        >>> import torch, scorch
        >>> S = scorch.sparse_coo_tensor([[0, 1], [1, 0]], [0.0, 2.0], (2, 2))
        >>> S.nnz, S.eliminate_zeros().nnz
        (2, 1)
    """
    if is_differentiable(S):
        pattern = eliminate_zeros(SparseTensor(S.storage)).storage.pattern
        return sparse_of(pattern, values_at(S, pattern))
    entries = entries_of(S)
    is_nonzero = entries.values != 0
    if bool(is_nonzero.all()) and not S.format.is_blocked and entries.values.numel() == S.nnz:
        return with_values(S, S.storage.values)
    return from_entries(
        Entries(entries.keys[is_nonzero], entries.values[is_nonzero], entries.shape), S.format
    )


@recorded
def setdiag(S: SparseTensor, values: Any, k: int = 0) -> SparseTensor:
    """Return this matrix with other values on a diagonal.

    Args:
        values: a number, or a list; a short one sets the beginning, and of a long one the end is ignored.
        k: the number of the diagonal: 0 is the main one, positive numbers are above it.

    Returns:
        A ``SparseTensor`` in the same format.

    Raises:
        ShapeError: this is not a matrix.

    Example:

        >>> import torch, scorch
        >>> scorch.zeros(2, 2, format="csr").setdiag([7.0, 8.0]).to_dense()
        tensor([[7., 0.],
                [0., 8.]])
    """
    shape = S.storage.pattern.shape
    if len(shape) != 2:
        raise ShapeError(f"setdiag expected a matrix, but got shape {shape}")
    if not is_integer(k):
        raise OperandError(f"k must be an integer, 0 for the main diagonal, but got {k!r}")
    length = min(shape[0] + min(k, 0), shape[1] - max(k, 0))
    if length <= 0:
        raise ArgumentError(
            f"k must be between {1 - shape[0]} and {shape[1] - 1} for a matrix of shape {shape}, but got {k}"
        )
    new_values = as_differentiable_values("values", values)
    if not isinstance(values, torch.Tensor) or not new_values.dim():
        new_values = new_values.to(S.storage.device)
    if not torch.can_cast(new_values.dtype, S.dtype):
        raise DtypeError(
            f"values of {new_values.dtype} cannot be cast to the tensor's dtype {S.dtype}; convert one of "
            "them"
        )
    if new_values.dim() > 1:
        raise ShapeError(f"values must be a number or 1-D, but got shape {tuple(new_values.shape)}")
    new_values = (new_values.expand(length) if new_values.dim() == 0 else new_values[:length]).to(S.dtype)
    entries = differentiable_entries(S)
    rows, columns = entries.coordinates
    number = torch.arange(new_values.numel(), device=new_values.device)
    diagonal = keys_of([number + max(-k, 0), number + max(k, 0)], shape)
    is_elsewhere = (columns - rows != k) | (rows >= max(-k, 0) + new_values.numel())
    keys = torch.cat([entries.keys[is_elsewhere], diagonal])
    changed = Entries(keys, torch.cat([entries.values[is_elsewhere], new_values]), shape)
    return from_differentiable_entries(changed, S.format, in_order=False)
