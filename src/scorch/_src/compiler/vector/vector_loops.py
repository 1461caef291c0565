"""Loops in vector registers, what their sums are multiplied by, and rows fetched ahead."""

from __future__ import annotations

from scorch._src.compiler.lower.assemble import Assembly, Factor
from scorch._src.compiler.lower.levels import Cursor, Levels, Loop, States
from scorch._src.compiler.plan import Plan, Vectors
from scorch._src.compiler.vector.vectorize import AHEAD
from scorch._src.formats.scratch import join_key
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import substitute
from scorch._src.loops.jam import jammed
from scorch._src.loops.types import INT64


def in_vectors(levels: Levels, assembly: Assembly, loop: Loop, vectors: Vectors) -> ir.Stmt:
    """The innermost loop in vector registers."""
    bound = loop.bound | {loop.x.name}
    resolving, states = levels.resolve(loop.states, bound)
    if vectors.kind == "rows":
        body = ir.block(resolving, assembly.leaf(levels.value(states), levels.pattern_position(states)))
        return ir.Lanes(loop.x, vectors.start, vectors.width, vectors.lanes, body)
    element = levels.plan.element
    sums = ir.Array("sums", element)
    count = vectors.sums * vectors.lanes
    start = vectors.start
    place = ir.lane(loop.x, start, vectors.width, count)
    added = ir.Binary("+", ir.Load(sums, place), levels.value(states), element)
    turn: ir.Stmt = ir.Lanes(
        loop.x, start, vectors.width, vectors.lanes, ir.block(resolving, ir.Store(sums, place, added))
    )
    size = levels.extent(loop.x.name)
    if isinstance(start, ir.Var):
        number = ir.Var(f"{loop.x.name}_stretch")
        begin = ir.Declare(start, number * vectors.width)
        turn = ir.For(number, ir.Const(0), size // vectors.width, ir.block(begin, turn))
    total = assembly.leaf(ir.Total(sums, count, vectors.lanes), levels.pattern_position(states))
    rest: ir.Stmt | None = None
    if vectors.rest:
        body = ir.block(resolving, assembly.leaf(levels.value(states), levels.pattern_position(states)))
        rest = ir.For(loop.x, size - size % vectors.width, size, body)
    return ir.block(ir.Tile(sums, count, vectors.lanes), turn, total, rest)


def side_by_side(plan: Plan, assembly: Assembly, loop: Loop, counted: ir.For) -> ir.Stmt:
    """``counted`` with several turns at a time, if it is the loop around the registers or the vectors."""
    vectors = plan.vectors
    if vectors is not None and vectors.apart > 1 and loop.depth == len(plan.order) - 2:
        return assembly.apart(counted, vectors.apart)
    if vectors is None or vectors.jam == 1 or loop.depth != vectors.depth - 1:
        return counted
    return jammed(counted, vectors.jam)


def delivery(
    levels: Levels, depth: int, states: States, bound: frozenset[str]
) -> tuple[ir.Expr | None, Factor]:
    """Where the sum inside ``depth`` loops goes, if that is known, and what it is multiplied by."""
    vectors = levels.plan.vectors
    before: ir.Stmt | None = None
    if vectors is not None and vectors.kind == "rows" and depth >= vectors.depth:
        before, states = levels.resolve(states, bound | {vectors.loop})
    value: ir.Expr | None = None
    for access, place in levels.plan.factors:
        if place == depth and (load := levels.factor(access, states)) is not None:
            value = load if value is None else ir.Binary("*", value, load, levels.plan.element)
    return levels.pattern_position(states), (before, value)


def prefetch(levels: Levels, loop: Loop, driver: Cursor) -> tuple[ir.Stmt | None, ir.Stmt | None]:
    """What is declared before the loop over ``driver``, and what fetches rows ahead inside it."""
    if not levels.plan.prefetched or loop.depth != len(levels.plan.order) - 2:
        return None, None
    assert levels.plan.vectors is not None
    last, ahead = ir.Var(f"{driver.position.name}_last"), ir.Var(f"{loop.x.name}_ahead")
    entries = levels.count(driver.access, driver.use.level)
    place = ir.Binary("min", driver.position + AHEAD, last, INT64)
    crd = driver.use.arrays.crd
    fetches: list[ir.Stmt] = [ir.Declare(ahead, ir.wide(ir.Load(crd, place)))]
    there: dict[str, ir.Expr] = {loop.x.name: ahead, levels.plan.vectors.loop: levels.plan.vectors.start}
    if levels.plan.vectors.kind == "sums":
        there[levels.plan.vectors.loop] = ir.Const(0)
    for access, count, step in levels.plan.prefetched:
        uses = levels.uses[access]
        at = join_key([use.coordinate for use in uses], [use.arrays.size for use in uses])
        fetches.append(ir.Prefetch(levels.values(access), substitute(at, there), count, step))
    return ir.Declare(last, entries - 1), ir.block(*fetches)
