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

from scorch._src.compiler import lattice
from scorch._src.compiler.lattice import EVERYWHERE, NOWHERE, Support
from scorch._src.compiler.lower.assemble import make_assembly
from scorch._src.compiler.lower.levels import Check, Cursor, Flags, Levels, Loop, State, States, formula
from scorch._src.compiler.lower.merge import merged
from scorch._src.compiler.lower.places import note_row
from scorch._src.compiler.names import with_safe_names
from scorch._src.compiler.plan import Plan
from scorch._src.compiler.vector.chunks import in_chunks
from scorch._src.compiler.vector.panels import entries_of_panel, in_panels, panels_of
from scorch._src.compiler.vector.vector_loops import delivery, in_vectors, prefetch, side_by_side
from scorch._src.dataclass import replace
from scorch._src.loops import nodes as ir


def lower(plan: Plan) -> ir.Kernel:
    """The loops of ``plan``: a function ``scorch_compute`` and, for sparse results, ``scorch_finish``."""
    return Lowering(with_safe_names(plan)).kernel()


class Lowering:
    """The plan being lowered with what is looked up again and again; its methods return loops."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.order = plan.order
        self.accesses = plan.step.accesses
        self.levels = Levels(plan)
        self.assembly = make_assembly(plan)
        self.collector = self.assembly.collector

    # the kernel --------------------------------------------------------------------------------------

    def kernel(self) -> ir.Kernel:
        inputs = self._inputs()
        states = {access: State(0, ir.Const(0), None, ir.TRUE) for access in self.accesses}
        inner = self._loops(0, states, frozenset(), None)
        outer = self.assembly.around(0, inner, *delivery(self.levels, 0, states, frozenset()))
        if (between := self.collector.next_pass()) is not None:  # in scopes of their own
            again = self._loops(0, states, frozenset(), None)
            first = self.collector.counting(outer)
            first = first if self.plan.parallel else ir.If(ir.TRUE, first)  # its chunks are those of both
            outer = ir.block(first, between, ir.If(ir.TRUE, again))
        if self.plan.parallel and self.order:
            body: ir.Stmt = ir.block(self.collector.before(), outer, self.collector.after())
        else:
            body = ir.block(
                self.collector.before(),
                self.assembly.before_worker(),
                self.collector.before_chunks(ir.Const(1)),
                self.collector.before_chunk(ir.Const(0)),
                outer,
                self.collector.after_chunk(ir.Const(0)),
                self.assembly.after_worker(),
                self.collector.after(),
            )
        compute_params = (*inputs, *self.collector.inputs)
        slots = list(compute_params)
        for slot in (*self.collector.outputs, *self.collector.finish_inputs):
            if slot.name not in {other.name for other in slots}:
                slots.append(slot)
        compute = ir.Function("scorch_compute", tuple(compute_params), body, exported=True)
        finish = self.collector.finish(tuple(p for p in inputs if isinstance(p, ir.Var)))
        functions = (*self.assembly.helpers(), compute, *((finish,) if finish else ()))
        return ir.Kernel(self.plan.header, tuple(slots), functions, self.plan.notes_rows_once)

    def _inputs(self) -> tuple[ir.Var | ir.Array, ...]:
        sizes = [ir.Var(f"{index}_size") for index in dict.fromkeys(self.plan.step.indices)]
        arrays: dict[str, ir.Array] = {}
        for access in self.accesses:
            form = self.plan.operand(access.tensor).format
            for use in self.levels.uses[access]:
                if not form.levels[use.level].is_full:
                    if form.starts_run(use.level):
                        arrays[use.arrays.pos.name] = use.arrays.pos
                    arrays[use.arrays.crd.name] = use.arrays.crd
            values = self.levels.values(access)
            arrays[values.name] = values
        return (ir.Var("parallel_for"), ir.Var("threads"), *sizes, *arrays.values())

    # loops -------------------------------------------------------------------------------------------

    def _loops(self, depth: int, states: States, bound: frozenset[str], known: Check | None) -> ir.Stmt:
        """Everything inside the first ``depth`` loops."""
        if depth == len(self.order):
            return self._leaf(states)
        x = self.order[depth]
        cursors = self.levels.cursors(x, states)
        where = self.levels.support(states, cursors)
        if where == NOWHERE:
            return ir.Block(())
        drivers = [cursors[a] for a in self.accesses if a in cursors and a in lattice.mentioned(where)]
        followers = [cursors[a] for a in self.accesses if a in cursors and a not in lattice.mentioned(where)]
        chunked = depth == 0 and self.plan.parallel
        context = Loop(depth, ir.Var(x), states, bound, known, followers)
        if self.plan.vectors is not None and depth == len(self.order) - 1:
            assert where == EVERYWHERE and not context.followers, "vectors run along dense levels"
            return in_vectors(self.levels, self.assembly, context, self.plan.vectors)
        if where == EVERYWHERE:
            return self._counted(context, chunked)
        if len(drivers) == 1 and where == lattice.stored(drivers[0].access):
            return self._over_one(context, drivers[0], chunked)
        assert not chunked, "the scheduler makes only simple loops parallel"
        return merged(self.levels, context, drivers, where, lambda found: self._inside(context, found))

    def _counted(self, loop: Loop, chunked: bool) -> ir.Stmt:
        """``for x in 0..size``, with the stored levels following."""
        size = self.levels.extent(loop.x.name)
        begin, stop = (ir.Var("chunk_start"), ir.Var("chunk_stop")) if chunked else (ir.Const(0), size)
        opening = ir.block(*(self.levels.open(c, loop.states, begin) for c in loop.followers))
        moves, states = self.levels.follow(loop)
        body = ir.block(moves, self._inside(loop, states))
        counted = ir.For(loop.x, begin, stop, body, self._sums(loop))
        loops: ir.Stmt = ir.block(opening, side_by_side(self.plan, self.assembly, loop, counted))
        loops = in_panels(self.plan, loops) if loop.depth == 0 else loops
        return in_chunks(self.plan, self.assembly, loops, size, ir.Const(0)) if chunked else loops

    def _sums(self, loop: Loop) -> int:
        return self.plan.sums if loop.depth == len(self.order) - 1 else 1

    def _over_one(self, loop: Loop, driver: Cursor, chunked: bool) -> ir.Stmt:
        """``for p in range: x = crd[p]``; a run of equal coordinates is one turn."""
        start, stop = self.levels.entries(driver.access, loop.states[driver.access])
        begin, end = start, stop
        if chunked:
            begin, end = ir.Var("chunk_start"), ir.Var("chunk_stop")
        opening = ir.block(*(self.levels.open(c, loop.states) for c in loop.followers))
        moves, states = self.levels.follow(loop)
        level = loop.states[driver.access].level
        states = {**states, driver.access: driver.resolved(level, ir.TRUE)}
        bind = ir.Declare(loop.x, driver.front)
        inside = self._inside(loop, states)
        if driver.is_unique:
            last, fetch = prefetch(self.levels, loop, driver)
            body = ir.block(bind, fetch, moves, inside)
            if panels_of(self.plan) > 1 and loop.depth == len(self.order) - 2:
                return ir.block(opening, last, entries_of_panel(self.plan, driver, body, start, stop))
            entries = ir.For(driver.position, begin, end, body, self._sums(loop))
            if loop.depth == len(self.order) - 1:
                entries = replace(entries, gathered=self.plan.gathered, masked=self.plan.masked)
            loops = ir.block(opening, last, side_by_side(self.plan, self.assembly, loop, entries))
        else:
            loops = ir.block(
                opening,
                ir.Declare(driver.position, begin),
                ir.Declare(driver.end, end),
                ir.While(
                    driver.has_more,
                    ir.block(
                        bind,
                        driver.find_run_end(loop.x),
                        moves,
                        inside,
                        ir.Assign(driver.position, driver.run_end),
                    ),
                ),
            )
        if not chunked:
            return loops
        return in_chunks(
            self.plan, self.assembly, loops, stop - start, start, None if driver.is_unique else driver
        )

    def _inside(self, loop: Loop, states: States) -> ir.Stmt:
        """The body of a loop once x is known: resolve what can be, check, go on inwards."""
        bound = loop.bound | {loop.x.name}
        derived = self.levels.derive(loop.x.name, bound)
        resolving, states = self.levels.resolve(states, bound)
        here, flags = self._condition(states)
        if here == NOWHERE:
            return ir.Block(())
        sure = lattice.required(here)  # by the check around what is inside
        states = {a: replace(state, present=ir.TRUE) if a in sure else state for a, state in states.items()}
        inner = self._loops(loop.depth + 1, states, bound, self._condition(states))
        inner = self.assembly.around(
            loop.depth + 1, inner, *delivery(self.levels, loop.depth + 1, states, bound)
        )
        inner = ir.block(note_row(self.plan, self.levels, loop.states, states), inner)
        if here != EVERYWHERE and (here, flags) != loop.known and not self._is_certain(here, flags, loop):
            inner = self.collector.only_where(formula(here, flags), inner)
        return ir.block(derived, resolving, inner)

    def _condition(self, states: States) -> Check:
        """Where the body can differ from zero, by the flags of the accesses that may be absent."""
        flags = {a: states[a].present for a in self.accesses if states[a].present not in (ir.TRUE, ir.FALSE)}
        return self.levels.support(states, flags), flags

    def _is_certain(self, here: Support, flags: Flags, loop: Loop) -> bool:
        """Whether the loop itself has made sure of ``here``, by the flags that its own levels set."""
        cursors = self.levels.cursors(loop.x.name, loop.states)
        own = all(a in cursors and flag == cursors[a].flag for a, flag in flags.items())
        return own and here == self.levels.support(loop.states, cursors)

    def _leaf(self, states: States) -> ir.Stmt:
        return self.assembly.leaf(self.levels.value(states), self.levels.pattern_position(states))
