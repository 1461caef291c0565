"""FROSTT files (``.tns``): tensors with any number of dimensions as text, one entry per line, one-based.

The file format has no header: sizes are those of the largest coordinates unless the caller passes them, and
values are float64. Scorch writes shape, dtype and format into a comment, so that its own files come back as
they were.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from scorch._src.formats import Format
from scorch._src.io.archive import describe_tensor
from scorch._src.io.text_table import (
    NOTE_PREFIX,
    UNKNOWN_SIZE,
    Table,
    convert_to_noted,
    find_note,
    format_entries,
    read_bytes,
    split_header,
    write_text,
)
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError, ShapeError


def read_frostt(
    path: Path, format: str | Format | None = None, shape: Sequence[int] | None = None
) -> SparseTensor | torch.Tensor:
    """Read the tensor in ``path``; without ``format`` as it was saved, ``coo`` if that is not noted."""
    data = read_bytes(path)
    comments, begin = split_header(data, b"#")
    note = find_note(path, comments, "#")
    dtype = note.dtype or torch.float64
    table = Table(path, data, begin)
    numbers_per_value = 2 if dtype.is_complex else 1
    known = note.shape if shape is None else _check_shape(shape)
    order = _order(table) if known is None or table.rows else len(known)
    if shape is not None and len(shape) != order:
        raise ShapeError(
            f"shape must have a size for each of the {order} coordinates of {path}, but got {tuple(shape)}"
        )
    sizes = (UNKNOWN_SIZE,) * order if known is None else known
    crd, values = table.columns(
        sizes,
        numbers_per_value,
        not (dtype.is_floating_point or dtype.is_complex),
        [f"dimension {dim}, coordinate" for dim in range(len(sizes))],
        f"the entries of this file have {len(sizes)} coordinates and a value",
    )
    final = known or tuple(int(column.max()) + 1 for column in crd)
    values = convert_to_noted(path, values, dtype)
    return from_coordinates(crd, values, final, note.format if format is None else format)


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if (
        not isinstance(shape, (tuple, list))
        or not shape
        or not all(isinstance(size, int) and size >= 0 for size in shape)
    ):
        raise ShapeError(f"shape must be a tuple of sizes, one for each coordinate, but got {shape!r}")
    return tuple(shape)


def write_frostt(path: Path, tensor: torch.Tensor) -> None:
    """Write the stored entries of a sparse tensor."""
    if not isinstance(tensor, SparseTensor) or tensor.dim() == 0:
        raise ShapeError(
            "FROSTT files store sparse tensors with at least one dimension; create one with "
            "scorch.from_torch(tensor), or save it as .npz, .safetensors or .pt"
        )
    write_text(path, [f"# {NOTE_PREFIX} {json.dumps(describe_tensor(tensor))}", *format_entries(tensor)])


def _order(table: Table) -> int:
    """Return the dimensions of the first entry: its numbers, less its value."""
    first = table.content[table.begin :].lstrip().split(b"\n", 1)[0].split()
    if not first:
        raise FileError(f"{table.path} has no entries, so the shape of its tensor is unknown")
    if len(first) < 2:
        line = table.row_line(0) if table.rows else table.line(0)  # words that are no numbers make no row
        raise FileError(f"{table.path}, line {line}: an entry has at least one coordinate and a value")
    return len(first) - 1
