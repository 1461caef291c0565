"""The header of a ``.safetensors`` file: which arrays it has, and where they are.

Eight bytes say how long the header is, the header is JSON, then the arrays follow one after the other.
"""

from __future__ import annotations

import json
import mmap
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch.errors import FileError, MissingFileError

LONGEST = 100_000_000  # bytes that a header may have
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
class Place:
    """Where an array stands in a file."""

    dtype: torch.dtype
    count: int
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.count * self.dtype.itemsize


def entry(dtype: torch.dtype, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """What a header says of an array; ``begin`` and ``end`` count from the end of the header."""
    word = next(name for name, known in DTYPES.items() if known == dtype)
    return {"dtype": word, "shape": shape, "data_offsets": [begin, end]}


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a file, and where its arrays begin."""
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else LONGEST
        if length > min(LONGEST, size - 8):
            raise FileError(f"{path} is no whole .safetensors file: it has no header")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise FileError(f"{path} is no .safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise FileError(f"{path} is no .safetensors file: its header names no arrays")
    return header, 8 + length


def facts_in(path: Path, header: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What Scorch noted of the tensor ``name``."""
    text = (header.get("__metadata__") or {}).get("scorch")
    if text is None:
        raise FileError(f"{path} has no sparse tensors: scorch.save or RowWriter write such files")
    try:
        named = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise FileError(f"{path}: its metadata are not as Scorch writes them") from None
    if not isinstance(named, dict) or not isinstance(named.get(name), dict):
        held = ", ".join(repr(found) for found in named if found) if isinstance(named, dict) else ""
        wanted = f"no matrix named {name!r}" if name else "several tensors: say which, MappedRows(path, name)"
        raise FileError(f"{path} has {wanted}" + (f"; there are {held}" if held else ""))
    found: Mapping[str, Any] = named[name]
    return found


def place_of(path: Path, header: Mapping[str, Any], key: str, begin: int) -> Place:
    """Where the array ``key`` is, if it lies inside the file."""
    about = header[key]
    dtype, (start, stop) = DTYPES.get(about["dtype"]), about["data_offsets"]
    if dtype is None or not all(type(number) is int for number in (start, stop)):
        raise FileError(f"{path}: the array {key!r} is not as Scorch writes it")
    place = Place(dtype, (stop - start) // dtype.itemsize, begin + start)
    if start < 0 or place.offset % dtype.itemsize or place.count < 0 or place.end != begin + stop:
        raise FileError(f"{path}: the array {key!r} is not as Scorch writes it")
    if begin + stop > path.stat().st_size:
        raise FileError(f"{path} is no whole .safetensors file: {key!r} ends behind the end of the file")
    return place


def is_aligned(array: torch.Tensor, elements: int = 1) -> bool:
    """Whether an array begins at a multiple of so many of its elements.

    In a file arrays follow each other without gaps. Compiled code, also that of torch, crashes on complex
    numbers that begin between two places for them.
    """
    return array.data_ptr() % (elements * array.element_size()) == 0


def aligned(array: torch.Tensor, elements: int = 1) -> torch.Tensor:
    """``array``, copied where it is not aligned."""
    return array if is_aligned(array, elements) else array.clone()


def mapped_array(mapped: mmap.mmap, place: Place) -> torch.Tensor:
    """The array at ``place``, to be read only."""
    if not place.count:
        return torch.empty(0, dtype=place.dtype, device=HOST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot be written to: nobody does, and nobody else gets it
        return aligned(torch.frombuffer(mapped, dtype=place.dtype, count=place.count, offset=place.offset))
