"""Collectors: what takes the finished entries of a result.

``Values`` writes to a place that is known. ``Rows`` appends coordinates and values below dense levels, each
chunk of the outer loop to arrays of its own, which are put one after another at the end. ``Entries``
keeps all coordinates under keys and packs them, once sorted, into any format.
"""

from __future__ import annotations

from scorch.compiler.pack import Packer
from scorch.compiler.plan import Plan
from scorch.formats.scratch import FIRST_CAPACITY, ListScratch, join_key, not_zero
from scorch.loops.nodes import (
    Allocate,
    Array,
    Assign,
    Binary,
    Const,
    Copy,
    Declare,
    Expr,
    For,
    Free,
    Function,
    If,
    KeepArray,
    Load,
    Put,
    PutArray,
    Resize,
    Return,
    SlotArray,
    Stmt,
    Store,
    Var,
    block,
    both,
)
from scorch.loops.types import INT64
from scorch.notation.operators import REDUCTIONS


class Collector:
    """Takes finished entries; most places need nothing done."""

    appends = True  # entries that were never found must not be placed
    inputs: tuple[Var | Array, ...] = ()
    outputs: tuple[Var | Array, ...] = ()
    finish_inputs: tuple[Var | Array, ...] = ()

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.step.target.tensor
        self.uses = plan.result_uses
        self.values = Array(f"{self.name}_vals", plan.element)

    def helpers(self) -> tuple[Function, ...]:
        return ()

    def before(self) -> Stmt:
        return block()

    def after(self) -> Stmt:
        return block()

    def before_chunks(self, chunks: Expr) -> Stmt:
        return block()

    def before_chunk(self, chunk: Expr) -> Stmt:
        return block()

    def after_chunk(self, chunk: Expr) -> Stmt:
        return block()

    def around(self, depth: int, inner: Stmt) -> Stmt:
        return inner

    def place(self, coordinates: list[Expr], value: Expr, position: Expr | None) -> Stmt:
        raise NotImplementedError

    def finish(self, sizes: tuple[Var, ...]) -> Function | None:
        return None


class Values(Collector):
    """A place for every value: computed for a dense result, an operand's own for a shared pattern."""

    appends = False

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.inputs = (self.values,)
        result = {loop for index in plan.step.target.indices for loop in plan.splits.loops_of(index)}
        last = max((plan.order.index(loop) for loop in result), default=-1)
        self.writes_once = all(loop in result for loop in plan.order[: last + 1])
        if plan.vectors is not None and plan.vectors.kind == "rows":
            self.writes_once = True

    def place(self, coordinates: list[Expr], value: Expr, position: Expr | None) -> Stmt:
        if position is None:
            assert self.plan.pattern is None, "the place in a shared pattern is not known"
            position = join_key(coordinates, [use.arrays.size for use in self.uses])
        if self.writes_once:
            return Store(self.values, position, value)
        join = REDUCTIONS[self.plan.step.reduction].loop
        joined = Binary(join, Load(self.values, position), value, self.plan.element)
        return Store(self.values, position, joined)


