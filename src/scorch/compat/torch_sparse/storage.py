"""The entries of a torch_sparse matrix: row, column and perhaps a value, sorted by row and then column.

Unlike a ``scorch.SparseTensor``, it may have no values, values with more dimensions, and repeated entries.
Everything derived (pointers, counts, the order by columns, the pattern that kernels take) is computed when
first needed, and cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scorch._src.devices import HOST
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.create.build import from_compressed
from scorch._src.tensor.sparse_tensor import SparseTensor as Matrix
from scorch._src.torch_internals import outside_graphs
from scorch.compat.torch_sparse import memory
from scorch.errors import IndexRangeError, OperandError, ShapeError

layouts = ["coo", "csr", "csc"]
share_memory_, is_shared = memory.share_memory_, memory.is_shared
_CACHED = ("rowcount", "colptr", "colcount", "csr2csc", "csc2csr")


def _has(name: str) -> Callable[[SparseStorage], bool]:
    """Return the method that says whether the array ``name`` is available without computing it."""
    return lambda storage: getattr(storage, f"_{name}") is not None


class SparseStorage:
    """The sorted entries of a sparse matrix; methods return each array, as in torch_sparse.

    Args:
        row: the row of each entry; or pass ``rowptr``.
        rowptr: where each row begins, if entries are sorted.
        col: the column of each entry.
        value: the value of each entry, of any shape.
        sparse_sizes: the numbers of rows and columns; inferred by default.
        rowcount: the number of entries of each row, if known.
        colptr: where each column begins in the order by columns, if known.
        colcount: the number of entries of each column, if known.
        csr2csc: the order by columns, if known.
        csc2csr: the inverse of ``csr2csc``, if known.
        is_sorted: whether entries are sorted by row and then column.
        trust_data: whether to skip validation.
    """

    def __init__(
        self,
        row: Tensor | None = None,
        rowptr: Tensor | None = None,
        col: Tensor | None = None,
        value: Tensor | None = None,
        sparse_sizes: tuple[int | None, int | None] | None = None,
        rowcount: Tensor | None = None,
        colptr: Tensor | None = None,
        colcount: Tensor | None = None,
        csr2csc: Tensor | None = None,
        csc2csr: Tensor | None = None,
        is_sorted: bool = False,
        trust_data: bool = False,
    ) -> None:
        if col is None or (row is None and rowptr is None):
            raise OperandError("pass col, and either row or rowptr")
        self._row, self._rowptr, self._col, self._value = row, rowptr, col, value
        self._rowcount, self._colptr, self._colcount = rowcount, colptr, colcount
        self._csr2csc, self._csc2csr = csr2csc, csc2csr
        self._kernel: tuple[Pattern, Tensor | None] | None = None
        self._sparse_sizes = _sizes(row, rowptr, col, sparse_sizes)
        if not trust_data:
            _check(self)
        if not is_sorted:
            self._sort()

    def _sort(self) -> None:
        key = self.row() * max(self._sparse_sizes[1], 1) + self._col
        if key.numel() < 2 or bool((key[1:] >= key[:-1]).all()):
            return
        order = key.argsort(stable=True)
        self._row, self._col = self.row()[order], self._col[order]
        self._value = pick(self._value, order)
        self._csr2csc = self._csc2csr = None

    # arrays ------------------------------------------------------------------------------------------

    def row(self) -> Tensor:
        if self._row is None:
            rows = torch.arange(self._sparse_sizes[0], device=self._col.device)
            self._row = rows.repeat_interleave(self._count_rows())
        return self._row

    def rowptr(self) -> Tensor:
        if self._rowptr is None:
            self._rowptr = pointers_of(self._count_rows())
        return self._rowptr

    def col(self) -> Tensor:
        return self._col

    def value(self) -> Tensor | None:
        return self._value

    def rowcount(self) -> Tensor:
        if self._rowcount is None:
            self._rowcount = self._count_rows()
        return self._rowcount

    def colcount(self) -> Tensor:
        if self._colcount is None:
            self._colcount = self._count_columns()
        return self._colcount

    def colptr(self) -> Tensor:
        if self._colptr is None:
            self._colptr = pointers_of(self._count_columns())
        return self._colptr

    def _count_rows(self) -> Tensor:
        if self._rowcount is not None:
            return self._rowcount
        if self._rowptr is not None:
            return self._rowptr.diff()
        return torch.bincount(self.row(), minlength=self._sparse_sizes[0])

    def _count_columns(self) -> Tensor:
        if self._colcount is not None:
            return self._colcount
        return torch.bincount(self._col, minlength=self._sparse_sizes[1])

    def csr2csc(self) -> Tensor:
        """Return the order of the entries by columns."""
        if self._csr2csc is None:
            self._csr2csc = self._col.argsort(stable=True)
        return self._csr2csc

    def csc2csr(self) -> Tensor:
        if self._csc2csr is None:
            self._csc2csr = self.csr2csc().argsort()
        return self._csc2csr

    # facts -------------------------------------------------------------------------------------------

    def has_value(self) -> bool:
        return self._value is not None

    has_row = _has("row")
    has_rowptr = _has("rowptr")
    has_rowcount = _has("rowcount")
    has_colptr = _has("colptr")
    has_colcount = _has("colcount")
    has_csr2csc = _has("csr2csc")
    has_csc2csr = _has("csc2csr")

    def sparse_sizes(self) -> tuple[int, int]:
        return self._sparse_sizes

    def sparse_size(self, dim: int) -> int:
        return self._sparse_sizes[dim]

    def is_coalesced(self) -> bool:
        row, col = self.row(), self._col
        return not bool(((row[1:] == row[:-1]) & (col[1:] == col[:-1])).any())

    def num_cached_keys(self) -> int:
        return len(self.cached_keys())

    def cached_keys(self) -> list[str]:
        return [name for name in _CACHED if getattr(self, f"_{name}") is not None]

    def fill_cache_(self) -> SparseStorage:
        for name in ("row", "rowptr", *_CACHED):
            getattr(self, name)()
        return self

    def clear_cache_(self) -> SparseStorage:
        for name in _CACHED:
            setattr(self, f"_{name}", None)
        self._kernel = None
        return self

    # others like it ----------------------------------------------------------------------------------

    @classmethod
    def empty(cls) -> SparseStorage:
        """Return the entries of a 0 x 0 matrix."""
        nothing = torch.empty(0, dtype=torch.int64, device=HOST)
        return cls(nothing, None, nothing, None, (0, 0), is_sorted=True, trust_data=True)

    def sparse_resize(self, sparse_sizes: tuple[int, int]) -> SparseStorage:
        return SparseStorage(self.row(), None, self._col, self._value, sparse_sizes, is_sorted=True)

    def sparse_reshape(self, num_rows: int, num_cols: int) -> SparseStorage:
        rows, columns = self._sparse_sizes
        num_rows = rows * columns // num_cols if num_rows == -1 else num_rows
        num_cols = rows * columns // num_rows if num_cols == -1 else num_cols
        if num_rows * num_cols != rows * columns:
            raise ShapeError(f"a {rows} x {columns} matrix cannot be reshaped to {num_rows} x {num_cols}")
        place, sizes = self.row() * columns + self._col, (num_rows, num_cols)
        row, col = place // max(num_cols, 1), place % max(num_cols, 1)
        return SparseStorage(row, None, col, self._value, sizes, is_sorted=True, trust_data=True)

    def copy(self) -> SparseStorage:
        return self.with_value(self._value)

    def clone(self) -> SparseStorage:
        return self.map(Tensor.clone)

    type = memory.as_type
    type_as = memory.type_as
    to_device = memory.to_device
    device_as = memory.device_as
    cpu = memory.cpu
    cuda = memory.cuda
    share_memory_ = memory.share_memory_
    is_shared = memory.is_shared
    pin_memory = memory.pin_memory
    is_pinned = memory.is_pinned

    def with_value(self, value: Tensor | None) -> SparseStorage:
        """Return the same entries with other values; cached arrays are shared."""
        made = SparseStorage.__new__(SparseStorage)
        made.__dict__.update(self.__dict__, _value=value)
        return made

    def set_value(self, value: Tensor | None, layout: str | None = None) -> SparseStorage:
        return self.with_value(self._in_order(value, layout))

    def set_value_(self, value: Tensor | None, layout: str | None = None) -> SparseStorage:
        self._value = self._in_order(value, layout)
        return self

    def _in_order(self, value: Tensor | None, layout: str | None) -> Tensor | None:
        if value is None:
            return None
        _check_value(value, self._col)
        return value[self.csc2csr()] if layout == "csc" else value

    def map(self, change: Any) -> SparseStorage:
        """Return the storage with ``change`` applied to every array."""
        made = self.with_value(self._value)
        made._kernel = None
        for name, array in self.__dict__.items():
            if isinstance(array, Tensor):
                setattr(made, name, change(array))
        return made

    def coalesce(self, reduce: str = "sum") -> SparseStorage:
        """Return the storage without repeated entries, whose values are reduced."""
        if self.is_coalesced():
            return self
        merged, place = self._merged()
        if self._value is not None:
            merged._value = combine(self._value, place, merged.col().numel(), reduce)
        return merged

    def _merged(self) -> tuple[SparseStorage, Tensor]:
        """Return the distinct entries without values, and the position of each entry among them."""
        width = max(self._sparse_sizes[1], 1)
        keys, place = torch.unique_consecutive(self.row() * width + self._col, return_inverse=True)
        row, col, sizes = keys // width, keys % width, self._sparse_sizes
        return SparseStorage(row, None, col, None, sizes, is_sorted=True, trust_data=True), place

    # kernels -----------------------------------------------------------------------------------------

    def matrix(self, value: Tensor) -> Matrix:
        """Return the entries with ``value`` (one number each), connected to it; repeated ones add up."""
        pattern, place = self._pattern()
        return sparse_of(pattern, value if place is None else combine(value, place, pattern.size, "sum"))

    def _pattern(self) -> tuple[Pattern, Tensor | None]:
        if self._kernel is None:
            self._kernel = _find_pattern(self)
        return self._kernel


@outside_graphs
def _find_pattern(storage: SparseStorage) -> tuple[Pattern, Tensor | None]:
    """Return the sparsity pattern, and the position of each entry in it unless no entry repeats."""
    source, place = (storage, None) if storage.is_coalesced() else storage._merged()
    ones = torch.ones(source.col().numel(), device=source.col().device)
    made = from_compressed("csr", source.rowptr(), source.col(), ones, storage.sparse_sizes())
    assert isinstance(made, Matrix)
    return made.storage.pattern, place


def get_layout(layout: str | None = None) -> str:
    """Return ``layout``, or ``coo`` by default."""
    if layout not in (None, *layouts):
        raise OperandError(f"layout must be 'coo', 'csr' or 'csc', but got {layout!r}")
    return layout or "coo"


def combine(values: Tensor, place: Tensor, count: int, reduce: str) -> Tensor:
    """Reduce ``values`` by ``place``: their sum, mean, min or max, 0 where there is none."""
    empty = values.new_zeros(count, *values.shape[1:])
    if reduce in ("sum", "add"):
        return empty.index_add(0, place, values)
    if reduce == "mean":
        count_each = torch.bincount(place, minlength=count).clamp_(min=1)
        total = empty.index_add(0, place, values)
        each = count_each.reshape(-1, *(1,) * (values.dim() - 1)).to(values.device)
        return total / each if values.is_floating_point() or values.is_complex() else total // each
    if reduce in ("min", "max"):
        index = place.reshape(-1, *(1,) * (values.dim() - 1)).expand_as(values)
        return empty.scatter_reduce(0, index, values, f"a{reduce}", include_self=False)
    raise OperandError(f"reduce must be 'sum', 'mean', 'min' or 'max', but got {reduce!r}")


def pick(value: Tensor | None, places: Tensor) -> Tensor | None:
    """Return the values at ``places``, or None without values."""
    return None if value is None else value[places]


def pointers_of(counts: Tensor) -> Tensor:
    """Return where each row begins, given the number of entries of each, and the number of all entries."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _sizes(
    row: Tensor | None, rowptr: Tensor | None, col: Tensor, given: tuple[int | None, int | None] | None
) -> tuple[int, int]:
    rows, columns = given or (None, None)
    if rows is None and rowptr is not None:
        rows = rowptr.numel() - 1
    elif rows is None:
        assert row is not None
        rows = int(row.max()) + 1 if row.numel() else 0
    if columns is None:
        columns = int(col.max()) + 1 if col.numel() else 0
    return int(rows), int(columns)


