"""Levels of sorted entries on CUDA devices: one kernel marks where nodes begin, one lists them.

A node of a level is a run of entries that have its coordinate and those further out. A sum over all marks, of
all levels one after another, numbers the nodes; the host waits once, to learn how many there are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch

from scorch._src.backends.by_torch.rows import Tensor
from scorch._src.backends.cuda.device.driver import in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, Text
from scorch._src.backends.cuda.device.streams import check_waiting
from scorch._src.backends.cuda.routines.picking import CudaPicking
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_cuda
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.formats.level import suffix
from scorch._src.loops import nodes as ir
from scorch._src.loops.simplify import simplify
from scorch._src.loops.types import BOOL, INT64, LAST_INT32, Type

MAX_KERNELS = 64
HEADS, NODES, ROWS = "scorch_heads", "scorch_nodes", "scorch_rows"
LABEL = "levels of sorted entries"
ENTRY, ROW, ENTRIES = ir.Var("entry"), ir.Var("row"), ir.Var("entries")
MARKS, NUMBERS = ir.Array("marks", INT64), ir.Array("numbers", INT64)


@dataclass(frozen=True)
class Shape:
    """Full levels, then runs of levels that list coordinates, with the types of these before and after."""

    full: int
    runs: tuple[int, ...]
    given: Type
    index: Type

    @property
    def levels(self) -> int:
        return self.full + sum(self.runs)

    @property
    def ends(self) -> list[int]:
        """The level behind each run."""
        return [self.full + length for length in itertools.accumulate(self.runs)]


def shape_of(form: Format, given: Type, index: Type) -> Shape | None:
    """Return the levels of a format that are listed for full ones, then runs; None for other formats."""
    full, length = form.dense_levels, len(form)
    if full == length or any(level.is_full for level in form.levels[full:]):
        return None
    starts = [level for level in range(full, length) if form.starts_run(level)]
    runs = tuple([end - begin for begin, end in itertools.pairwise((*starts, length))])
    return None if len(runs) == 1 and not full else Shape(full, runs, given, index)


@functools.lru_cache(maxsize=MAX_KERNELS)
def print_levels(shape: Shape) -> str:
    """The CUDA source that lists levels."""
    return print_cuda(_Loops(shape).kernel(), is_apart=True)


def functions_of(shape: Shape) -> list[str]:
    """The functions of that source, all of which are launched."""
    wanted = {HEADS: len(shape.runs) > 1, NODES: len(shape.runs) > 1 or not shape.full, ROWS: shape.full > 0}
    return [name for name, is_wanted in wanted.items() if is_wanted]


class _Loops:
    """The loops of all functions. Slots are sizes, coordinates, marks, their sums, then the new arrays."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.uppers = range(len(shape.runs) - 1)
        self.sizes = [ir.Var(f"size{level}") for level in range(shape.full)]
        self.before = [ir.Var(f"before{run}") for run in range(len(shape.runs))]  # nodes of runs further out
        self.crds = [ir.Array(f"crd{level}", shape.given) for level in range(shape.levels)]
        self.pos = [ir.Array(f"pos{run}", shape.index) for run in range(len(shape.runs))]
        last = shape.ends[-2] if len(shape.runs) > 1 else shape.full
        self.nodes = {level: ir.Array(f"node{level}", shape.index) for level in range(shape.full, last)}

    def kernel(self) -> ir.Kernel:
        slots: tuple[ir.Var | ir.Array, ...] = (
            ENTRIES,
            *self.sizes,
            *self.before,
            *self.crds,
            MARKS,
            NUMBERS,
            *self.pos,
            *self.nodes.values(),
        )
        rows: ir.Expr = ir.Const(1)
        for size in self.sizes:
            rows = rows * size
        made = {
            HEADS: lambda: self._function(HEADS, slots, ENTRY, ENTRIES, self._mark()),
            NODES: lambda: self._function(NODES, slots, ENTRY, ENTRIES, self._list()),
            ROWS: lambda: self._function(ROWS, slots, ROW, rows + 1, self._begin_row()),
        }
        return simplify(ir.Kernel("", slots, tuple([made[name]() for name in functions_of(self.shape)])))

    def _function(
        self, name: str, slots: tuple[ir.Var | ir.Array, ...], turn: ir.Var, count: ir.Expr, body: ir.Stmt
    ) -> ir.Function:
        nothing = ir.block()
        loop = ir.Parallel(turn, count, ir.Const(1), nothing, body, nothing, has_unit_each=True)
        return ir.Function(name, slots, ir.block(loop), exported=True)

    def _mark(self) -> ir.Stmt:
        """Mark the entries that differ from the one before, in the coordinates up to each run."""
        is_new, level = ir.Var("is_new", BOOL), 0
        body: list[ir.Stmt] = [ir.Declare(is_new, ENTRY.equals(0))]
        for run in self.uppers:
            while level < self.shape.ends[run]:
                here, other = (ir.wide(ir.Load(self.crds[level], ENTRY - n)) for n in (0, 1))
                body.append(ir.Assign(is_new, ir.either(is_new, here.differs(other))))
                level += 1
            body.append(ir.Store(MARKS, ENTRIES * run + ENTRY, ir.Cast(is_new, INT64)))
        return ir.block(*body)

    def _number(self, run: int, entry: ir.Expr) -> ir.Expr:
        """How many nodes a run has up to an entry; the last has one for each."""
        if run == len(self.shape.runs) - 1:
            return entry + 1
        return ir.Load(NUMBERS, ENTRIES * run + entry) - self.before[run]

    def _list(self) -> ir.Stmt:
        """List each node at its first entry, and where its children begin."""
        body: list[ir.Stmt] = []
        is_last = ENTRY.equals(ENTRIES - 1)
        for run in self.uppers:
            number, is_new = ir.Var(f"number{run}"), ir.Load(MARKS, ENTRIES * run + ENTRY).differs(0)
            levels = range(self.shape.ends[run] - self.shape.runs[run], self.shape.ends[run])
            coordinates = [
                ir.Store(self.nodes[level], number - 1, ir.Load(self.crds[level], ENTRY)) for level in levels
            ]
            child = ir.Store(self.pos[run + 1], number - 1, self._number(run + 1, ENTRY) - 1)
            end = ir.Store(self.pos[run + 1], number, self._number(run + 1, ENTRY))
            body += [
                ir.Declare(number, self._number(run, ENTRY)),
                ir.If(is_new, ir.block(*coordinates, child)),
                ir.If(is_last, end),
            ]
        if not self.shape.full:
            begin = ir.Store(self.pos[0], ir.Const(0), ir.Const(0))
            end = ir.Store(self.pos[0], ir.Const(1), self._number(0, ENTRY))
            body.append(ir.If(is_last, ir.block(begin, end)))
        return ir.block(*body)

    def _begin_row(self) -> ir.Stmt:
        """Search for the first entry of a row, whose number joins the coordinates of full levels."""
        body: list[ir.Stmt] = []
        left: ir.Expr = ROW
        for level in reversed(range(1, self.shape.full)):
            body.append(ir.Declare(ir.Var(f"at{level}"), left % self.sizes[level]))
            rest = ir.Var(f"rest{level}")
            body.append(ir.Declare(rest, left // self.sizes[level]))
            left = rest
        body.append(ir.Declare(ir.Var("at0"), left))
        low: ir.Expr = ir.Const(0)
        high: ir.Expr = ENTRIES
        for level in range(self.shape.full):
            crd, at = self.crds[level], ir.Var(f"at{level}")
            bounds = [("lower", ir.Var(f"low{level}")), ("upper", ir.Var(f"high{level}"))]
            for name, var in bounds if level < self.shape.full - 1 else bounds[:1]:
                found = ir.Call(f"{name}_bound_{suffix(crd.element)}", (crd, low, high, at))
                body.append(ir.Declare(var, found))
                low, high = (var, high) if name == "lower" else (low, var)
        is_inside = ir.Const(0) < low
        number = self._number(0, low - 1)  # of the last entry before
        body.append(ir.Store(self.pos[0], ROW, ir.Select(is_inside, number, ir.Const(0))))
        return ir.block(*body)


class CudaLevels(CudaPicking):
    """The routines, those that list levels by kernels of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._levels: BoundedCache[Shape, CudaKernel] = BoundedCache(MAX_KERNELS)

    def usual_texts(self, values: torch.dtype, index: torch.dtype) -> list[Text]:
        rows = Shape(1, (1,), *[type_of_dtype(index)] * 2)
        text = Text(functools.partial(print_levels, rows), LABEL, functions_of(rows))
        return [text, *super().usual_texts(values, index)]

    def list_levels(
        self, sizes: Sequence[int], runs: Sequence[int], crds: Sequence[Tensor], index: torch.dtype
    ) -> tuple[list[Tensor], list[Tensor]] | None:
        entries, device = crds[0].numel(), crds[0].device
        is_able = 0 < entries <= LAST_INT32 and self.has_kernels(device)
        if not is_able or any(crd.dtype != crds[0].dtype for crd in crds) or (len(runs) == 1 and not sizes):
            return None
        shape = Shape(len(sizes), tuple(runs), type_of_dtype(crds[0].dtype), type_of_dtype(index))
        with in_context(device):
            kernel = self._levels.get(shape)
            if kernel is None:
                kernel = self.make_kernel(print_levels(shape), LABEL, functions_of(shape))
                self._levels[shape] = kernel
            return _list_levels(kernel, shape, sizes, crds, index) if kernel.is_ready() else None


def _list_levels(
    kernel: CudaKernel, shape: Shape, sizes: Sequence[int], crds: Sequence[Tensor], index: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    entries, device, uppers = crds[0].numel(), crds[0].device, len(shape.runs) - 1
    given = [crd.contiguous() for crd in crds]
    totals, slots, marks, numbers = [0] * uppers, [entries, *sizes], None, None
    if uppers:
        check_waiting(device, "the number of coordinates of each level")
        marks = torch.empty(uppers * entries, dtype=torch.int64, device=device)
        arrays = [*map(address_of, given), address_of(marks)]
        spare = [0] * (1 + len(shape.runs) + shape.ends[-2] - shape.full)
        kernel.launch(HEADS, [*slots, *[0] * len(shape.runs), *arrays, *spare], entries, device.index)
        numbers = torch.cumsum(marks, 0)
        sums = numbers[entries - 1 :: entries].tolist()
        totals = [after - before for before, after in itertools.pairwise((0, *sums))]
    counts = [*totals, entries]
    before = [0, *itertools.accumulate(totals)]
    parents = [math.prod(sizes), *totals]
    pos = [torch.empty(count + 1, dtype=index, device=device) for count in parents]
    listed = []
    for run, length in enumerate(shape.runs[:-1]):
        listed += [torch.empty(counts[run], dtype=index, device=device) for _ in range(length)]
    middle = [0 if array is None else address_of(array) for array in (marks, numbers)]
    slots += [*before, *map(address_of, given), *middle, *map(address_of, (*pos, *listed))]
    if NODES in kernel.first:
        kernel.launch(NODES, slots, entries, device.index)
    if ROWS in kernel.first:
        kernel.launch(ROWS, slots, pos[0].numel(), device.index)
    return pos, [*listed, *(crd.to(index) for crd in given[shape.levels - shape.runs[-1] :])]
