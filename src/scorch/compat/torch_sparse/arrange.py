"""Select, concatenate and move rows, columns and diagonals of a matrix, by its index arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorch.compat.torch_sparse.check_source import takes_compat
from scorch.compat.torch_sparse.forms import filled
from scorch.compat.torch_sparse.storage import SparseStorage, pick, pointers_of
from scorch.errors import IndexRangeError, OperandError, ShapeError

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor


# order -----------------------------------------------------------------------------------------------


@takes_compat
def t(src: SparseTensor) -> SparseTensor:
    """Return the transposed matrix."""
    rows, columns = src.sparse_sizes()
    colptr, row, value = src.csc()
    col = src.storage.col()[src.storage.csr2csc()]
    return src.like(col, row, value, (columns, rows), rowptr=colptr, is_sorted=True)


@takes_compat
def permute(src: SparseTensor, perm: Tensor) -> SparseTensor:
    """Return the matrix with rows and columns in the order ``perm``."""
    if src.sparse_size(0) != src.sparse_size(1):
        raise ShapeError(f"permute requires a square matrix, but got sizes {src.sparse_sizes()}")
    return index_select(index_select(src, 0, perm), 1, perm)


# parts -----------------------------------------------------------------------------------------------


@takes_compat
def index_select(src: SparseTensor, dim: int, idx: Tensor) -> SparseTensor:
    """Return the rows (0), columns (1) or slices of values at ``idx``, in that order, with repeats."""
    dim = _dim(src, dim)
    if dim == 1:
        return t(index_select(t(src), 0, idx))
    if dim > 1:
        return src.set_value(_value(src).index_select(dim - 1, idx), layout="coo")
    rows, columns = src.sparse_sizes()
    if idx.numel() and (int(idx.min()) < -rows or int(idx.max()) >= rows):
        raise IndexRangeError(f"index is out of range 0..{rows - 1}")
    idx = torch.where(idx < 0, idx + rows, idx)
    places, counts = row_entries(src.storage.rowptr(), idx)
    row = torch.arange(idx.numel(), device=idx.device).repeat_interleave(counts)
    col, value = src.storage.col()[places], pick(src.storage.value(), places)
    return src.like(row, col, value, (idx.numel(), columns), is_sorted=True)


def row_entries(rowptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the entries of ``rows``, one row after the other, and how many each has."""
    begins = rowptr[rows]
    counts = rowptr[rows + 1] - begins
    before = counts.cumsum(0) - counts
    places = torch.arange(int(counts.sum()), device=rows.device)
    return places + (begins - before).repeat_interleave(counts), counts


@takes_compat
def index_select_nnz(src: SparseTensor, idx: Tensor, layout: str | None = None) -> SparseTensor:
    """Return the entries ``idx``, counted by rows, or by columns in layout ``csc``."""
    if layout == "csc":
        idx = src.storage.csr2csc()[idx]
    row, col, value = src.coo()
    return src.like(row[idx], col[idx], pick(value, idx), src.sparse_sizes())


@takes_compat
def masked_select(src: SparseTensor, dim: int, mask: Tensor) -> SparseTensor:
    """Return the rows, columns or slices of values where ``mask`` is True."""
    if mask.dim() != 1 or mask.numel() != src.size(dim):
        raise ShapeError(
            f"the mask of dimension {dim} must have shape ({src.size(dim)},), but got {tuple(mask.shape)}"
        )
    return index_select(src, dim, mask.nonzero().flatten())


@takes_compat
def masked_select_nnz(src: SparseTensor, mask: Tensor, layout: str | None = None) -> SparseTensor:
    """Return the entries where ``mask`` is True."""
    return index_select_nnz(src, mask.nonzero().flatten(), layout)


