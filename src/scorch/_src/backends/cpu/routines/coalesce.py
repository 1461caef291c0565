"""Sort entries by their coordinates and add up those that repeat, in C.

One pass checks that coordinates lie inside, and whether they are sorted already; if not, the coordinates and
the number of each entry are one key of 64 bits, which threads sort by buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from scorch._src.backends.by_torch.index_arrays import do_nothing
from scorch._src.backends.cpu import invoke, jit, parallel
from scorch._src.backends.cpu.launch import empty, scratch
from scorch._src.events import emits
from scorch._src.loops.types import LAST_INT32

SOURCE = jit.read_source("bucket_begins.c") + jit.read_source("coalesce.c")

MIN_ENTRIES = 1 << 12
MIN_ENTRIES_PER_THREAD = 1 << 13
ENTRIES_PER_BUCKET = 1 << 13
MAX_BUCKETS = 512
BUCKETS_PER_THREAD = 8
MAX_FEW = 1 << 17  # entries, for half as many buckets: in short ones, threads write to the same lines
_SORTED, _UNSORTED = 0, 1

_INDEX = {torch.int32: "int", torch.int64: "long long"}
_FLOATS = {
    torch.float32: "float",
    torch.float64: "double",
    torch.complex64: "float",
    torch.complex128: "double",
}
_WHOLE = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
_MOVED_ONLY = (torch.bool, torch.float16, torch.bfloat16)  # what is not added up by their bits

Coalesced = tuple[Sequence[torch.Tensor], torch.Tensor, torch.Tensor | None]


def coalesced(
    columns: Sequence[torch.Tensor],
    sizes: Sequence[int],
    values: torch.Tensor,
    index: torch.dtype,
    meanwhile: Callable[[], object] = do_nothing,
) -> Coalesced | None:
    """Sort entries, as ``Routines.coalesce``; None also where there are few, or keys would be too long."""
    del meanwhile  # the host itself works
    entries, given = columns[0].numel(), columns[0].dtype
    bits = sum((size - 1).bit_length() for size in sizes) + entries.bit_length()
    is_plain = given in _INDEX and all(column.dtype == given for column in columns)
    if (
        not MIN_ENTRIES <= entries <= LAST_INT32
        or bits > 64
        or not is_plain
        or 0 in sizes
        or not values.numel()
    ):
        return None
    return _coalesced([column.contiguous() for column in columns], sizes, values.detach().contiguous(), index)


@emits("entries sorted")
def _coalesced(
    columns: Sequence[torch.Tensor], sizes: Sequence[int], values: torch.Tensor, index: torch.dtype
) -> Coalesced | None:
    number, parts = _number(values.dtype)
    source = source_for(columns[0].dtype, index, number)
    names = ("scorch_copy_columns", "scorch_coalesce")
    copy, sort = (jit.function_address(source, "the order of entries", name) for name in names)
    if not copy or not sort:
        return None
    entries, width = columns[0].numel(), math.prod(values.shape[1:]) * parts
    runtime, threads = parallel.shared_by(entries, MIN_ENTRIES_PER_THREAD)
    bits, number_bits = sum((size - 1).bit_length() for size in sizes), entries.bit_length()
    each = BUCKETS_PER_THREAD if entries > MAX_FEW else BUCKETS_PER_THREAD // 2
    wanted = max(entries // ENTRIES_PER_BUCKET, each * threads if threads > 1 else 1)
    bucket_bits = min(bits, min(wanted, MAX_BUCKETS).bit_length() - 1)
    made = [empty((entries,), index) for _ in columns]
    lists = [[c.data_ptr() for c in columns], list(sizes), [c.data_ptr() for c in made]]
    tables = [torch.tensor(numbers, dtype=torch.int64, device="cpu") for numbers in lists]
    shift = number_bits + bits - bucket_bits
    slots = [runtime, threads, len(columns), entries, number_bits, shift, 1 << bucket_bits, width]
    slots += [table.data_ptr() for table in tables]
    call = invoke.make_caller().call
    status = call(copy, *slots)
    if status == _SORTED:
        return made, values, None
    if status != _UNSORTED:
        return None
    new_values, keys = empty(values.shape, values.dtype), scratch(16 * entries)
    counts = torch.empty((threads + 2 << bucket_bits) + 1, dtype=torch.int64, device="cpu")
    slots += [values.data_ptr(), new_values.data_ptr(), keys.data_ptr(), keys.data_ptr() + 8 * entries]
    places = call(sort, *slots, counts.data_ptr())
    if places == entries:
        return made, new_values, None
    if values.dtype in _MOVED_ONLY:
        return None
    return [column[:places].clone() for column in made], new_values[:places].clone(), None


def _number(dtype: torch.dtype) -> tuple[str, int]:
    """Return the C type of the numbers that a value consists of, and how many they are."""
    name = _FLOATS.get(dtype)
    return (name, 1 + dtype.is_complex) if name is not None else (_WHOLE[dtype.itemsize], 1)


def source_for(given: torch.dtype, index: torch.dtype, number: str) -> str:
    """Return the C source for coordinates as they come and as they are stored, and for numbers."""
    return jit.with_types(SOURCE, given_t=_INDEX[given], index_t=_INDEX[index], number_t=number)
