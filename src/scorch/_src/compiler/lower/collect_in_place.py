"""Collectors that write coordinates and values where they stay, into arrays that are long enough.

``Slots`` where operands bound the length of rows; ``Buckets`` where entries come out of order, which are
counted first.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorch._src.compiler.lower.collect import Collector, row_count
from scorch._src.compiler.lower.pack import running_total
from scorch._src.compiler.plan import Plan
from scorch._src.formats.scratch import join_key
from scorch._src.loops.nodes import (
    Allocate,
    Array,
    Assign,
    Const,
    Copy,
    Declare,
    Expr,
    Fill,
    For,
    Free,
    If,
    Load,
    Put,
    Stmt,
    Store,
    Var,
    block,
    wide,
)
from scorch._src.loops.types import INT64


class InPlace(Collector):
    """A result whose entries are one run of coordinates below dense levels, written straight to them."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        assert plan.row_levels is not None
        self.rows = plan.row_levels
        self.pos = Array(f"{self.name}{self.rows + 1}_pos", plan.index)
        self.crd = [Array(f"{self.name}{use.level + 1}_crd", plan.index) for use in self.uses[self.rows :]]
        self.nnz = Var(f"{self.name}_nnz")
        self.inputs = (self.pos, *self.crd, self.values)
        self.outputs = (self.nnz,)

    def row(self, coordinates: Sequence[Expr]) -> Expr:
        """The number of the row that an entry belongs to."""
        above = self.uses[: self.rows]
        return join_key(coordinates[: self.rows], [use.arrays.size for use in above])

    def write(self, at: Expr, coordinates: list[Expr], value: Expr) -> Stmt:
        entry = zip(self.uses[self.rows :], coordinates[self.rows :], strict=True)
        levels = self.plan.result.levels
        appended = [levels[use.level].append(use.arrays, at, x) for use, x in entry]
        return block(*appended, Store(self.values, at, value))

    def tell_nnz(self) -> Stmt:
        return Put(self.nnz.name, wide(Load(self.pos, self.row_count)))

    @property
    def row_count(self) -> Expr:
        return row_count(self.uses[: self.rows + 1])


class Slots(InPlace):
    """As ``Rows``, in place: the rows of operands in ``plan.slots`` say where those of the result may begin.

    With threads each has one range of rows and leaves a gap behind it, which closes at the end; until then
    ``pos`` counts from the first row of the range.
    """

    chunks_per_thread = 1  # moving costs more than waiting

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.count, self.first = Var(f"{self.name}_count"), Var(f"{self.name}_first")
        self.is_shared = plan.parallel
        self.table = Array("chunk_table", INT64)  # first row, row behind the last, first entry, entries

    def before(self) -> Stmt:
        return Store(self.pos, Const(0), Const(0))

    def before_chunks(self, chunks: Expr) -> Stmt:
        return Allocate(self.table, chunks * 4) if self.is_shared else block()

    def before_chunk(self, chunk: Expr) -> Stmt:
        if not self.is_shared:
            return Declare(self.count, Const(0))
        row, before = Var("chunk_row"), Const(0) + 0
        for name, level in self.plan.slots:
            pos = Array(f"{name}{level + 1}_pos", self.plan.operand(name).index)
            before = before + wide(Load(pos, row))
        return block(
            Declare(row, Var("chunk_start") * row_count(self.uses[1:])),
            Declare(self.first, before),
            Declare(self.count, self.first),
        )

    def after_chunk(self, chunk: Expr) -> Stmt:
        if not self.is_shared:
            return block() if self.rows else Store(self.pos, Const(1), self.count)
        stop = Var("chunk_stop") * row_count(self.uses[1:])
        facts = (Var("chunk_row"), stop, self.first, self.count - self.first)
        return block(*(Store(self.table, chunk * 4 + place, fact) for place, fact in enumerate(facts)))

    def around(self, depth: int, inner: Stmt) -> Stmt:
        if depth != self.rows or depth == 0:
            return inner
        row = self.row([use.coordinate for use in self.uses])
        count = self.count - self.first if self.is_shared else self.count
        return block(inner, Store(self.pos, row + 1, count))

    def place(self, coordinates: list[Expr], value: Expr, position: Expr | None) -> Stmt:
        return block(self.write(self.count, coordinates, value), Assign(self.count, self.count + 1))

    def after(self) -> Stmt:
        return block(self._close_gaps() if self.is_shared else None, self.tell_nnz())

    def _close_gaps(self) -> Stmt:
        """Move what the chunks have written together, and count ``pos`` from the very first row."""
        chunk, at, r = Var("chunk"), Var("at"), Var("r")
        row, stop, first, length = (Load(self.table, chunk * 4 + place) for place in range(4))
        start = Var("chunk_from")
        moves = [Copy(array, at, array, start, length) for array in (*self.crd, self.values)]
        later = Store(self.pos, r + 1, wide(Load(self.pos, r + 1)) + at)
        step = block(
            Declare(start, first),
            If(at < start, block(*moves)),
            If(Const(0) < at, For(r, row, stop, later)),
            Assign(at, at + length),
        )
        return block(Declare(at, Const(0)), For(chunk, Const(0), Var("chunks"), step), Free(self.table))


class Buckets(InPlace):
    """Entries that come out of order, though those of each row in order, each once: a counting sort.

    The loops run twice. First ``pos[r + 1]`` counts the entries of row r, then ``pos[r]`` is the next place
    of row r, which in the end is where the row after it begins.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.counts = True  # until the loops have been lowered once

    def before(self) -> Stmt:
        return Fill(self.pos, Const(0), self.row_count + 1, Const(0))

    def place(self, coordinates: list[Expr], value: Expr, position: Expr | None) -> Stmt:
        row = self.row(coordinates)
        if self.counts:
            return Store(self.pos, row + 1, wide(Load(self.pos, row + 1)) + 1)
        at, here = Var(f"{self.name}_at"), Var(f"{self.name}_row")
        return block(
            Declare(here, row),
            Declare(at, wide(Load(self.pos, here))),
            self.write(at, coordinates, value),
            Store(self.pos, here, at + 1),
        )

    def counting(self, loops: Stmt) -> Stmt:
        """The rows of all entries of a lone operand, which lie in one array, need no loops to be counted."""
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
                p = Var("p")
                entries = wide(Load(uses[full].arrays.pos, row_count(uses[: full + 1])))
                row = wide(Load(use.arrays.crd, p)) + 1
                return For(p, Const(0), entries, Store(self.pos, row, wide(Load(self.pos, row)) + 1))
        return loops

    def next_pass(self) -> Stmt:
        self.counts = False
        return running_total(self.pos, self.row_count)

    def after(self) -> Stmt:
        return block(
            Copy(self.pos, Const(1), self.pos, Const(0), self.row_count),
            Store(self.pos, Const(0), Const(0)),
            self.tell_nnz(),
        )
