"""Collectors that write coordinates and values where they stay, into arrays that are long enough.

``Slots`` where operands bound the length of rows; ``Buckets`` where entries come out of order, which are
counted first.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorch._src.compiler.lower.collect import LEAST_MOVED, Collector, row_count
from scorch._src.compiler.lower.pack import running_total
from scorch._src.compiler.plan import Plan
from scorch._src.formats.scratch import join_key
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import INT64

_CHUNK = ir.Var("chunk")


class InPlace(Collector):
    """A result whose entries are one run of coordinates below dense levels, written straight to them."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        assert plan.row_levels is not None
        self.rows = plan.row_levels
        self.pos = ir.Array(f"{self.name}{self.rows + 1}_pos", plan.index)
        self.crd = [ir.Array(f"{self.name}{use.level + 1}_crd", plan.index) for use in self.uses[self.rows :]]
        self.nnz = ir.Var(f"{self.name}_nnz")
        self.inputs = (self.pos, *self.crd, self.values)
        self.outputs = (self.nnz,)

    def row(self, coordinates: Sequence[ir.Expr]) -> ir.Expr:
        """The number of the row that an entry belongs to."""
        above = self.uses[: self.rows]
        return join_key(coordinates[: self.rows], [use.arrays.size for use in above])

    def write(self, at: ir.Expr, coordinates: list[ir.Expr], value: ir.Expr) -> ir.Stmt:
        entry = zip(self.uses[self.rows :], coordinates[self.rows :], strict=True)
        levels = self.plan.result.levels
        appended = [levels[use.level].append(use.arrays, at, x) for use, x in entry]
        return ir.block(*appended, ir.Store(self.values, at, value))

    def tell_nnz(self) -> ir.Stmt:
        return ir.Put(self.nnz.name, ir.wide(ir.Load(self.pos, self.row_count)))

    @property
    def row_count(self) -> ir.Expr:
        return row_count(self.uses[: self.rows + 1])


