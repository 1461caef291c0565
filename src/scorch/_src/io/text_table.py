"""Tables of numbers in text, read and written as whole columns.

Matrix Market and FROSTT files are a header and then one entry a line. The lines are never walked in Python: a
routine in C parses them all (``backends.cpu.routines.parse_table``). What it does not take, NumPy reads: it
finds where lines begin, counts the numbers in each and parses them at once. Only a file that is broken is
read again slowly, to name the line.
"""

from __future__ import annotations

import functools
import gzip
import json
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scorch._src.backends.base import backend_for
from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.io.archive import parse_dtype, parse_format
from scorch._src.storage.coordinates import entries
from scorch._src.tensor.create.check import as_shape
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError

Array = np.ndarray[Any, Any]
UNKNOWN_SIZE = 2**62  # of a dimension
NOTE_PREFIX = "scorch:"  # of a comment with Scorch's description


def read_bytes(path: Path) -> bytes:
    """Read ``path``, decompressed where it is a ``.gz``."""
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileError(f"{path} is not a complete gzip file: {error}") from None


def write_text(path: Path, lines: Iterable[str]) -> None:
    data = "\n".join([*lines, ""]).encode("ascii")
    if path.suffix.lower() == ".gz":
        # Without the time in its header the same tensor gives the same file.
        path.write_bytes(gzip.compress(data, compresslevel=6, mtime=0))
    else:
        path.write_bytes(data)


def split_header(data: bytes, comment: bytes) -> tuple[list[str], int]:
    """Return the comments before the first line of numbers, and where that line begins."""
    comments, begin = [], 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        line = data[begin:end].strip()
        if line and not line.startswith(comment):
            break
        if line:
            comments.append(line.decode("utf-8", "replace"))
        begin = end + 1
    return comments, min(begin, len(data))


@dataclass(frozen=True)
class Note:
    """The description that Scorch wrote into a comment, as far as it did."""

    dtype: torch.dtype | None = None
    format: Format | None = None
    shape: tuple[int, ...] | None = None


def find_note(path: Path, comments: Iterable[str], comment: str) -> Note:
    """Find Scorch's description in the comments of a file."""
    for line in comments:
        text = line.lstrip(comment).strip()
        if text.startswith(NOTE_PREFIX):
            try:
                description = json.loads(text.removeprefix(NOTE_PREFIX))
            except (ValueError, RecursionError):
                description = None
            if not isinstance(description, dict):
                raise FileError(f"{path}: the comment {line!r} was not written by Scorch; remove it")
            return Note(
                parse_dtype(description["dtype"]) if "dtype" in description else None,
                parse_format(description["format"]) if "format" in description else None,
                as_shape("shape", description["shape"]) if "shape" in description else None,
            )
    return Note()


