"""FROSTT files (``.tns``): tensors of any order as text, one entry a line, coordinates from 1.

The file format has no header: sizes are those of the largest coordinates, values are float64. Scorch writes
shape, dtype and format into a comment, so that its own files come back as they were.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from scorch._src.formats import Format
from scorch._src.io.archive import facts_of
from scorch._src.io.text_table import (
    NOTE,
    UNKNOWN,
    Table,
    as_noted,
    entry_lines,
    note_in,
    read_bytes,
    split_header,
    write_text,
)
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError, ShapeError


def read_frostt(path: Path, format: str | Format | None = None) -> SparseTensor | torch.Tensor:
    """The tensor in ``path``; without ``format`` as it was saved, ``coo`` if that is not said."""
    data = read_bytes(path)
    comments, begin = split_header(data, b"#")
    note = note_in(path, comments, "#")
    dtype = note.dtype or torch.float64
    table = Table(path, data, begin)
    parts = 2 if dtype.is_complex else 1
    sizes = (UNKNOWN,) * _order(table) if note.shape is None else note.shape
    crd, values = table.columns(
        sizes,
        parts,
        not (dtype.is_floating_point or dtype.is_complex),
        [f"coordinate {dim + 1}," for dim in range(len(sizes))],
        f"the entries of this file have {len(sizes)} coordinates and a value",
    )
    shape = note.shape or tuple(int(column.max()) + 1 for column in crd)
    values = as_noted(path, values, dtype)
    return from_coordinates(crd, values, shape, note.format if format is None else format)


def write_frostt(path: Path, tensor: torch.Tensor) -> None:
    """Write the stored entries of a sparse tensor."""
    if not isinstance(tensor, SparseTensor) or tensor.dim() == 0:
        raise ShapeError(
            "FROSTT files hold sparse tensors with dimensions; make one with "
            "scorch.from_torch(tensor), or save it as .npz, .safetensors or .pt"
        )
    write_text(path, [f"# {NOTE} {json.dumps(facts_of(tensor))}", *entry_lines(tensor)])


def _order(table: Table) -> int:
    """As many dimensions as the first entry has numbers, less its value."""
    first = table.whole[table.begin :].lstrip().split(b"\n", 1)[0].split()
    if not first:
        raise FileError(f"{table.path} has no entries, so nobody knows the sizes of its tensor")
    if len(first) < 2:
        line = table.row_line(0) if table.rows else table.line(0)  # signs that are no numbers make no row
        raise FileError(f"{table.path}, line {line}: an entry has at least one coordinate and a value")
    return len(first) - 1
