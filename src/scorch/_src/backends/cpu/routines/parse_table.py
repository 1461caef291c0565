"""Tables of numbers in text, parsed by a routine in C on all threads.

Each line has some integers, which are coordinates and count from 1, and then some values. Decimal
numbers are rounded correctly: by one multiplication where both factors are exact, else with 128 bits of the
power of ten (Lemire, "Number parsing at a gigabyte per second", 2021), else by ``strtod``. A text that is not
such a table is left to the caller, who can say what is wrong with it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from scorch._src.backends.cpu import invoke, jit, parallel
from scorch._src.events import emits
from scorch._src.loops.types import LAST_INT32

Array = np.ndarray[Any, Any]
_BLANK = 2
MIN_BYTES_PER_THREAD = 1 << 18
MIN_POWER, MAX_POWER = -342, 308  # beyond, every number of 19 digits is zero or infinite

SOURCE = jit.read_source("parse_table.c")


@emits("a file read")
def parse_table(
    data: bytes, begin: int, sizes: tuple[int, ...], parts: int, whole: bool
) -> tuple[Array, Array] | None:
    """Return the zero-based coordinates and the values of each line after ``begin``, or None.

    There is one coordinate for each of ``sizes``, and a row of the first array; they have 32 bits where that
    is enough. ``parts`` values follow, int64 or float64.
    """
    functions = _functions()
    if functions is None:
        return None
    count, read = functions
    text = np.frombuffer(data, dtype=np.uint8)
    address = text.ctypes.data
    runtime, threads = parallel.shared_by(len(data) - begin, MIN_BYTES_PER_THREAD)
    first = np.zeros(threads, np.int64)
    narrow = all(size <= LAST_INT32 for size in sizes)
    limits = np.array(sizes, np.int64)
    call = invoke.make_caller().call
    for exact in (0, 1):  # lines without anything are rare: they are looked for once one is seen
        common = (runtime, threads, address + begin, address + len(data), first.ctypes.data, exact)
        rows = call(count, *common)
        places = np.empty((len(sizes), rows), np.int32 if narrow else np.int64)
        values = np.empty((rows, parts), np.int64 if whole else np.float64)
        arrays = (limits.ctypes.data, places.ctypes.data, values.ctypes.data, rows, _powers().ctypes.data)
        status = call(read, *common, len(sizes), parts, int(whole), int(narrow), *arrays)
        if status != _BLANK:
            break
    return None if status else (places, values)


def _functions() -> tuple[int, int] | None:
    """Where both routines are; None if no compiler can make them."""
    names = ("scorch_count_rows", "scorch_read_rows")
    count, read = (jit.function_address(SOURCE, "the reader of tables in text", name) for name in names)
    return (count, read) if count and read else None


@functools.cache
def _powers() -> Array:
    """The first 128 bits of each power of five, or of its inverse, as pairs of 64; see Lemire's paper."""
    halves = []
    for exponent in range(MIN_POWER, MAX_POWER + 1):
        power = 5 ** abs(exponent)
        length = power.bit_length()
        if exponent >= 0:
            bits = power << 128 - length if length <= 128 else power >> length - 128
        else:
            bits = (1 << length + 127) // power + (exponent >= -27)
        halves += [bits >> 64, bits & (2**64 - 1)]
    return np.array(halves, np.uint64)