class Rows(Collector):
    """Formats ``d...ds``: the number of entries of each row goes to ``pos``, entries to arrays per chunk."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        last = len(self.uses)
        self.pos = Array(f"{self.name}{last}_pos", INT64)
        self.crd = Array(f"{self.name}{last}_crd", plan.index)
        self.count, self.capacity = Var(f"{self.name}_count"), Var(f"{self.name}_capacity")
        self.row_start = Var(f"{self.name}_row_start")
        self.tables = [Array(f"chunk_{part}", INT64) for part in ("crd", "vals", "count")]
        self.chunks = Var("chunk_total")
        self.nnz = Var(f"{self.name}_nnz")
        self.inputs = (self.pos,)
        self.outputs = (self.nnz, self.chunks, *self.tables)
        self.finish_inputs = (Var("discard"), self.crd, self.values)
        outer = [loop for use in self.uses[:-1] for loop in use.loops]
        self.row_depth = len(outer)

    def _rows(self) -> Expr:
        rows: Expr = Const(1)
        for use in self.uses[:-1]:
            rows = rows * use.arrays.size
        return rows

    def before_chunks(self, chunks: Expr) -> Stmt:
        allocated = [Allocate(table, chunks, zero=True) for table in self.tables]
        kept = [PutArray(table.name, table) for table in self.tables]
        return block(*allocated, *kept, Put(self.chunks.name, chunks))

    def before_chunk(self, chunk: Expr) -> Stmt:
        return block(
            Declare(self.capacity, Const(FIRST_CAPACITY)),
            Declare(self.count, Const(0)),
            Allocate(self.crd, self.capacity),
            Allocate(self.values, self.capacity),
        )

    def after_chunk(self, chunk: Expr) -> Stmt:
        crd, values, count = self.tables
        return block(
            KeepArray(crd, chunk, self.crd),
            KeepArray(values, chunk, self.values),
            Store(count, chunk, self.count),
            Store(self.pos, Const(1), self.count) if self.is_vector else None,
        )

    @property
    def is_vector(self) -> bool:
        """A single row, which is never cut into chunks."""
        return len(self.uses) == 1

    def around(self, depth: int, inner: Stmt) -> Stmt:
        if depth != self.row_depth or self.is_vector:
            return inner
        row = join_key(
            [use.coordinate for use in self.uses[:-1]], [use.arrays.size for use in self.uses[:-1]]
        )
        return block(
            Declare(self.row_start, self.count),
            inner,
            Store(self.pos, row + 1, self.count - self.row_start),
        )

    def place(self, coordinates: list[Expr], value: Expr, position: Expr | None) -> Stmt:
        append = block(
            If(
                self.count.equals(self.capacity),
                block(
                    Assign(self.capacity, self.capacity * 2),
                    Resize(self.crd, self.capacity),
                    Resize(self.values, self.capacity),
                ),
            ),
            Store(self.crd, self.count, coordinates[-1]),
            Store(self.values, self.count, value),
            Assign(self.count, self.count + 1),
        )
        return If(not_zero(value), append) if self.plan.skip_zeros else append

    def after(self) -> Stmt:
        r = Var("r")
        rows = self._rows()
        total = Store(self.pos, r + 1, Load(self.pos, r + 1) + Load(self.pos, r))
        return block(For(r, Const(0), rows, total), Put(self.nnz.name, Load(self.pos, rows)))

    def finish(self, sizes: tuple[Var, ...]) -> Function:
        """Put the arrays of the chunks one after another (or only free them)."""
        chunk, at, discard = Var("chunk"), Var("at"), Var("discard")
        crd, values = Array("part_crd", self.crd.element), Array("part_vals", self.values.element)
        length = Var("length")
        join = block(
            SlotArray(crd, self.tables[0], chunk),
            SlotArray(values, self.tables[1], chunk),
            Declare(length, Load(self.tables[2], chunk)),
            If(  # arrays of no length have no address
                both(discard.equals(0), Const(0) < length),
                block(
                    Copy(self.crd, at, crd, Const(0), length),
                    Copy(self.values, at, values, Const(0), length),
                ),
            ),
            Assign(at, at + length),
            Free(crd),
            Free(values),
        )
        body = block(
            Declare(at, Const(0)),
            For(chunk, Const(0), self.chunks, join),
            *(Free(table) for table in self.tables),
            Return(Const(0)),
        )
        params: tuple[Var | Array, ...] = (self.chunks, *self.tables, discard, self.crd, self.values)
        return Function("scorch_finish", params, body, exported=True)


class Entries(Collector):
    """A list of entries under keys, packed into the levels of any format."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        names = [f"{self.name}c{use.level + 1}" for use in self.uses]
        sizes = [use.arrays.size for use in self.uses]
        join = REDUCTIONS[plan.step.reduction].loop
        self.comes_sorted = plan.comes_sorted
        self.list = ListScratch("entry", names, sizes, plan.words, plan.element, join, self.comes_sorted)
        self.packer = Packer(plan, self.list)
        self.outputs = (*self.packer.counts, self.list.count, *self.list.keys, self.list.values)
        self.finish_inputs = (Var("discard"), *self.packer.arrays)

    def helpers(self) -> tuple[Function, ...]:
        return () if self.comes_sorted else self.list.helpers()

    def before(self) -> Stmt:
        return self.list.allocate()

    def place(self, coordinates: list[Expr], value: Expr, position: Expr | None) -> Stmt:
        insert = self.list.insert(coordinates, value)
        return If(not_zero(value), insert) if self.plan.skip_zeros else insert

    def after(self) -> Stmt:
        arrays = [*self.list.keys, self.list.values]
        return block(
            None if self.comes_sorted else self.list.settle(),
            self.packer.count(),
            *(Put(count.name, count) for count in (*self.packer.counts, self.list.count)),
            *(PutArray(array.name, array) for array in arrays),
        )

    def finish(self, sizes: tuple[Var, ...]) -> Function:
        discard = Var("discard")
        params: tuple[Var | Array, ...] = (
            *sizes,
            discard,
            self.list.count,
            *self.packer.counts,
            *self.list.keys,
            self.list.values,
            *self.packer.arrays,
        )
        body = block(
            If(discard.equals(0), self.packer.fill()),
            self.list.free(),
            Return(Const(0)),
        )
        return Function("scorch_finish", params, body, exported=True)
