"""Turn compressed rows into compressed columns, or columns into rows, by buckets of columns.

SciPy counts the entries of every column, then puts each in its place: as many streams are written at a time
as there are columns, and what is written misses the cache. Here many entries are first spread over a few
hundred buckets of columns, each then sorted where it fits; threads share both steps. They leave that out
where most columns come again soon, as in bands and meshes: what each writes stays in its cache anyway.
"""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import BITS, builtins, pack, scratch, slot_descriptor
from scorch._src.compiler.bounds import HUGE_PAGE, in_pages
from scorch._src.events import emits
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, INT64

SOURCE = jit.read_source("bucket_begins.c") + jit.read_source("transpose_rows.c")

MAX_SIZE = 8  # bytes of a key, or a value
MIN_ENTRIES = 1 << 13  # below, a generated kernel costs less to call
MIN_SPREAD = 1 << 19  # entries that are worth buckets: what fewer are written to stays in the cache
MIN_SHARED = {2: 1 << 17, 3: 1 << 16}  # those that are if so many threads share them
MIN_SHARED_BY_MORE = 1 << 15
MIN_ENTRIES_PER_THREAD = 1 << 14
ENTRIES_PER_BUCKET = 1 << 14
MAX_BUCKETS = 512
FACTS = 3  # of a share, and how many entries it has in each block, as in the source
BUCKETS_PER_THREAD = 4
MAX_FEW = 1 << 18  # entries, for half as many buckets: in short ones, threads write to the same lines

_INDEX = {torch.int32: INT32, torch.int64: INT64}
_ELEMENTS = {torch.float32: FLOAT32, torch.float64: FLOAT64, **_INDEX}
_C_TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
Matrix = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # pos, crd, values


def transposed_matrix(matrix: Matrix, columns: int) -> Matrix | None:
    """Transpose a matrix of ``columns``; None where it is small or this machine cannot compile it."""
    pos, crd, values = matrix
    entries, size = crd.numel(), values.element_size()
    is_able = values.dim() == 1 and size in BITS and pos.dtype == crd.dtype and pos.dtype in _INDEX
    if entries < MIN_ENTRIES or max(pos.numel(), columns) > 1 << 31 or not is_able:
        return None
    return _transposed(matrix, columns)


@emits("matrix transposed")
def _transposed(matrix: Matrix, columns: int) -> Matrix | None:
    pos, crd, values = matrix
    entries, size = crd.numel(), values.element_size()
    runtime, threads, wanted = _sharing(entries)
    shift = max(0, (columns - 1).bit_length() - min(wanted, MAX_BUCKETS).bit_length() + 1)
    buckets = ((columns - 1) >> shift) + 1
    rows = pos.numel() - 1
    row_bits = rows.bit_length()
    key = 4 if row_bits + shift <= 32 else 8
    source = source_for(pos.element_size(), size, key)
    functions, address = builtins(), jit.function_address(source, "rows to columns", "scorch_transpose_rows")
    if functions is None or not address:
        return None
    first = pack([runtime, threads, rows, columns, entries, shift, buckets, row_bits])
    bits, element = BITS[size], _ELEMENTS.get(values.dtype)
    descriptor = slot_descriptor(columns, _INDEX[pos.dtype], element or bits, 1, (2,))
    spread = scratch(_spread_bytes(entries, max(key, size), wanted))
    facts = max((threads + 1) * buckets + 1, threads * (threads + FACTS))  # of buckets, or of shares
    counts = torch.empty(facts, dtype=torch.int64, device="cpu")
    found = functions.slots((address, 0), first, descriptor, None, pos, crd, values.detach(), spread, counts)
    return found[0], found[1], found[2] if element is not None else found[2].view(values.dtype)


def _sharing(entries: int) -> tuple[int, int, int]:
    """Return what runs loops on threads, how many threads, and how many buckets are wanted."""
    runtime, threads = parallel.shared_by(entries, MIN_ENTRIES_PER_THREAD)
    each = BUCKETS_PER_THREAD if entries > MAX_FEW else BUCKETS_PER_THREAD // 2
    if entries < MIN_SPREAD and (threads <= 1 or entries < MIN_SHARED.get(threads, MIN_SHARED_BY_MORE)):
        return runtime, 1, 1
    return runtime, threads, max(entries // ENTRIES_PER_BUCKET, each * threads)


def _spread_bytes(entries: int, size: int, buckets: int) -> int:
    """Return the bytes of the keys and values that are spread over buckets, one of which needs none."""
    return 2 * entries * size if buckets > 1 else 0


def transposition_bytes(entries: int) -> int:
    """Return the most bytes that it takes besides its result to transpose a matrix."""
    if entries < MIN_ENTRIES:
        return 0
    return in_pages(max(_spread_bytes(entries, MAX_SIZE, _sharing(entries)[2]), HUGE_PAGE))


def source_for(index: int, value: int, key: int) -> str:
    """Return the C source for indices, values and keys of these sizes in bytes."""
    whole = "int" if index == 4 else "long long"
    return jit.with_types(SOURCE, index_t=whole, value_t=_C_TYPES[value], key_t=_C_TYPES[key])
