"""Which keys each block of 16 queries sees, found once for a mask.

    query 0   . x x .          keys     1    2    3
    query 1   . x x x   --->   masks   01   11   10

Queries that see nearly the same keys (windows, blocks, tokens that everybody sees) share the work; a block
that would spend more on pairs that do not attend than it saves has no keys here, and runs query by query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scorch._src.backends.cpu import invoke, jit
from scorch._src.backends.cpu.routines.attention_tiles import ROWS

ALONE = 3  # times the cost of a pair of a block, for one that a query computes by itself
EACH = 1 << 16  # entries for each thread

SOURCE = """\
typedef long long i64;
typedef int i32;
typedef unsigned short u16;
enum { R = ROWS };
enum { PARALLEL, THREADS, MATRICES, QUERIES, KEYS, POS, CRD, SEEN, LIST, ALONE, COSTS,
       BEGIN, COLUMNS, MASKS };

/* Keys in the order in which the queries name them; how many */
#define BLOCKS(T) \\
static i64 listed_##T(const i64 *args, i64 first, i64 rows, u16 *seen, i32 *list) { \\
    const T *pos = (const T *)args[POS], *crd = (const T *)args[CRD]; \\
    i64 count = 0; \\
    for (i64 q = 0; q < rows; q++) \\
        for (i64 at = pos[first + q]; at < pos[first + q + 1]; at++) { \\
            const i64 key = crd[at]; \\
            if (!seen[key]) list[count++] = (i32)key; \\
            seen[key] |= (u16)(1u << q); \\
        } \\
    return count; \\
} \\
static void some_##T(i64 begin, i64 end, void *context) { \\
    const i64 *args = context, queries = args[QUERIES], each = (queries + R - 1) / R; \\
    const i64 all = args[MATRICES] * each, threads = args[THREADS], alone = args[ALONE]; \\
    const T *pos = (const T *)args[POS]; \\
    for (i64 thread = begin; thread < end; thread++) { \\
        u16 *seen = (u16 *)args[SEEN] + thread * args[KEYS]; \\
        i32 *list = (i32 *)args[LIST] + thread * args[KEYS]; \\
        for (i64 block = all * thread / threads; block < all * (thread + 1) / threads; block++) { \\
            const i64 row = block % each * R, rows = queries - row < R ? queries - row : R; \\
            const i64 first = block / each * queries + row, entries = pos[first + rows] - pos[first]; \\
            const i64 *places = (const i64 *)args[BEGIN]; \\
            if (places && places[block] == places[block + 1]) continue; \\
            const i64 count = listed_##T(args, first, rows, seen, list); \\
            const int is_shared = R * count < alone * entries; \\
            if (!places) { \\
                ((i64 *)args[COSTS])[2 * block] = is_shared ? count : 0; \\
                ((i64 *)args[COSTS])[2 * block + 1] = (is_shared ? R * count : alone * entries) + R; \\
            } \\
            for (i64 i = 0; i < count; i++) { \\
                if (places) { \\
                    ((i32 *)args[COLUMNS])[places[block] + i] = list[i]; \\
                    ((u16 *)args[MASKS])[places[block] + i] = seen[list[i]]; \\
                } \\
                seen[list[i]] = 0; \\
            } \\
        } \\
    } \\
} \\
i64 scorch_blocks_##T(i64 *args) { \\
    if (args[THREADS] <= 1) some_##T(0, 1, args); \\
    else ((int (*)(i64, i64, i64, void (*)(i64, i64, void *), void *))args[PARALLEL]) \\
        (0, args[THREADS], 1, some_##T, args); \\
    return 0; \\
}
BLOCKS(i32)
BLOCKS(i64)
""".replace("ROWS", str(ROWS), 1)


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
    """The blocks of ``matrices`` masks; None where there is no compiler for them, or no place for keys."""
    name = f"scorch_blocks_{'i32' if pos.dtype == torch.int32 else 'i64'}"
    address = jit.function_address(SOURCE, "the blocks of an attention mask", name)
    if not address or keys >= 2**31:
        return None
    each = -(-queries // ROWS)
    parallel, threads = invoke.threads_for(crd.numel(), EACH)
    seen = torch.zeros(threads, keys, dtype=torch.int16, device="cpu")
    found = torch.empty(threads, keys, dtype=torch.int32, device="cpu")
    counted = torch.empty(matrices * each, 2, dtype=torch.int64, device="cpu")
    given = (parallel, threads, matrices, queries, keys, pos.data_ptr(), crd.data_ptr(), seen.data_ptr())
    call = invoke.make_caller().call
    call(address, *given, found.data_ptr(), ALONE, counted.data_ptr(), 0, 0, 0)
    begin = torch.zeros(matrices * each + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(counted[:, 0], 0, out=begin[1:])
    columns = torch.empty(int(begin[-1]), dtype=torch.int32, device="cpu")
    masks = torch.empty(int(begin[-1]), dtype=torch.int16, device="cpu")
    places = (begin.data_ptr(), columns.data_ptr(), masks.data_ptr())
    call(address, *given, found.data_ptr(), ALONE, 0, *places)
    costs = torch.zeros(matrices, each + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(counted[:, 1].view(matrices, each), 1, out=costs[:, 1:])
    return Blocks(queries, keys, pos, crd, begin, columns, masks, costs.tolist())
