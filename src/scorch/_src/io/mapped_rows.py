"""Rows of a csr matrix that stays on disk: only what is asked for is read.

The file is a ``.safetensors`` one, as ``scorch.save`` and ``RowWriter`` write it. Its arrays are mapped into
memory, so that the system reads the pages that are touched, shares them between processes, and drops them
when memory is short. A matrix may be larger than the memory, so it is never looked through as a whole: rows
are checked when they are read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from scorch._src.compiler.pipeline import index_type
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.devices import HOST
from scorch._src.formats import as_format
from scorch._src.io.archive import as_dtype, as_stored_format
from scorch._src.io.datasets import Batch
from scorch._src.io.safetensors_header import facts_in, is_aligned, mapped_array, place_of, read_header
from scorch._src.storage.slices import rows_of
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.check import as_shape, check_coordinates, is_sorted_below
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError, IndexRangeError, OperandError, UnsupportedError, add_note


class MappedRows(Dataset[Any]):
    """The rows of a csr matrix in a ``.safetensors`` file, read when they are asked for.

    ``rows[5]`` is one row, ``rows[[5, 2, 9]]`` a csr matrix of three. It is a dataset of its rows, for data
    loaders with any number of workers, each of which opens the file itself. ``name`` is that of the matrix in
    a file with several.
    """

    def __init__(self, path: str | os.PathLike[str], name: str = "") -> None:
        self.path = Path(path).resolve()
        self.name = name
        header, begin = read_header(self.path)
        facts = facts_in(self.path, header, name)
        try:
            self.shape = torch.Size(as_shape("shape", facts.get("shape")))
            self.dtype = as_dtype(facts.get("dtype"))
            form = as_stored_format(facts.get("format"))
            places = {part: place_of(self.path, header, key, begin) for part, key in facts["arrays"].items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise FileError(f"{path}: its metadata are not as Scorch writes them: {error!r}") from None
        if len(self.shape) != 2 or form != as_format("csr", 2):
            raise UnsupportedError(
                f"{path} holds a tensor of format {form} and shape {tuple(self.shape)}; rows are mapped of "
                "csr matrices: scorch.save(path, scorch.load(path, format='csr'))"
            )
        self._places = places
        self._check_places()
        self._arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def nnz(self) -> int:
        """The number of stored values."""
        return self._places["crd1"].count

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        shape, dtype = tuple(self.shape), str(self.dtype).removeprefix("torch.")
        return f"MappedRows({str(self.path)!r}, shape={shape}, dtype={dtype}, nnz={self.nnz})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the file itself."""
        return MappedRows, (self.path, self.name)

    # reading -----------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> SparseTensor:
        if isinstance(index, int):
            row = self._gathered(torch.tensor([index], device=HOST))[0]
            assert isinstance(row, SparseTensor)
            return row
        if isinstance(index, slice):
            return self._gathered(torch.arange(*index.indices(len(self)), device=HOST))
        return self._gathered(_as_places(index, len(self)))

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A batch for a data loader, read at once."""
        return Batch([self[list(indices)]], in_tuples=False)

    def _gathered(self, rows: torch.Tensor) -> SparseTensor:
        rows = self._counted(rows)
        pos, crd, _ = self._opened()
        begin, end = pos[rows].to(torch.int64), pos[rows + 1].to(torch.int64)
        wrong = (begin < 0) | (end < begin) | (end > crd.numel())
        if bool(wrong.any()):
            row = int(rows[wrong][0])
            raise FileError(
                f"{self.path} is damaged: row {row} is said to go from entry {int(pos[row])} to "
                f"{int(pos[row + 1])}, of {crd.numel()}"
            )
        found = self._copied(rows, begin, end)
        counts = found.pattern.counts
        pointers, places = found.pattern.pos[1], found.pattern.crd[1]
        assert pointers is not None and places is not None
        try:
            check_coordinates("crd1", places, 1, self.shape[1])
        except IndexRangeError as error:
            add_note(error, f"in the file {self.path}")
            raise
        if not is_sorted_below(pointers, places):
            raise FileError(f"{self.path} is damaged: the columns of a row are not in order, or one repeats")
        dtype = dtype_of_type(index_type(found.pattern.shape, counts[1]))
        pattern = Pattern(
            found.pattern.format,
            found.pattern.shape,
            (None, pointers.to(dtype)),
            (None, places.to(dtype)),
            counts,
        )
        return SparseTensor(Storage(pattern, found.values))

    def _counted(self, rows: torch.Tensor) -> torch.Tensor:
        """``rows`` counted from the beginning."""
        size = len(self)
        if rows.numel():
            least, most = (int(value) for value in torch.aminmax(rows))
            if least < -size or most >= size:
                raise IndexRangeError(
                    f"row {most if most >= size else least} is not there: {self.path.name} has {size} rows"
                )
            if least < 0:
                rows = rows % size
        return rows

    def _copied(self, rows: torch.Tensor, begin: torch.Tensor, end: torch.Tensor) -> Storage:
        pos, crd, values = self._opened()
        form, columns = as_format("csr", 2), self.shape[1]
        if pos.dtype == crd.dtype and values.dim() == 1:
            whole = Pattern(form, tuple(self.shape), (None, pos), (None, crd), (len(self), crd.numel()))
            found = rows_of(Storage(whole, values), rows)
            if found is not None:
                return found
        lengths = end - begin
        pointers = torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])
        index = torch.repeat_interleave(begin - pointers[:-1], lengths) + torch.arange(
            int(pointers[-1]), device=HOST
        )
        counts = (rows.numel(), index.numel())
        pattern = Pattern(form, (rows.numel(), columns), (None, pointers), (None, crd[index]), counts)
        picked = values[index]
        return Storage(pattern, picked if picked.dim() == 1 else torch.view_as_complex(picked))

    # the file ----------------------------------------------------------------------------------------

    def _check_places(self) -> None:
        """The arrays must be those of a csr matrix, and fit together."""
        places = self._places
        if set(places) != {"values", "pos1", "crd1"}:
            raise FileError(f"{self.path}: a csr matrix has values, pos1 and crd1, not {', '.join(places)}")
        for part in ("pos1", "crd1"):
            if places[part].dtype not in (torch.int32, torch.int64):
                raise FileError(f"{self.path}: {part} is {places[part].dtype}, not int32 or int64")
        kept = self.dtype.to_real() if self.dtype.is_complex else self.dtype
        per_value = 2 if self.dtype.is_complex else 1
        if places["values"].dtype != kept:
            raise FileError(f"{self.path}: its values are {places['values'].dtype}, not {self.dtype}")
        if places["values"].count != per_value * places["crd1"].count:
            raise FileError(
                f"{self.path}: there are {places['values'].count // per_value} values, but "
                f"{places['crd1'].count} coordinates"
            )
        if places["pos1"].count != len(self) + 1:
            raise FileError(f"{self.path}: {len(self)} rows have {places['pos1'].count} pointers")

    def _opened(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if self._arrays is None:
            if any(place.end > self.path.stat().st_size for place in self._places.values()):
                raise FileError(f"{self.path} was cut off after it was opened")
            with self.path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            pos, crd, values = (
                mapped_array(mapped, self._places[part]) for part in ("pos1", "crd1", "values")
            )
            if self.dtype.is_complex:
                pairs = values.reshape(-1, 2)
                values = torch.view_as_complex(pairs) if is_aligned(pairs, 2) else pairs
            self._arrays = pos, crd, values
        return self._arrays


def _as_places(index: Any, size: int) -> torch.Tensor:
    """Lists, arrays and tensors of rows, or a mask of them, as a list of int64."""
    try:
        found = torch.as_tensor(index, device=HOST)
    except (TypeError, ValueError, RuntimeError):
        raise OperandError(
            f"rows are asked for by number, slice or a list of numbers, not {index!r}"
        ) from None
    if found.dtype == torch.bool:
        if found.shape != (size,):
            raise IndexRangeError(f"a mask of shape {tuple(found.shape)} does not fit {size} rows")
        return torch.nonzero(found).reshape(-1)
    if found.numel() == 0:
        return torch.empty(0, dtype=torch.int64, device=HOST)
    if found.dim() != 1 or found.is_floating_point() or found.is_complex():
        raise OperandError(
            f"rows are asked for by a list of whole numbers, not {found.dtype} {found.dim()}-d"
        )
    return found.to(torch.int64)
