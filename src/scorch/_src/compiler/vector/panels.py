"""Rows of a dense operand that do not fit the cache together, used panel by panel.

    for i: for p in row i: C[i,:] += A[p] * B[j,:]       C = A @ B, B larger than the cache

reads rows of B all over memory. In panels, all rows of a chunk use those of B that fit the cache before the
next ones are read, and what a row has used is noted (``begun``):

    for panel:
      for i:
        for p from begun[i] while j < panel_stop: registers += A[p] * B[j,:]
        begun[i] = p
        C[i,:] = registers, or C[i,:] += registers after the first panel

The registers are stored once a panel, so rows need many entries in each; and chunks need to use each row of
B several times, so there are as many as threads, and one panel if even that is too many.
"""

from __future__ import annotations

from collections.abc import Mapping

from scorch._src.compiler.lower.levels import Cursor
from scorch._src.compiler.plan import Operand, Plan
from scorch._src.compiler.target import target
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import INT64
from scorch._src.notation.nodes import Access
from scorch.settings import enabled

ENTRIES = 16  # of a row in a panel, which pay for storing the registers once more
USES = 4  # of each row of a panel by a thread, which pay for reading it again in each chunk
PANEL, PANELS, STOP = ir.Var("panel"), ir.Var("panels"), ir.Var("panel_stop")
BEGUN = ir.Array("begun", INT64)  # where what a row has left for the panels to come begins
IS_FIRST = PANEL.equals(0)


def choose_panels(
    plan: Plan, operands: Mapping[Access, Operand], walked: Access | None, sizes: Mapping[str, int]
) -> int:
    """In how many panels the rows are used that ``walked``, the only stored operand, picks; else 1."""
    if (
        walked is None
        or len(plan.order) != 3
        or not plan.parallel
        or plan.balance is None
        or not enabled("tiles")
    ):
        return 1
    row, column, along = plan.order
    picked = [o for a, o in operands.items() if {column, along} <= set(a.indices) and not o.is_sparse]
    is_usual = (
        plan.balance[0] == walked.tensor and len(plan.uses(walked)) == 2 and plan.result_loops == {row, along}
    )
    if not is_usual or plan.splits.blocks or any(len(o.shape) != 2 for o in picked):
        return 1
    size, room = sum(o.nnz * o.element.bytes for o in picked), target().cache_bytes * 3 // 4
    panels = -(-size // room)
    if size <= target().cache_bytes or operands[walked].row_length < ENTRIES * panels:
        return 1
    return panels if operands[walked].nnz >= USES * sizes[column] else 1


def panels_of(plan: Plan) -> int:
    """In how many panels the loops run at most."""
    return 1 if plan.row_vectors is None else plan.row_vectors.panels


def declare_panels(plan: Plan) -> ir.Stmt | None:
    """Declare the number of panels: one if threads use each row of a panel too seldom."""
    if panels_of(plan) == 1:
        return None
    assert plan.balance is not None
    pos = ir.Array(f"{plan.balance[0]}2_pos", plan.operand(plan.balance[0]).index)
    entries = ir.wide(ir.Load(pos, ir.Var("span"))) - ir.wide(ir.Load(pos, ir.Const(0)))
    pays = ir.Var("threads") * USES * plan.splits.size(plan.order[1]) <= entries
    return ir.Declare(PANELS, ir.Select(pays, ir.Const(panels_of(plan)), ir.Const(1)))


def allocate_begun(plan: Plan) -> ir.Stmt | None:
    if panels_of(plan) == 1:
        return None
    rows = ir.Select(ir.Const(1) < PANELS, plan.splits.size(plan.order[0]), ir.Const(0))
    return ir.Allocate(BEGUN, rows)


def free_begun(plan: Plan) -> ir.Stmt | None:
    return None if panels_of(plan) == 1 else ir.Free(BEGUN)


def in_panels(plan: Plan, rows: ir.Stmt) -> ir.Stmt:
    """``rows``, the loop over rows, once for each panel."""
    if panels_of(plan) == 1:
        return rows
    stop = ir.Declare(STOP, plan.splits.size(plan.order[1]) * (PANEL + 1) // PANELS)
    return ir.For(PANEL, ir.Const(0), PANELS, ir.block(stop, rows))


def entries_of_panel(plan: Plan, driver: Cursor, body: ir.Stmt, start: ir.Expr, stop: ir.Expr) -> ir.Stmt:
    """``body`` for the entries of a row in the panel at hand."""
    row = ir.Var(plan.order[0])
    left = ir.Load(BEGUN, row)
    is_here = ir.both(driver.has_more, driver.front < STOP)
    return ir.block(
        ir.Declare(driver.position, ir.Select(IS_FIRST, start, left)),
        ir.Declare(driver.end, stop),
        ir.While(is_here, ir.block(body, ir.Assign(driver.position, driver.position + 1))),
        ir.If(ir.Const(1) < PANELS, ir.Store(BEGUN, row, driver.position)),
    )
