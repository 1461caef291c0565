"""What torch's own sparse tensors can be asked, asked of a ``SparseTensor``, and two more from SciPy.

Entries are always sorted and no place is stored twice, so every tensor is coalesced. Conversions return
sparse tensors of Scorch in the format that torch's layout is; nothing is changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.formats import Format
from scorch._src.grad_state import is_differentiable
from scorch._src.storage.coordinates import coordinates, inside, keys_of
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import sparse_of, values_at, values_of
from scorch._src.tensor.create.build import compressed_format
from scorch._src.tensor.create.check import as_learned_values, own
from scorch._src.tensor.create.construct import COMPRESSED, from_torch
from scorch._src.tensor.entries import Entries, entries_of, from_entries
from scorch._src.tensor.entries_autograd import from_learned_entries, learned_entries
from scorch._src.tensor.interop.torch_layouts import compressed_kind, split_pointers
from scorch._src.tensor.registry import Handler, implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch.errors import ArgumentError, DtypeError, FormatError, OperandError, ShapeError


def answers(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for methods of ``torch.Tensor``, in the table of functions and on the class.

    Below torch's own functions, where the table is not asked, the methods are still found.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            implements(getattr(torch.Tensor, name), differentiable=True)(handler)
            setattr(SparseTensor, name, handler)
        return handler

    return register


# facts -----------------------------------------------------------------------------------------------


@answers("coalesce")
def coalesce(self: SparseTensor) -> SparseTensor:
    """The tensor itself: its entries are sorted, and repeats were summed when it was made."""
    return self


@answers("is_coalesced")
def is_coalesced(self: SparseTensor) -> bool:
    return True


@answers("sparse_dim", "_dimI")
def sparse_dim(self: SparseTensor) -> int:
    """How many dimensions are sparse; in batches of matrices two, as torch counts."""
    form = self.storage.pattern.format
    return 2 if compressed_kind(form) else form.dims - dense_dim(self)


@answers("dense_dim", "_dimV")
def dense_dim(self: SparseTensor) -> int:
    """How many of the last dimensions are dense below the sparse ones, as each value's own."""
    form = self.storage.pattern.format
    found = compressed_kind(form)
    if found:
        return form.dims - found[1] - 2
    dense = 0
    while form.order[-1 - dense] == form.dims - 1 - dense and _is_whole_and_full(form, len(form) - 1 - dense):
        dense += 1  # never all of them: the format is not dense
    return dense


def _is_whole_and_full(form: Format, level: int) -> bool:
    return form.levels[level].is_full and form.part(level) == "whole"


@answers("_nnz")
def nnz(self: SparseTensor) -> int:
    return self.nnz


# arrays ----------------------------------------------------------------------------------------------


@answers("values")
def values(self: SparseTensor) -> torch.Tensor:
    """The stored values, one for each entry; blocks and dense dimensions below keep their shape."""
    pattern = self.storage.pattern
    stored = values_of(self) if is_differentiable(self) else self.storage.values.detach()
    batches = _batches(self)
    tail: list[int] = []
    for number in range(len(pattern.format) - 1, -1, -1):
        if not pattern.format.levels[number].is_full:
            break
        tail.insert(0, pattern.format.level_size(number, pattern.shape))
    entries = stored.numel() // math.prod((*tail, *batches)) if stored.numel() else 0
    return stored.view(*batches, entries, *tail)


@answers("_indices")
def coo_indices(self: SparseTensor) -> torch.Tensor:
    """As ``indices``, of the tensor as COO: ``torch.testing`` and optimizers ask sparse tensors for it."""
    return indices(_as_coo(self))


@answers("_values")
def coo_values(self: SparseTensor) -> torch.Tensor:
    """The values in the order of ``_indices``."""
    return values(_as_coo(self))


def _as_coo(self: SparseTensor) -> SparseTensor:
    found = self if self.format.is_coo else self.to_format("coo")
    assert isinstance(found, SparseTensor)
    return found


@answers("indices")
def indices(self: SparseTensor) -> torch.Tensor:
    """The coordinates of a COO tensor, one row for each sparse dimension (int64, as in torch)."""
    pattern = self.storage.pattern
    if not pattern.format.is_coo:
        raise FormatError(f"indices() is for coo, this is {pattern.format}; use .to_format('coo')")
    return torch.stack([array.to(torch.int64) for array in pattern.crd if array is not None])


@answers("crow_indices")
def crow_indices(self: SparseTensor) -> torch.Tensor:
    """Where the entries of each row begin and end, in a CSR or BSR matrix."""
    return _pointers(self, "r", "crow_indices")


@answers("col_indices")
def col_indices(self: SparseTensor) -> torch.Tensor:
    """The column of each entry of a CSR or BSR matrix."""
    return _plain(self, "r", "col_indices")