class Slots(InPlace):
    """As ``Rows``, in place: the rows of operands in ``plan.slots`` say where those of the result may begin.

    With threads each has one range of rows and leaves a gap behind it, and ``pos`` counts from the first row
    of the range. Then these arrays are only room to work in: the caller allocates others of the right length,
    and threads copy their entries there (``finish``). A single range is complete as it is.
    """

    chunks_per_thread = 1  # moving costs more than waiting
    facts = ("row", "stop", "first", "length", "target")  # of a chunk, in ``table``

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.count, self.first = ir.Var(f"{self.name}_count"), ir.Var(f"{self.name}_first")
        self.is_shared = plan.parallel
        self.table, self.chunks = ir.Array("chunk_table", INT64), ir.Var("chunk_total")
        self.written = (*self.crd, self.values)
        self.exact = [ir.Array(f"exact_{array.name}", array.element) for array in self.written]
        if self.is_shared:
            self.outputs = (self.nnz, self.chunks, self.table)
            self.finish_inputs = (ir.Var("discard"), *self.exact)

    def before(self) -> ir.Stmt:
        return ir.Store(self.pos, ir.Const(0), ir.Const(0))

    def before_chunks(self, chunks: ir.Expr) -> ir.Stmt:
        return ir.Allocate(self.table, chunks * len(self.facts)) if self.is_shared else ir.block()

    def before_chunk(self, chunk: ir.Expr) -> ir.Stmt:
        if not self.is_shared:
            return ir.Declare(self.count, ir.Const(0))
        row, before = ir.Var("chunk_row"), ir.Const(0) + 0
        for name, level in self.plan.slots:
            pos = ir.Array(f"{name}{level + 1}_pos", self.plan.operand(name).index)
            before = before + ir.wide(ir.Load(pos, row))
        return ir.block(
            ir.Declare(row, ir.Var("chunk_start") * row_count(self.uses[1:])),
            ir.Declare(self.first, before),
            ir.Declare(self.count, self.first),
        )

    def after_chunk(self, chunk: ir.Expr) -> ir.Stmt:
        if not self.is_shared:
            return ir.block() if self.rows else ir.Store(self.pos, ir.Const(1), self.count)
        stop = ir.Var("chunk_stop") * row_count(self.uses[1:])
        found = (ir.Var("chunk_row"), stop, self.first, self.count - self.first)
        return ir.block(*map(self._note, self.facts, found))

    def around(self, depth: int, inner: ir.Stmt) -> ir.Stmt:
        if depth != self.rows or depth == 0:
            return inner
        row = self.row([use.coordinate for use in self.uses])
        count = self.count - self.first if self.is_shared else self.count
        return ir.block(inner, ir.Store(self.pos, row + 1, count))

    def place(self, coordinates: list[ir.Expr], value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        return ir.block(self.write(self.count, coordinates, value), ir.Assign(self.count, self.count + 1))

    def only_where(self, condition: ir.Expr, inner: ir.Stmt) -> ir.Stmt:
        """Without a branch where entries are looked up: the next one is written over one that is not there.

        There is room for it, as for each entry that is walked.
        """
        match inner:
            case ir.Block((*writes, ir.Assign(self.count, _))) if self.plan.noted is not None:
                return ir.block(*writes, ir.Assign(self.count, self.count + ir.Cast(condition, INT64)))
        return super().only_where(condition, inner)

    def after(self) -> ir.Stmt:
        if not self.is_shared:
            return self.tell_nnz()
        chunk, chunks, at = ir.Var("chunk"), ir.Var("chunks"), ir.Var("at")
        target = ir.block(self._note("target", at), ir.Assign(at, at + self._fact("length")))
        is_complete = chunks <= 1
        return ir.block(
            ir.Declare(at, ir.Const(0)),
            ir.For(chunk, ir.Const(0), chunks, target),
            ir.Put(self.nnz.name, at),
            ir.Put(self.chunks.name, chunks),
            ir.If(is_complete, ir.Free(self.table), ir.PutArray(self.table.name, self.table)),
        )

    def finish(self, sizes: tuple[ir.Var, ...]) -> ir.Function | None:
        """Copy what chunks have written to exact arrays, unless it is discarded; count ``pos`` from row 0."""
        if not self.is_shared:
            return None
        chunk, last, movers, nothing = ir.Var("chunk"), ir.Var("last"), ir.Var("movers"), ir.block()
        all_threads = (ir.Var("parallel_for"), ir.Var("threads"))
        few = self._fact("target", last) + self._fact("length", last) < LEAST_MOVED
        body = ir.block(
            ir.Declare(last, self.chunks - 1),
            ir.Declare(movers, ir.Select(few, ir.Const(1), all_threads[1])),
            ir.If(
                ir.Var("discard").equals(0),
                ir.Parallel(chunk, self.chunks, movers, nothing, self._copy_chunk(), nothing),
            ),
            ir.Free(self.table),
            ir.Return(ir.Const(0)),
        )
        arrays = (self.pos, *self.written, self.chunks, self.table, *self.finish_inputs)
        return ir.Function("scorch_finish", (*all_threads, *arrays), body, exported=True)

    def _copy_chunk(self) -> ir.Stmt:
        r, target = ir.Var("r"), ir.Var("chunk_target")
        later = ir.Store(self.pos, r + 1, ir.wide(ir.Load(self.pos, r + 1)) + target)
        return ir.block(
            ir.Declare(target, self._fact("target")),
            *(
                ir.Copy(exact, target, array, self._fact("first"), self._fact("length"))
                for exact, array in zip(self.exact, self.written, strict=True)
            ),
            ir.If(ir.Const(0) < target, ir.For(r, self._fact("row"), self._fact("stop"), later)),
        )

    def _fact(self, name: str, chunk: ir.Expr = _CHUNK) -> ir.Expr:
        return ir.Load(self.table, chunk * len(self.facts) + self.facts.index(name))

    def _note(self, name: str, value: ir.Expr) -> ir.Stmt:
        return ir.Store(self.table, _CHUNK * len(self.facts) + self.facts.index(name), value)


class Buckets(InPlace):
    """Entries that come out of order, though those of each row in order, each once: a counting sort.

    The loops run twice. First ``pos[r + 1]`` counts the entries of row r, then ``pos[r]`` is the next place
    of row r, which in the end is where the row after it begins. Threads count and place the entries of a
    chunk each: ``counts`` then says how many of a row lie in chunks before, and ``pos`` where rows begin.
    """

    chunks_per_thread = 1

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.counts = True  # until the loops have been lowered once
        self.is_shared = plan.parallel
        self.own = ir.Array("counts", plan.index)

    @property
    def copied(self) -> ir.Expr:
        return self.row_count

    def before(self) -> ir.Stmt:
        return ir.Fill(self.pos, ir.Const(0), self.row_count + 1, ir.Const(0))

    def before_chunks(self, chunks: ir.Expr) -> ir.Stmt:
        if not self.is_shared or not self.counts:
            return ir.block()
        return ir.Allocate(self.own, chunks * self.row_count)

    def before_chunk(self, chunk: ir.Expr) -> ir.Stmt:
        if not self.is_shared or not self.counts:
            return ir.block()
        rows = self.row_count
        return ir.Fill(self.own, chunk * rows, (chunk + 1) * rows, ir.Const(0, self.own.element))

    def place(self, coordinates: list[ir.Expr], value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        row = self.row(coordinates)
        if self.is_shared:
            return self._place_in_chunk(row, coordinates, value)
        if self.counts:
            return ir.Store(self.pos, row + 1, ir.wide(ir.Load(self.pos, row + 1)) + 1)
        at, here = ir.Var(f"{self.name}_at"), ir.Var(f"{self.name}_row")
        return ir.block(
            ir.Declare(here, row),
            ir.Declare(at, ir.wide(ir.Load(self.pos, here))),
            self.write(at, coordinates, value),
            ir.Store(self.pos, here, at + 1),
        )

    def _place_in_chunk(self, row: ir.Expr, coordinates: list[ir.Expr], value: ir.Expr) -> ir.Stmt:
        here, before, at = (ir.Var(f"{self.name}_{name}") for name in ("row", "before", "at"))
        mine = ir.Var("chunk") * self.row_count + here
        place = ir.block(
            ir.Declare(at, ir.wide(ir.Load(self.pos, here)) + before), self.write(at, coordinates, value)
        )
        return ir.block(
            ir.Declare(here, row),
            ir.Declare(before, ir.wide(ir.Load(self.own, mine))),
            None if self.counts else place,
            ir.Store(self.own, mine, before + 1),
        )

    def counting(self, loops: ir.Stmt) -> ir.Stmt:
        """The rows of all entries of a lone operand, which lie in one array, need no loops to be counted."""
        if self.is_shared:
            return loops
        access = self.plan.step.accesses[0]
        is_copy = self.plan.step.body == access and len(set(access.indices)) == len(access.indices)
        form = self.plan.operand(access.tensor).format
        full = form.dense_levels
        is_run = full < len(form) and form.run_from(full) == len(form)
        if self.rows != 1 or not is_copy or not is_run or form.is_finished:
            return loops
        uses = self.plan.uses(access)
        for use in uses[full:]:
            if use.loop == self.uses[0].loop:
                p = ir.Var("p")
                entries = ir.wide(ir.Load(uses[full].arrays.pos, row_count(uses[: full + 1])))
                row = ir.wide(ir.Load(use.arrays.crd, p)) + 1
                return ir.For(
                    p, ir.Const(0), entries, ir.Store(self.pos, row, ir.wide(ir.Load(self.pos, row)) + 1)
                )
        return loops

    def next_pass(self) -> ir.Stmt:
        self.counts = False
        total = running_total(self.pos, self.row_count)
        return ir.block(self._before_each_chunk(), total) if self.is_shared else total

    def _before_each_chunk(self) -> ir.Stmt:
        """Turn the counts of each chunk into those of all chunks before it, and count whole rows."""
        part, chunk, chunks, r = (ir.Var(name) for name in ("part", "chunk", "chunks", "r"))
        begin, end, count, rows = (
            ir.Var(name) for name in ("begin_at", "end_at", "row_entries", "row_total")
        )
        mine = chunk * rows + r
        step = ir.block(
            ir.Declare(count, ir.wide(ir.Load(self.own, mine))),
            ir.Store(self.own, mine, ir.wide(ir.Load(self.pos, r + 1))),
            ir.Store(self.pos, r + 1, ir.wide(ir.Load(self.pos, r + 1)) + count),
        )
        share = ir.block(
            ir.Declare(begin, rows * part // chunks),
            ir.Declare(end, rows * (part + 1) // chunks),
            ir.For(chunk, ir.Const(0), chunks, ir.For(r, begin, end, step)),
        )
        nothing = ir.block()
        return ir.block(
            ir.Declare(rows, self.row_count),
            ir.Parallel(part, chunks, ir.Var("threads"), nothing, share, nothing),
        )

    def after(self) -> ir.Stmt:
        if self.is_shared:
            return ir.block(ir.Free(self.own), self.tell_nnz())
        return ir.block(
            ir.Copy(self.pos, ir.Const(1), self.pos, ir.Const(0), self.row_count),
            ir.Store(self.pos, ir.Const(0), ir.Const(0)),
            self.tell_nnz(),
        )
