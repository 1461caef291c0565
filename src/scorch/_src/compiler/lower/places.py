"""The array in which a worker notes where a row has its coordinates (``schedule.map_places``)."""

from __future__ import annotations

from scorch._src.compiler.lower.levels import Levels, States
from scorch._src.compiler.plan import Plan
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import BOOL

NOWHERE = -1  # a place that no row has
PLACES_PER_ENTRY = 4  # of all workers, that an entry pays for: filling one takes far less than a merge
LOOKS_UP = ir.Var("looks_up", BOOL)


def noted_places(plan: Plan) -> ir.Array:
    """A place for each coordinate of the innermost loop."""
    assert plan.noted is not None
    operand = plan.operand(plan.noted.tensor)
    return ir.Array(f"{operand.name}_places", operand.index)


def note_row(plan: Plan, levels: Levels, before: States, states: States) -> ir.Stmt | None:
    """Note the positions of a row as soon as it is known, unless that is the innermost loop."""
    access = plan.noted
    if access is None or not plan.notes_rows_once:
        return None
    last = len(levels.uses[access]) - 1
    if states[access].level != last or before[access].level == last:
        return None
    cursor = levels.cursor(access, states[access])
    note = ir.Store(noted_places(plan), cursor.front, cursor.position)
    return ir.If(LOOKS_UP, ir.For(cursor.position, *levels.entries(access, states[access]), note))


def allocate_places(plan: Plan) -> ir.Stmt:
    """Decide whether workers note positions, and give them an array if they do."""
    assert plan.noted is not None
    places, size, length = noted_places(plan), plan.splits.size(plan.order[-1]), ir.Var("places_length")
    entries = Levels(plan).count(plan.noted, len(plan.uses(plan.noted)) - 1)
    threads = ir.Var("threads")
    pays = ir.either(threads <= 1, size * threads <= entries * PLACES_PER_ENTRY)
    return ir.block(
        ir.Declare(LOOKS_UP, pays),
        ir.Declare(length, ir.Select(LOOKS_UP, size, ir.Const(0))),
        ir.Allocate(places, length),
        ir.Fill(places, ir.Const(0), length, ir.Const(NOWHERE, places.element)),
    )
