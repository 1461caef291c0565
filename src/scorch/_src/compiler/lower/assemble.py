"""How a result is built: where the value of a point goes, and what becomes of it at the end.

An assembly and its collector are asked by ``lower`` at fixed points: before and after everything, around
each depth of the loops, and at the leaf. The assembly keeps an accumulator where reductions are innermost, a
workspace where results come out of order (``formats.scratch``), and hands finished entries, in order, to:

    Values   the place is known: a dense result, or the pattern of an operand
    Rows     append coordinate and value below dense levels, one array per chunk of the outer loop
    Slots    the same into the arrays of the result, where operands say how long they may get
    Buckets  count the entries of each row, then run the loops again and put each into its row
    Entries  a list of all entries under 64-bit keys, sorted if need be, then packed into any format

A kernel runs in two calls: ``scorch_compute`` leaves what it collected and says how long the arrays of the
result are, the caller allocates them, ``scorch_finish`` fills them.
"""

from __future__ import annotations

from scorch._src.compiler.lower.collect import Collector, Entries, Rows, Values
from scorch._src.compiler.lower.collect_in_place import Buckets, Slots
from scorch._src.compiler.lower.express import combine, converted, value_of
from scorch._src.compiler.lower.places import allocate_places, noted_places
from scorch._src.compiler.lower.sweep import swept
from scorch._src.compiler.plan import Plan, Vectors
from scorch._src.compiler.vector.panels import IS_FIRST, allocate_begun, free_begun, panels_of
from scorch._src.formats.scratch import DenseScratch, ListScratch, Scratch, join_key
from scorch._src.loops import nodes as ir
from scorch._src.loops.jam import jammed
from scorch._src.loops.operators import REDUCTIONS
from scorch._src.loops.types import BOOL, INT64, Type
from scorch._src.notation.nodes import Access


def identity_of(reduction: str, element: Type) -> int | float | bool:
    """The value that changes nothing under a reduction."""
    if reduction in ("sum", "any"):
        return False if element.kind == "bool" else 0
    if reduction == "prod":
        return True if element.kind == "bool" else 1
    if element.kind == "float":
        return float("-inf") if reduction == "max" else float("inf")
    if element.kind == "bool":
        return reduction == "min"
    bits = 8 * element.bytes
    low, high = (0, 2**bits - 1) if element.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return low if reduction == "max" else high


Factor = tuple[ir.Stmt | None, ir.Expr | None]  # what is declared to know it, and what it is


def make_assembly(plan: Plan) -> Assembly:
    collectors: dict[str, type[Collector]] = {
        "dense": Values,
        "shared": Values,
        "rows": Slots if plan.slots else Rows,
        "buckets": Buckets,
        "list": Entries,
    }
    return Assembly(plan, collectors[plan.assembly](plan))