@answers("ccol_indices")
def ccol_indices(self: SparseTensor) -> torch.Tensor:
    """Where the entries of each column begin and end, in a CSC or BSC matrix."""
    return _pointers(self, "c", "ccol_indices")


@answers("row_indices")
def row_indices(self: SparseTensor) -> torch.Tensor:
    """The row of each entry of a CSC or BSC matrix."""
    return _plain(self, "c", "row_indices")


def _pointers(S: SparseTensor, by: str, asked: str) -> torch.Tensor:
    batch = _check_compressed(S, by, asked)
    pattern = S.storage.pattern
    pos, crd = pattern.pos[batch + 1], pattern.crd[batch + 1]
    assert pos is not None and crd is not None
    batches = pattern.shape[:batch]
    if not batches:
        return own(pos)
    split = split_pointers(pos, math.prod(batches), crd.numel())
    assert split is not None
    return split.reshape(*batches, split.shape[-1])


def _plain(S: SparseTensor, by: str, asked: str) -> torch.Tensor:
    batch = _check_compressed(S, by, asked)
    crd = S.storage.pattern.crd[batch + 1]
    assert crd is not None
    batches = S.storage.pattern.shape[:batch]
    return own(crd).view(*batches, crd.numel() // max(1, math.prod(batches)))


def _check_compressed(S: SparseTensor, by: str, asked: str) -> int:
    """The number of batch dimensions, of a tensor whose arrays torch has by that name."""
    form = S.storage.pattern.format
    found = compressed_kind(form)
    if found is None or found[0][-1] != by:
        wanted = "csr" if by == "r" else "csc"
        raise FormatError(f"{asked}() is for {wanted}, this is {form}; use .to_format({wanted!r})")
    if found[1] and not _batches(S):
        raise FormatError(
            f"{asked}() is for batches of matrices with equal numbers of entries, and these differ; "
            "use .levels"
        )
    return found[1]


def _batches(S: SparseTensor) -> tuple[int, ...]:
    """The batch dimensions that torch's arrays have; none where numbers of entries differ."""
    pattern = S.storage.pattern
    found = compressed_kind(pattern.format)
    if found is None or not found[1]:
        return ()
    batches = pattern.shape[: found[1]]
    pos, crd = pattern.pos[found[1] + 1], pattern.crd[found[1] + 1]
    assert pos is not None and crd is not None
    return batches if split_pointers(pos, math.prod(batches), crd.numel()) is not None else ()


# other formats ---------------------------------------------------------------------------------------


@answers("to_sparse", "to_sparse_coo")
def to_sparse(
    self: SparseTensor,
    sparse_dim: int | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """The tensor as ``coo``, with that many ``sparse_dim``, or in the format that ``layout`` is."""
    dims = len(self.storage.pattern.shape)
    if layout not in (None, torch.sparse_coo):
        if sparse_dim is not None:
            raise ArgumentError(
                f"to_sparse takes sparse_dim= or layout=, not both ({sparse_dim} and {layout})"
            )
        return _to_compressed(self, _kind_of(layout), blocksize, dense_dim)
    if blocksize is not None:
        raise ArgumentError("blocksize= is for layout=torch.sparse_bsr and torch.sparse_bsc")
    if sparse_dim is None:
        sparse_dim = dims - (0 if dense_dim is None else dense_dim)
    if not 1 <= sparse_dim <= dims:
        raise ShapeError(f"a tensor of {dims} dimensions has from 1 to {dims} sparse ones, not {sparse_dim}")
    return _converted(self, Format("o" * sparse_dim + "d" * (dims - sparse_dim)))


@answers("to_sparse_csr")
def to_sparse_csr(self: SparseTensor, dense_dim: int | None = None) -> SparseTensor:
    return _to_compressed(self, "csr", None, dense_dim)


@answers("to_sparse_csc")
def to_sparse_csc(self: SparseTensor, dense_dim: int | None = None) -> SparseTensor:
    return _to_compressed(self, "csc", None, dense_dim)


@answers("to_sparse_bsr")
def to_sparse_bsr(self: SparseTensor, blocksize: Sequence[int], dense_dim: int | None = None) -> SparseTensor:
    return _to_compressed(self, "bsr", blocksize, dense_dim)


@answers("to_sparse_bsc")
def to_sparse_bsc(self: SparseTensor, blocksize: Sequence[int], dense_dim: int | None = None) -> SparseTensor:
    return _to_compressed(self, "bsc", blocksize, dense_dim)


def _kind_of(layout: Any) -> str:
    if layout not in COMPRESSED:
        raise FormatError(
            f"{layout} is no sparse layout; there are torch.sparse_coo, _csr, _csc, _bsr and _bsc"
        )
    return COMPRESSED[layout]


def _to_compressed(
    S: SparseTensor, kind: str, blocksize: Sequence[int] | None, dense_dim: int | None
) -> SparseTensor:
    dims, dense = len(S.storage.pattern.shape), dense_dim or 0
    if not 0 <= dense <= dims - 2:
        raise ShapeError(
            f"{kind} has two sparse dimensions, but of {dims} dimensions {dense} dense ones leave "
            f"{max(dims - dense, 0)}"
        )
    if (kind[0] == "b") != (blocksize is not None):
        raise ArgumentError(
            f"{kind} needs blocksize=, such as (4, 4)" if kind[0] == "b" else f"{kind} has no blocksize="
        )
    blocks = () if blocksize is None else tuple(blocksize)
    if blocksize is not None and (len(blocks) != 2 or not all(isinstance(b, int) and b > 0 for b in blocks)):
        raise ArgumentError(
            f"blocksize is the rows and columns of a block, such as (4, 4), not {blocksize!r}"
        )
    return _converted(S, compressed_format(kind, dims - 2 - dense, blocks, dense))


def _converted(S: SparseTensor, form: Format) -> SparseTensor:
    found = S.to_format(form)
    assert isinstance(found, SparseTensor)
    return found


# entries ---------------------------------------------------------------------------------------------


@answers("sparse_mask")
def sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> SparseTensor:
    """The values of ``self`` where ``mask`` has entries, stored as ``mask`` is."""
    if not isinstance(mask, torch.Tensor):
        raise OperandError(f"sparse_mask takes a sparse tensor as mask, not a {type(mask).__name__}")
    if tuple(self.shape) != tuple(mask.shape):
        raise ShapeError(
            f"sparse_mask takes a mask of the same shape, but this is {tuple(self.shape)} "
            f"and the mask {tuple(mask.shape)}"
        )
    if not isinstance(mask, SparseTensor) and mask.layout == torch.strided:
        raise OperandError("the mask of sparse_mask is dense; use mask.to_sparse(), or * for all places")
    stored = from_torch(mask)
    assert isinstance(stored, SparseTensor)
    pattern = stored.storage.pattern
    if is_differentiable(self):
        return sparse_of(pattern, values_at(self, pattern))
    columns = coordinates(pattern)
    kept = inside(pattern, columns)
    keys = keys_of(
        [columns[dim] for dim in range(len(columns))], pattern.shape
    )  # of padding: of some other place, not used below
    if isinstance(self, SparseTensor) or self.layout != torch.strided:
        given = from_torch(self)
        assert isinstance(given, SparseTensor)
        found = entries_of(given).at(keys)
    else:
        found = self.detach().reshape(-1)[keys if kept is None else keys * kept]
    return SparseTensor(
        Storage(pattern, found if kept is None else torch.where(kept, found, found.new_zeros(())))
    )


def eliminate_zeros(S: SparseTensor) -> SparseTensor:
    """``S`` without the zeros among its stored values."""
    if is_differentiable(S):
        pattern = eliminate_zeros(SparseTensor(S.storage)).storage.pattern
        return sparse_of(pattern, values_at(S, pattern))
    entries = entries_of(S)
    kept = entries.values != 0
    if bool(kept.all()) and not S.format.is_blocked and entries.values.numel() == S.nnz:
        return with_values(S, S.storage.values)
    return from_entries(Entries(entries.keys[kept], entries.values[kept], entries.shape), S.format)


def setdiag(S: SparseTensor, values: Any, k: int = 0) -> SparseTensor:
    """``S`` with the diagonal ``k`` (above the main one where positive) set to ``values``, one or a list."""
    shape = S.storage.pattern.shape
    if len(shape) != 2:
        raise ShapeError(f"setdiag is for matrices, but this tensor has shape {shape}")
    if isinstance(k, bool) or not isinstance(k, int):
        raise OperandError(f"k numbers a diagonal, 0 for the main one, not {k!r}")
    length = min(shape[0] + min(k, 0), shape[1] - max(k, 0))
    if length <= 0:
        raise ArgumentError(
            f"k is {k}, but a matrix of shape {shape} has diagonals {1 - shape[0]} to {shape[1] - 1}"
        )
    given = as_learned_values("values", values)
    if not torch.can_cast(given.dtype, S.dtype):
        raise DtypeError(
            f"values are {given.dtype}, which a tensor of {S.dtype} cannot hold; convert one of them"
        )
    if given.dim() > 1:
        raise ShapeError(f"values has shape {tuple(given.shape)}; a diagonal is one number or a list of them")
    given = (given.expand(length) if given.dim() == 0 else given[:length]).to(S.dtype)
    entries = learned_entries(S)
    rows, columns = entries.coordinates
    number = torch.arange(given.numel(), device=given.device)
    diagonal = keys_of([number + max(-k, 0), number + max(k, 0)], shape)
    kept = (columns - rows != k) | (rows >= max(-k, 0) + given.numel())
    keys = torch.cat([entries.keys[kept], diagonal])
    changed = Entries(keys, torch.cat([entries.values[kept], given]), shape)
    return from_learned_entries(changed, S.format, in_order=False)
