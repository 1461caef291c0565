"""From a plan to loops.

One loop is opened at a time. Every access is in a ``State``: how many of its levels have been resolved, and
at which position. Opening the loop over x asks ``lattice.support`` which accesses that store coordinates of
x must be there:

    nothing stored matters        for x in 0..size
    one access, A                 for p in A's range: x = crd[p]
    anything else                 while some are left: x = the smallest coordinate in front

Accesses that do not drive the loop follow it: their position is moved up to x and a flag says whether x
is stored. An access that is absent keeps an empty range, so no case is ever split off for it; the value of an
absent access is zero. Levels whose coordinate is known when their parent is are located (dense) or
searched (A[i,i], blocks under an unsplit index), so that every order of loops can be lowered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scorch.compiler import lattice
from scorch.compiler.assemble import Assembly, Factor, make_assembly
from scorch.compiler.express import value_of
from scorch.compiler.lattice import EVERYWHERE, NOWHERE, Support
from scorch.compiler.names import with_safe_names
from scorch.compiler.plan import Plan, Vectors
from scorch.compiler.walk import Cursor, Flags, State, States, formula
from scorch.formats.scratch import join_key
from scorch.loops.lanes import substitute
from scorch.loops.nodes import (
    FALSE,
    TRUE,
    Array,
    Assign,
    Binary,
    Block,
    Call,
    Cast,
    Const,
    Declare,
    Expr,
    For,
    Function,
    If,
    Kernel,
    Lanes,
    Load,
    Parallel,
    Prefetch,
    Select,
    Stmt,
    Store,
    Tile,
    Total,
    Unary,
    Var,
    While,
    block,
    both,
    lane,
    wide,
)
from scorch.loops.types import BOOL, INT64
from scorch.notation.nodes import Access

AHEAD = 8  # entries between fetching a row and using it
LAST = Const(2**63 - 1)  # a coordinate after all others


def lower(plan: Plan) -> Kernel:
    """The loops of ``plan``: a function ``scorch_compute`` and, for sparse results, ``scorch_finish``."""
    return Lowering(with_safe_names(plan)).kernel()


class Lowering:
    """The plan being lowered with what is looked up again and again; its methods return loops."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.order = plan.order
        self.accesses = plan.step.accesses
        self.labels = self._label()
        self.uses = {
            access: plan.splits.uses(
                plan.operand(access.tensor).format,
                access.indices,
                access.tensor,
                plan.operand(access.tensor).index,
            )
            for access in self.accesses
        }
        self.assembly: Assembly = make_assembly(plan)

    def _label(self) -> dict[Access, str]:
        """A name for each access: the tensor's, numbered where a tensor is used several times."""
        seen: dict[str, int] = {}
        labels = {}
        for access in self.accesses:
            seen[access.tensor] = seen.get(access.tensor, 0) + 1
            count = seen[access.tensor]
            labels[access] = access.tensor if count == 1 else f"{access.tensor}_{count}_"
        return labels

    # the kernel --------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        inputs = self._inputs()
        states = {access: State(0, Const(0), None, TRUE) for access in self.accesses}
        inner = self._loops(0, states, frozenset(), {})
        outer = self.assembly.around(0, inner, *self._delivery(0, states, frozenset()))
        if (between := self.assembly.next_pass()) is not None:  # in scopes of their own
            again = self._loops(0, states, frozenset(), {})
            outer = block(If(TRUE, self.assembly.counting(outer)), between, If(TRUE, again))
        if self.plan.parallel and self.order:
            body: Stmt = block(self.assembly.before(), outer, self.assembly.after())
        else:
            body = block(
                self.assembly.before(),
                self.assembly.before_worker(),
                self.assembly.before_chunks(Const(1)),
                self.assembly.before_chunk(Const(0)),
                outer,
                self.assembly.after_chunk(Const(0)),
                self.assembly.after_worker(),
                self.assembly.after(),
            )
        compute_params = (*inputs, *self.assembly.inputs)
        slots = list(compute_params)
        for slot in (*self.assembly.outputs, *self.assembly.finish_inputs):
            if slot.name not in {other.name for other in slots}:
                slots.append(slot)
        compute = Function("scorch_compute", tuple(compute_params), body, exported=True)
        finish = self.assembly.finish(tuple(p for p in inputs if isinstance(p, Var)))
        functions = (*self.assembly.helpers(), compute, *((finish,) if finish else ()))
        return Kernel(self.plan.header, tuple(slots), functions)

    def _inputs(self) -> tuple[Var | Array, ...]:
        sizes = [Var(f"{index}_size") for index in self._indices()]
        arrays: dict[str, Array] = {}
        for access in self.accesses:
            form = self.plan.operand(access.tensor).format
            for use in self.uses[access]:
                if form.levels[use.level].keeps_crd:
                    if form.starts_run(use.level):
                        arrays[use.arrays.pos.name] = use.arrays.pos
                    arrays[use.arrays.crd.name] = use.arrays.crd
            values = self._values(access)
            arrays[values.name] = values
        return (Var("parallel_for"), Var("threads"), *sizes, *arrays.values())

    def _indices(self) -> tuple[str, ...]:
        found = dict.fromkeys(self.plan.step.indices)
        return tuple(found)

    def _values(self, access: Access) -> Array:
        return Array(f"{access.tensor}_vals", self.plan.operand(access.tensor).element)

    # loops -------------------------------------------------------------------------------------------

    def _loops(self, depth: int, states: States, bound: frozenset[str], known: Flags) -> Stmt:
        """Everything inside the first ``depth`` loops."""
        if depth == len(self.order):
            return self._leaf(states)
        x = self.order[depth]
        cursors = self._cursors(x, states)
        where = lattice.support(self.plan.step.body, lambda access: self._stored_at(access, states, cursors))
        if where == NOWHERE:
            return Block(())
        drivers = [cursors[a] for a in self.accesses if a in cursors and a in lattice.mentioned(where)]
        followers = [cursors[a] for a in self.accesses if a in cursors and a not in lattice.mentioned(where)]
        chunked = depth == 0 and self.plan.parallel
        context = _Loop(depth, Var(x), states, bound, known, followers)
        if self.plan.vectors is not None and depth == len(self.order) - 1:
            assert where == EVERYWHERE and not context.followers, "vectors run along dense levels"
            return self._in_vectors(context, self.plan.vectors)
        if where == EVERYWHERE:
            return self._counted(context, chunked)
        if len(drivers) == 1 and where == lattice.stored(drivers[0].access):
            return self._over_one(context, drivers[0], chunked)
        assert not chunked, "the scheduler makes only simple loops parallel"
        return self._merged(context, drivers, where)

    def _cursors(self, x: str, states: States) -> dict[Access, Cursor]:
        """The accesses whose next level stores coordinates of ``x``."""
        found = {}
        for access in self.accesses:
            state, uses = states[access], self.uses[access]
            if state.level == len(uses) or state.present == FALSE:
                continue
            use, form = uses[state.level], self.plan.operand(access.tensor).format
            is_searched = (access, state.level) in self.plan.searched
            if use.loop == x and not form.levels[state.level].is_full and not is_searched:
                position = Var(f"p{self.labels[access]}{state.level + 1}")
                end = Var(f"{position.name}_end")
                found[access] = Cursor(access, use, position, end, form.is_unique(state.level))
        return found

    def _stored_at(self, access: Access, states: States, cursors: Mapping[Access, Cursor]) -> Support:
        if states[access].present == FALSE:
            return NOWHERE
        return lattice.stored(access) if access in cursors else EVERYWHERE

    def _range(self, access: Access, state: State) -> tuple[Expr, Expr]:
        """The entries of the next level; none if the access is absent."""
        form = self.plan.operand(access.tensor).format
        if not form.starts_run(state.level):
            assert state.stop is not None
            return state.start, state.stop
        arrays = self.uses[access][state.level].arrays
        start, stop = form.levels[state.level].bounds(arrays, state.start)
        if state.present == TRUE:
            return start, stop
        return Select(state.present, start, Const(0)), Select(state.present, stop, Const(0))

    def _counted(self, loop: _Loop, chunked: bool) -> Stmt:
        """``for x in 0..size``, with the stored levels following."""
        stop = self._extent(loop.x.name)
        begin: Expr = Const(0)
        if chunked:
            begin, stop = Var("chunk_start"), Var("chunk_stop")
        opening = block(*(self._open_follower(c, loop.states, begin) for c in loop.followers))
        moves, states = self._follow(loop)
        body = block(moves, self._inside(loop, states))
        found = block(opening, For(loop.x, begin, stop, body, self._sums(loop)))
        return self._in_chunks(found, self._extent(loop.x.name), Const(0)) if chunked else found

    def _sums(self, loop: _Loop) -> int:
        return self.plan.sums if loop.depth == len(self.order) - 1 else 1

    def _in_vectors(self, loop: _Loop, vectors: Vectors) -> Stmt:
        """The innermost loop in vector registers."""
        bound = loop.bound | {loop.x.name}
        resolving, states = self._resolve(loop.states, bound)
        if vectors.kind == "rows":
            body = block(resolving, self._leaf(states))
            return Lanes(loop.x, vectors.start, vectors.width, vectors.lanes, body)
        element = self.plan.element
        sums = Array("sums", element)
        count = vectors.sums * vectors.lanes
        start = vectors.start
        place = lane(loop.x, start, vectors.width, count)
        added = Binary("+", Load(sums, place), self._value(states), element)
        turn: Stmt = Lanes(
            loop.x, start, vectors.width, vectors.lanes, block(resolving, Store(sums, place, added))
        )
        size = self._extent(loop.x.name)
        if isinstance(start, Var):
            number = Var(f"{loop.x.name}_stretch")
            begin = Declare(start, number * vectors.width)
            turn = For(number, Const(0), size // vectors.width, block(begin, turn))
        total = self.assembly.leaf(Total(sums, count, vectors.lanes), self._leaf_position(states))
        rest: Stmt | None = None
        if vectors.rest:
            body = block(resolving, self._leaf(states))
            rest = For(loop.x, size - size % vectors.width, size, body)
        return block(Tile(sums, count, vectors.lanes), turn, total, rest)

    def _delivery(self, depth: int, states: States, bound: frozenset[str]) -> tuple[Expr | None, Factor]:
        """Where the sum inside ``depth`` loops goes, if that is known, and what it is multiplied by."""
        vectors = self.plan.vectors
        before: Stmt | None = None
        if vectors is not None and vectors.kind == "rows" and depth >= vectors.depth:
            before, states = self._resolve(states, bound | {vectors.loop})
        value: Expr | None = None
        for access, place in self.plan.factors:
            if place == depth:
                load = Load(self._values(access), states[access].start)
                value = load if value is None else Binary("*", value, load, self.plan.element)
        return self._leaf_position(states), (before, value)

    def _over_one(self, loop: _Loop, driver: Cursor, chunked: bool) -> Stmt:
        """``for p in range: x = crd[p]``; a run of equal coordinates is one turn."""
        start, stop = self._range(driver.access, loop.states[driver.access])
        begin, end = start, stop
        if chunked:
            begin, end = Var("chunk_start"), Var("chunk_stop")
        opening = block(*(self._open_follower(c, loop.states, None) for c in loop.followers))
        moves, states = self._follow(loop)
        level = loop.states[driver.access].level
        states = {**states, driver.access: driver.resolved(level, TRUE)}
        bind = Declare(loop.x, driver.front)
        inside = self._inside(loop, states)
        if driver.is_unique:
            last, fetch = self._prefetch(loop, driver)
            body = block(bind, fetch, moves, inside)
            found = block(opening, last, For(driver.position, begin, end, body, self._sums(loop)))
        else:
            found = block(
                opening,
                Declare(driver.position, begin),
                Declare(driver.end, end),
                While(
                    driver.has_more,
                    block(
                        bind,
                        driver.find_run_end(loop.x),
                        moves,
                        inside,
                        Assign(driver.position, driver.run_end),
                    ),
                ),
            )
        if not chunked:
            return found
        return self._in_chunks(found, stop - start, start, None if driver.is_unique else driver)

    def _prefetch(self, loop: _Loop, driver: Cursor) -> tuple[Stmt | None, Stmt | None]:
        """What is declared before the loop over ``driver``, and what fetches rows ahead inside it."""
        if not self.plan.prefetched or loop.depth != len(self.order) - 2:
            return None, None
        assert self.plan.vectors is not None
        last, ahead = Var(f"{driver.position.name}_last"), Var(f"{loop.x.name}_ahead")
        entries = self._entries(driver.access, driver.use.level)
        place = Binary("min", driver.position + AHEAD, last, INT64)
        crd = driver.use.arrays.crd
        fetches: list[Stmt] = [Declare(ahead, wide(Load(crd, place)))]
        there: dict[str, Expr] = {loop.x.name: ahead, self.plan.vectors.loop: self.plan.vectors.start}
        if self.plan.vectors.kind == "sums":
            there[self.plan.vectors.loop] = Const(0)
        for access, count in self.plan.prefetched:
            uses = self.uses[access]
            at = join_key([use.coordinate for use in uses], [use.arrays.size for use in uses])
            fetches.append(Prefetch(self._values(access), substitute(at, there), count))
        return Declare(last, entries - 1), block(*fetches)

    def _entries(self, access: Access, level: int) -> Expr:
        """How many positions a level has in all."""
        form, uses = self.plan.operand(access.tensor).format, self.uses[access]
        above = self._entries(access, level - 1) if level else Const(1)
        if form.levels[level].is_full:
            return above * uses[level].arrays.size
        if not form.starts_run(level):
            return above
        return wide(Load(uses[level].arrays.pos, above))

    def _merged(self, loop: _Loop, drivers: list[Cursor], where: Support) -> Stmt:
        """``while``: take the smallest coordinate in front and see which accesses store it."""
        if len(drivers) == 2 and all(c.is_unique for c in drivers):
            if len(where) == 1:
                return self._both_of_two(loop, drivers)
            is_innermost = loop.depth == len(self.order) - 1 and not loop.followers
            if is_innermost and all(len(clause) == 1 for clause in where):
                return self._either_of_two(loop, drivers)
        opening: list[Stmt | None] = [self._open(c, loop.states) for c in drivers]
        opening += [self._open_follower(c, loop.states, None) for c in loop.followers]
        required = lattice.required(where)
        alive = formula(where, {c.access: c.has_more for c in drivers})
        fronts = []
        states: dict[Access, State] = dict(loop.states)
        for cursor in drivers:
            front = Var(f"{cursor.position.name}_front")
            always = len(where) == 1 and cursor.access in required
            value = cursor.front if always else Select(cursor.has_more, cursor.front, LAST)
            fronts.append(Declare(front, value))
            present = TRUE if cursor.access in required else cursor.flag
            states[cursor.access] = cursor.resolved(loop.states[cursor.access].level, present)
        smallest: Expr = Var(f"{drivers[0].position.name}_front")
        for cursor in drivers[1:]:
            smallest = Binary("min", smallest, Var(f"{cursor.position.name}_front"), INT64)
        flags = [Declare(c.flag, Var(f"{c.position.name}_front").equals(loop.x)) for c in drivers]
        runs = [c.find_run_end(loop.x) for c in drivers]
        moves, followed = self._follow(replace(loop, states=states))
        inside = self._inside(loop, followed)
        is_union = all(frozenset({c.access}) in where for c in drivers)
        if not is_union:
            inside = If(formula(where, {c.access: c.flag for c in drivers}), inside)
        advance = [
            Assign(c.position, c.position + Cast(c.flag, INT64) if c.is_unique else c.run_end)
            for c in drivers
        ]
        body = block(*fronts, Declare(loop.x, smallest), *flags, *runs, moves, inside, *advance)
        return block(*opening, While(alive, body))

    def _both_of_two(self, loop: _Loop, drivers: list[Cursor]) -> Stmt:
        """The coordinates that two levels have in common; no branch depends on which is behind."""
        first, second = drivers
        fronts = [Var(f"{c.position.name}_front") for c in drivers]
        states = {**loop.states, **{c.access: self._here(loop, c) for c in drivers}}
        moves, followed = self._follow(replace(loop, states=states))
        meet = block(
            Declare(loop.x, fronts[0]),
            moves,
            self._inside(loop, followed),
            *(Assign(c.position, c.position + 1) for c in drivers),
        )
        behind = block(
            Declare(first.flag, fronts[0] < fronts[1]),
            Assign(first.position, first.position + Cast(first.flag, INT64)),
            Assign(second.position, second.position + Cast(Unary("!", first.flag, BOOL), INT64)),
        )
        return block(
            *(self._open(c, loop.states) for c in drivers),
            *(self._open_follower(c, loop.states, None) for c in loop.followers),
            While(
                both(first.has_more, second.has_more),
                block(
                    *(Declare(front, c.front) for front, c in zip(fronts, drivers, strict=True)),
                    If(fronts[0].equals(fronts[1]), meet, behind),
                ),
            ),
        )

    def _either_of_two(self, loop: _Loop, drivers: list[Cursor]) -> Stmt:
        """The coordinates of two levels in the innermost loop: three branches, then what is left of one.

        Patterns have more order than chance, and a branch that is foretold is faster than none: the next
        coordinates are read before it is known which level goes on.
        """
        first, second = drivers
        fronts = [Var(f"{c.position.name}_front") for c in drivers]
        together = {**loop.states, **{c.access: self._here(loop, c) for c in drivers}}

        def turn(front: Var, states: States, moved: list[Cursor]) -> Stmt:
            steps = (Assign(c.position, c.position + 1) for c in moved)
            return block(Declare(loop.x, front), self._inside(loop, states), *steps)

        alone = [turn(fronts[k], self._alone(loop, drivers[k], drivers[1 - k]), [drivers[k]]) for k in (0, 1)]
        equal = turn(fronts[0], together, drivers)
        merge = If(fronts[0] < fronts[1], alone[0], If(fronts[1] < fronts[0], alone[1], equal))
        tails = []
        for cursor, other in ((first, second), (second, first)):
            rest = replace(cursor, position=Var(f"{cursor.position.name}_rest"))
            inside = self._inside(loop, self._alone(loop, rest, other))
            body = block(Declare(loop.x, rest.front), inside)
            tails.append(For(rest.position, cursor.position, cursor.end, body))
        return block(
            *(self._open(c, loop.states) for c in drivers),
            While(
                both(first.has_more, second.has_more),
                block(*(Declare(f, c.front) for f, c in zip(fronts, drivers, strict=True)), merge),
            ),
            *tails,
        )

    def _here(self, loop: _Loop, cursor: Cursor) -> State:
        return cursor.resolved(loop.states[cursor.access].level, TRUE)

    def _alone(self, loop: _Loop, cursor: Cursor, other: Cursor) -> States:
        """One of two levels stores the coordinate, the other does not."""
        absent = State(len(self.uses[other.access]), Const(0), None, FALSE)
        return {**loop.states, cursor.access: self._here(loop, cursor), other.access: absent}

    def _inside(self, loop: _Loop, states: States) -> Stmt:
        """The body of a loop once x is known: resolve what can be, check, go on inwards."""
        bound = loop.bound | {loop.x.name}
        derived = self._derive(loop.x.name, bound)
        resolving, states = self._resolve(states, bound)
        flagged = {a: lattice.stored(a) for a in self.accesses if states[a].present not in (TRUE, FALSE)}
        here = lattice.support(
            self.plan.step.body,
            lambda a: flagged.get(a, NOWHERE if states[a].present == FALSE else EVERYWHERE),
        )
        if here == NOWHERE:
            return Block(())
        flags = {a: states[a].present for a in flagged}
        sure = lattice.required(here)  # by the check around what is inside
        states = {a: replace(state, present=TRUE) if a in sure else state for a, state in states.items()}
        known = {a: flag for a, flag in flags.items() if a not in sure}
        inner = self._loops(loop.depth + 1, states, bound, known)
        inner = self.assembly.around(loop.depth + 1, inner, *self._delivery(loop.depth + 1, states, bound))
        if here != EVERYWHERE and flags != loop.known and not self._is_certain(here, flags, loop):
            inner = If(formula(here, flags), inner)
        return block(derived, resolving, inner)

    def _is_certain(self, here: Support, flags: Flags, loop: _Loop) -> bool:
        """Whether the loop itself has made sure of ``here``, by the flags that its own levels set."""
        cursors = self._cursors(loop.x.name, loop.states)
        where = lattice.support(
            self.plan.step.body, lambda access: self._stored_at(access, loop.states, cursors)
        )
        own = all(a in cursors and flag == cursors[a].flag for a, flag in flags.items())
        return here == where and own

    # levels ------------------------------------------------------------------------------------------

    def _open(self, cursor: Cursor, states: States) -> Stmt:
        start, stop = self._range(cursor.access, states[cursor.access])
        return block(Declare(cursor.position, start), Declare(cursor.end, stop))

    def _open_follower(self, cursor: Cursor, states: States, begin: Expr | None) -> Stmt:
        """Open a level that follows; ``begin`` is where a chunk of the loop begins."""
        start, stop = self._range(cursor.access, states[cursor.access])
        if begin is None or begin == Const(0):
            return block(Declare(cursor.position, start), Declare(cursor.end, stop))
        level = self.plan.operand(cursor.access.tensor).format.levels[cursor.use.level]
        search = level.search(cursor.use.arrays, start, stop, begin)
        return block(Declare(cursor.position, search), Declare(cursor.end, stop))

    def _follow(self, loop: _Loop) -> tuple[Stmt, dict[Access, State]]:
        """Move followers up to x and set their flags."""
        moves: list[Stmt | None] = []
        states = dict(loop.states)
        for c in loop.followers:
            behind = both(c.has_more, c.front < loop.x)
            moves.append(While(behind, Assign(c.position, c.position + 1)))
            moves.append(Declare(c.flag, both(c.has_more, c.front.equals(loop.x))))
            moves.append(c.find_run_end(loop.x))
            states[c.access] = c.resolved(loop.states[c.access].level, c.flag)
        return block(*moves), states

    def _derive(self, x: str, bound: frozenset[str]) -> Stmt | None:
        """Once both loops of a split index are open, the index itself."""
        index, part = self.plan.splits.origin(x)
        block_size = self.plan.splits.block(index)
        if part == "whole" or block_size is None or not set(self.plan.splits.loops_of(index)) <= bound:
            return None
        return Declare(Var(index), Var(f"{index}_out") * block_size + Var(f"{index}_in"))

    def _extent(self, x: str) -> Expr:
        """How many turns a counted loop over ``x`` takes; the last block may be cut short."""
        index, part = self.plan.splits.origin(x)
        size, block_size = Var(f"{index}_size"), self.plan.splits.block(index)
        if block_size is None:
            return size
        if part == "outer":
            return (size + (block_size - 1)) // block_size
        left = size - Var(f"{index}_out") * block_size
        return Binary("min", Const(block_size), left, INT64)

    def _resolve(self, states: States, bound: frozenset[str]) -> tuple[Stmt, dict[Access, State]]:
        """Go down all levels whose coordinate is known: locate full ones, search the others."""
        statements: list[Stmt | None] = []
        found = dict(states)
        for access in self.accesses:
            form, uses = self.plan.operand(access.tensor).format, self.uses[access]
            while True:
                state = found[access]
                if state.level == len(uses) or state.present == FALSE:
                    break
                use, level = uses[state.level], form.levels[state.level]
                if not use.needs <= bound:
                    break
                position = Var(f"p{self.labels[access]}{state.level + 1}")
                if level.is_full:
                    at = level.locate(use.arrays, state.start, use.coordinate)
                    if isinstance(at, Const | Var):
                        found[access] = State(state.level + 1, at, None, state.present)
                        continue
                    statements.append(Declare(position, at))
                    found[access] = State(state.level + 1, position, None, state.present)
                    continue
                start, stop = self._range(access, state)
                cursor = Cursor(
                    access, use, position, Var(f"{position.name}_end"), form.is_unique(state.level)
                )
                statements += [
                    Declare(cursor.end, stop),
                    Declare(position, level.search(use.arrays, start, cursor.end, use.coordinate)),
                    Declare(cursor.flag, both(cursor.has_more, cursor.front.equals(use.coordinate))),
                ]
                if not cursor.is_unique:
                    after = level.search_after(use.arrays, position, cursor.end, use.coordinate)
                    statements.append(Declare(cursor.run_end, after))
                found[access] = cursor.resolved(state.level, cursor.flag)
        return block(*statements), found

    # the leaf ----------------------------------------------------------------------------------------

    def _leaf_position(self, states: States) -> Expr | None:
        """Where the entry of the shared pattern stands, once it is known."""
        pattern, levels = self.plan.pattern, self.plan.pattern_levels
        if pattern is None or states[pattern].level < levels:
            return None
        state = states[pattern]
        position = state.start if state.level == levels else Var(f"p{self.labels[pattern]}{levels}")
        for use in self.plan.result_uses[levels:]:
            position = position * use.arrays.size + use.coordinate
        return position

    def _leaf(self, states: States) -> Stmt:
        return self.assembly.leaf(self._value(states), self._leaf_position(states))

    def _value(self, states: States) -> Expr:
        """The value of a point, without the factors that are taken out of the sum."""
        out = {access for access, _ in self.plan.factors}

        def read(access: Access) -> Expr | None:
            state = states[access]
            if access in out:
                return Const(1, self.plan.element)
            if state.present == FALSE:
                return None
            load = Load(self._values(access), state.start)
            return load if state.present == TRUE else Select(state.present, load, Const(0, load.type))

        types = {operand.name: operand.element for operand in self.plan.operands}
        return value_of(self.plan.step.body, types, read)

    # threads -----------------------------------------------------------------------------------------

    def _in_chunks(self, inner: Stmt, length: Expr, offset: Expr, run: Cursor | None = None) -> Stmt:
        """The outermost loop cut into chunks of equal work that threads take in turns."""
        chunk, chunks, span = Var("chunk"), Var("chunks"), Var("span")
        start, stop = Var("chunk_start"), Var("chunk_stop")
        wanted = Select(Var("threads") <= 1, Const(1), Var("threads") * self.assembly.chunks_per_thread)
        limits: list[Stmt | None]
        if self.plan.balance is not None:
            tensor, level = self.plan.balance
            pos = Array(f"{tensor}{level + 1}_pos", self.plan.operand(tensor).index)
            name = "balance_i32" if pos.element.bytes == 4 else "balance_i64"
            limits = [
                Declare(start, Call(name, (pos, span, chunk, chunks))),
                Declare(stop, Call(name, (pos, span, chunk + 1, chunks))),
            ]
        else:
            limits = [
                Declare(start, offset + span * chunk // chunks),
                Declare(stop, offset + span * (chunk + 1) // chunks),
            ]
        if run is not None:  # chunks of entries begin where a coordinate does
            crd = run.use.arrays.crd
            for limit in (start, stop):
                inside = both(Const(0) + offset < limit, limit < offset + span)
                repeats = Load(crd, limit).equals(Load(crd, limit - 1))
                limits.append(While(both(inside, repeats), Assign(limit, limit + 1)))
        return block(
            Declare(span, length),
            Declare(chunks, Binary("max", Const(1), Binary("min", wanted, span, INT64), INT64)),
            self.assembly.before_chunks(chunks),
            Parallel(
                chunk,
                chunks,
                Var("threads"),
                self.assembly.before_worker(),
                block(*limits, self.assembly.before_chunk(chunk), inner, self.assembly.after_chunk(chunk)),
                self.assembly.after_worker(),
            ),
        )


@dataclass(frozen=True)
class _Loop:
    """A loop being opened: its depth and variable, and what holds around it."""

    depth: int
    x: Var
    states: States
    bound: frozenset[str]
    known: Flags
    followers: list[Cursor]