def convert_to_noted(path: Path, values: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Convert ``values`` to the dtype that a comment names, if it can hold them."""
    if dtype is None or dtype == values.dtype:
        return values
    is_integer = not (dtype.is_floating_point or dtype.is_complex)
    is_lossy = (values.is_complex() and not dtype.is_complex) or (values.is_floating_point() and is_integer)
    converted = values if is_lossy else values.to(dtype)
    if is_lossy or (is_integer and not torch.equal(converted.to(values.dtype), values)):
        raise FileError(
            f"{path}: a comment names the dtype {dtype}, which cannot represent all of its values"
        )
    return converted


@dataclass(eq=False)
class Table:
    """The numbers of ``content`` from ``begin`` on: lines with any number of columns, the same in each."""

    path: Path
    content: bytes
    begin: int

    def columns(
        self, sizes: Sequence[int], numbers_per_value: int, is_whole: bool, names: Sequence[str], what: str
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Parse the coordinates of each row, counted from 0, and its values.

        Each row has a coordinate up to each of ``sizes``, named ``names`` in errors, and
        ``numbers_per_value`` more numbers, integers or not; ``what`` describes it in errors.
        """
        parsed = backend_for().routines.parse_table(
            self.content, self.begin, tuple(sizes), numbers_per_value, is_whole
        )
        if parsed is None:
            parsed = self._parse_by_numpy(sizes, numbers_per_value, is_whole, names, what)
        coordinates, numbers = parsed
        values = torch.from_numpy(numbers)
        if numbers_per_value == 2:
            values = torch.complex(values[:, 0], values[:, 1])
        elif numbers_per_value == 1:
            values = values[:, 0]
        return [torch.from_numpy(column) for column in coordinates], values

    def _parse_by_numpy(
        self, sizes: Sequence[int], numbers_per_value: int, is_whole: bool, names: Sequence[str], what: str
    ) -> tuple[Array, Array]:
        width = len(sizes) + numbers_per_value
        self.check_widths(width, what)
        numbers = self.read(np.int64 if is_whole else np.float64).reshape(self.rows, width)
        for column, (size, name) in enumerate(zip(sizes, names, strict=True)):
            check_coordinate_column(self, numbers[:, column], size, name)
        coordinates = self._as_integers(numbers[:, : len(sizes)]).T.astype(np.int64, order="C") - 1
        return coordinates, np.ascontiguousarray(numbers[:, len(sizes) :])

    def _as_integers(self, numbers: Array) -> Array:
        """Return the first columns, parsed again as integers where floats are not exact."""
        if numbers.dtype.kind == "i" or not numbers.size or numbers.max() < 2**53:
            return numbers
        rows = [line.split()[: numbers.shape[1]] for line in self.data.splitlines() if line.strip()]
        try:
            return np.array([[int(word) for word in row] for row in rows], np.int64)
        except (ValueError, OverflowError):
            raise self._wrong_number(np.float64) or FileError(
                f"{self.path}: coordinates of 2**53 or more must be written with all of their digits"
            ) from None

    @functools.cached_property
    def data(self) -> bytes:
        return self.content[self.begin :]

    @functools.cached_property
    def above(self) -> int:
        """The number of lines above the table."""
        return self.content.count(b"\n", 0, self.begin)

    @functools.cached_property
    def _begins(self) -> Array:
        text = np.frombuffer(self.data, dtype=np.uint8)
        begins = np.concatenate([[0], np.flatnonzero(text == ord("\n")) + 1])
        return begins[begins < len(text)]

    @functools.cached_property
    def widths(self) -> Array:
        """How many numbers each line has."""
        blank = np.frombuffer(self.data, dtype=np.uint8) <= ord(" ")
        starts = ~blank
        starts[1:] &= blank[:-1]
        if not len(blank):
            return np.zeros(0, np.int64)
        counts: Array = np.add.reduceat(starts, self._begins, dtype=np.int64)
        return counts

    def line(self, number: int) -> int:
        """Return the number, in the file, of line ``number`` of the table."""
        return self.above + number + 1

    @property
    def rows(self) -> int:
        return int(np.count_nonzero(self.widths))

    def row_line(self, row: int) -> int:
        """Return the line, in the file, of a row: lines without numbers are no rows."""
        return self.line(int(np.flatnonzero(self.widths)[row]))

    def check_widths(self, columns: int, what: str) -> None:
        wrong = np.flatnonzero((self.widths != columns) & (self.widths != 0))
        if wrong.size:
            number = int(wrong[0])
            text, width = self._text(number), int(self.widths[number])
            numbers = "1 number" if width == 1 else f"{width} numbers"
            raise FileError(f"{self.path}, line {self.line(number)}: {text!r} has {numbers}, but {what}")

    def read(self, dtype: type[np.generic]) -> Array:
        """Parse all numbers in one row."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # older NumPy stops at what is no number with a mere warning
            try:
                numbers: Array = np.fromstring(self.data, dtype=dtype, sep=" ")
            except (DeprecationWarning, ValueError):
                raise self._wrong_number(dtype) or FileError(
                    f"{self.path}: it contains something other than numbers"
                ) from None
        if numbers.dtype.kind == "i":  # NumPy reads integers beyond 64 bits as the nearest
            limits = np.iinfo(numbers.dtype)
            may_be_clamped = bool(((numbers == limits.max) | (numbers == limits.min)).any())
            wrong = self._wrong_number(dtype) if may_be_clamped else None
            if wrong is not None:
                raise wrong
        return numbers

    def _wrong_number(self, dtype: type[np.generic]) -> FileError | None:
        """Find the first word that is no number, slowly, as it is rarely needed."""
        is_whole = np.issubdtype(dtype, np.integer)
        parse: Callable[[str], object] = int if is_whole else float
        for number in np.flatnonzero(self.widths):
            for word in self._text(int(number)).split():
                try:
                    dtype(parse(word))
                except (ValueError, OverflowError):
                    kind = "64-bit integer" if is_whole else "number"
                    return FileError(f"{self.path}, line {self.line(int(number))}: {word!r} is not a {kind}")
        return None

    def _text(self, number: int) -> str:
        begin = int(self._begins[number])
        end = self.data.find(b"\n", begin)
        return self.data[begin : len(self.data) if end < 0 else end].decode("utf-8", "replace").strip()


def check_coordinate_column(table: Table, column: Array, size: int, what: str) -> None:
    """Check coordinates, which count from 1 in files."""
    is_whole = column.dtype.kind == "i"
    is_fine = (column >= 1) & (column <= size)
    wrong = np.flatnonzero(~(is_fine if is_whole else is_fine & (column == np.floor(column))))
    if wrong.size:
        row = int(wrong[0])
        number = int(column[row]) if is_whole or float(column[row]).is_integer() else float(column[row])
        if not isinstance(number, int):
            rule = " is not an integer"
        elif size != UNKNOWN_SIZE:
            rule = f" is outside 1..{size}"
        else:
            rule = ": they count from 1" if number < 1 else " is larger than 2**62"
        raise FileError(f"{table.path}, line {table.row_line(row)}: {what} {number}{rule}")


def format_numbers(values: torch.Tensor) -> tuple[str, list[Iterable[Any]]]:
    """Return a format that prints values exactly, and the columns to print."""
    if values.dtype.is_complex:
        real_parts = torch.view_as_real(values.resolve_conj())
        word = "%.9g" if values.dtype == torch.complex64 else "%.17g"
        return f"{word} {word}", [real_parts[:, 0].tolist(), real_parts[:, 1].tolist()]
    if values.dtype.is_floating_point:
        return ("%.17g" if values.dtype == torch.float64 else "%.9g"), [values.tolist()]
    return "%d", [values.tolist()]


def format_entries(tensor: SparseTensor) -> Iterable[str]:
    """Format a line for each stored entry: its coordinates, counted from 1, and its value."""
    crd, values = entries(tensor.storage)
    word, numbers = format_numbers(values)
    coordinates = [(array + 1).tolist() for array in crd]
    return print_rows([*coordinates, *numbers], "%d " * len(coordinates) + word)


def print_rows(columns: list[Iterable[Any]], pattern: str) -> Iterable[str]:
    return map(pattern.__mod__, zip(*columns, strict=True))