@takes_compat
def narrow(src: SparseTensor, dim: int, start: int, length: int) -> SparseTensor:
    """Return ``length`` rows, columns or slices of values, starting at ``start``."""
    dim = _dim(src, dim)
    size = src.size(dim)
    start = start + size if start < 0 else start
    if not 0 <= start <= start + length <= size:
        raise IndexRangeError(f"{start}..{start + length} is out of range for dimension {dim} of size {size}")
    return index_select(src, dim, torch.arange(start, start + length, device=src.device()))


def narrow_diag(src: SparseTensor, start: tuple[int, int], length: tuple[int, int]) -> SparseTensor:
    """Return the block of ``length`` rows and columns that begins at ``start``."""
    return narrow(narrow(src, 0, start[0], length[0]), 1, start[1], length[1])


__narrow_diag__ = narrow_diag


@takes_compat
def select(src: SparseTensor, dim: int, idx: int) -> SparseTensor:
    """Return one row or column, as a matrix."""
    dim = _dim(src, dim)
    idx = idx + src.size(dim) if idx < 0 else idx
    return narrow(src, dim, idx, 1)


def get_item(src: SparseTensor, index: Any) -> SparseTensor:
    """Return ``src[index]``: integers, slices, lists, masks, one per dimension, and an ellipsis."""
    items = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    dim, out = 0, src
    for number, item in enumerate(items):
        if item is Ellipsis:
            dim = src.dim() - (len(items) - number - 1)
            continue
        out = _take(out, dim, item)
        dim += 1
    return out


def _take(src: SparseTensor, dim: int, item: Any) -> SparseTensor:
    if isinstance(item, int):
        return select(src, dim, item)
    if isinstance(item, slice):
        start, stop, step = item.indices(src.size(dim))
        if step == 1:
            return narrow(src, dim, start, max(stop - start, 0))
        item = torch.arange(start, stop, step, device=src.device())
    item = torch.as_tensor(item, device=src.device())
    if item.dtype == torch.bool:
        return masked_select(src, dim, item)
    if item.dtype.is_floating_point or item.dim() != 1:
        raise IndexError(f"cannot index with a tensor of {item.dtype} and shape {tuple(item.shape)}")
    return index_select(src, dim, item.to(torch.int64))


# diagonals -------------------------------------------------------------------------------------------


@takes_compat
def remove_diag(src: SparseTensor, k: int = 0) -> SparseTensor:
    """Return the matrix without diagonal ``k``."""
    kept = masked_select_nnz(src, src.storage.col() - src.storage.row() != k)
    for name in ("rowcount", "colcount"):  # cached where they were
        if name in src.storage.cached_keys():
            getattr(kept.storage, name)()
    return kept


@takes_compat
def set_diag(src: SparseTensor, values: Tensor | None = None, k: int = 0) -> SparseTensor:
    """Return the matrix with all elements of diagonal ``k`` stored: ``values``, or ones."""
    src = remove_diag(src, k)
    row, col, value = src.coo()
    here = torch.arange(max(-k, 0), max(-k, 0) + _diagonal_size(src, k), device=row.device)
    if value is not None:
        ones = value.new_ones(here.numel(), *value.shape[1:])
        values = ones if values is None else torch.as_tensor(values, device=row.device).to(value.dtype)
        value = torch.cat([value, values.expand(ones.shape) if values.dim() < ones.dim() else values])
    return src.like(torch.cat([row, here]), torch.cat([col, here + k]), value, src.sparse_sizes())


@takes_compat
def fill_diag(src: SparseTensor, fill_value: float, k: int = 0) -> SparseTensor:
    """Return the matrix with ``fill_value`` on all of diagonal ``k``."""
    value = src.storage.value()
    if value is None:
        return set_diag(src, None, k)
    return set_diag(src, value.new_full((_diagonal_size(src, k), *value.shape[1:]), fill_value), k)


@takes_compat
def get_diag(src: SparseTensor) -> Tensor:
    """Return the main diagonal, dense."""
    row, value = src.storage.row(), filled(src)
    on = row == src.storage.col()
    empty = value.new_zeros(_diagonal_size(src, 0), *value.shape[1:])
    return empty.index_add(0, row[on], value[on])


