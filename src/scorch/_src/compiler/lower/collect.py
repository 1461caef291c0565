"""Collectors: what takes the finished entries of a result.

``Values`` writes to a place that is known. ``Rows`` appends coordinates and values below dense levels, each
chunk of the outer loop to arrays of its own, which are put one after another at the end; ``collect_in_place``
has those that need no such arrays. ``Entries`` keeps all coordinates under keys and packs them, once sorted,
into any format.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorch._src.compiler import lattice
from scorch._src.compiler.lower.levels import value_count
from scorch._src.compiler.lower.pack import Packer, running_total
from scorch._src.compiler.plan import LevelUse, Plan
from scorch._src.formats.scratch import FIRST_CAPACITY, ListScratch, join_key, not_zero
from scorch._src.loops import nodes as ir
from scorch._src.loops.operators import REDUCTIONS
from scorch._src.loops.types import INT64

LEAST_MOVED = 1 << 15  # entries of all chunks that threads move together


class Collector:
    """Takes finished entries; most points of the loops need nothing done."""

    appends = True  # entries that were never found must not be placed
    chunks_per_thread = 16
    inputs: tuple[ir.Var | ir.Array, ...] = ()
    outputs: tuple[ir.Var | ir.Array, ...] = ()
    finish_inputs: tuple[ir.Var | ir.Array, ...] = ()

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.step.target.tensor
        self.uses = plan.result_uses
        self.values = ir.Array(f"{self.name}_vals", plan.element)

    @property
    def copied(self) -> ir.Expr:
        """How many rows, or positions, of the result each chunk has an array for, if it needs one."""
        raise NotImplementedError

    def helpers(self) -> tuple[ir.Function, ...]:
        return ()

    def before(self) -> ir.Stmt:
        return ir.block()

    def after(self) -> ir.Stmt:
        return ir.block()

    def before_chunks(self, chunks: ir.Expr) -> ir.Stmt:
        return ir.block()

    def before_chunk(self, chunk: ir.Expr) -> ir.Stmt:
        return ir.block()

    def after_chunk(self, chunk: ir.Expr) -> ir.Stmt:
        return ir.block()

    def limits(self, entries: int, inserted: int) -> dict[str, int]:
        """How far the counters get that arrays grow with, by name; as ``Scratch.limits``."""
        return {}

    def make_room(self, entries: ir.Expr) -> ir.Stmt:
        """Before ``entries`` are placed that are known to come."""
        return ir.block()

    def counting(self, loops: ir.Stmt) -> ir.Stmt:
        """The first of two turns of ``loops``, or something shorter with the same effect."""
        return loops

    def next_pass(self) -> ir.Stmt | None:
        """What comes between this turn of the loops and the next one; None if there is no other."""
        return None

    def around(self, depth: int, inner: ir.Stmt) -> ir.Stmt:
        return inner

    def place(self, coordinates: list[ir.Expr], value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        raise NotImplementedError

    def only_where(self, condition: ir.Expr, inner: ir.Stmt) -> ir.Stmt:
        """``inner``, which inserts what is found at a coordinate, if ``condition`` holds."""
        return ir.If(condition, inner)

    def finish(self, sizes: tuple[ir.Var, ...]) -> ir.Function | None:
        return None


class Values(Collector):
    """A place for every value: computed for a dense result, an operand's own for a shared pattern."""

    appends = False

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.inputs = (self.values,)
        self.writes_once = _writes_once(plan)

    @property
    def copied(self) -> ir.Expr:
        """Positions that stored levels lead to: the work of each is that of all along other loops.

        Values of a sparse result are added to one after another, much faster than entries are looked up.
        """
        if self.plan.pattern is not None:
            return value_count(self.plan) // 8
        stored = {
            loop
            for access in self.plan.step.accesses
            if self.plan.operand(access.tensor).is_sparse
            for use in self.plan.uses(access)
            for loop in use.loops
        }
        rows: ir.Expr = ir.Const(1)
        for use in self.uses:
            if not stored.isdisjoint(use.loops):
                rows = rows * use.arrays.size
        return rows

    def place(self, coordinates: list[ir.Expr], value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        if position is None:
            assert self.plan.pattern is None, "the place in a shared pattern is not known"
            position = join_key(coordinates, [use.arrays.size for use in self.uses])
        if self.plan.adds:
            return ir.AtomicAdd(self.values, position, value)
        if self.writes_once:
            return ir.Store(self.values, position, value)
        join = REDUCTIONS[self.plan.step.reduction].loop
        joined = ir.Binary(join, ir.Load(self.values, position), value, self.plan.element)
        return ir.Store(self.values, position, joined)


def writes_everything(plan: Plan) -> bool:
    """Whether every value of a dense result, or of one on an operand's pattern, is written, whatever it was.

    It is if no loop comes back to a value, and loops that skip coordinates are only those of the pattern; or
    if threads have copies of the result, whose sum is written.
    """
    if plan.is_private:
        return True
    if plan.assembly not in ("dense", "shared") or not _writes_once(plan) or plan.splits.blocks:
        return False
    if lattice.support(plan.step.body, lambda access: lattice.EVERYWHERE) == lattice.NOWHERE:
        return False
    if plan.pattern is not None:
        stored = [access for access in plan.step.accesses if plan.operand(access.tensor).is_sparse]
        is_alone = lattice.support_by(plan.step.body, stored) == lattice.stored(plan.pattern)
        return is_alone and all(access != plan.pattern for access, _ in plan.searched)
    return not plan.skips(plan.result_loops)


def _writes_once(plan: Plan) -> bool:
    """Whether each value is complete when it is written: no reduction is outside the result's loops.

    A stretch of a row that stays in registers is complete when it is stored.
    """
    if plan.row_vectors is not None:
        return True
    if plan.adds:
        return False
    result = plan.result_loops
    last = max((plan.order.index(loop) for loop in result), default=-1)
    return all(loop in result for loop in plan.order[: last + 1])


class Rows(Collector):
    """Formats ``d...ds``: the number of entries of each row goes to ``pos``, entries to arrays per chunk."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        last = len(self.uses)
        self.pos = ir.Array(f"{self.name}{last}_pos", INT64)
        self.crd = ir.Array(f"{self.name}{last}_crd", plan.index)
        self.count, self.capacity = ir.Var(f"{self.name}_count"), ir.Var(f"{self.name}_capacity")
        self.row_start = ir.Var(f"{self.name}_row_start")
        self.tables = [ir.Array(f"chunk_{part}", INT64) for part in ("crd", "vals", "count")]
        self.chunks = ir.Var("chunk_total")
        self.nnz = ir.Var(f"{self.name}_nnz")
        self.inputs = (self.pos,)
        self.outputs = (self.nnz, self.chunks, *self.tables)
        self.finish_inputs = (ir.Var("discard"), self.crd, self.values)
        outer = [loop for use in self.uses[:-1] for loop in use.loops]
        self.row_depth = len(outer)
        self.has_room = False
        self.is_shared = plan.parallel and not plan.is_grid

    def before_chunks(self, chunks: ir.Expr) -> ir.Stmt:
        lengths = (chunks, chunks, chunks + 1)  # before the first count stands 0
        allocated = [ir.Allocate(table, n, zero=True) for table, n in zip(self.tables, lengths, strict=True)]
        kept = [ir.PutArray(table.name, table) for table in self.tables]
        return ir.block(*allocated, *kept, ir.Put(self.chunks.name, chunks))

    def before_chunk(self, chunk: ir.Expr) -> ir.Stmt:
        return ir.block(
            ir.Declare(self.capacity, ir.Const(FIRST_CAPACITY)),
            ir.Declare(self.count, ir.Const(0)),
            ir.Allocate(self.crd, self.capacity),
            ir.Allocate(self.values, self.capacity),
        )

    def after_chunk(self, chunk: ir.Expr) -> ir.Stmt:
        crd, values, count = self.tables
        return ir.block(
            ir.KeepArray(crd, chunk, self.crd),
            ir.KeepArray(values, chunk, self.values),
            ir.Store(count, chunk + 1, self.count),
            ir.Store(self.pos, ir.Const(1), self.count) if self.is_vector else None,
        )

    def limits(self, entries: int, inserted: int) -> dict[str, int]:
        """Room doubles when it is full: in all chunks together there is less than twice what was needed."""
        return {self.capacity.name: max(FIRST_CAPACITY, 2 * entries)}

    @property
    def is_vector(self) -> bool:
        """A single row, which is never cut into chunks."""
        return len(self.uses) == 1

    def around(self, depth: int, inner: ir.Stmt) -> ir.Stmt:
        if depth != self.row_depth or self.is_vector:
            return inner
        row = join_key(
            [use.coordinate for use in self.uses[:-1]], [use.arrays.size for use in self.uses[:-1]]
        )
        return ir.block(
            ir.Declare(self.row_start, self.count),
            inner,
            ir.Store(self.pos, row + 1, self.count - self.row_start),
        )

    def make_room(self, entries: ir.Expr) -> ir.Stmt:
        """Room for ``entries`` more, which are then placed without asking."""
        self.has_room = True
        needed = self.count + entries
        return self._grow(self.capacity < needed, ir.Binary("max", self.capacity * 2, needed, INT64))

    def _grow(self, is_full: ir.Expr, capacity: ir.Expr) -> ir.Stmt:
        arrays = [ir.Resize(array, self.capacity) for array in (self.crd, self.values)]
        return ir.If(is_full, ir.block(ir.Assign(self.capacity, capacity), *arrays))

    def place(self, coordinates: list[ir.Expr], value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        append = ir.block(
            None if self.has_room else self._grow(self.count.equals(self.capacity), self.capacity * 2),
            self.plan.result.levels[-1].append(self.uses[-1].arrays, self.count, coordinates[-1]),
            ir.Store(self.values, self.count, value),
            ir.Assign(self.count, self.count + 1),
        )
        return ir.If(not_zero(value), append) if self.plan.skip_zeros else append

    def after(self) -> ir.Stmt:
        rows = row_count(self.uses)
        return ir.block(running_total(self.pos, rows), ir.Put(self.nnz.name, ir.Load(self.pos, rows)))

    def finish(self, sizes: tuple[ir.Var, ...]) -> ir.Function:
        """Put the arrays of the chunks one after another (or only free them), many entries on all threads."""
        chunk, movers, nothing = ir.Var("chunk"), ir.Var("movers"), ir.block()
        all_threads = (ir.Var("parallel_for"), ir.Var("threads")) if self.is_shared else ()
        counts = self.tables[2]
        join: ir.Stmt = ir.For(chunk, ir.Const(0), self.chunks, self._join(chunk))
        if all_threads:
            few = ir.Load(counts, self.chunks) < LEAST_MOVED
            join = ir.block(
                ir.Declare(movers, ir.Select(few, ir.Const(1), all_threads[1])),
                ir.Parallel(chunk, self.chunks, movers, nothing, self._join(chunk), nothing),
            )
        body = ir.block(
            running_total(counts, self.chunks),
            join,
            *(ir.Free(table) for table in self.tables),
            ir.Return(ir.Const(0)),
        )
        given: tuple[ir.Var | ir.Array, ...] = (self.chunks, *self.tables, *self.finish_inputs)
        return ir.Function("scorch_finish", (*all_threads, *given), body, exported=True)

    def _join(self, chunk: ir.Var) -> ir.Stmt:
        """Move the entries of a chunk behind those of all chunks before, unless they are discarded."""
        crd, values = ir.Array("part_crd", self.crd.element), ir.Array("part_vals", self.values.element)
        at, length, counts = ir.Var("at"), ir.Var("length"), self.tables[2]
        copies = [
            ir.Copy(array, at, part, ir.Const(0), length)
            for array, part in ((self.crd, crd), (self.values, values))
        ]
        is_wanted = ir.both(ir.Var("discard").equals(0), ir.Const(0) < length)  # no length, no address
        return ir.block(
            ir.SlotArray(crd, self.tables[0], chunk),
            ir.SlotArray(values, self.tables[1], chunk),
            ir.Declare(at, ir.Load(counts, chunk)),
            ir.Declare(length, ir.Load(counts, chunk + 1) - at),
            ir.If(is_wanted, ir.block(*copies)),
            ir.Free(crd),
            ir.Free(values),
        )


class Entries(Collector):
    """A list of entries under keys, packed into the levels of any format."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        names = [f"{self.name}c{use.level + 1}" for use in self.uses]
        sizes = [use.arrays.size for use in self.uses]
        join = REDUCTIONS[plan.step.reduction].loop
        self.comes_sorted = plan.comes_sorted
        self.list = ListScratch("entry", names, sizes, plan.element, join, plan.words, self.comes_sorted)
        self.packer = Packer(plan, self.list)
        self.outputs = (*self.packer.counts, self.list.count, *self.list.keys, self.list.values)
        self.finish_inputs = (ir.Var("discard"), *self.packer.arrays)

    def helpers(self) -> tuple[ir.Function, ...]:
        return () if self.comes_sorted else self.list.helpers()

    def before(self) -> ir.Stmt:
        return self.list.allocate()

    def limits(self, entries: int, inserted: int) -> dict[str, int]:
        return self.list.limits(entries, inserted)

    def place(self, coordinates: list[ir.Expr], value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        insert = self.list.insert(coordinates, value)
        return ir.If(not_zero(value), insert) if self.plan.skip_zeros else insert

    def after(self) -> ir.Stmt:
        arrays = [*self.list.keys, self.list.values]
        return ir.block(
            None if self.comes_sorted else self.list.settle(),
            self.packer.count(),
            *(ir.Put(count.name, count) for count in (*self.packer.counts, self.list.count)),
            *(ir.PutArray(array.name, array) for array in arrays),
        )

    def finish(self, sizes: tuple[ir.Var, ...]) -> ir.Function:
        discard = ir.Var("discard")
        params: tuple[ir.Var | ir.Array, ...] = (
            *sizes,
            discard,
            self.list.count,
            *self.packer.counts,
            *self.list.keys,
            self.list.values,
            *self.packer.arrays,
        )
        body = ir.block(
            ir.If(discard.equals(0), self.packer.fill()),
            self.list.free(),
            ir.Return(ir.Const(0)),
        )
        return ir.Function("scorch_finish", params, body, exported=True)


def row_count(uses: Sequence[LevelUse]) -> ir.Expr:
    """How many rows lie below the levels before the last of ``uses``."""
    rows: ir.Expr = ir.Const(1)
    for use in uses[:-1]:
        rows = rows * use.arrays.size
    return rows
