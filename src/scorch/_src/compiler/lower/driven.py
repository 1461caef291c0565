"""Loops for a new pattern that run over entries of operands, each on its own: on a grid, all at once.

A turn is an entry of one of the drivers (``schedule.choose_drivers``): it knows its coordinates, looks for
them in the other operands, and runs the loops that are left. One that an earlier driver has, too, is the turn
of that one. Each driver has two functions:

    C = A + B     count    A: one                           B: one, unless A has an entry there
                  fill     at the number of entries counted before these coordinates, in A and in B together

In between, the caller sums up the counts. Entries are in the order of the result, whatever the rows of
operands are: none is too long for a turn. Where no operands drive the loops, as in ``A[i,j] + v[j]``, a turn
has one coordinate of the outermost loop, or of all outer ones that are dense. Terms of sums that a workspace
would add up are filled in one after another, for the caller to sort.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scorch._src.compiler import lattice
from scorch._src.compiler.lattice import NOWHERE
from scorch._src.compiler.lower.assemble import Assembly
from scorch._src.compiler.lower.collect import Collector
from scorch._src.compiler.lower.levels import State, States, formula
from scorch._src.compiler.lower.lower import Lowering
from scorch._src.compiler.names import with_safe_names
from scorch._src.compiler.plan import Plan
from scorch._src.compiler.schedule.choose_drivers import Drivers
from scorch._src.compiler.vector.vector_loops import delivery
from scorch._src.dataclass import replace
from scorch._src.formats.level import suffix
from scorch._src.formats.scratch import not_zero
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import walk
from scorch._src.loops.simplify import simplify
from scorch._src.loops.turns import coordinates_of
from scorch._src.loops.types import BOOL, INT64
from scorch._src.notation.nodes import Access

COUNT, FILL = "scorch_count", "scorch_fill"  # and the number of a driver
TURN, PLACE, FOUND = ir.Var("entry_turn"), ir.Var("entry_place"), ir.Var("entry_count")
COUNTS, BEFORE = ir.Array("entry_counts", INT64), ir.Array("entry_before", INT64)


def lower_driven(plan: Plan, drivers: Drivers) -> ir.Kernel:
    """The functions of all drivers. Behind the operands, slots are:

    of each driver how many turns it has, and how many those before have; counts, their sums up to each;
    the coordinates of entries, by level; their values or, if they are located, the entries of operands.
    """
    plan = replace(plan, vectors=None, factors=(), prefetched=(), slots=(), noted=None)
    plan = replace(plan, parallel=False, workspace=None)
    safe = with_safe_names(plan)
    renamed = dict(zip(plan.step.accesses, safe.step.accesses, strict=True))
    drivers = replace(drivers, accesses=tuple(renamed[access] for access in drivers.accesses))
    functions: list[ir.Function] = []
    for number in range(drivers.count):
        functions.append(_Turns(safe, drivers, _Count(safe), number).function(COUNT))
        functions.append(_Turns(safe, drivers, _Fill(safe), number).function(FILL))
    slots = (*_Turns(safe, drivers, _Fill(safe), 0).inputs, *_added_slots(safe, drivers))
    return simplify(ir.Kernel(plan.header, slots, tuple(functions)))


def _added_slots(plan: Plan, drivers: Drivers) -> tuple[ir.Var | ir.Array, ...]:
    turns = [slot for n in range(drivers.count) for slot in (_turns(n), _first(n))]
    results = _numbers(plan) if drivers.is_located else {plan.step.target: _values(plan)}
    return (*turns, COUNTS, BEFORE, *_coordinates(plan), *results.values())


def _turns(number: int) -> ir.Var:
    return ir.Var(f"entry_turns_{number}")


def _first(number: int) -> ir.Var:
    return ir.Var(f"entry_first_{number}")


def _coordinates(plan: Plan) -> list[ir.Array]:
    return [ir.Array(f"entry_crd_{level + 1}", plan.index) for level in range(len(plan.result))]


def _values(plan: Plan) -> ir.Array:
    return ir.Array("entry_values", plan.element)


def _numbers(plan: Plan) -> dict[Access, ir.Array]:
    """The arrays of the entries of each sparse operand."""
    sparse = [access for access in plan.step.accesses if plan.operand(access.tensor).is_sparse]
    return {
        access: ir.Array(f"entry_of_{number + 1}", plan.operand(access.tensor).index)
        for number, access in enumerate(sparse)
    }


class _Place(NamedTuple):
    """The first entry of a driver that is not before given coordinates, and whether it has them."""

    at: ir.Expr
    here: ir.Expr


_Places = Mapping[Access, _Place]


class _Count(Collector):
    """Counts entries."""

    def place(self, coordinates: list[ir.Expr], value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        found = ir.Assign(FOUND, FOUND + 1)
        return ir.If(not_zero(value), found) if self.plan.skip_zeros else found


class _Fill(Collector):
    """Writes entries one after another."""

    def place(self, coordinates: list[ir.Expr], value: ir.Expr, position: ir.Expr | None) -> ir.Stmt:
        stored = self.stored(coordinates, [ir.Store(_values(self.plan), PLACE, value)])
        return ir.If(not_zero(value), stored) if self.plan.skip_zeros else stored

    def stored(self, coordinates: list[ir.Expr], results: list[ir.Stmt]) -> ir.Stmt:
        crds = zip(_coordinates(self.plan), coordinates, strict=True)
        places = [ir.Store(array, PLACE, coordinate) for array, coordinate in crds]
        return ir.block(*places, *results, ir.Assign(PLACE, PLACE + 1))


class _Turns(Lowering):
    """The loops of one driver."""

    def __init__(self, plan: Plan, drivers: Drivers, collector: Collector, number: int) -> None:
        super().__init__(plan)
        self.assembly, self.collector = Assembly(plan, collector), collector
        self.drivers, self.number = drivers, number
        self.inputs = self._inputs()

    def function(self, name: str) -> ir.Function:
        nothing, turns = ir.block(), _turns(self.number)
        body = self._counted_turn() if name == COUNT else self._filled_turn()
        loop = ir.Parallel(TURN, turns, ir.Const(1), nothing, body, nothing, has_unit_each=True)
        slots = (*self.inputs, *_added_slots(self.plan, self.drivers))
        used = {"parallel_for", *(node.name for node in walk(loop) if isinstance(node, ir.Var | ir.Array))}
        params = tuple(slot for slot in slots if slot.name in used)
        return ir.Function(f"{name}_{self.number}", params, ir.block(loop), exported=True)

    def _counted_turn(self) -> ir.Stmt:
        find, places = self._find()
        is_new: ir.Expr = ir.TRUE
        for access in self.drivers.accesses[: self.number]:
            is_new = ir.both(is_new, ir.Unary("!", places[access].here, BOOL))
        return ir.block(
            *self._bind(),
            *find,
            ir.Declare(FOUND, ir.Const(0)),
            ir.If(is_new, self._inner(places)),
            ir.Store(COUNTS, _first(self.number) + TURN, FOUND),
        )

    def _filled_turn(self) -> ir.Stmt:
        find, places = self._find()
        begin, end = (ir.Load(BEFORE, _first(self.number) + TURN + n) for n in (0, 1))
        place: ir.Expr = begin
        if self.drivers.is_sorted:
            place = begin - ir.Load(BEFORE, _first(self.number))
            for number, access in enumerate(self.drivers.accesses):
                if number != self.number:
                    first = _first(number)
                    place = place + (ir.Load(BEFORE, first + places[access].at) - ir.Load(BEFORE, first))
        body = ir.block(*self._bind(), *find, ir.Declare(PLACE, place), self._inner(places))
        return ir.If(begin < end, body)

    def _bind(self) -> list[ir.Stmt]:
        """Declare the coordinates of the turn, from the innermost out."""
        bound: list[ir.Stmt] = []
        if not self.drivers.accesses:
            loops = [(ir.Var(loop), self.plan.splits.size(loop)) for loop in self.order[: self.drivers.depth]]
            return coordinates_of(TURN, loops)[1]
        at, access = TURN, self.drivers.accesses[self.number]
        form = self.plan.operand(access.tensor).format
        for use in reversed(self.levels.uses[access][: self.drivers.depth]):
            kind, x, arrays = form.levels[use.level], ir.Var(self.order[use.level]), use.arrays
            above = ir.Var(f"entry_above_{use.level + 1}")
            if kind.is_full:
                bound.append(ir.Declare(x, at % arrays.size if use.level else at))
                parent: ir.Expr = at // arrays.size
            else:
                bound.append(ir.Declare(x, kind.coordinate(arrays, at, ir.Const(0))))
                if not form.starts_run(use.level):
                    continue
                rows = self.levels.count(access, use.level - 1) if use.level else ir.Const(1)
                search = f"upper_bound_{suffix(arrays.pos.element)}"
                parent = ir.Call(search, (arrays.pos, ir.Const(0), rows + 1, at)) - 1
            if use.level:
                bound.append(ir.Declare(above, parent))
                at = above
        return bound

    def _find(self) -> tuple[list[ir.Stmt], _Places]:
        """Look for the coordinates of the turn in all drivers."""
        statements: list[ir.Stmt] = []
        places: dict[Access, _Place] = {}
        for number, access in enumerate(self.drivers.accesses):
            if number == self.number:
                places[access] = _Place(TURN, ir.TRUE)
            else:
                found, places[access] = self._search(access)
                statements += found
        return statements, places

    def _search(self, access: Access) -> tuple[list[ir.Stmt], _Place]:
        """Go down the levels of a driver; below a coordinate that it lacks, stop before those that follow."""
        form = self.plan.operand(access.tensor).format
        at: ir.Expr = ir.Const(0)
        here: ir.Expr = ir.TRUE
        end: ir.Expr = at
        statements: list[ir.Stmt] = []
        for use in self.levels.uses[access][: self.drivers.depth]:
            kind, arrays, x = form.levels[use.level], use.arrays, use.coordinate
            cursor = self.levels.cursor(access, State(use.level, at, None, here))
            if kind.is_full:
                first = x if here == ir.TRUE else ir.Select(here, x, ir.Const(0))
                statements.append(ir.Declare(cursor.position, kind.insert(arrays, at, first)))
                at = cursor.position
                continue
            start = at
            if form.starts_run(use.level):
                start, stop = kind.iterate(arrays, at)
                end = stop if here == ir.TRUE else ir.Select(here, stop, start)
            statements += [
                ir.Declare(cursor.end, end),
                ir.Declare(cursor.position, kind.locate(arrays, at, x, start, cursor.end)),
                ir.Declare(cursor.flag, kind.is_stored(arrays, at, x, cursor.position, cursor.end)),
            ]
            if not cursor.is_unique:
                last = kind.locate_after(arrays, cursor.position, cursor.end, x)
                statements.append(ir.Declare(cursor.run_end, last))
                end = cursor.run_end
            at, here = cursor.position, cursor.flag
        return statements, _Place(at, here)

    def _inner(self, places: _Places) -> ir.Stmt:
        """What happens at an entry that earlier drivers do not have."""
        depth = self.drivers.depth
        states = {access: State(0, ir.Const(0), None, ir.TRUE) for access in self.accesses}
        for number, access in enumerate(self.drivers.accesses):
            present = ir.FALSE if number < self.number else places[access].here
            states[access] = State(depth, places[access].at, None, present)
        bound = frozenset(self.order[:depth])
        resolving, states = self.levels.resolve(states, bound)
        here, flags = self._condition(states)
        if here == NOWHERE:
            return ir.Block(())
        sure = lattice.required(here)
        states = {a: replace(state, present=ir.TRUE) if a in sure else state for a, state in states.items()}
        inner = self._loops(depth, states, bound, self._condition(states))
        inner = self.assembly.around(depth, inner, *delivery(self.levels, depth, states, bound))
        return ir.block(resolving, ir.If(formula(here, flags), inner) if flags else inner)

    def _leaf(self, states: States) -> ir.Stmt:
        if not (self.drivers.is_located and isinstance(self.collector, _Fill)):
            return super()._leaf(states)
        stores: list[ir.Stmt] = []
        for access, array in _numbers(self.plan).items():
            state = states[access]
            entry = ir.Select(state.present, state.start, ir.Const(-1))
            stores.append(ir.Store(array, PLACE, entry))
        return self.collector.stored([use.coordinate for use in self.plan.result_uses], stores)
