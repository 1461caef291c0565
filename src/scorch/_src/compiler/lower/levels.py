"""The levels of all accesses of a plan: how far they are resolved, and statements that go down in them."""

from __future__ import annotations

from collections.abc import Container, Mapping

from scorch._src.compiler import lattice
from scorch._src.compiler.lattice import EVERYWHERE, NOWHERE, Support
from scorch._src.compiler.lower.express import value_of
from scorch._src.compiler.plan import LevelUse, Plan
from scorch._src.dataclass import dataclass
from scorch._src.formats import Level
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import BOOL, INT64
from scorch._src.notation.nodes import Access
from scorch._src.notation.trees import accesses

STRIP_BEGIN = ir.Var("strip_begin")  # where the entries of the rows at hand begin


@dataclass(frozen=True)
class State:
    """How far an access is resolved.

    ``level`` is the next one. ``start`` is the position reached; where that is a run of entries they end
    before ``stop``. ``present`` is TRUE, FALSE or a flag.
    """

    level: int
    start: ir.Expr
    stop: ir.Expr | None
    present: ir.Expr


States = Mapping[Access, State]
Flags = Mapping[Access, ir.Expr]
Check = tuple[Support, Flags]  # a condition, and the flags it is about


@dataclass(frozen=True)
class Cursor:
    """A stored level walked below ``parent``: its position, its end, and where the run at the front ends."""

    access: Access
    use: LevelUse
    kind: Level
    parent: ir.Expr
    position: ir.Var
    end: ir.Var
    is_unique: bool

    @property
    def has_more(self) -> ir.Expr:
        return self.position < self.end

    @property
    def front(self) -> ir.Expr:
        return self.kind.coordinate(self.use.arrays, self.position, self.parent)

    @property
    def front_var(self) -> ir.Var:
        """The variable that ``front`` is read into."""
        return ir.Var(f"{self.position.name}_front")

    @property
    def run_end(self) -> ir.Var:
        return ir.Var(f"{self.position.name}_next")

    @property
    def flag(self) -> ir.Var:
        return ir.Var(f"{self.position.name}_here", BOOL)

    def find_run_end(self, x: ir.Expr) -> ir.Stmt | None:
        """Set ``run_end`` behind the entries with coordinate ``x`` at the front (levels with repeats)."""
        if self.is_unique:
            return None
        there = self.kind.coordinate(self.use.arrays, self.run_end, self.parent)
        more = ir.both(self.run_end < self.end, there.equals(x))
        return ir.block(
            ir.Declare(self.run_end, self.position),
            ir.While(more, ir.Assign(self.run_end, self.run_end + 1)),
        )

    def resolved(self, level: int, present: ir.Expr) -> State:
        return State(level + 1, self.position, None if self.is_unique else self.run_end, present)


@dataclass(frozen=True)
class Loop:
    """A loop being opened: its depth and variable, and what holds around it.

    ``known`` is what is left to say of the last check, once what it needs at any rate is known to be there.
    """

    depth: int
    x: ir.Var
    states: States
    bound: frozenset[str]
    known: Check | None
    followers: list[Cursor]


def formula(where: Support, flags: Mapping[Access, ir.Expr]) -> ir.Expr:
    """``where`` as a condition over ``flags``, in a stable order."""
    condition: ir.Expr = ir.FALSE
    order = list(flags)
    for clause in sorted(where, key=lambda c: sorted(order.index(a) for a in c)):
        term: ir.Expr = ir.TRUE
        for access in sorted(clause, key=order.index):
            term = ir.both(term, flags[access])
        condition = ir.either(condition, term)
    return condition


def value_count(plan: Plan) -> ir.Expr:
    """How many values a dense result has, or one with the pattern of an operand."""
    count: ir.Expr = ir.Const(1)
    if plan.pattern is not None:
        count = Levels(plan).count(plan.pattern, plan.pattern_levels - 1)
    for use in plan.result_uses[plan.pattern_levels :]:
        count = count * use.arrays.size
    return count


