"""Rows of a csr matrix that stays on disk: only what is needed is read.

The file is a ``.safetensors`` one, as ``scorch.save`` and ``RowWriter`` write it. Its arrays are mapped into
memory, so that the system reads the pages that are touched, shares them between processes, and drops them
when memory is short. A matrix may be larger than the memory, so it is never scanned as a whole: rows are
checked when they are read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from scorch._src.devices import HOST
from scorch._src.formats import as_format
from scorch._src.io.archive import parse_dtype, parse_format
from scorch._src.io.datasets import Batch
from scorch._src.io.safetensors_header import (
    find_description,
    is_aligned,
    locate_array,
    map_array,
    read_header,
)
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.coordinates import joined_ranges
from scorch._src.storage.slices import select_rows
from scorch._src.storage.storage import Storage
from scorch._src.tensor.create.build import index_dtype, rows_pattern
from scorch._src.tensor.create.check import as_shape, check_coordinates, is_sorted_below
from scorch._src.tensor.entries import as_sparse
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError, IndexRangeError, OperandError, UnsupportedError, add_note, kind_of


class MemmapSparseDataset(Dataset[Any]):
    """A dataset of the rows of a CSR matrix in a ``.safetensors`` file, memory-mapped and read on demand.

    The matrix may be larger than memory. ``dataset[5]`` is one row, ``dataset[[5, 2, 9]]`` a CSR matrix of
    three. It works with any number of ``DataLoader`` workers; each opens the file itself. Rows with labels
    are ``SparseDataset(dataset, labels)``.

    Args:
        path: the file, as ``scorch.save`` and ``RowWriter`` write it.
        name: the name of the matrix, in a file with several.

    Raises:
        FileError: the file is damaged, or holds no CSR matrix.

    Example:

        >>> import scorch, tempfile
        >>> from scorch.utils.data import MemmapSparseDataset
        >>> path = f"{tempfile.mkdtemp()}/x.safetensors"
        >>> scorch.save(path, scorch.eye(5, format="csr"))
        >>> dataset = MemmapSparseDataset(path)
        >>> len(dataset), dataset[[4, 0]].shape
        (5, torch.Size([2, 5]))
    """

    @suggests_keywords
    def __init__(self, path: str | os.PathLike[str], name: str = "") -> None:
        if not isinstance(name, str):
            raise OperandError(
                f"name must be the name of a matrix in the file, but got {kind_of(name)}; for rows "
                "with labels, use SparseDataset(MemmapSparseDataset(path), labels)"
            )
        self.path = Path(path).resolve()
        self.name = name
        header, begin = read_header(self.path)
        description = find_description(self.path, header, name)
        try:
            self.shape = torch.Size(as_shape("shape", description.get("shape")))
            self.dtype = parse_dtype(description.get("dtype"))
            form = parse_format(description.get("format"))
            locations = {
                name_of_array: locate_array(self.path, header, key, begin)
                for name_of_array, key in description["arrays"].items()
            }
        except (AttributeError, KeyError, TypeError) as error:
            raise FileError(f"{path}: its metadata was not written by Scorch: {error!r}") from None
        if len(self.shape) != 2 or form != as_format("csr", 2):
            raise UnsupportedError(
                f"only csr matrices can be memory-mapped, but {path} holds a tensor of format {form} and "
                f"shape {tuple(self.shape)}; convert it with scorch.save(path, scorch.load(path, "
                "format='csr'))"
            )
        self._locations = locations
        self._check_locations()
        self._arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def nnz(self) -> int:
        """The number of stored values."""
        return self._locations["crd1"].count

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        shape, dtype = tuple(self.shape), str(self.dtype).removeprefix("torch.")
        return f"MemmapSparseDataset({str(self.path)!r}, shape={shape}, dtype={dtype}, nnz={self.nnz})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path: another process opens the file itself."""
        return MemmapSparseDataset, (self.path, self.name)

    # reading -----------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> SparseTensor:
        if isinstance(index, int):
            return as_sparse(self._gather(torch.tensor([index], device=HOST))[0])
        if isinstance(index, slice):
            return self._gather(torch.arange(*index.indices(len(self)), device=HOST))
        return self._gather(_as_row_numbers(index, len(self)))

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A batch for a data loader, read at once."""
        return Batch([self[list(indices)]], in_tuples=False)

    def lengths(self, begin: int, end: int) -> torch.Tensor:
        """Return the number of entries in each of these rows; only their pointers are read."""
        pos, _, _ = self._open_arrays()
        found = pos[begin : end + 1].to(torch.int64).diff()
        if bool((found < 0).any()):
            raise FileError(f"{self.path} is damaged: its row pointers decrease")
        return found

    def _gather(self, rows: torch.Tensor) -> SparseTensor:
        rows = self._normalize_rows(rows)
        pos, crd, _ = self._open_arrays()
        begin, end = pos[rows].to(torch.int64), pos[rows + 1].to(torch.int64)
        wrong = (begin < 0) | (end < begin) | (end > crd.numel())
        if bool(wrong.any()):
            row = int(rows[wrong][0])
            raise FileError(
                f"{self.path} is damaged: row {row} spans entries {int(pos[row])} to {int(pos[row + 1])}, "
                f"but there are {crd.numel()}"
            )
        rows_read = self._copy_rows(rows, begin, end)
        shape, counts = rows_read.pattern.shape, rows_read.pattern.counts
        pointers, columns = rows_read.pattern.pos[1], rows_read.pattern.crd[1]
        assert pointers is not None and columns is not None
        try:
            check_coordinates("crd1", columns, 1, self.shape[1])
        except IndexRangeError as error:
            add_note(error, f"in the file {self.path}")
            raise
        if not is_sorted_below(pointers, columns):
            raise FileError(f"{self.path} is damaged: the columns of a row are not sorted or not unique")
        dtype = index_dtype(shape, counts[1:])
        pattern = rows_pattern(pointers.to(dtype), columns.to(dtype), shape)
        return SparseTensor(Storage(pattern, rows_read.values))

    def _normalize_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows`` counted from the beginning."""
        size = len(self)
        if rows.numel():
            low, high = (int(value) for value in torch.aminmax(rows))
            if low < -size or high >= size:
                raise IndexRangeError(
                    f"row {high if high >= size else low} is out of range: {self.path.name} has {size} rows"
                )
            if low < 0:
                rows = rows % size
        return rows

    def _copy_rows(self, rows: torch.Tensor, begin: torch.Tensor, end: torch.Tensor) -> Storage:
        pos, crd, values = self._open_arrays()
        if pos.dtype == crd.dtype and values.dim() == 1:
            copied = select_rows(Storage(rows_pattern(pos, crd, tuple(self.shape)), values), rows)
            if copied is not None:
                return copied
        lengths = end - begin
        pointers = torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])
        index = joined_ranges(begin, lengths)
        pattern = rows_pattern(pointers, crd[index], (rows.numel(), self.shape[1]))
        row_values = values[index]
        return Storage(pattern, row_values if row_values.dim() == 1 else torch.view_as_complex(row_values))

    # the file ----------------------------------------------------------------------------------------

    def _check_locations(self) -> None:
        """Check that the arrays are those of a csr matrix, and fit together."""
        locations = self._locations
        if set(locations) != {"values", "pos1", "crd1"}:
            raise FileError(
                f"{self.path}: expected the arrays values, pos1 and crd1 of a csr matrix, but got "
                f"{', '.join(locations)}"
            )
        for name in ("pos1", "crd1"):
            if locations[name].dtype not in (torch.int32, torch.int64):
                raise FileError(f"{self.path}: {name} is {locations[name].dtype}, not int32 or int64")
        value_dtype = self.dtype.to_real() if self.dtype.is_complex else self.dtype
        per_value = 2 if self.dtype.is_complex else 1
        if locations["values"].dtype != value_dtype:
            raise FileError(f"{self.path}: its values are {locations['values'].dtype}, not {self.dtype}")
        if locations["values"].count != per_value * locations["crd1"].count:
            raise FileError(
                f"{self.path}: there are {locations['values'].count // per_value} values, but "
                f"{locations['crd1'].count} coordinates"
            )
        if locations["pos1"].count != len(self) + 1:
            raise FileError(f"{self.path}: {len(self)} rows have {locations['pos1'].count} pointers")

    def _open_arrays(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if self._arrays is None:
            if any(location.end > self.path.stat().st_size for location in self._locations.values()):
                raise FileError(f"{self.path} was truncated after it was opened")
            with self.path.open("rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            pos, crd, values = (
                map_array(memory, self._locations[name]) for name in ("pos1", "crd1", "values")
            )
            if self.dtype.is_complex:
                real_pairs = values.reshape(-1, 2)
                values = torch.view_as_complex(real_pairs) if is_aligned(real_pairs, 2) else real_pairs
            self._arrays = pos, crd, values
        return self._arrays


def _as_row_numbers(index: Any, size: int) -> torch.Tensor:
    """Convert lists, arrays and tensors of rows, or a mask of them, to int64 numbers."""
    try:
        rows = torch.as_tensor(index, device=HOST)
    except (TypeError, ValueError, RuntimeError):
        raise OperandError(
            f"rows must be selected by an integer, a slice or a list of integers, not {index!r}"
        ) from None
    if rows.dtype == torch.bool:
        if rows.shape != (size,):
            raise IndexRangeError(f"the mask has shape {tuple(rows.shape)}, but there are {size} rows")
        return torch.nonzero(rows).reshape(-1)
    if rows.numel() == 0:
        return torch.empty(0, dtype=torch.int64, device=HOST)
    if rows.dim() != 1 or rows.is_floating_point() or rows.is_complex():
        raise OperandError(
            f"rows must be selected by a list of integers, not by a {rows.dim()}-D tensor of {rows.dtype}"
        )
    return rows.to(torch.int64)


MappedRows = MemmapSparseDataset  # as files name it that version 0.1 pickled
