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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from scorch._src.compiler.lower.levels import Cursor, Loop, States
from scorch._src.compiler.plan import LevelUse, Plan
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import with_children
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, INT64

Node = TypeVar("Node", bound=ir.Expr | ir.Stmt | ir.Array)

LEAST = 1 << 14  # entries of both matrices from which on a look at a sample takes little of the time
ROW = 4  # entries of rows on average, below which most are among the last, which are merged by branches
ERRATIC = ir.Var("is_erratic")
KEPT = {FLOAT32: "f32", FLOAT64: "f64", INT32: "i32", INT64: "i64"}


def declare_erratic(plan: Plan) -> ir.Stmt | None:
    """Look at a sample of the rows, if it is to decide how all of them are merged."""
    levels = _merged(plan)
    if levels is None:
        return None
    first, second = (use.arrays for use in levels)
    kinds = "_".join(f"i{8 * arrays.crd.element.bytes}" for arrays in (first, second))
    sample = (first.pos, first.crd, second.pos, second.crd, ir.Var("span"))
    return ir.Declare(ERRATIC, ir.Call(f"is_erratic_{kinds}", sample))


def merge_ahead(
    plan: Plan, loop: Loop, drivers: list[Cursor], inside: Callable[[States], ir.Stmt]
) -> ir.Stmt:
    """Merge two rows up to the last entry of one of them, without branches, if turns are erratic."""
    if loop.depth == 0 or _merged(plan) is None:
        return ir.block()
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
    return ir.If(ir.both(ir.Const(0) < ERRATIC, go_on), ir.block(*opening, ir.While(go_on, turn)))


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
