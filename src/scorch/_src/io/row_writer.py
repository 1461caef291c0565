"""Writes a csr matrix to a file some rows at a time, without ever holding all of it.

    header | values of all chunks | columns of all chunks | pointers

Values go to their place in the file at once. Columns and pointers wait in files without a name, and follow
when the writer is closed; then the header is written, into room that was left for it, and the file gets its
name. Bytes that bring an array to a multiple of its element are an array of their own: the file format has no
gaps.
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

from scorch._src.compiler.pipeline import index_type
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.formats import Format
from scorch._src.io.archive import format_facts
from scorch._src.io.replacement import Replacement, resolve_target
from scorch._src.io.safetensors_header import entry
from scorch._src.tensor.create.check import as_shape
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.interop.torch_layouts import from_scipy, is_scipy
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, DtypeError, FileError, MissingFileError, ShapeError

ROOM = 4096  # bytes before the first array
CHUNK = 1 << 20


class RowWriter:
    """Writes rows to a ``.safetensors`` file, which ``MappedRows`` and ``scorch.load`` read.

    The file appears when the writer is closed; a ``with`` that is left by an error leaves none. ``columns``
    and ``dtype`` are those of the first rows, if they are not given.

    >>> import scorch, tempfile
    >>> from scorch.utils.data import MappedRows, RowWriter
    >>> folder = tempfile.mkdtemp()
    >>> with RowWriter(f"{folder}/x.safetensors") as writer:
    ...     for _ in range(3):
    ...         writer.append(scorch.eye(4, format="csr"))
    >>> MappedRows(f"{folder}/x.safetensors")[[0, 5, 11]].to_dense().argmax(1)
    tensor([0, 1, 3])
    """

    def __init__(
        self, path: str | os.PathLike[str], *, columns: int | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self.path = resolve_target(Path(path))
        if self.path.suffix != ".safetensors":
            raise FileError(f"rows are written to a .safetensors file, not to {self.path.name!r}")
        if not self.path.parent.is_dir():
            raise MissingFileError(f"{path} cannot be written: there is no folder {self.path.parent}")
        self.columns = None if columns is None else as_shape("columns", [columns])[0]
        self.dtype = dtype
        self.rows = 0
        self.nnz = 0
        folder = self.path.parent
        self._crd, self._pos = (_nameless(folder) for _ in range(2))
        self._replacement = Replacement(self.path)
        self._file: IO[bytes] | None = self._replacement.fresh.open("wb")
        self._file.write(bytes(ROOM))
        self._pos.write(bytes(8))

    def append(self, rows: Any) -> None:
        """Add the rows of a matrix, sparse or dense, of torch, SciPy or Scorch; or one row."""
        chunk = _as_csr(rows)
        file = self._open_file()
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
        file.write(_bytes(chunk.storage.values))
        self._crd.write(_bytes(crd.to(self._index_dtype())))
        self._pos.write(_bytes(pos[1:].to(torch.int64) + self.nnz))
        self.rows += chunk.shape[0]
        self.nnz += crd.numel()

    def close(self) -> None:
        """Finish the file; nothing can be added then."""
        if self._file is None:
            return
        if self.columns is None or self.dtype is None:
            self.discard()
            raise ArgumentError(
                "no rows were added, so how long they are is not known: say RowWriter(path, columns=, dtype=)"
            )
        try:
            self._finish(self._file, self.columns, self.dtype)
        finally:
            self.discard()

    def discard(self) -> None:
        """Leave nothing."""
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

    def _open_file(self) -> IO[bytes]:
        if self._file is None:
            raise ArgumentError(f"the writer of {self.path.name} is closed; no rows can be added")
        return self._file

    def _index_dtype(self) -> torch.dtype:
        """Of columns, which are written before the number of rows and entries is known."""
        return dtype_of_type(index_type([self.columns or 0]))

    def _finish(self, file: IO[bytes], columns: int, dtype: torch.dtype) -> None:
        pointer = dtype_of_type(index_type([self.rows, columns], self.nnz))
        kept = dtype.to_real() if dtype.is_complex else dtype
        header: dict[str, Any] = {"__metadata__": {"scorch": json.dumps({"": self._facts(columns, dtype)})}}
        header["values"] = entry(
            kept, [self.nnz, 2] if dtype.is_complex else [self.nnz], 0, file.tell() - ROOM
        )
        for name, source, array in (("crd1", self._crd, self._index_dtype()), ("pos1", self._pos, pointer)):
            begin = _pad(file, header, array.itemsize)
            source.seek(0)
            if name == "pos1" and pointer != torch.int64:
                while block := source.read(CHUNK):
                    file.write(_bytes(torch.frombuffer(bytearray(block), dtype=torch.int64).to(pointer)))
            else:
                shutil.copyfileobj(source, file, CHUNK)
            end = file.tell() - ROOM
            header[name] = entry(array, [(end - begin) // array.itemsize], begin, end)
        text = json.dumps(header).encode()
        file.seek(0)
        file.write(struct.pack("<Q", ROOM - 8) + text.ljust(ROOM - 8))
        file.close()
        self._replacement.finish()

    def _facts(self, columns: int, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "shape": [self.rows, columns],
            "dtype": str(dtype).removeprefix("torch."),
            "format": format_facts(Format("csr")),
            "arrays": {part: part for part in ("values", "pos1", "crd1")},
        }


def _pad(file: IO[bytes], header: dict[str, Any], size: int) -> int:
    """Where an array of elements of ``size`` bytes begins, after bytes that bring it there."""
    here = file.tell() - ROOM
    gap = -here % size
    if gap:
        file.write(bytes(gap))
        header[f"padding{here}"] = entry(torch.uint8, [gap], here, here + gap)
    return here + gap


def _nameless(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def _bytes(array: torch.Tensor) -> Any:
    real = torch.view_as_real(array) if array.is_complex() else array
    return real.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _as_csr(rows: Any) -> SparseTensor:
    found = from_scipy(rows) if is_scipy(rows) else rows
    if isinstance(found, torch.Tensor) and found.dim() == 1:
        found = found.to_dense() if found.layout != torch.strided else found
        found = found.unsqueeze(0)
    if not isinstance(found, torch.Tensor) or found.dim() != 2:
        shape = tuple(getattr(found, "shape", ()))
        raise ShapeError(f"rows are those of a matrix, not of a {type(rows).__name__} of shape {shape}")
    made = from_torch(found, format="csr")
    assert isinstance(made, SparseTensor)
    return made
