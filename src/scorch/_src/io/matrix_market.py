"""Matrix Market files (``.mtx``): matrices as text, by entries or as full arrays.

The header says how: ``%%MatrixMarket matrix coordinate real symmetric``. What it has no word for, dtype and
format, Scorch writes into a comment, which other readers skip.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.io.archive import describe_tensor
from scorch._src.io.text_table import (
    NOTE_PREFIX,
    Table,
    convert_to_noted,
    find_note,
    format_entries,
    format_numbers,
    print_rows,
    read_bytes,
    split_header,
    write_text,
)
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.check import MAX_SIZE
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError, ShapeError

_FIELDS = {"real": 1, "double": 1, "integer": 1, "complex": 2, "pattern": 0}  # numbers per value
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


@dataclass(frozen=True)
class Header:
    """The first line of a file."""

    kind: str
    field: str
    symmetry: str


def read_matrix_market(path: Path, format: str | Format | None = None) -> SparseTensor | torch.Tensor:
    """Read the matrix in ``path``; without ``format`` as it was saved, ``coo`` if that is not noted."""
    data = read_bytes(path)
    header = _header(path, data)
    comments, begin = split_header(data, b"%")
    note = find_note(path, comments, "%")
    end = data.find(b"\n", begin)
    end = len(data) if end < 0 else end + 1
    sizes = _sizes(path, data, begin, end, 3 if header.kind == "coordinate" else 2)
    table = Table(path, data, end)
    format = note.format if format is None else format
    if header.kind == "array":
        dense = _read_array(header, table, sizes)
        dense = convert_to_noted(path, dense, note.dtype)
        return dense if format is None else from_torch(dense, format)
    crd, values = _read_entries(header, table, sizes)
    values = convert_to_noted(path, values, note.dtype)
    return from_coordinates(crd, values, tuple(sizes[:2]), format)


def write_matrix_market(path: Path, tensor: torch.Tensor) -> None:
    """Write a matrix: a sparse one by its stored entries, a dense one as an array."""
    if tensor.dim() != 2:
        raise ShapeError(
            f"Matrix Market files store matrices, but this tensor has shape {tuple(tensor.shape)}; save it "
            "as .tns, .npz or .safetensors"
        )
    field = "complex" if tensor.is_complex() else "real" if tensor.is_floating_point() else "integer"
    description = describe_tensor(tensor)
    del description["shape"]
    rows, columns = tensor.shape
    is_sparse = isinstance(tensor, SparseTensor)
    head = f"%%MatrixMarket matrix {'coordinate' if is_sparse else 'array'} {field} general"
    note = f"% {NOTE_PREFIX} {json.dumps(description)}"
    if isinstance(tensor, SparseTensor):
        lines = list(format_entries(tensor))
        write_text(path, [head, note, f"{rows} {columns} {len(lines)}", *lines])
    else:
        word, numbers = format_numbers(tensor.detach().t().reshape(-1))
        write_text(path, [head, note, f"{rows} {columns}", *print_rows(numbers, word)])


# the header ------------------------------------------------------------------------------------------


def _header(path: Path, data: bytes) -> Header:
    first = data[: data.find(b"\n") if b"\n" in data else len(data)].decode("utf-8", "replace").strip()
    words = first.lower().split()
    if len(words) != 5 or words[0] != "%%matrixmarket" or words[1] != "matrix":
        shown = repr(first[:80]) if first[:80].isprintable() else "binary data"
        raise FileError(
            f"{path}, line 1: {shown} is not a Matrix Market header such as "
            "'%%MatrixMarket matrix coordinate real general'"
        )
    for word, allowed in ((words[2], ("coordinate", "array")), (words[3], _FIELDS), (words[4], _SYMMETRIES)):
        if word not in allowed:
            raise FileError(f"{path}, line 1: {word!r} must be one of {', '.join(allowed)}")
    if words[2] == "array" and words[3] == "pattern":
        raise FileError(f"{path}, line 1: an array has values, so its field cannot be pattern")
    return Header(*words[2:])


def _sizes(path: Path, data: bytes, begin: int, end: int, count: int) -> list[int]:
    line = data.count(b"\n", 0, begin) + 1
    text = data[begin:end].decode("utf-8", "replace").strip()
    words = text.split()
    if len(words) != count or not all(word.isdecimal() for word in words):
        expected = "rows, columns and the number of entries" if count == 3 else "rows and columns"
        raise FileError(f"{path}, line {line}: {text[:80]!r} should be {expected}")
    for word in words:
        if len(word) > len(str(MAX_SIZE)) or int(word) > MAX_SIZE:
            raise FileError(
                f"{path}, line {line}: {word[:80]} is too large; the largest integer is 2**63 - 1"
            )
    return [int(word) for word in words]


# entries ---------------------------------------------------------------------------------------------


def _read_entries(header: Header, table: Table, sizes: list[int]) -> tuple[list[torch.Tensor], torch.Tensor]:
    rows, columns, count = sizes
    _check_square(header, table, rows, columns)
    numbers_per_value = _FIELDS[header.field]
    words = f"{header.field} entries have {2 + numbers_per_value}: row, column and value"
    is_integer = header.field in ("integer", "pattern")
    crd, values = table.columns((rows, columns), numbers_per_value, is_integer, ("row", "column"), words)
    if len(values) != count:
        raise FileError(f"{table.path} has {len(values)} entries, but its header says {count}")
    if not numbers_per_value:
        values = torch.ones(count, device=crd[0].device)
    return _add_mirrored(header, table, crd, values)


def _check_square(header: Header, table: Table, rows: int, columns: int) -> None:
    if header.symmetry != "general" and rows != columns:
        raise FileError(
            f"{table.path}: a {header.symmetry} matrix must be square, but has {rows} rows and {columns} "
            "columns"
        )


def _add_mirrored(
    header: Header, table: Table, crd: list[torch.Tensor], values: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Add the other half of a symmetric matrix, of which files hold one."""
    if header.symmetry == "general":
        return crd, values
    i, j = crd
    is_off_diagonal = i != j
    if header.symmetry != "symmetric":
        wrong = (~is_off_diagonal & (_mirror(header, values) != values)).nonzero()
        if wrong.numel():
            line = table.row_line(int(wrong[0]))
            raise FileError(
                f"{table.path}, line {line}: a {header.symmetry} matrix cannot have this on its diagonal"
            )
    if bool(is_off_diagonal.all()):
        return [torch.cat([i, j]), torch.cat([j, i])], torch.cat([values, _mirror(header, values)])
    off_diagonal = is_off_diagonal.nonzero().reshape(-1)
    other = _mirror(header, values[off_diagonal])
    return [torch.cat([i, j[off_diagonal]]), torch.cat([j, i[off_diagonal]])], torch.cat([values, other])


