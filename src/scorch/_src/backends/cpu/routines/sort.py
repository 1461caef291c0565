"""Sort entries by their coordinates, by a radix sort in C.

Digits of the last coordinate come first, and each pass keeps the order of the one before it. Matrices are
often listed column by column, or as a triangle and its mirror image: there a pass over the rows is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import invoke, jit
from scorch._src.backends.sort_entries import Sorted, is_sorted
from scorch._src.events import emits
from scorch._src.loops.types import LAST_INT32

_SORT = jit.read_source("sort.c")

SOURCE = "typedef long long i64;\ntypedef unsigned u32;\ntypedef int i32;\n\n" + "\n".join(
    _SORT.replace("INDEX##", index).replace("INDEX", index) for index in ("i32", "i64")
)

# Up to this number of entries torch checks their order; beyond, the routine in C is faster.
MAX_ENTRIES_FOR_TORCH_CHECK = 1 << 14


def sort_entries(columns: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sorted | bool | None:
    if columns[0].numel() < MAX_ENTRIES_FOR_TORCH_CHECK and is_sorted(columns):
        return True
    return _sort(columns, sizes)


@emits("entries sorted")
def _sort(columns: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sorted | bool | None:
    name, count = f"scorch_sort_i{8 * columns[0].element_size()}", columns[0].numel()
    address = jit.function_address(SOURCE, "the order of entries", name)
    if not address or count > LAST_INT32:
        return None
    orders = torch.empty(2, count, dtype=torch.int32, device="cpu")
    begins = torch.empty(1 << 16, dtype=torch.int32, device="cpu")
    moved = [torch.empty_like(column) for column in columns]
    lists = [[column.data_ptr() for column in columns], list(sizes), [column.data_ptr() for column in moved]]
    addresses, extents, new = (torch.tensor(numbers, dtype=torch.int64, device="cpu") for numbers in lists)
    call = invoke.make_caller().call
    places = (addresses.data_ptr(), extents.data_ptr(), orders[0].data_ptr(), orders[1].data_ptr())
    status = call(address, count, len(columns), *places, new.data_ptr(), begins.data_ptr())
    return status == 0 if status != 1 else Sorted(orders[0], moved)
