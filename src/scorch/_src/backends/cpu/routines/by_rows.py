"""What routines over the rows of a compressed matrix share: chunks of rows for threads.

A routine is C text whose first arguments are those of ``PRELUDE``. Threads take chunks of about as many
entries each, one after the other, so that a few long rows hold nobody up. Rows of a result are written by
one thread each, so results never depend on how many threads there are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import invoke, jit, parallel
from scorch._src.backends.launcher import address_of
from scorch._src.compiler.target import target

MIN_ELEMENTS_PER_THREAD = 1 << 14  # that are read

PRELUDE = jit.read_source("by_rows.c")


def address(source: str, what: str, name: str, dtype: torch.dtype, index: torch.dtype) -> int:
    """Return the address of a routine's function for numbers and indices of these types; 0 if there is none.

    ``source`` ends with the macro ``INTRINSICS(T, I)``, of which just the types that are used are compiled.
    """
    number, integer = f"f{8 * dtype.itemsize}", f"i{8 * index.itemsize}"
    return jit.function_address(text_of(source, number, integer), what, f"scorch_{name}_{number}_{integer}")


@functools.lru_cache(maxsize=256)
def text_of(source: str, number: str, integer: str) -> str:
    """Return all of a routine's text for these types."""
    text = f"{PRELUDE}{source}INTRINSICS({number}, {integer})\n"
    return text.replace("$VECTOR", str(target().vector_bytes))


def run(at: int, work: int, rows: int, arrays: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> None:
    """Call the function at an address: ``arrays`` begin with pos and crd, ``numbers`` follow them."""
    runtime, threads = parallel.shared_by(work, MIN_ELEMENTS_PER_THREAD)
    places = [0 if array is None else address_of(array) for array in arrays]
    invoke.make_caller().call(at, runtime, threads, rows, *places, *numbers)


def max_threads() -> int:
    """Return how many threads ``run`` may use, for memory that each has for itself."""
    return parallel.shared_by(1 << 62, 1)[1]
