"""FROSTT files (``.tns``): tensors of any order as text, one entry a line, coordinates from 1.

The file format has no header: sizes are those of the largest coordinates, values are float64. Scorch writes
shape, dtype and format into a comment, so that its own files come back as they were.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from scorch.errors import FileError, ShapeError
from scorch.formats import Format
from scorch.tensor.arrays import as_dtype, as_stored_format, facts_of
from scorch.tensor.build import from_coordinates
from scorch.tensor.check import as_shape
from scorch.tensor.coordinates import entries
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.text import (
    NOTE,
    Table,
    check_coordinate_column,
    format_numbers,
    note_in,
    print_rows,
    read_bytes,
    split_header,
    write_text,
)


def read_frostt(path: Path, format: str | Format | None = None) -> SparseTensor | torch.Tensor:
    """The tensor in ``path``; without ``format`` as it was saved, ``coo`` if that is not said."""
    data = read_bytes(path)
    comments, begin = split_header(data, b"#")
    note = note_in(path, comments, "#")
    dtype = as_dtype(note["dtype"]) if "dtype" in note else torch.float64
    table = Table(path, data, begin)
    parts = 2 if dtype.is_complex else 1
    shape = as_shape("shape", note["shape"]) if "shape" in note else None
    order = _order(table) if shape is None else len(shape)
    table.check_widths(order + parts, f"the entries of this file have {order} coordinates and a value")
    whole = not (dtype.is_floating_point or dtype.is_complex)
    numbers = table.read(np.int64 if whole else np.float64).reshape(table.rows, order + parts)
    if shape is None:
        shape = tuple(max(1, int(size)) for size in numbers[:, :order].max(0))
    for dim in range(order):
        check_coordinate_column(table, numbers[:, dim], shape[dim], f"coordinate {dim + 1},")
    crd = [torch.from_numpy(numbers[:, dim].astype(np.int64) - 1) for dim in range(order)]
    values = torch.from_numpy(numbers[:, order:])
    values = torch.complex(values[:, 0], values[:, 1]) if dtype.is_complex else values.reshape(-1)
    if format is None and "format" in note:
        format = as_stored_format(note["format"])
    return from_coordinates(crd, values.to(dtype), shape, format)


def write_frostt(path: Path, tensor: torch.Tensor) -> None:
    """Write the stored entries of a sparse tensor."""
    if not isinstance(tensor, SparseTensor) or tensor.dim() == 0:
        raise ShapeError(
            "FROSTT files hold sparse tensors with dimensions; make one with "
            "scorch.from_torch(tensor), or save it as .npz, .safetensors or .pt"
        )
    crd, values = entries(tensor.storage)
    word, numbers = format_numbers(values)
    places = [(array + 1).tolist() for array in crd]
    lines = print_rows([*places, *numbers], "%d " * len(places) + word)
    write_text(path, [f"# {NOTE} {json.dumps(facts_of(tensor))}", *lines])


def _order(table: Table) -> int:
    """As many dimensions as the first entry has numbers, less its value."""
    widths = table.widths[table.widths > 0]
    if not widths.size:
        raise FileError(f"{table.path} has no entries, so nobody knows the sizes of its tensor")
    if widths[0] < 2:
        line = table.row_line(0)
        raise FileError(f"{table.path}, line {line}: an entry has at least one coordinate and a value")
    return int(widths[0]) - 1
