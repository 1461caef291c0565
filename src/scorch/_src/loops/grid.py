"""A parallel loop as a grid: with a thread, or a unit of them, for every value that the loops own.

    parallel i in 0..m: for k in 0..n: ...       ->       parallel turn in 0..m*n: i, k = turn / n, turn % n

Adjacent threads then have adjacent ``k``, and what they load lies side by side in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from scorch._src.dataclass import dataclass, replace
from scorch._src.loops import nodes as ir
from scorch._src.loops import units
from scorch._src.loops.analysis import walk
from scorch._src.loops.entries import over_entries, over_list
from scorch._src.loops.runs import Runs
from scorch._src.loops.turns import coordinates_of, dense_loop, head_of_part, one_turn, split_by, with_number
from scorch._src.loops.units import Row, statements_of

MEMORY = (ir.Allocate, ir.Resize, ir.Free, ir.PutArray, ir.SlotArray, ir.KeepArray, ir.Fail)
VECTORS = (ir.Lanes, ir.Tile, ir.Total)
WHOLE_ARRAYS = (ir.Put, ir.Fill, ir.Copy)  # what one thread does for all

WARP = 32  # threads that run in step
MAX_COLUMNS_EACH = 4
USUAL_LENGTH = 8  # of a row of which nothing is known
MIN_ENTRIES_EACH = 2  # of a row, for each thread that shares it
MIN_TERMS_EACH = 16  # of a sum over a dense index
MAX_UNROLLED = 256  # terms of such a sum whose number is part of the kernel
TERMS_OF_RUN = 4
RUN_BYTES = 16  # that a thread loads at once
MIN_THREADS_OF_ROW = 8  # a sector of memory holds as many float32
MANY_THREADS = 1 << 16  # which keep a device busy
MIN_LONG = 256  # entries of a row that is long

FUNCTIONS = ("scorch_compute", "scorch_cut", "scorch_combine")


@dataclass(frozen=True)
class Grid:
    """How the threads of a grid share a kernel.

    ``threads`` form a unit. ``column`` is the index that they share, ``each`` of its values a thread; without
    one, they share the terms of a sum. ``pos`` is the array of the rows that ``scorch_cut`` and
    ``scorch_combine`` cut where they are long, ``below`` are those of rows below them, whose entries are cut;
    ``part_threads`` form a unit there, and share both columns and entries where they are more. Units that
    combine parts have ``combined`` columns.
    ``parents``: the arrays of rows whose number is needed at each entry, from the entries up; turns are
    the entries of the first, or of a list with coordinates ``listed``. ``adds``: threads add atomically.
    """

    threads: int = 1
    column: str = ""
    each: int = 1
    pos: str = ""
    below: tuple[str, ...] = ()
    part_threads: int = 1
    combined: int = 1
    is_few: bool = False  # whether rows are too few for a device, and long
    parents: tuple[str, ...] = ()
    listed: str = ""
    adds: bool = False
    added_slots: int = 0  # behind those of the kernel
    aligned: tuple[str, ...] = ()  # arrays of which runs are loaded or stored
    is_stored_narrow: bool = False  # whether results are rounded to what they are stored as


@dataclass(frozen=True)
class Facts:
    """What is known when a kernel is made: loops that own parts of the result, extents, numbers of rows.

    ``lengths`` and ``rows`` are those of the rows that begin at an array of positions.
    """

    owned: Collection[str] = ()
    extents: Mapping[str, int] | None = None
    lengths: Mapping[str, int] | None = None
    exact: Collection[str] = ()  # loops whose extent is the very number of turns
    bytes: int = 4  # of the narrowest element of a dense operand
    rows: Mapping[str, int] | None = None

    def extent(self, loop: str) -> int:
        """The most turns that a loop has."""
        return (self.extents or {}).get(loop, 1 << 30)

    def is_multiple(self, loop: str, number: int) -> bool:
        """Check whether a loop is known to have a multiple of ``number`` turns."""
        return loop in self.exact and self.extent(loop) % number == 0

    def length(self, pos: str) -> int:
        return (self.lengths or {}).get(pos, USUAL_LENGTH)

    def are_few_and_long(self, pos: str, threads: int) -> bool:
        """Check whether units of ``threads`` for each row are too few for a device, and have much to do."""
        rows = (self.rows or {}).get(pos, MANY_THREADS)
        return rows * threads < MANY_THREADS and self.length(pos) >= MIN_LONG


def describe_grid(plan_order: Sequence[str], grid: Grid) -> str:
    """Say what the threads of a unit share."""
    if grid.column:
        each = f", {grid.each} of its values each" if grid.each > 1 else ""
        shared = f"units share {grid.column}{each}"
    elif grid.threads > 1:
        shared = "units share the terms of a sum"
    else:
        shared = "one by one"
    runs = ", loaded in runs" if grid.aligned else ""
    cut = "; rows much longer than others are split" if grid.pos else ""
    adds = "; adds by atomics, in no fixed order" if grid.adds else ""
    return f"{', '.join(plan_order[-1:])}: {shared}{runs}{cut}{adds}"


def why_no_grid(kernel: ir.Kernel) -> str:
    """Why a kernel cannot run as one grid; "" if it can."""
    exported = [function for function in kernel.functions if function.exported]
    if len(exported) != 1:
        return "its result is put together in two steps"
    for node in walk(exported[0]):
        if isinstance(node, MEMORY):
            return "it keeps memory of its own"
        if isinstance(node, VECTORS):
            return "it runs in vector registers"
        if isinstance(node, WHOLE_ARRAYS):
            return "a part of it runs on one thread"
    *before, last = statements_of(exported[0].body) or [ir.Block(())]  # of what is zero everywhere
    if not isinstance(last, ir.Parallel) or not all(isinstance(stmt, ir.Declare) for stmt in before):
        return "no loop of it owns its part of the result"
    return "" if _is_empty(last.prologue) and _is_empty(last.epilogue) else "its workers keep memory"


def as_grid(kernel: ir.Kernel, facts: Facts) -> tuple[ir.Kernel, Grid]:
    """Return the kernel with the loops that own their values spread over a grid, and how."""
    spread = _Spread(kernel, facts)
    functions: list[ir.Function] = []
    for function in kernel.functions:
        functions += spread.functions(function) if function.exported else [function]
    slots = (*kernel.slots, *spread.slots)
    grid = replace(spread.grid, added_slots=len(spread.slots))
    return replace(kernel, functions=tuple(functions), slots=slots), grid


class _Spread:
    """Spreads the exported function of a kernel."""

    def __init__(self, kernel: ir.Kernel, facts: Facts) -> None:
        self.facts = facts
        self.grid = Grid(adds=any(isinstance(node, ir.AtomicAdd) for node in walk(kernel)))
        self.slots: tuple[ir.Var | ir.Array, ...] = ()
        self.taken = {node.name for node in walk(kernel) if isinstance(node, ir.Var | ir.Array)}
        self.taken |= {slot.name for slot in kernel.slots}

    def _var(self, name: str) -> ir.Var:
        """Return a variable that is called otherwise than all of the kernel, which may be users' indices."""
        return ir.Var(units.fresh(name, self.taken))

    def functions(self, function: ir.Function) -> list[ir.Function]:
        *before, parallel = statements_of(function.body)
        assert isinstance(parallel, ir.Parallel)
        outside = {param.name for param in function.params} | {
            stmt.var.name for stmt in before if isinstance(stmt, ir.Declare)
        }
        head, inner = one_turn(parallel)
        listed = None if head else over_list(parallel, self._is_free)
        if listed is not None:
            head, inner, coordinates = listed
            self.grid = replace(self.grid, listed=coordinates.name)
        entries = over_entries(parallel, head, inner, self._is_free, self.taken)
        if entries is not None:
            parallel, head, inner = entries.parallel, list(entries.head), entries.inner
            self.slots = (*entries.rows, entries.count)
            self.grid = replace(self.grid, parents=tuple(pos.name for pos in entries.pos))
        loops: list[tuple[ir.Var, ir.Expr]] = [(parallel.var, parallel.count)]
        while (opened := dense_loop(inner, outside)) is not None and opened[1].var.name in self.facts.owned:
            declared, loop, inner = opened
            head += declared
            loops.append((loop.var, loop.stop))

        def made(loop: ir.Parallel, name: str = FUNCTIONS[0]) -> ir.Function:
            used = {node.name for node in walk(loop) if isinstance(node, ir.Var | ir.Array)}
            added = [slot for slot in self.slots if slot.name in used]
            return replace(
                function, name=name, params=(*function.params, *added), body=ir.block(*before, loop)
            )

        if len(loops) > 1:
            return self._columns(parallel, loops, head, inner, made)
        if (listed or entries) is not None and units.find_row(inner) is None:
            body = ir.block(*head, *self._shared_terms(statements_of(inner)))
            return [made(replace(parallel, body=body, has_unit_each=True))]
        return self._rows(parallel, head, inner, made)

    def _is_free(self, loop: str) -> bool:
        """Check whether turns of a loop need not know of each other."""
        return self.grid.adds or loop in self.facts.owned

    # rows with columns

    def _columns(
        self,
        parallel: ir.Parallel,
        loops: list[tuple[ir.Var, ir.Expr]],
        head: list[ir.Stmt],
        inner: ir.Stmt,
        made: _Made,
    ) -> list[ir.Function]:
        """Return kernels in which units share the columns of a row, the innermost loop that owns values."""
        split = units.split_stores(statements_of(inner))
        if split is None:
            turn = self._var("turn")
            total, coordinates = coordinates_of(turn, loops)
            return [made(replace(parallel, var=turn, count=total, body=ir.block(*coordinates, *head, inner)))]
        column, size = loops[-1]
        threads, each = shape_of_columns(self.facts.extent(column.name), self.facts.bytes)
        is_run = each > 1 and self.facts.is_multiple(column.name, each)
        runs = Runs(column, size)
        self.grid = replace(self.grid, threads=threads, part_threads=threads, column=column.name, each=each)

        def tiled(
            outer: list[tuple[ir.Var, ir.Expr]],
            head: Sequence[ir.Stmt],
            computed: Sequence[ir.Stmt],
            stored: Sequence[ir.Stmt],
            threads: int,
        ) -> ir.Parallel:
            turn, width = self._var("turn"), threads * each
            tile: ir.Expr = ir.Const(0)
            if self.facts.extent(column.name) > width:
                tile = self._var("tile")
                outer = [*outer, (tile, (size + (width - 1)) // width)]
            total, coordinates = coordinates_of(turn, outer)
            shared = units.in_columns(runs, tile, computed, stored, threads, each, is_run, self._var)
            return replace(parallel, var=turn, count=total, body=ir.block(*coordinates, *head, shared))

        fixed, varying = split_by(column, head)
        computed, stored = split
        kernels = [tiled(loops[:-1], fixed, [*varying, *computed], stored, threads)]
        row = units.find_row(inner)
        cut_head = head_of_part(parallel, fixed, [*varying, inner], row) if len(loops) == 2 else None
        if row is None or cut_head is None:
            self._align(runs)
            return [made(kernels[0])]
        shapes = [threads, threads]
        if self.facts.are_few_and_long(row.pos.name, threads):
            shapes[1] = min(threads, MIN_THREADS_OF_ROW)  # as there are few rows to put together
            self.grid = replace(self.grid, part_threads=WARP, is_few=True)
        self.grid = replace(self.grid, combined=shapes[1] * each)
        parts = self._parts(row, cut_head, column, size)
        for (turn, count, begin, sum_), lanes in zip(parts, shapes, strict=True):
            loop = sum_.loop
            if self.grid.part_threads > lanes:
                loop = replace(loop, threads=WARP, lanes=lanes, sums=1)
            computed = [*varying, *sum_.before, loop]
            kernels.append(tiled([(turn, count)], begin, computed, list(sum_.after), lanes))
        self._align(runs)
        return [made(*kernel) for kernel in zip(kernels, FUNCTIONS, strict=True)]

    # entries

    def _shared_terms(self, statements: list[ir.Stmt]) -> list[ir.Stmt]:
        """Return the statements of an entry, with a sum over a dense index shared by a unit."""
        loops = [stmt for stmt in statements if isinstance(stmt, ir.For)]
        if not loops:
            return statements
        name, size = loops[0].var.name, loops[0].stop
        extent = self.facts.extent(name)
        threads = power_of_two(extent // MIN_TERMS_EACH)
        if name in self.facts.exact and extent <= MAX_UNROLLED and isinstance(size, ir.Var):
            statements = with_number(statements, size, extent)
        each = max(TERMS_OF_RUN, RUN_BYTES // self.facts.bytes)
        each = each if self.facts.is_multiple(name, each) else TERMS_OF_RUN
        if self.facts.is_multiple(name, each):
            found = units.share_in_runs(statements, threads, each)
            if found is not None:
                self.grid = replace(self.grid, threads=threads)
                self._align(found[1])
                return found[0]
        shared = units.share(statements, threads) if threads > 1 else None
        if shared is None:
            return statements
        self.grid = replace(self.grid, threads=threads)
        return shared

    # rows

    def _rows(
        self, parallel: ir.Parallel, head: list[ir.Stmt], inner: ir.Stmt, made: _Made
    ) -> list[ir.Function]:
        """Return kernels in which units share the entries of a row, or threads have a row each."""
        whole = replace(parallel, body=ir.block(*head, inner))
        row = units.find_row(inner)
        if row is None:
            return [made(whole)]
        threads = power_of_two(self.facts.length(row.pos.name) // MIN_ENTRIES_EACH)
        if threads > 1:
            whole = replace(parallel, body=ir.block(*head, *row.shared(threads)))
        self.grid = replace(self.grid, threads=threads, part_threads=threads)
        cut_head = head_of_part(parallel, head, [inner], row)
        if cut_head is None:
            return [made(whole)]
        kernels = [whole]
        parts = self._parts(row, cut_head, ir.Const(0), ir.Const(1))
        for (turn, count, begin, sum_), unit in zip(parts, (threads, WARP), strict=True):
            body = ir.block(*begin, *sum_.shared(unit))
            kernels.append(replace(parallel, var=turn, count=count, body=body))
        return [made(*kernel) for kernel in zip(kernels, FUNCTIONS, strict=True)]

    def _align(self, runs: Runs) -> None:
        self.grid = replace(self.grid, aligned=(*self.grid.aligned, *runs.arrays))

    def _parts(
        self, row: Row, head: Callable[[ir.Expr], list[ir.Stmt]], column: ir.Expr, columns: ir.Expr
    ) -> list[tuple[ir.Var, ir.Expr, list[ir.Stmt], Row]]:
        """Return the loops over parts of rows, and over rows that were cut: turns, their heads and sums."""
        parts = units.parts_of(row, self.taken)
        self.slots += parts.slots
        self.grid = replace(self.grid, pos=row.pos.name, below=tuple(pos.name for pos in row.below))
        part, long = self._var("part_turn"), self._var("long_turn")
        cut = units.cut_row(row, parts, part, column, columns)
        combined = units.combine_parts(row, parts, long, column, columns, self._var("part"))
        return [
            (part, parts.count, head(ir.wide(ir.Load(parts.row, part))), cut),
            (long, parts.long, head(ir.wide(ir.Load(parts.long_row, long))), combined),
        ]


class _Made(Protocol):
    """Makes a function of a parallel loop."""

    def __call__(self, loop: ir.Parallel, name: str = ...) -> ir.Function: ...


def shape_of_columns(extent: int, bytes: int = 4) -> tuple[int, int]:
    """Return how many threads share the columns of a row, and how many columns each of them has."""
    most = max(MAX_COLUMNS_EACH, RUN_BYTES // bytes)
    each = min(most, 1 << max(0, (extent // MIN_THREADS_OF_ROW).bit_length() - 1))
    threads = power_of_two(-(-extent // each), up=True)
    return threads, each


def power_of_two(number: int, up: bool = False) -> int:
    """Round to a power of two of threads that fit into a warp."""
    if number <= 1:
        return 1
    return min(WARP, 1 << ((number - 1).bit_length() if up else number.bit_length() - 1))


def _is_empty(stmt: ir.Stmt) -> bool:
    return not statements_of(stmt)