class Levels:
    """The accesses of ``plan`` with what is looked up again and again."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.accesses = plan.step.accesses
        self.labels = self._label()
        self.uses = {access: plan.uses(access) for access in self.accesses}

    def _label(self) -> dict[Access, str]:
        """A name for each access: the tensor's, numbered where a tensor is used several times."""
        seen: dict[str, int] = {}
        labels = {}
        for access in self.accesses:
            seen[access.tensor] = seen.get(access.tensor, 0) + 1
            count = seen[access.tensor]
            labels[access] = access.tensor if count == 1 else f"{access.tensor}_{count}_"
        return labels

    def values(self, access: Access) -> ir.Array:
        return ir.Array(f"{access.tensor}_vals", self.plan.operand(access.tensor).element)

    def cursors(self, x: str, states: States) -> dict[Access, Cursor]:
        """The accesses whose next level stores coordinates of ``x``."""
        found = {}
        for access in self.accesses:
            state, uses = states[access], self.uses[access]
            if state.level == len(uses) or state.present == ir.FALSE:
                continue
            use, level = uses[state.level], self.plan.operand(access.tensor).format.levels[state.level]
            is_searched = (access, state.level) in self.plan.searched
            if use.loop == x and level.is_iterable and not level.is_full and not is_searched:
                found[access] = self.cursor(access, state)
        return found

    def cursor(self, access: Access, state: State) -> Cursor:
        """The next level of ``access``, opened by ``open``."""
        form = self.plan.operand(access.tensor).format
        position = ir.Var(f"p{self.labels[access]}{state.level + 1}")
        return Cursor(
            access,
            self.uses[access][state.level],
            form.levels[state.level],
            state.start,
            position,
            ir.Var(f"{position.name}_end"),
            form.is_unique(state.level),
        )

    def support(self, states: States, among: Container[Access]) -> Support:
        """Where the body can differ from zero if ``among`` may be absent; some may be known to be."""

        def stored(access: Access) -> Support:
            if states[access].present == ir.FALSE:
                return NOWHERE
            return lattice.stored(access) if access in among else EVERYWHERE

        return lattice.support(self.plan.step.body, stored)

    def entries(self, access: Access, state: State) -> tuple[ir.Expr, ir.Expr]:
        """The entries of the next level; none if the access is absent."""
        form = self.plan.operand(access.tensor).format
        if not form.starts_run(state.level):
            assert state.stop is not None
            return state.start, state.stop
        arrays = self.uses[access][state.level].arrays
        start, stop = form.levels[state.level].iterate(arrays, state.start)
        if state.present == ir.TRUE:
            return start, stop
        return ir.Select(state.present, start, ir.Const(0)), ir.Select(state.present, stop, ir.Const(0))

    def count(self, access: Access, level: int) -> ir.Expr:
        """How many positions a level has in all."""
        form, uses = self.plan.operand(access.tensor).format, self.uses[access]
        above = self.count(access, level - 1) if level else ir.Const(1)
        if form.levels[level].is_full:
            return above * uses[level].arrays.size
        if not form.starts_run(level):
            return above
        return ir.wide(ir.Load(uses[level].arrays.pos, above))

    def extent(self, x: str) -> ir.Expr:
        """How many turns a counted loop over ``x`` takes; the last block may be cut short."""
        index, part = self.plan.splits.origin(x)
        size, block_size = self.plan.splits.size(index), self.plan.splits.block(index)
        if block_size is None:
            return size
        if part == "outer":
            return (size + (block_size - 1)) // block_size
        left = size - ir.Var(f"{index}_out") * block_size
        return ir.Binary("min", ir.Const(block_size), left, INT64)

    def derive(self, x: str, bound: frozenset[str]) -> ir.Stmt | None:
        """Once both loops of a split index are open, the index itself."""
        index, part = self.plan.splits.origin(x)
        block_size = self.plan.splits.block(index)
        if part == "whole" or block_size is None or not set(self.plan.splits.loops_of(index)) <= bound:
            return None
        return ir.Declare(ir.Var(index), ir.Var(f"{index}_out") * block_size + ir.Var(f"{index}_in"))

    def open(self, cursor: Cursor, states: States, begin: ir.Expr | None = None) -> ir.Stmt:
        """Open a level; ``begin`` is where a chunk of the loop begins that it follows."""
        start, stop = self.entries(cursor.access, states[cursor.access])
        if begin is not None and begin != ir.Const(0):
            start = cursor.kind.locate(cursor.use.arrays, cursor.parent, begin, start, stop)
        return ir.block(ir.Declare(cursor.position, start), ir.Declare(cursor.end, stop))

    def follow(self, loop: Loop) -> tuple[ir.Stmt, dict[Access, State]]:
        """Move followers up to x and set their flags."""
        moves: list[ir.Stmt | None] = []
        states = dict(loop.states)
        for c in loop.followers:
            behind = ir.both(c.has_more, c.front < loop.x)
            moves.append(ir.While(behind, ir.Assign(c.position, c.position + 1)))
            moves.append(ir.Declare(c.flag, ir.both(c.has_more, c.front.equals(loop.x))))
            moves.append(c.find_run_end(loop.x))
            states[c.access] = c.resolved(loop.states[c.access].level, c.flag)
        return ir.block(*moves), states

    def resolve(self, states: States, bound: frozenset[str]) -> tuple[ir.Stmt, dict[Access, State]]:
        """Go down all levels whose coordinate is known: locate full ones, search the others."""
        statements: list[ir.Stmt | None] = []
        resolved = dict(states)
        for access in self.accesses:
            form, uses = self.plan.operand(access.tensor).format, self.uses[access]
            while True:
                state = resolved[access]
                if state.level == len(uses) or state.present == ir.FALSE:
                    break
                use, level = uses[state.level], form.levels[state.level]
                if not use.needs <= bound:
                    break
                cursor = self.cursor(access, state)
                if level.is_full:
                    at = level.insert(use.arrays, state.start, use.coordinate)
                    if not isinstance(at, ir.Const | ir.Var):
                        statements.append(ir.Declare(cursor.position, at))
                        at = cursor.position
                    resolved[access] = State(state.level + 1, at, None, state.present)
                    continue
                statements.append(self._locate(cursor, state))
                resolved[access] = cursor.resolved(state.level, cursor.flag)
        return ir.block(*statements), resolved

    def _locate(self, cursor: Cursor, state: State) -> ir.Stmt:
        """Look for a coordinate that is known in a level that may not have it."""
        level, arrays, x = cursor.kind, cursor.use.arrays, cursor.use.coordinate
        start, stop = self.entries(cursor.access, state)
        at = level.locate(arrays, cursor.parent, x, start, cursor.end)
        here = level.is_stored(arrays, cursor.parent, x, cursor.position, cursor.end)
        if not level.has_coordinates and state.present != ir.TRUE:  # below nothing there is nothing to read
            at, here = ir.Select(state.present, at, ir.Const(0)), ir.both(state.present, here)
        after: ir.Stmt | None = None
        if not cursor.is_unique:
            last = level.locate_after(arrays, cursor.position, cursor.end, x)
            after = ir.Declare(cursor.run_end, last)
        return ir.block(
            ir.Declare(cursor.end, stop),
            ir.Declare(cursor.position, at),
            ir.Declare(cursor.flag, here),
            after,
        )

    def pattern_position(self, states: States) -> ir.Expr | None:
        """Where the entry of the shared pattern stands, once it is known."""
        pattern, levels = self.plan.pattern, self.plan.pattern_levels
        if pattern is None or states[pattern].level < levels:
            return None
        state = states[pattern]
        position = state.start if state.level == levels else ir.Var(f"p{self.labels[pattern]}{levels}")
        for use in self.plan.result_uses[levels:]:
            position = position * use.arrays.size + use.coordinate
        return self.in_strip(self.plan.step.target.tensor, position)

    def in_strip(self, tensor: str, position: ir.Expr) -> ir.Expr:
        """A position of a sparse tensor, counted from the first row at hand if only those are kept."""
        return position - STRIP_BEGIN if tensor in self.plan.in_strip else position

    def load(self, access: Access, walked: Access, states: States) -> ir.Load:
        """The value of ``access``, which has its values at the entries of ``walked``."""
        position = states[walked].start
        if access != walked:
            position = self.in_strip(access.tensor, position)
        return ir.Load(self.values(access), position)

    def factor(self, walked: Access, states: States) -> ir.Load | None:
        """The value of a factor that is taken out of a sum; None for entries that are walked but not read."""
        if self.plan.value is None:
            return self.load(walked, walked, states)
        reads = dict(self.plan.reads)
        found = (access for access in accesses(self.plan.value) if reads.get(access, access) == walked)
        access = next(found, None)
        return None if access is None else self.load(access, walked, states)

    def value(self, states: States) -> ir.Expr:
        """The value of a point, without the factors that are taken out of the sum."""
        out = {access for access, _ in self.plan.factors}

        walks = dict(self.plan.reads)

        def read(access: Access) -> ir.Expr | None:
            walked = walks.get(access, access)
            state = states[walked]
            if walked in out:
                return ir.Const(1, self.plan.element)
            if state.present == ir.FALSE:
                return None
            load = self.load(access, walked, states)
            return (
                load if state.present == ir.TRUE else ir.Select(state.present, load, ir.Const(0, load.type))
            )

        types = {operand.name: operand.element for operand in self.plan.operands}
        body = self.plan.step.body if self.plan.value is None else self.plan.value
        return value_of(body, types, read)
