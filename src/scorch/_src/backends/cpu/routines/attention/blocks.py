"""The keys that each block of 16 queries sees, computed once for a mask.

    query 0   . x x .          keys     1    2    3
    query 1   . x x x   --->   masks   01   11   10

Queries that see nearly the same keys (windows, blocks, tokens that everybody sees) share the work; a block
that would spend more on pairs that do not attend than it saves has no keys here, and runs query by query.
"""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import invoke, jit, parallel
from scorch._src.backends.cpu.routines.attention.source import ROWS
from scorch._src.dataclass import dataclass
from scorch._src.loops.types import LAST_INT32

SINGLE_PAIR_COST = 3  # times the cost of a pair of a block, for one that a query computes by itself
MIN_ENTRIES_PER_THREAD = 1 << 16

SOURCE = jit.read_source("attention_blocks.c").replace("ROWS", str(ROWS), 1)


@dataclass(frozen=True)
class Blocks:
    """Masks of one shape, row by row in ``pos`` and ``crd``, and what their blocks of queries see.

    Block ``b`` of all masks sees ``columns`` from ``begin[b]`` to ``begin[b + 1]``, or runs query by query.
    ``costs`` has, for each mask, the cost of what comes before each block, and at the end that of all.
    """

    queries: int
    keys: int
    pos: torch.Tensor
    crd: torch.Tensor
    begin: torch.Tensor
    columns: torch.Tensor
    masks: torch.Tensor
    costs: list[list[int]]

    @property
    def count(self) -> int:
        """Blocks of one mask."""
        return -(-self.queries // ROWS)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the arrays are now, in the order in which the routines of attention take them."""
        arrays = [array.data_ptr() for array in (self.begin, self.columns, self.masks)]
        is_wide = int(self.pos.dtype == torch.int64)
        return *arrays, is_wide, self.pos.data_ptr(), self.crd.data_ptr()


def find_blocks(
    pos: torch.Tensor, crd: torch.Tensor, matrices: int, queries: int, keys: int
) -> Blocks | None:
    """Compute the blocks of ``matrices`` masks; None without a compiler, or where keys are too many."""
    name = f"scorch_blocks_i{8 * pos.element_size()}"
    address = jit.function_address(SOURCE, "the blocks of an attention mask", name)
    if not address or keys > LAST_INT32:
        return None
    each = -(-queries // ROWS)
    runtime, threads = parallel.shared_by(crd.numel(), MIN_ENTRIES_PER_THREAD)
    seen = torch.zeros(threads, keys, dtype=torch.int16, device="cpu")
    keys_seen = torch.empty(threads, keys, dtype=torch.int32, device="cpu")
    counted = torch.empty(matrices * each, 2, dtype=torch.int64, device="cpu")
    args = (runtime, threads, matrices, queries, keys, pos.data_ptr(), crd.data_ptr(), seen.data_ptr())
    call = invoke.make_caller().call
    call(address, *args, keys_seen.data_ptr(), SINGLE_PAIR_COST, counted.data_ptr(), 0, 0, 0)
    begin = torch.zeros(matrices * each + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(counted[:, 0], 0, out=begin[1:])
    columns = torch.empty(int(begin[-1]), dtype=torch.int32, device="cpu")
    masks = torch.empty(int(begin[-1]), dtype=torch.int16, device="cpu")
    places = (begin.data_ptr(), columns.data_ptr(), masks.data_ptr())
    call(address, *args, keys_seen.data_ptr(), SINGLE_PAIR_COST, 0, *places)
    costs = torch.zeros(matrices, each + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(counted[:, 1].view(matrices, each), 1, out=costs[:, 1:])
    return Blocks(queries, keys, pos, crd, begin, columns, masks, costs.tolist())
