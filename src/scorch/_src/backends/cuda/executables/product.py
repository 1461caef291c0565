"""Products of two matrices of compressed rows whose result is one, too, for any dtypes: ``c/product.cu``.

Where the first factor has few rows, all of them long, as ``A @ A.T`` of a wide matrix, a row for each block
would leave most of a device idle: then rows are cut into parts, ``c/product_parts.cu``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.device.cost import describe_cost
from scorch._src.backends.cuda.device.driver import in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, Launch, Text, read_text, refuse
from scorch._src.backends.cuda.device.streams import check_waiting
from scorch._src.backends.cuda.executables.executable import CudaExecutable
from scorch._src.backends.cuda.executables.product_turns import (
    BINS,
    FEW,
    LONG_ROW,
    LONGER_ROW,
    MORE,
    NUMBERS,
    ROWS_OF_BLOCK,
    SHORT,
    SOME,
    THREADS,
    TICKETS,
    WARP,
    Turn,
    Turns,
)
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.print.expressions import c_name
from scorch._src.backends.print.functions import helpers, needed_by
from scorch._src.compiler.plan import Plan
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.formats import Format
from scorch._src.loops.types import BFLOAT16, BOOL, LAST_INT32, Type
from scorch._src.notation.nodes import Access, Op

ROWS = "ds"
# Functions that count, and those that fill; of matrices with many columns, too; long rows have others.
COUNTING = "scorch_count_few", "scorch_count_many"
FILLING = "scorch_fill_few", "scorch_list_many", "scorch_add_many"
SORTING = "scorch_fill_some", "scorch_count_some"
LONG = "scorch_list_long", "scorch_count_long", "scorch_add_long"
FIRST = *reversed(FILLING), *COUNTING  # what is compiled first: what takes longest
PARTS = [f"scorch_{what}_parts" for what in ("add", "count", "fill")]
AT_ONCE = 4  # columns that a thread reads before it marks the first
AHEAD = 4  # entries of a row of A whose products are read at once
ARRAYS = 3  # of a matrix
MAX_FEW_ROWS = 1024
MIN_LONG_ROW = 512  # entries, on average, of rows that are cut
MIN_PART = 128  # entries of a part of such a row
WANTED_BLOCKS = 528  # that keep a device busy
MAX_PARTS = 64  # of a row, which one thread adds up
LAST_UINT32 = 2**32 - 1
MAX_COLUMNS = 2**52  # which are sorted with the numbers of products


def factors_of(plan: Plan) -> tuple[Access, Access] | None:
    """Return the factors of a product of two matrices of compressed rows, summed to one; None if it is none.

    Rows are what the result is stored by first: the first factor has rows of these, the second of what is
    summed over.
    """
    step = plan.step
    match step.body, step.reduced:
        case Op("mul", (Access() as a, Access() as b)), (inner,):
            pass
        case _:
            return None
    if step.reduction != "sum" or plan.skip_zeros or plan.element == BOOL:
        return None
    outer = _stored_as_rows(step.target, plan.result)
    if outer is None:
        return None
    wanted = (outer[0], inner), (inner, outer[1])
    for first, second in ((a, b), (b, a)):
        found = tuple(_stored_as_rows(x, plan.operand(x.tensor).format) for x in (first, second))
        if found == wanted and len({*outer, inner}) == 3:
            return first, second
    return None


def _stored_as_rows(access: Access, form: Format) -> tuple[str, ...] | None:
    """Return the indices of a matrix in the order in which it is stored, if that is as compressed rows."""
    if form.letters != ROWS or form.blocks:
        return None
    return tuple(access.indices[dim] for dim in form.order)


def is_product(plan: Plan) -> bool:
    return factors_of(plan) is not None


def print_product(plan: Plan, file: str = "product.cu") -> str:
    """The CUDA source of a product."""
    factors = factors_of(plan)
    assert factors is not None
    a, b = (plan.operand(access.tensor) for access in factors)
    return _print_product(plan.element, plan.index, (a.element, b.element), (a.index, b.index), file)


def usual_text(values: torch.dtype, index: torch.dtype) -> Text:
    """The text of a product of matrices with the same dtypes, and the functions that a first call needs."""
    element, kind = type_of_dtype(values), type_of_dtype(index)
    types = element.computes_in, kind, (element, element), (kind, kind)
    return Text(functools.partial(_print_product, *types), "products of sparse matrices", (*FIRST, *SORTING))


def _print_product(
    element: Type,
    index: Type,
    elements: tuple[Type, Type],
    indices: tuple[Type, Type],
    file: str = "product.cu",
) -> str:
    """The source for a result of a type, with indices of another one, and for those of both factors."""
    kind = c_name(element)
    lines = [f"#define T {kind}", f"#define R_INDEX {c_name(index)}"]
    used: list[str] = []
    for name, given, place in zip("AB", elements, indices, strict=True):
        lines += [
            f"#define {name}_INDEX {c_name(place)}",
            f"#define {name}_PLACE u{8 * place.bytes}",  # in which one behind the last fits, too
            f"#define {name}_TYPE {c_name(given)}",
        ]
        lines.append(f"#define {name}_VALUE(x) {_value(given, element, used)}")
    if element.kind == "complex":
        used += [f"{op}_{kind}" for op in ("add", "mul", "make")]
        lines += [f"#define ADD(x, y) add_{kind}(x, y)", f"#define MUL(x, y) mul_{kind}(x, y)"]
        lines.append(f"#define ZERO make_{kind}(0, 0)")
    else:
        lines += ["#define ADD(x, y) (T)((x) + (y))", "#define MUL(x, y) (T)((x) * (y))", "#define ZERO 0"]
    lines += [f"#define THREADS {THREADS}", f"#define WARPS {ROWS_OF_BLOCK}", f"#define FEW {FEW}"]
    lines += [f"#define AHEAD {AHEAD}", f"#define AT_ONCE {AT_ONCE}"]
    lines += [f"#define SOME {SOME}", f"#define MORE {MORE}", f"#define SHORT {SHORT}"]
    lines += [f"#define LONG_ROW {LONG_ROW}", f"#define LONGER_ROW {LONGER_ROW}"]
    limits = {"FEW": FEW, "SOME": SOME, "MORE": MORE}
    lines += [f"#define {name}_BITS {most.bit_length() - 1}" for name, most in limits.items()]
    lines += [f"#define TICKETS {TICKETS}", f"#define R_KEY u{8 * index.bytes}"]
    lines += [f"#define {name} {number}" for name, number in NUMBERS.items()]
    return "\n\n".join([print_prelude(), *_with_needed(used), "\n".join(lines), read_text(file)])


def _value(element: Type, wanted: Type, used: list[str]) -> str:
    """An element as what it is computed in."""
    text, kind = "x", element
    if element.computes_in != element:
        name = "from_bf16" if element == BFLOAT16 else "from_f16"
        used.append(name)
        text, kind = f"{name}(x)", element.computes_in
    if kind == wanted:
        return text
    if wanted.kind != "complex":
        return f"(T)({text})"
    used.append(f"make_{c_name(wanted)}")
    parts = ("(x).re", "(x).im") if kind.kind == "complex" else (text, "0")
    return f"make_{c_name(wanted)}({', '.join(parts)})"


def _with_needed(names: Sequence[str]) -> list[str]:
    """The texts of helpers and of those that they call, in the order in which they may stand."""
    wanted, left = set(names), list(names)
    while left:
        more = needed_by(helpers()[left.pop()]) & helpers().keys()
        left += more - wanted
        wanted |= more
    return [text for name, text in helpers().items() if name in wanted]


class ProductExecutable(CudaExecutable):
    """The product of two matrices: some launches count, some fill; in between the host learns the size."""

    direct = None

    def __init__(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> None:
        super().__init__(schedule, sizes)
        self.rows, self.result_columns = (self.shape[dim] for dim in self.plan.result.order)
        names = list(dict.fromkeys(access.tensor for access in self.plan.step.accesses))
        factors = factors_of(self.plan)
        assert factors is not None
        self.places = [ARRAYS * names.index(factor.tensor) for factor in factors]
        self._bytes = (
            self.dtype.itemsize,
            self.plan.index.bytes,
            self.plan.operand(factors[1].tensor).index.bytes,
        )
        self._turns: dict[int, Turns] = {}  # by the shared memory of a device

    @classmethod
    def first(cls, plan: Plan) -> Sequence[str]:
        return FIRST

    def is_ready(self) -> bool:
        if self.rows > LAST_UINT32 or self.result_columns > MAX_COLUMNS:
            refuse(f"it has more than {LAST_UINT32:,} rows or {MAX_COLUMNS:,} columns")
            return False
        self.load_sums()
        return self.kernel.is_ready(needed=COUNTING)

    def turns(self, device: torch.device) -> Turns:
        """Return what is launched on a device."""
        memory = self.shared_memory(device)
        known = self._turns.get(memory)
        if known is None:
            known = self._turns[memory] = Turns(self.rows, self.result_columns, *self._bytes, memory)
        return known

    def shared_memory(self, device: torch.device) -> int:
        return driver.shared_memory(device.index or 0)

    def describe(self, call: base.Call) -> base.Description:
        if self._is_by_parts(call):
            inner = "rows, few and long, are cut into parts; groups of threads have sums of all columns"
            how = "a block of CUDA threads for each part; one launch adds up, one counts and one fills; "
            said, _ = describe_cost(self.parts_kernel, self.launches(call), call)
            return base.Description(inner, f"{how}before that the host waits for the size; {said}")
        turns = self.turns(call.device)
        inner = f"rows with up to {turns.most or FEW:,} products sort them in shared memory; "
        inner += "others mark columns there"
        how = f"a warp for each row with up to {FEW} products, a block of CUDA threads for each of the others"
        how += f", {turns.cuts} for a long one" if turns.cuts > 1 else ""
        how += "; some launches count and some fill; in between the host waits for the size"
        if turns.tiles > 1:
            how += f"; those that mark columns are repeated for {turns.tiles} tiles of columns"
        said, _ = self._cost(call)
        return base.Description(inner, f"{how}; {said}")

    def launches(self, call: base.Call) -> list[Launch]:
        """Return what a call launches, as if no row were long."""
        if not self.rows:
            return []
        if self._is_by_parts(call):
            return self._launches_of_parts(call)
        turns = self.turns(call.device)
        rows = dict.fromkeys(turns.usual_bins, self.rows)
        return [turn.launch for turn in [*turns.counting, *turns.filling(rows)]]

    def build(self, arrays: Sequence[torch.Tensor], check: base.Check, bound: int = 0) -> base.Arrays:
        device = arrays[0].device
        with in_context(device):
            return self._build(arrays, device)

    def _build(self, arrays: Sequence[torch.Tensor], device: torch.device) -> base.Arrays:
        arrays = [array for place in self.places for array in arrays[place : place + ARRAYS]]
        check_waiting(device, f"the size of {self.label}")
        lanes = self.lanes_of_group(arrays[1].numel())
        if lanes and self.parts_kernel.is_ready():
            return self._build_by_parts(arrays, lanes, device)
        turns = self.turns(device)
        counts = torch.zeros(self.rows * turns.tiles, dtype=torch.int64, device=device)
        # Behind the places, how many rows each bin has: the host reads all of it at once.
        places = torch.zeros(counts.numel() + 1 + len(BINS), dtype=torch.int64, device=device)
        left = places[counts.numel() + 1 :]
        left_rows = torch.empty(self.rows * len(BINS), dtype=torch.int32, device=device)
        cut_counts = torch.empty(0, dtype=torch.int32, device=device)
        given = [*map(self.slot, arrays), self.rows, turns.tiles]
        lists = [self.slot(left), self.slot(left_rows)]

        def launch(some: Sequence[Turn], *result: torch.Tensor) -> None:
            behind = [*map(self.slot, (cut_counts, counts, *result)), 0, 0, 0][:5]
            for (name, blocks, threads, shared), number, tile, width, room, cuts in some if self.rows else ():
                slots = [*given, tile, width, room, turns.most, number, *lists, cuts, *behind]
                self.kernel.launch_blocks(name, slots, blocks, threads, shared, device.index)

        def add_up() -> list[int]:
            torch.cumsum(counts, 0, out=places[1 : counts.numel() + 1])
            found: list[int] = places[counts.numel() :].tolist()
            return found

        if turns.most:
            self.kernel.prepare(SORTING, device.index)
        launch(turns.counting)
        count, *rows = add_up()
        in_bins = dict(zip(BINS, rows, strict=True))
        if long := in_bins["BIN_LONG"]:
            cut_counts = torch.empty(long * turns.cuts, dtype=torch.int32, device=device)
            self.kernel.prepare(LONG, device.index)
            launch(turns.counting_long(long))
            count = add_up()[0]
        crd, values = self._allocated(count, device)
        if count:
            launch(turns.filling(in_bins), places, crd, values)
        return self._arrays(places[: counts.numel() + 1 : turns.tiles], crd, values)

    def _allocated(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return memory for the columns and values of so many entries."""
        index = torch.int32 if self.plan.index.bytes == 4 else torch.int64
        crd = torch.empty(count, dtype=index, device=device)
        return crd, torch.empty(count, dtype=self.dtype, device=device)

    def _arrays(self, places: torch.Tensor, crd: torch.Tensor, values: torch.Tensor) -> base.Arrays:
        count = crd.numel()
        index = torch.int64 if count > LAST_INT32 else crd.dtype
        return base.Arrays((None, places.to(index)), (None, crd.to(index)), (self.rows, count), values)

    # few rows, all of them long --------------------------------------------------------------------------

    @functools.cached_property
    def parts_kernel(self) -> CudaKernel:
        return self.make_kernel(print_product(self.plan, "product_parts.cu"), self.label, PARTS)

    def lanes_of_group(self, entries: int) -> int:
        """Return how many threads share the sums of a part; 0 where rows are not cut into parts."""
        is_long = 0 < self.rows <= MAX_FEW_ROWS and entries >= MIN_LONG_ROW * self.rows
        is_long = is_long and self.result_columns > 0
        lanes = 1
        while is_long and lanes <= WARP:
            if self._bytes_of_part(lanes) <= driver.USUAL_SHARED_MEMORY:
                return lanes
            lanes *= 2
        return 0

    def _is_by_parts(self, call: base.Call) -> bool:
        return call.arrays is not None and self.lanes_of_group(self._entries(call.arrays)) > 0

    def _entries(self, arrays: Sequence[torch.Tensor]) -> int:
        """Return the number of entries of the first factor, from the arrays of both."""
        return arrays[self.places[0] + 1].numel()

    def _parts_of_row(self, entries: int) -> int:
        most = min(MAX_PARTS, -(-WANTED_BLOCKS // self.rows))
        return max(1, min(most, entries // self.rows // MIN_PART))

    def _launches_of_parts(self, call: base.Call) -> list[Launch]:
        assert call.arrays is not None
        entries = self._entries(call.arrays)
        blocks, shared = (
            self.rows * self._parts_of_row(entries),
            self._bytes_of_part(self.lanes_of_group(entries)),
        )
        return [
            Launch("scorch_add_parts", blocks, THREADS, shared),
            Launch("scorch_count_parts", driver.blocks_for(self.rows * -(-self.result_columns // 32))),
            Launch("scorch_fill_parts", driver.blocks_for(self.rows * self.result_columns)),
        ]

    def _bytes_of_part(self, lanes: int) -> int:
        """Return the shared memory of a block: sums of each group of threads, and which columns there are."""
        columns = self.result_columns
        return THREADS // lanes * columns * self.dtype.itemsize + 4 * -(-columns // 32)

    def _build_by_parts(
        self, arrays: Sequence[torch.Tensor], lanes: int, device: torch.device
    ) -> base.Arrays:
        rows, columns, words = self.rows, self.result_columns, -(-self.result_columns // 32)
        parts = self._parts_of_row(arrays[1].numel())
        sums = torch.empty(rows * parts * columns, dtype=self.dtype, device=device)
        bits = torch.empty(rows * (parts + 1) * words, dtype=torch.int32, device=device)
        counts = torch.zeros(rows, dtype=torch.int64, device=device)
        given = [*map(self.slot, arrays), rows, columns, parts, lanes, self.slot(sums), self.slot(bits)]
        given += [self.slot(bits[rows * parts * words :]), self.slot(counts)]
        kernel, number = self.parts_kernel, device.index
        shared = self._bytes_of_part(lanes)
        nothing = [*given, 0, 0, 0]
        kernel.launch_blocks("scorch_add_parts", nothing, rows * parts, THREADS, shared, number)
        kernel.launch_blocks("scorch_count_parts", nothing, -(-rows * words // THREADS), THREADS, 0, number)
        places = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        torch.cumsum(counts, 0, out=places[1:])
        crd, values = self._allocated(int(places[-1]), device)
        slots = [*given, *map(self.slot, (places, crd, values))]
        kernel.launch_blocks("scorch_fill_parts", slots, -(-rows * columns // THREADS), THREADS, 0, number)
        return self._arrays(places, crd, values)
