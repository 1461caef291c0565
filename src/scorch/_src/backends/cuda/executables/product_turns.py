"""Which functions of ``c/product.cu`` are launched for a product, and with how much shared memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scorch._src.backends.cuda.device.kernel import Launch

THREADS = 128  # of a block, which has a row with many products, or a row with few for each of its warps
WARP = 32
ROWS_OF_BLOCK = THREADS // WARP
MAX_BLOCKS = 1 << 14
FEW = 128  # products of a row that a warp sorts
SOME, MORE = 512, 2048  # products of a row that a block sorts, in two bins
MIN_COLUMNS = 1 << 17  # with fewer, marking them is faster than sorting
LONG_ROW = 128  # entries of a row that several blocks share, if the rows of B that it meets are short
LONGER_ROW = 512  # the same, whatever rows it meets
SHORT = 24  # entries of a short row of B, on average
CUTS, MAX_CUT = 16, 1 << 18  # as many blocks, if each has no more columns
TICKETS = 2048  # for the sums of such a block
BITS_OF_TILE = 1024  # columns come in multiples of as many
BYTES_OF_SUMS = 4 << 10  # of a row, in shared memory if there are no more
BYTES_OF_CUT = 32 << 10  # the same, of a block that has a part of a row
BYTES_OF_KEY = 8  # of a column and a number of a product

BinName = Literal["BIN_SOME", "BIN_MORE", "BIN_MANY", "BIN_LONG"]


class Bin(NamedTuple):
    """Rows with more than few products: what their functions are called, and the threads of a block."""

    suffix: str
    threads: int


BINS: dict[BinName, Bin] = {
    "BIN_SOME": Bin("some", 32),
    "BIN_MORE": Bin("some", 256),
    "BIN_MANY": Bin("many", THREADS),
    "BIN_LONG": Bin("long", 512),
}
SORTED = {"BIN_SOME": SOME, "BIN_MORE": MORE}
NUMBERS = {name: number for number, name in enumerate(BINS)}


class Turn(NamedTuple):
    """A launch with what it is for: a bin of rows, and a tile of so many columns."""

    launch: Launch
    bin: int = 0
    tile: int = 0
    width: int = 0
    room: int = 0  # for sums in shared memory
    cuts: int = 1


@dataclass(frozen=True)
class Turns:
    """The launches of a product. Sizes of values, indices of the result, and positions in B are in bytes."""

    rows: int
    columns: int
    value: int
    index: int
    place: int
    shared_memory: int  # that a block may have

    @functools.cached_property
    def width(self) -> int:
        """How many columns have a bit in shared memory at once: a tile."""
        columns = max(1, self.columns)
        width = -(-columns // BITS_OF_TILE) * BITS_OF_TILE
        while bytes_of_sums(width) > self.shared_memory:
            width = -(-width // (2 * BITS_OF_TILE)) * BITS_OF_TILE
        return width

    @functools.cached_property
    def tiles(self) -> int:
        return max(1, -(-self.columns // self.width))

    @functools.cached_property
    def most(self) -> int:
        """How many products a row has at most that a block sorts; 0 where none does."""
        return MORE if self.columns >= MIN_COLUMNS else 0

    @functools.cached_property
    def usual_bins(self) -> list[BinName]:
        """The bins that may have rows, even if none is long."""
        bins: list[BinName] = ["BIN_SOME", "BIN_MORE", "BIN_MANY"]
        return bins if self.most else bins[2:]

    @functools.cached_property
    def counting(self) -> list[Turn]:
        """The launches that count columns, of all rows but long ones."""
        return [
            self._few("count"),
            *(turn for name in self.usual_bins for turn in self._of_bin("count", name)),
        ]

    def counting_long(self, rows: int) -> list[Turn]:
        return self._of_bin("count", "BIN_LONG", rows)

    def filling(self, rows: Mapping[BinName, int]) -> list[Turn]:
        """Return the launches that fill the result, where bins have so many rows."""
        turns = [self._few("fill")]
        for name, count in rows.items():
            for what in ("fill",) if name in SORTED else ("list", "add"):
                turns += self._of_bin(what, name, count) if count else []
        return turns

    def _few(self, what: str) -> Turn:
        return Turn(Launch(f"scorch_{what}_few", min(-(-self.rows // ROWS_OF_BLOCK), MAX_BLOCKS), THREADS))

    def _of_bin(self, what: str, name: BinName, rows: int | None = None) -> list[Turn]:
        """Return the launches of a function for so many rows of a bin, or for all."""
        suffix, threads = BINS[name]
        tiles, width, room, cuts = 1, self.width, BYTES_OF_SUMS // self.value, 1
        if name in SORTED:
            shared = self._bytes_of_sorted(what, SORTED[name], threads)
        elif name == "BIN_LONG":
            width, room, cuts = self.width_of_cut, BYTES_OF_CUT // self.value, self.cuts
            numbered = self._bytes_of_numbered(threads)
            shared = self._bytes_of_cut(width) if what == "add" else numbered + bytes_of_marks(width, threads)
        else:
            tiles = self.tiles
            shared = bytes_of_sums(width) if what == "add" else bytes_of_marks(width, threads)
        blocks = min((self.rows if rows is None else rows) * cuts, MAX_BLOCKS)
        launch = Launch(f"scorch_{what}_{suffix}", blocks, threads, shared)
        return [Turn(launch, NUMBERS[name], tile, width, room, cuts) for tile in range(tiles)]

    @functools.cached_property
    def width_of_cut(self) -> int:
        """How many columns a block has of a long row."""
        width = min(-(-max(1, self.columns) // (CUTS * BITS_OF_TILE)) * BITS_OF_TILE, MAX_CUT)
        while self._bytes_of_cut(width) > self.shared_memory and width > BITS_OF_TILE:
            width = -(-width // (2 * BITS_OF_TILE)) * BITS_OF_TILE
        return width

    @functools.cached_property
    def cuts(self) -> int:
        """How many blocks have parts of a long row."""
        return max(1, -(-self.columns // self.width_of_cut))

    def _bytes_of_sorted(self, what: str, most: int, threads: int) -> int:
        """Return the shared memory of a block that sorts products, or hashes their columns to count."""
        numbered = self._bytes_of_numbered(threads)
        if what == "count":
            return numbered + 2 * most * self.index + 4
        return numbered + most * (self.value + BYTES_OF_KEY) + 4 * (most // 32)

    def _bytes_of_cut(self, width: int) -> int:
        """Return the shared memory of a block that adds up the products in a part of a long row."""
        numbered = self._bytes_of_numbered(BINS["BIN_LONG"].threads)
        return numbered + 4 * TICKETS + bytes_of_sums(width, BYTES_OF_CUT)

    def _bytes_of_numbered(self, threads: int) -> int:
        """Return the shared memory for the products that threads have numbered."""
        return threads * (self.value + 2 * self.place) + WARP * self.place


def bytes_of_marks(width: int, threads: int) -> int:
    """Return the shared memory of a block: bits of columns, which words have some, numbers of threads."""
    words = width // 32
    return 4 * (words + words // 32 + threads)


def bytes_of_sums(width: int, sums: int = BYTES_OF_SUMS) -> int:
    """Return the shared memory of a block: sums, bits of columns, and how many are before each word."""
    words = width // 32
    return sums + 6 * words + 4 * (words // 32)
