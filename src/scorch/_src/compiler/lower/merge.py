"""Loops over the coordinates of several stored levels at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from scorch._src.compiler import lattice
from scorch._src.compiler.lattice import Support
from scorch._src.compiler.lower.levels import Cursor, Levels, Loop, State, States, formula
from scorch._src.compiler.lower.merge_ahead import kept, merge_ahead
from scorch._src.compiler.lower.places import LOOKS_UP, noted_places
from scorch._src.dataclass import replace
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import with_children
from scorch._src.loops.types import BOOL, INT64
from scorch._src.notation.nodes import Access

LAST = ir.Const(2**63 - 1)  # a coordinate after all others
ALIKE = 4  # coordinates that are compared at a time

Node = TypeVar("Node", bound=ir.Expr | ir.Stmt | ir.Array)
Inside = Callable[[States], ir.Stmt]  # what is done at a coordinate


def merged(levels: Levels, loop: Loop, drivers: list[Cursor], where: Support, inside: Inside) -> ir.Stmt:
    """``while``: take the smallest coordinate in front and see which accesses store it."""
    is_innermost = loop.depth == len(levels.plan.order) - 1 and not loop.followers
    if len(drivers) == 2 and all(c.is_unique for c in drivers):
        if len(where) == 1:
            opening = [levels.open(c, loop.states) for c in (*drivers, *loop.followers)]
            opening.append(_alike(levels, loop, drivers, inside, 2 * ALIKE))
            steps: ir.Stmt = _both_of_two(levels, loop, drivers, inside)
            if levels.plan.noted is not None and is_innermost:
                through = _looked_up if levels.plan.notes_rows_once else _through_places
                steps = ir.If(LOOKS_UP, through(levels, loop, drivers, inside), steps)
            return ir.block(*opening, steps)
        if is_innermost and all(len(clause) == 1 for clause in where):
            return _either_of_two(levels, loop, drivers, inside)
    opening = [levels.open(c, loop.states) for c in (*drivers, *loop.followers)]
    required = lattice.required(where)
    alive = formula(where, {c.access: c.has_more for c in drivers})
    fronts = []
    states: dict[Access, State] = dict(loop.states)
    for cursor in drivers:
        always = len(where) == 1 and cursor.access in required
        value = cursor.front if always else ir.Select(cursor.has_more, cursor.front, LAST)
        fronts.append(ir.Declare(cursor.front_var, value))
        present = ir.TRUE if cursor.access in required else cursor.flag
        states[cursor.access] = cursor.resolved(loop.states[cursor.access].level, present)
    smallest: ir.Expr = drivers[0].front_var
    for cursor in drivers[1:]:
        smallest = ir.Binary("min", smallest, cursor.front_var, INT64)
    flags = [ir.Declare(c.flag, c.front_var.equals(loop.x)) for c in drivers]
    runs = [c.find_run_end(loop.x) for c in drivers]
    moves, followed = levels.follow(replace(loop, states=states))
    action = inside(followed)
    is_union = all(frozenset({c.access}) in where for c in drivers)
    if not is_union:
        action = ir.If(formula(where, {c.access: c.flag for c in drivers}), action)
    advance = [
        ir.Assign(c.position, c.position + ir.Cast(c.flag, INT64) if c.is_unique else c.run_end)
        for c in drivers
    ]
    body = ir.block(*fronts, ir.Declare(loop.x, smallest), *flags, *runs, moves, action, *advance)
    return ir.block(*opening, ir.While(alive, body))


def _both_of_two(levels: Levels, loop: Loop, drivers: list[Cursor], inside: Inside) -> ir.Stmt:
    """The coordinates that two levels have in common; no branch depends on which is behind."""
    first, second = drivers
    fronts = [c.front_var for c in drivers]
    states = {**loop.states, **{c.access: _here(loop, c) for c in drivers}}
    moves, followed = levels.follow(replace(loop, states=states))
    meet = ir.block(
        ir.Declare(loop.x, fronts[0]),
        moves,
        inside(followed),
        *(ir.Assign(c.position, c.position + 1) for c in drivers),
    )
    behind = ir.block(
        ir.Declare(first.flag, fronts[0] < fronts[1]),
        ir.Assign(first.position, first.position + ir.Cast(first.flag, INT64)),
        ir.Assign(second.position, second.position + ir.Cast(ir.Unary("!", first.flag, BOOL), INT64)),
    )
    return ir.While(
        ir.both(first.has_more, second.has_more),
        ir.block(
            *(ir.Declare(c.front_var, c.front) for c in drivers),
            ir.If(fronts[0].equals(fronts[1]), meet, behind),
        ),
    )


def _through_places(levels: Levels, loop: Loop, drivers: list[Cursor], inside: Inside) -> ir.Stmt:
    """The coordinates that two levels have in common: while both go on alike, side by side; then looked up.

    What was noted of other rows lies outside the entries at hand, so nothing has to be cleared.
    """
    noted, walked = sorted(drivers, key=lambda c: c.access != levels.plan.noted)
    places = noted_places(levels.plan)
    together = {**loop.states, **{c.access: _here(loop, c) for c in drivers}}
    alike = ir.both(ir.both(noted.has_more, walked.has_more), noted.front.equals(walked.front))
    steps = (ir.Assign(c.position, c.position + 1) for c in drivers)
    begin = ir.block(ir.Declare(loop.x, walked.front), inside(together), *steps)

    entry, rest = (replace(c, position=ir.Var(f"{c.position.name}_rest")) for c in (noted, walked))
    note = ir.Store(places, entry.front, entry.position)
    found, place = ir.Var(f"{noted.position.name}_noted"), ir.Var(f"{noted.position.name}_place")
    here = ir.both(noted.position <= found, found < noted.end)
    level = loop.states[noted.access].level
    states = {**loop.states, rest.access: _here(loop, rest)}
    states[noted.access] = State(level + 1, place, None, noted.flag)
    look_up = ir.block(
        ir.Declare(loop.x, rest.front),
        ir.Declare(found, ir.wide(ir.Load(places, loop.x))),
        ir.Declare(noted.flag, here),
        ir.Declare(place, ir.Select(noted.flag, found, noted.position)),  # some entry, for want of one
        _kept_where(noted.flag, place, inside(states)),
    )
    return ir.block(
        ir.While(alike, begin),
        ir.If(
            ir.both(noted.has_more, walked.has_more),
            ir.block(
                ir.For(entry.position, noted.position, noted.end, note),
                ir.For(rest.position, walked.position, walked.end, look_up),
            ),
        ),
    )


def _looked_up(levels: Levels, loop: Loop, drivers: list[Cursor], inside: Inside) -> ir.Stmt:
    """The coordinates that two levels have in common, of which one was noted before the loops around."""
    noted, walked = sorted(drivers, key=lambda c: c.access != levels.plan.noted)
    rest = replace(walked, position=ir.Var(f"{walked.position.name}_rest"))
    found = ir.Var(f"{noted.position.name}_noted")
    step = levels.plan.step
    is_sure = step.covers and noted.access.tensor == step.sampled_at
    states = {**loop.states, rest.access: _here(loop, rest)}
    level = loop.states[noted.access].level
    states[noted.access] = State(level + 1, found, None, ir.TRUE if is_sure else noted.flag)
    here = ir.both(noted.position <= found, found < noted.end)
    look_up = ir.block(
        ir.Declare(loop.x, rest.front),
        ir.Declare(found, ir.wide(ir.Load(noted_places(levels.plan), loop.x))),
        None if is_sure else ir.Declare(noted.flag, here),
        inside(states),
    )
    return ir.For(rest.position, walked.position, walked.end, look_up)


def _kept_where(here: ir.Expr, place: ir.Var, node: ir.Stmt) -> ir.Stmt:
    """``node`` with zeros in place of what is loaded from ``place`` if it is not ``here``.

    Nobody reads what becomes of it then, but a product too small for a normal number takes a hundred cycles.
    """

    def change(part: Node) -> Node | ir.Expr:
        if isinstance(part, ir.Load) and part.index == place:
            return kept(part, here) or part
        found: Node = with_children(part, change)
        return found

    return with_children(node, change)


def _either_of_two(levels: Levels, loop: Loop, drivers: list[Cursor], inside: Inside) -> ir.Stmt:
    """The coordinates of two levels in the innermost loop: three branches, then what is left of one.

    Most patterns have more order than chance, and a branch that is foretold is faster than none: the next
    coordinates are read before it is known which level goes on. Others begin without (``merge_ahead``).
    """
    first, second = drivers
    fronts = [c.front_var for c in drivers]
    together = {**loop.states, **{c.access: _here(loop, c) for c in drivers}}

    def turn(front: ir.Var, states: States, moved: list[Cursor]) -> ir.Stmt:
        steps = (ir.Assign(c.position, c.position + 1) for c in moved)
        return ir.block(ir.Declare(loop.x, front), inside(states), *steps)

    alone = [turn(fronts[k], _alone(levels, loop, drivers[k], drivers[1 - k]), [drivers[k]]) for k in (0, 1)]
    equal = turn(fronts[0], together, drivers)
    merge = ir.If(fronts[0] < fronts[1], alone[0], ir.If(fronts[1] < fronts[0], alone[1], equal))
    tails = []
    for cursor, other in ((first, second), (second, first)):
        rest = replace(cursor, position=ir.Var(f"{cursor.position.name}_rest"))
        body = ir.block(ir.Declare(loop.x, rest.front), inside(_alone(levels, loop, rest, other)))
        tails.append(ir.For(rest.position, cursor.position, cursor.end, body))
    return ir.block(
        *(levels.open(c, loop.states) for c in drivers),
        merge_ahead(levels.plan, loop, drivers, inside, _alike(levels, loop, drivers, inside, ALIKE)),
        ir.While(
            ir.both(first.has_more, second.has_more),
            ir.block(*(ir.Declare(c.front_var, c.front) for c in drivers), merge),
        ),
        *tails,
    )


def _alike(levels: Levels, loop: Loop, drivers: list[Cursor], inside: Inside, least: int) -> ir.Stmt:
    """While two rows go on with the same coordinates: several at a time, without asking which one is behind.

    Rows of one pattern are passed in vectors, and so is what rows of a mesh have in common at their
    beginning; ``least``: how long rows are on average for which that pays.
    """
    plan = levels.plan
    is_innermost = loop.depth == len(plan.order) - 1 and not loop.followers
    are_lists = all(c.kind.has_coordinates for c in drivers)
    are_long = all(plan.operand(c.access.tensor).row_length >= least for c in drivers)
    if not (is_innermost and are_lists and are_long) or plan.is_grid or plan.step.reduced:
        return ir.block()
    equal: ir.Expr = ir.Const(0)
    for at in range(ALIKE):
        a, b = (c.kind.coordinate(c.use.arrays, c.position + at, c.parent) for c in drivers)
        equal = equal + ir.Cast(a.equals(b), INT64)
    first, second = (c.position + ALIKE <= c.end for c in drivers)
    together = {**loop.states, **{c.access: _here(loop, c) for c in drivers}}
    steps = (ir.Assign(c.position, c.position + 1) for c in drivers)
    turn = ir.block(ir.Declare(loop.x, drivers[0].front), inside(together), *steps)
    turns = ir.For(ir.Var(f"{loop.x.name}_alike"), ir.Const(0), ir.Const(ALIKE), turn)
    return ir.While(ir.both(ir.both(first, second), equal.equals(ALIKE)), turns)


def _here(loop: Loop, cursor: Cursor) -> State:
    return cursor.resolved(loop.states[cursor.access].level, ir.TRUE)


def _alone(levels: Levels, loop: Loop, cursor: Cursor, other: Cursor) -> States:
    """One of two levels stores the coordinate, the other does not."""
    absent = State(len(levels.uses[other.access]), ir.Const(0), None, ir.FALSE)
    return {**loop.states, cursor.access: _here(loop, cursor), other.access: absent}