class Assembly:
    """The accumulator, workspace and collector of one plan."""

    def __init__(self, plan: Plan, collector: Collector) -> None:
        self.plan = plan
        self.collector = collector
        self.uses = plan.result_uses
        self.ready = max((plan.order.index(loop) + 1 for loop in plan.result_loops), default=0)
        self.tile = plan.row_vectors
        if self.tile is not None:
            self.ready = self.tile.depth
        self.accumulates = self.ready < len(plan.order)
        # Sums inside sums, outermost first: one around every factor that is taken out.
        self.sums = {self.ready: "acc"}
        for depth in sorted({depth for _, depth in plan.factors} - {self.ready}):
            self.sums[depth] = f"part_{depth}"
        self.join = REDUCTIONS[plan.step.reduction].loop
        self.identity = ir.Const(identity_of(plan.step.reduction, plan.element), plan.element)
        self.scratch: Scratch | None = None
        if plan.workspace is not None:
            left = self.uses[plan.prefix_levels :]
            names = [f"{self.plan.step.target.tensor}w{use.level + 1}" for use in left]
            sizes = [use.arrays.size for use in left]
            if plan.workspace == "dense":
                self.scratch = DenseScratch(
                    "w", names, sizes, plan.element, self.join, plan.bitmap, self.identity
                )
            else:
                words = tuple(
                    tuple(level - plan.prefix_levels for level in word) for word in plan.workspace_words
                )
                self.scratch = ListScratch("w", names, sizes, plan.element, self.join, words)

    def helpers(self) -> tuple[ir.Function, ...]:
        return (*(self.scratch.helpers() if self.scratch else ()), *self.collector.helpers())

    # before and after --------------------------------------------------------------------------------

    def before_worker(self) -> ir.Stmt:
        places = allocate_places(self.plan) if self.plan.noted else None
        return ir.block(self.scratch.allocate() if self.scratch else None, places, allocate_begun(self.plan))

    def after_worker(self) -> ir.Stmt:
        places = ir.Free(noted_places(self.plan)) if self.plan.noted else None
        return ir.block(self.scratch.free() if self.scratch else None, places, free_begun(self.plan))

    def limits(self, entries: int, inserted: int, in_row: int) -> dict[str, int]:
        """How far the counters get that arrays grow with, if ``inserted`` values have ``entries`` positions.

        ``in_row``: how many come while a workspace is filled.
        """
        inside = self.scratch.limits(in_row, in_row) if self.scratch else {}
        return self.collector.limits(entries, inserted) | inside

    # inside the loops --------------------------------------------------------------------------------

    def around(self, depth: int, inner: ir.Stmt, position: ir.Expr | None, factor: Factor) -> ir.Stmt:
        """``inner``, all that happens inside the first ``depth`` loops, with what belongs around it.

        ``factor`` is what the sum inside is multiplied by, and what must be declared to know it.
        """
        if depth in self.sums and self.accumulates:
            before, by = factor
            name = self.sums[depth]
            value = self._sum(name) if by is None else combine("*", self._sum(name), by)
            if depth == self.ready:
                done = self._in_lanes(ir.block(before, self._deliver(self._applied(value), position)))
                if panels_of(self.plan) > 1:
                    before_panel = self.collector.stored([use.coordinate for use in self.uses])
                    more = ir.Binary(self.join, before_panel, value, self.plan.element)
                    done = ir.If(
                        IS_FIRST, done, self._in_lanes(ir.block(before, self._deliver(more, position)))
                    )
            else:
                done = self._in_lanes(ir.block(before, self._add(self._around(depth), value)))
            found = ir.Var("found", BOOL)
            if depth == self.ready and self.collector.appends:
                inner = ir.block(self._start(name), ir.Declare(found, ir.FALSE), inner, ir.If(found, done))
            else:
                inner = ir.block(self._start(name), inner, done)
        if self.tile is not None and depth == self.tile.opens:
            inner = self._stretches(self.tile, inner)
        if self.scratch is not None and depth == self.plan.prefix:
            room = self.collector.make_room(self.scratch.count) if self.scratch.counts_exactly else None
            inserted = swept(self.scratch, inner) if self.plan.sweeps else None
            inserted = inserted or ir.block(inner, self.scratch.settle())
            inner = ir.block(self.scratch.open(), inserted, room, self.scratch.drain(self._drained))
        return self.collector.around(depth, inner)

    def leaf(self, value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        """What happens to the value of one point."""
        value = converted(value, self.plan.element)
        if not self.accumulates:
            return self._deliver(value, position)
        mark = ir.Assign(ir.Var("found", BOOL), ir.TRUE) if self.collector.appends else None
        return ir.block(self._add(list(self.sums.values())[-1], value), mark)

    # sums --------------------------------------------------------------------------------------------

    def apart(self, loop: ir.For, turns: int) -> ir.Stmt:
        """``loop`` with ``turns`` of its turns side by side, each adding to registers of its own."""
        first = list(self.sums.values())[-1]
        others = [f"{first}_t{turn}" for turn in range(1, turns)]
        starts = [self._start(name) for name in others]
        total = [self._in_lanes(self._add(first, self._sum(name))) for name in others]
        return ir.block(*starts, jammed(loop, turns, [first, *others]), *total)

    def _around(self, depth: int) -> str:
        """The name of the sum outside the one at ``depth``."""
        return self.sums[max(other for other in self.sums if other < depth)]

    def _start(self, name: str) -> ir.Stmt:
        if self.tile is not None:
            return ir.Tile(ir.Array(name, self.plan.element), self.tile.width, self.tile.lanes)
        return ir.Declare(ir.Var(name, self.plan.element), self.identity)

    def _sum(self, name: str) -> ir.Expr:
        if self.tile is not None:
            return ir.Load(ir.Array(name, self.plan.element), self.lane)
        return ir.Var(name, self.plan.element)

    def _add(self, name: str, value: ir.Expr) -> ir.Stmt:
        joined = combine(self.join, self._sum(name), value)
        if self.tile is not None:
            return ir.Store(ir.Array(name, self.plan.element), self.lane, joined)
        return ir.Assign(ir.Var(name, self.plan.element), joined)

    @property
    def lane(self) -> ir.Expr:
        """The place in a stretch of the result that a turn of the innermost loop owns."""
        assert self.tile is not None
        return ir.lane(ir.Var(self.tile.loop), self.tile.start, self.tile.width, self.tile.width)

    def _in_lanes(self, body: ir.Stmt) -> ir.Stmt:
        """``body`` for every element of a stretch."""
        if self.tile is None:
            return body
        return ir.Lanes(ir.Var(self.tile.loop), self.tile.start, self.tile.width, self.tile.lanes, body)

    def _stretches(self, tile: Vectors, inner: ir.Stmt) -> ir.Stmt:
        """``inner`` for each stretch of the result's row; the last one ends where the row does."""
        start, size = tile.start, self.plan.splits.size(tile.loop)
        if not isinstance(start, ir.Var):
            return inner
        number = ir.Var(f"{tile.loop}_stretch")
        first = ir.Declare(start, ir.Binary("min", number * tile.width, size - tile.width, INT64))
        return ir.For(number, ir.Const(0), (size + (tile.width - 1)) // tile.width, ir.block(first, inner))

    def _applied(self, value: ir.Expr) -> ir.Expr:
        """What is stored of a sum: the sum itself, or a function of it and of dense tensors."""
        plan = self.plan
        if plan.applied is None:
            return value
        total, function = plan.applied

        def read(access: Access) -> ir.Expr:
            if access == total:
                return value
            operand = plan.operand(access.tensor)
            uses = plan.uses(access)
            place = join_key([use.coordinate for use in uses], [use.arrays.size for use in uses])
            return ir.Load(ir.Array(f"{access.tensor}_vals", operand.element), place)

        types = {total.tensor: plan.element} | {operand.name: operand.element for operand in plan.operands}
        return converted(value_of(function, types, read), plan.element)

    def _deliver(self, value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        if self.scratch is not None:
            left = [use.coordinate for use in self.uses[self.plan.prefix_levels :]]
            return self.scratch.insert(left, value)
        coordinates = [use.coordinate for use in self.uses]
        return self.collector.place(coordinates, value, position)

    def _drained(self, coordinates: list[ir.Expr], value: ir.Expr) -> ir.Stmt:
        outer = [use.coordinate for use in self.uses[: self.plan.prefix_levels]]
        return self.collector.place([*outer, *coordinates], value, None)