def _mirror(header: Header, values: torch.Tensor) -> torch.Tensor:
    match header.symmetry:
        case "skew-symmetric":
            return -values
        case "hermitian":
            return values.conj().resolve_conj()
    return values


# arrays ----------------------------------------------------------------------------------------------


def _read_array(header: Header, table: Table, sizes: list[int]) -> torch.Tensor:
    """Read all elements, column by column; the lower half alone where the matrix is symmetric."""
    rows, columns = sizes
    width = _FIELDS[header.field]
    half = header.symmetry != "general"
    _check_square(header, table, rows, columns)
    skip = 1 if header.symmetry == "skew-symmetric" else 0
    count = (rows * (rows + 1) // 2 - rows * skip) if half else rows * columns
    words = f"an array of {header.field} values has {width} a line"
    _, values = table.columns((), width, header.field == "integer", (), words)
    if len(values) != count:
        raise FileError(f"{table.path} has {len(values)} values, but its header says {count}")
    if not half:
        return values.reshape(columns, rows).t().contiguous()
    j, i = (torch.from_numpy(axis) for axis in np.triu_indices(rows, skip))
    dense = torch.zeros(rows, columns, dtype=values.dtype, device=values.device)
    dense[j, i] = _mirror(header, values)
    dense[i, j] = values
    return dense
