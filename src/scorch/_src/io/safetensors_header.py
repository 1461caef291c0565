"""The header of a ``.safetensors`` file: the names and locations of its arrays.

Eight bytes say how long the header is, the header is JSON, then the arrays follow one after the other.
"""

from __future__ import annotations

import json
import mmap
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch.errors import FileError, MissingFileError

MAX_HEADER_BYTES = 100_000_000
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


@dataclass(frozen=True)
class ArrayLocation:
    """Where an array lies in a file."""

    dtype: torch.dtype
    count: int
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.count * self.dtype.itemsize


def entry(dtype: torch.dtype, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """Return the header entry of an array; ``begin`` and ``end`` count from the end of the header."""
    word = next(name for name, torch_dtype in DTYPES.items() if torch_dtype == dtype)
    return {"dtype": word, "shape": shape, "data_offsets": [begin, end]}


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a file, and where its arrays begin."""
    if not path.is_file():
        raise MissingFileError(f"no such file: {path}")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER_BYTES
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise FileError(f"{path} is not a complete .safetensors file: it has no header")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise FileError(f"{path} is not a .safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise FileError(f"{path} is not a .safetensors file: its header lists no arrays")
    return header, 8 + length


def find_description(path: Path, header: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Find Scorch's description of the tensor ``name``."""
    text = (header.get("__metadata__") or {}).get("scorch")
    if text is None:
        raise FileError(f"{path} has no sparse tensors: write them with scorch.save or RowWriter")
    try:
        descriptions = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise FileError(f"{path}: its metadata was not written by Scorch") from None
    if not isinstance(descriptions, dict) or not isinstance(descriptions.get(name), dict):
        names = ", ".join(repr(key) for key in descriptions if key) if isinstance(descriptions, dict) else ""
        problem = f"no matrix named {name!r}" if name else "several tensors: pass the name of one"
        raise FileError(f"{path} has {problem}" + (f"; choose from {names}" if names else ""))
    description: Mapping[str, Any] = descriptions[name]
    return description


def locate_array(path: Path, header: Mapping[str, Any], key: str, begin: int) -> ArrayLocation:
    """Locate the array ``key``, if it lies inside the file."""
    array_entry = header[key]
    dtype, (start, stop) = DTYPES.get(array_entry["dtype"]), array_entry["data_offsets"]
    if dtype is None or not all(type(number) is int for number in (start, stop)):
        raise FileError(f"{path}: the array {key!r} was not written by Scorch")
    location = ArrayLocation(dtype, (stop - start) // dtype.itemsize, begin + start)
    if start < 0 or location.offset % dtype.itemsize or location.count < 0 or location.end != begin + stop:
        raise FileError(f"{path}: the array {key!r} was not written by Scorch")
    if begin + stop > path.stat().st_size:
        raise FileError(
            f"{path} is not a complete .safetensors file: {key!r} ends beyond the end of the file"
        )
    return location


def is_aligned(array: torch.Tensor, elements: int = 1) -> bool:
    """Whether an array begins at a multiple of so many of its elements.

    In a file arrays follow each other without gaps. Compiled code, also that of torch, crashes on complex
    numbers that are not aligned.
    """
    return array.data_ptr() % (elements * array.element_size()) == 0


def align(array: torch.Tensor, elements: int = 1) -> torch.Tensor:
    """Return ``array``, copied where it is not aligned."""
    return array if is_aligned(array, elements) else array.clone()


def map_array(memory: mmap.mmap, location: ArrayLocation) -> torch.Tensor:
    """Return the array at ``location``, read-only."""
    if not location.count:
        return torch.empty(0, dtype=location.dtype, device=HOST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is read-only, and never written
        return align(
            torch.frombuffer(memory, dtype=location.dtype, count=location.count, offset=location.offset)
        )
