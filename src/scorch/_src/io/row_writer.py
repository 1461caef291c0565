"""Write a csr matrix to a file some rows at a time, without ever holding all of it.

    header | values of all chunks | columns of all chunks | pointers

Values are written to the file at once. Columns and pointers are buffered in unnamed files, and follow when
the writer is closed; then the header is written, into space reserved for it, and the file gets its name.
Padding that aligns an array is an array of its own: the file format has no gaps.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import IO, Any

import torch

from scorch._src.devices import HOST
from scorch._src.formats import Format
from scorch._src.io.archive import describe_format
from scorch._src.io.replacement import Replacement, resolve_target
from scorch._src.io.safetensors_header import entry
from scorch._src.name_hints import suggests_keywords
from scorch._src.tensor.create.build import index_dtype
from scorch._src.tensor.create.check import as_shape
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.entries import as_sparse
from scorch._src.tensor.interop.torch_layouts import from_scipy, is_scipy
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, DtypeError, FileError, MissingFileError, ShapeError, kind_of

HEADER_BYTES = 4096  # before the first array
COPY_BYTES = 1 << 20


class RowWriter:
    """Write rows, batch by batch, to a ``.safetensors`` file for ``MemmapSparseDataset`` and ``scorch.load``.

    The file appears when the writer is closed; if the ``with`` block raises, no file is left behind.

    Args:
        path: the file.
        columns: the number of columns; that of the first rows without it.
        dtype: the dtype of the values; that of the first rows without it.

    Example:

        >>> import scorch, tempfile
        >>> from scorch.utils.data import MemmapSparseDataset, RowWriter
        >>> folder = tempfile.mkdtemp()
        >>> with RowWriter(f"{folder}/x.safetensors") as writer:
        ...     for _ in range(3):
        ...         writer.append(scorch.eye(4, format="csr"))
        >>> MemmapSparseDataset(f"{folder}/x.safetensors")[[0, 5, 11]].to_dense().argmax(1)
        tensor([0, 1, 3])
    """

    @suggests_keywords
    def __init__(
        self, path: str | os.PathLike[str], *, columns: int | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self.path = resolve_target(Path(path))
        if self.path.suffix != ".safetensors":
            raise FileError(f"rows must be written to a .safetensors file, but got {self.path.name!r}")
        if not self.path.parent.is_dir():
            raise MissingFileError(f"{path} cannot be written: no such directory: {self.path.parent}")
        self.columns = None if columns is None else as_shape("columns", [columns])[0]
        self.dtype = dtype
        self.rows = 0
        self.nnz = 0
        self._crd, self._pos = (_unnamed_file(self.path.parent) for _ in range(2))
        self._replacement = Replacement(self.path)
        self._file: IO[bytes] | None = self._replacement.new_path.open("wb")
        self._file.write(bytes(HEADER_BYTES))
        self._pos.write(bytes(8))

    def append(self, rows: Any) -> None:
        """Add the rows of a matrix, sparse or dense, of torch, SciPy or Scorch; or one row."""
        chunk = _as_csr(rows)
        if self._file is None:
            raise ArgumentError(f"the writer of {self.path.name} is closed; no rows can be added")
        columns, dtype = chunk.shape[1], chunk.dtype
        self.columns = columns if self.columns is None else self.columns
        self.dtype = dtype if self.dtype is None else self.dtype
        if columns != self.columns:
            raise ShapeError(f"rows of {columns} columns cannot be added to rows of {self.columns}")
        if dtype != self.dtype:
            raise DtypeError(f"rows of {dtype} cannot be added to rows of {self.dtype}; convert them first")
        pattern = chunk.storage.pattern
        pos, crd = pattern.pos[1], pattern.crd[1]
        assert pos is not None and crd is not None
        self._file.write(_bytes(chunk.storage.values))
        self._crd.write(_bytes(crd.to(self._index_dtype())))
        self._pos.write(_bytes(pos[1:].to(torch.int64) + self.nnz))
        self.rows += chunk.shape[0]
        self.nnz += crd.numel()

    def close(self) -> None:
        """Finish the file; nothing can be appended then."""
        if self._file is None:
            return
        if self.columns is None or self.dtype is None:
            self.discard()
            raise ArgumentError(
                "no rows were added, so the number of columns is unknown: pass RowWriter(path, "
                "columns=, dtype=)"
            )
        try:
            self._finish(self._file, self.columns, self.dtype)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove everything that was written."""
        if self._file is not None:
            for file in (self._file, self._crd, self._pos):
                file.close()
            self._file = None
            self._replacement.discard()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    # the file ----------------------------------------------------------------------------------------

    def _index_dtype(self) -> torch.dtype:
        """Return the dtype of columns, which are written before the number of rows and entries is known."""
        return index_dtype([self.columns or 0])

    def _finish(self, file: IO[bytes], columns: int, dtype: torch.dtype) -> None:
        pointer = index_dtype([self.rows, columns], [self.nnz])
        value_dtype = dtype.to_real() if dtype.is_complex else dtype
        description = {
            "shape": [self.rows, columns],
            "dtype": str(dtype).removeprefix("torch."),
            "format": describe_format(Format("csr")),
            "arrays": {part: part for part in ("values", "pos1", "crd1")},
        }
        header: dict[str, Any] = {"__metadata__": {"scorch": json.dumps({"": description})}}
        header["values"] = entry(
            value_dtype, [self.nnz, 2] if dtype.is_complex else [self.nnz], 0, file.tell() - HEADER_BYTES
        )
        for name, source, array in (("crd1", self._crd, self._index_dtype()), ("pos1", self._pos, pointer)):
            begin = _pad(file, header, array.itemsize)
            source.seek(0)
            if name == "pos1" and pointer != torch.int64:
                while block := source.read(COPY_BYTES):
                    file.write(_bytes(torch.frombuffer(bytearray(block), dtype=torch.int64).to(pointer)))
            else:
                shutil.copyfileobj(source, file, COPY_BYTES)
            end = file.tell() - HEADER_BYTES
            header[name] = entry(array, [(end - begin) // array.itemsize], begin, end)
        text = json.dumps(header).encode()
        file.seek(0)
        file.write(struct.pack("<Q", HEADER_BYTES - 8) + text.ljust(HEADER_BYTES - 8))
        file.close()
        self._replacement.finish()


def _pad(file: IO[bytes], header: dict[str, Any], size: int) -> int:
    """Pad the file to a multiple of ``size`` bytes, and return where the next array begins."""
    position = file.tell() - HEADER_BYTES
    gap = -position % size
    if gap:
        file.write(bytes(gap))
        header[f"padding{position}"] = entry(torch.uint8, [gap], position, position + gap)
    return position + gap


def _unnamed_file(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def _bytes(array: torch.Tensor) -> Any:
    real = torch.view_as_real(array) if array.is_complex() else array
    return real.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _as_csr(rows: Any) -> SparseTensor:
    matrix = from_scipy(rows) if is_scipy(rows) else rows
    if isinstance(matrix, torch.Tensor) and matrix.dim() == 1:
        matrix = matrix.to_dense() if matrix.layout != torch.strided else matrix
        matrix = matrix.unsqueeze(0)
    if not isinstance(matrix, torch.Tensor) or matrix.dim() != 2:
        shape = tuple(getattr(matrix, "shape", ()))
        raise ShapeError(f"expected the rows of a matrix, but got {kind_of(rows)} of shape {shape}")
    return as_sparse(from_torch(matrix.to(HOST), format="csr"))