def _diagonal_size(src: SparseTensor, k: int) -> int:
    rows, columns = src.sparse_sizes()
    return max(0, min(rows, columns - k) if k >= 0 else min(rows + k, columns))


# joined ----------------------------------------------------------------------------------------------


def cat(tensors: Sequence[SparseTensor], dim: int | Sequence[int]) -> SparseTensor:
    """Concatenate matrices vertically (0), horizontally (1), or along the diagonal (0, 1)."""
    if not tensors:
        raise OperandError("cat needs at least one matrix")
    first = tensors[0]
    dims = {d + first.dim() if d < 0 else d for d in ((dim,) if isinstance(dim, int) else dim)}
    if dims == {d for d in dims if d > 1}:
        joined = torch.cat([_value(tensor) for tensor in tensors], min(dims) - 1)
        return first.set_value(joined, layout="coo")
    if not dims <= {0, 1}:
        raise IndexError(f"dim must be 0, 1, (0, 1) or a dimension of the values, but got {dim}")
    down = _offsets([tensor.sparse_size(0) for tensor in tensors], 0 in dims)
    across = _offsets([tensor.sparse_size(1) for tensor in tensors], 1 in dims)
    entries = [tensor.coo() for tensor in tensors]
    row = torch.cat([e[0] + below for e, below in zip(entries, down[:-1], strict=True)])
    col = torch.cat([e[1] + right for e, right in zip(entries, across[:-1], strict=True)])
    values = [e[2] for e in entries if e[2] is not None]
    if values and len(values) != len(entries):
        raise OperandError("either all matrices must have values, or none")
    value, storages = torch.cat(values) if values else None, [tensor.storage for tensor in tensors]
    storage = SparseStorage(
        row=row,
        col=col,
        value=value,
        sparse_sizes=(down[-1], across[-1]),
        **_joined_caches(storages, dims),
        is_sorted=dims != {1},
        trust_data=True,
    )
    return first.from_storage(storage)


def cat_first(tensors: Sequence[SparseTensor]) -> SparseTensor:
    return cat(tensors, 0)


def cat_second(tensors: Sequence[SparseTensor]) -> SparseTensor:
    return cat(tensors, 1)


def cat_diag(tensors: Sequence[SparseTensor]) -> SparseTensor:
    return cat(tensors, (0, 1))


def _joined_caches(storages: list[SparseStorage], dims: set[int]) -> dict[str, Tensor]:
    """Return the cached arrays of the concatenated matrix that follow from those of all matrices."""
    cached = set[str].intersection(*({*storage.cached_keys()} for storage in storages))
    found: dict[str, Tensor] = {}
    for name in ("rowcount",) * (0 in dims) + ("colcount",) * (1 in dims):
        if name in cached:
            found[name] = torch.cat([getattr(storage, name)() for storage in storages])
    if dims == {0, 1}:
        before = _offsets([storage.col().numel() for storage in storages], True)
        for name in {"csr2csc", "csc2csr"} & cached:
            parts = zip(storages, before[:-1], strict=True)
            found[name] = torch.cat([getattr(storage, name)() + start for storage, start in parts])
    pointers = {"rowptr": "rowcount", "colptr": "colcount"}
    return found | {name: pointers_of(found[count]) for name, count in pointers.items() if count in found}


def _offsets(sizes: list[int], is_joined: bool) -> list[int]:
    """Return where each begins, and the total size."""
    return [0, *itertools.accumulate(sizes)] if is_joined else [0] * len(sizes) + [max(sizes)]


def _dim(src: SparseTensor, dim: int) -> int:
    if not -src.dim() <= dim < src.dim():
        raise IndexError(f"dimension {dim} is out of range for a matrix with {src.dim()} dimensions")
    return dim % src.dim()


def _value(src: SparseTensor) -> Tensor:
    value = src.storage.value()
    if value is None:
        raise OperandError("the matrix has no values; use fill_value(1.0)")
    return value
