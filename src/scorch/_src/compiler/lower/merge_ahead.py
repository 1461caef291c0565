"""Sums of two matrices whose rows take turns in no order: no branch depends on which row is behind.

    if (is_erratic) {
      a = A[p], b = B[q]
      while (p + 1 < p_end && q + 1 < q_end) {
        a_next = A[p + 1], b_next = B[q + 1]
        here = a <= b, there = b <= a
        C[n] = min(a, b), C_vals[n] = (A_vals[p] if here else 0) + (B_vals[q] if there else 0), n++
        a = a_next if here else a, p += here, ...
      }
    }

A branch that is mispredicted takes as long as four of these turns, one that is predicted right less than half
of one, and meshes repeat their patterns row after row. So each call looks at a sample first, as a branch
predictor does: is a turn the same as the last time after the same four turns (``is_erratic``)?

Where the CPU can move what is stored to the lanes that a mask picks, several coordinates are merged at a time
(``loops.union_blocks``), which pays from one turn in four on that is mispredicted:

    if (is_erratic) {
      while (p < p_end || q < q_end) {
        union_block(A, p, p_end, B, q, q_end, block)
        coordinates and values of A and B are spread over 16 lanes, with zeros where there are none
        for lane in 0..15: values[lane] = A_values[lane] + B_values[lane]
        put(C, n, coordinates), put(C_vals, n, values), n += block.count, p += block.a_count, q += ...
      }
    }
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from scorch._src.compiler.lower.levels import Cursor, Loop, State, States
from scorch._src.compiler.plan import LevelUse, Plan
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.compiler.target import LINE
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import walk, with_children
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, INT64
from scorch._src.loops.union_blocks import FACTS, LANES

Node = TypeVar("Node", bound=ir.Expr | ir.Stmt | ir.Array)

LEAST = 1 << 14  # entries of both matrices from which on a look at a sample takes little of the time
ROW = 4  # entries of rows on average, below which branches are as fast
TURNS, BLOCKS = 48, 23  # of 100 turns that nobody could foretell, from which on each way is faster
ERRATIC = ir.Var("is_erratic")
KEPT = {FLOAT32: "f32", FLOAT64: "f64", INT32: "i32", INT64: "i64"}


def declare_erratic(plan: Plan) -> ir.Stmt | None:
    """Look at a sample of the rows, if it is to decide how all of them are merged."""
    levels = _merged(plan)
    if levels is None:
        return None
    first, second = (use.arrays for use in levels)
    kinds = "_".join(f"i{8 * arrays.crd.element.bytes}" for arrays in (first, second))
    share = ir.Const(BLOCKS if plan.in_blocks else TURNS)
    sample = (first.pos, first.crd, second.pos, second.crd, ir.Var("span"), share)
    return ir.Declare(ERRATIC, ir.Call(f"is_erratic_{kinds}", sample))


def merge_ahead(
    plan: Plan, loop: Loop, drivers: list[Cursor], inside: Callable[[States], ir.Stmt], alike: ir.Stmt
) -> ir.Stmt:
    """Merge two rows without branches, if turns are erratic: in blocks, or up to the last entry of one.

    ``alike`` merges what the rows have in common at their beginning.
    """
    if loop.depth == 0 or _merged(plan) is None:
        return alike
    blocks = _in_blocks(plan, loop, drivers, inside) if plan.in_blocks else None
    if blocks is not None:
        return ir.If(ir.Const(0) < ERRATIC, blocks, alike)
    seen = [ir.Var(f"{c.position.name}_seen") for c in drivers]
    following = [ir.Var(f"{c.position.name}_following") for c in drivers]
    states = {**loop.states}
    for c in drivers:
        states[c.access] = c.resolved(loop.states[c.access].level, c.flag)
    next_fronts = [
        ir.Declare(var, c.kind.coordinate(c.use.arrays, c.position + 1, c.parent))
        for var, c in zip(following, drivers, strict=True)
    ]
    moves: list[ir.Stmt] = []
    for c, front, other in zip(drivers, seen, following, strict=True):
        moves.append(ir.Assign(front, ir.Call("chosen", (c.flag, other, front))))
        moves.append(ir.Assign(c.position, c.position + ir.Cast(c.flag, INT64)))
    turn = ir.block(
        *next_fronts,
        ir.Declare(drivers[0].flag, seen[0] <= seen[1]),
        ir.Declare(drivers[1].flag, seen[1] <= seen[0]),
        ir.Declare(loop.x, ir.Binary("min", seen[0], seen[1], INT64)),
        with_children(inside(states), _without_branches),
        *moves,
    )
    go_on = ir.both(*(c.position + 1 < c.end for c in drivers))
    opening = (ir.Declare(var, c.front) for var, c in zip(seen, drivers, strict=True))
    ahead = ir.If(ir.both(ir.Const(0) < ERRATIC, go_on), ir.block(*opening, ir.While(go_on, turn)))
    return ir.block(alike, ahead)


def _in_blocks(
    plan: Plan, loop: Loop, drivers: list[Cursor], inside: Callable[[States], ir.Stmt]
) -> ir.Stmt | None:
    """Merge two rows a block at a time; None if more is done at a coordinate than to append a value."""
    lane, x = ir.Var(f"{loop.x.name}_lane"), ir.Array(f"{loop.x.name}_lanes", INT32)
    facts = ir.Array(f"{loop.x.name}_block", INT64)
    lanes = [ir.Array(f"{c.position.name}_lanes", plan.operand(c.access.tensor).element) for c in drivers]
    places = [ir.Var(f"{c.position.name}_lane") for c in drivers]
    states = {**loop.states}
    for c, place in zip(drivers, places, strict=True):
        states[c.access] = State(loop.states[c.access].level + 1, place, None, ir.TRUE)
    match inside(states):
        case ir.Block(
            (
                *declared,
                ir.Store(crd, count, ir.Var() | ir.Cast(ir.Var()) as at),
                ir.Store(values, _, value),
                ir.Assign(),
            )
        ) if at in (loop.x, ir.Cast(loop.x, crd.element)) and isinstance(count, ir.Var):
            computed = ir.Array(f"{values.name}_lanes", values.element)
            body = _with_lanes(ir.block(*declared, ir.Store(computed, lane, value)), places, lanes, lane)
        case _:
            return None
    assert isinstance(body, ir.Stmt)
    if any(place in walk(body) for place in places):
        return None
    if loop.x in walk(body):
        body = ir.block(ir.Declare(loop.x, ir.wide(ir.Load(x, lane))), body)
    fact = {name: ir.Load(facts, ir.Const(number)) for number, name in enumerate(FACTS)}
    a, b = drivers
    bits = [fact["a_bits"], fact["b_bits"]]
    ranges = [(c.use.arrays.crd, c.position, c.end) for c in drivers]
    spread = [
        ir.Call(
            f"spread_{KEPT[to.element]}",
            (to, ir.Array(f"{c.access.tensor}_vals", to.element), c.position, some),
        )
        for c, to, some in zip(drivers, lanes, bits, strict=True)
    ]
    calls = [
        ir.Call("union_block_i32", (*ranges[0], *ranges[1], facts)),
        ir.Call(
            "spread_coordinates", (x, ranges[0][0], a.position, bits[0], ranges[1][0], b.position, bits[1])
        ),
        *spread,
    ]
    kept = [
        ir.Call("put_i32", (crd, count, x, fact["count"])),
        ir.Call(f"put_{KEPT[values.element]}", (values, count, computed, fact["count"])),
    ]
    turn = ir.block(
        *map(ir.Perform, calls),
        _for_lanes(lane, body, computed.element.bytes),
        *map(ir.Perform, kept),
        ir.Assign(count, count + fact["count"]),
        ir.Assign(a.position, a.position + fact["a_count"]),
        ir.Assign(b.position, b.position + fact["b_count"]),
    )
    own = (x, *lanes, computed)
    return ir.block(
        ir.Allocate(facts, ir.Const(len(FACTS))),
        *(ir.Allocate(array, ir.Const(LANES)) for array in own),
        ir.While(ir.either(a.has_more, b.has_more), turn),
        *map(ir.Free, (facts, *own)),
    )


def _with_lanes(node: Node, places: list[ir.Var], lanes: list[ir.Array], lane: ir.Var) -> Node | ir.Expr:
    """``node`` with what it loads from ``places`` loaded from ``lanes``."""
    if isinstance(node, ir.Load) and node.index in places:
        return ir.Load(lanes[places.index(node.index)], lane)
    found: Node = with_children(node, lambda part: _with_lanes(part, places, lanes, lane))
    return found


def _for_lanes(lane: ir.Var, body: ir.Stmt, bytes: int) -> ir.Stmt:
    """``body`` for each lane: in registers as wide as those that are spread, if all of it can be."""
    match body:
        case ir.Block((ir.Store(_, _, value),)) if all(_is_in_registers(node) for node in walk(value)):
            return ir.Lanes(lane, ir.Const(0), LANES, LINE // bytes, body)
    return ir.For(lane, ir.Const(0), ir.Const(LANES), body)


def _is_in_registers(node: object) -> bool:
    match node:
        case ir.Binary("+" | "-" | "*" | "/") | ir.Unary("-") | ir.Const() | ir.Var() | ir.Array():
            return True
        case ir.Load(_, ir.Var()):
            return True
    return False


def _merged(plan: Plan) -> list[LevelUse] | None:
    """The levels below the rows of two matrices, if each of their entries is one of the result."""
    sparse = [access for access in plan.step.accesses if plan.operand(access.tensor).is_sparse]
    if len(sparse) != 2 or len(plan.order) != 2 or not plan.parallel or plan.is_grid or plan.step.reduced:
        return None
    operands = {access: plan.operand(access.tensor) for access in plan.step.accesses}
    where = support_of(plan.step.body, operands)
    if where != frozenset(frozenset({access}) for access in sparse) or plan.assembly != "rows":
        return None
    if (
        plan.splits.blocks
        or plan.workspace is not None
        or any(o.element not in KEPT for o in operands.values())
    ):
        return None
    if sum(operands[access].nnz for access in sparse) < LEAST:
        return None
    found = []
    for access in sparse:
        operand, uses = operands[access], plan.uses(access)
        levels = operand.format.levels
        if len(uses) != 2 or (uses[0].loop, uses[1].loop) != plan.order or operand.row_length < ROW:
            return None
        if not levels[0].is_full or not levels[1].has_coordinates or not operand.format.is_unique(1):
            return None
        if not operand.format.starts_run(1) or operand.format.is_finished or (access, 1) in plan.searched:
            return None
        found.append(uses[1])
    return found


def _without_branches(node: Node) -> Node | ir.Expr:
    """``node`` with masks in place of choices between a value that is loaded and zero."""
    if isinstance(node, ir.Select) and isinstance(node.a, ir.Load) and node.b == ir.Const(0, node.b.type):
        return kept(node.a, node.condition) or node
    found: Node = with_children(node, _without_branches)
    return found


def kept(load: ir.Load, here: ir.Expr) -> ir.Expr | None:
    """What is loaded, or zero if it is not ``here``, without a branch; None for types that have no mask."""
    name = KEPT.get(load.type)
    return None if name is None else ir.Call(f"kept_{name}", (load, here), load.type)