def _check(storage: SparseStorage) -> None:
    row, rowptr, col, sizes = storage._row, storage._rowptr, storage._col, storage._sparse_sizes
    for name, array in (("row", row), ("rowptr", rowptr), ("col", col)):
        if array is None:
            continue
        if array.dtype != torch.int64 or array.dim() != 1:
            raise OperandError(
                f"{name} must be a 1-D int64 tensor, but got {array.dtype} of shape {tuple(array.shape)}"
            )
        if array.device != col.device:
            raise OperandError(f"{name} is on device {array.device}, but col on {col.device}")
    if rowptr is not None:
        is_fine = rowptr.numel() == sizes[0] + 1 and int(rowptr[0]) == 0 and int(rowptr[-1]) == col.numel()
        if not is_fine or bool((rowptr.diff() < 0).any()):
            raise IndexRangeError(
                f"rowptr must increase from 0 to {col.numel()}, the number of entries, in {sizes[0] + 1} "
                "steps"
            )
    for name, array, size in (("row", row, sizes[0]), ("col", col, sizes[1])):
        if array is None:
            continue
        if array.numel() != col.numel():
            raise ShapeError(f"{name} has {array.numel()} entries, but col has {col.numel()}")
        if array.numel() and (int(array.min()) < 0 or int(array.max()) >= size):
            raise IndexRangeError(f"{name} is out of range 0..{size - 1}; pass larger sparse_sizes")
    if storage._value is not None:
        _check_value(storage._value, col)


def _check_value(value: Tensor, col: Tensor) -> None:
    if value.shape[:1] != col.shape:
        raise ShapeError(
            f"value must have a row for each of the {col.numel()} entries, but got shape {tuple(value.shape)}"
        )
