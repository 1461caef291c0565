"""Whether the entries of a result can be written in place, into slots of the most there may be.

An entry of a sum is an entry of one of its terms, and an entry of a product is one of each factor. So
operands say beforehand how many entries a result may get at most, and those stored in rows like the result
also where any range of rows may begin. Nothing grows then, and nothing is copied but the parts of threads,
which move together at the end. Entries that come out of order are counted first, row by row, and in a second
turn of the loops each goes to the next place of its row: a counting sort.
"""

from __future__ import annotations

from collections.abc import Mapping

from scorch._src.compiler import lattice
from scorch._src.compiler.plan import VALUES, Operand, Plan
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.dataclass import replace
from scorch._src.loops.types import INT32, LAST_INT32
from scorch._src.notation.nodes import Access
from scorch.settings import enabled


def assign_slots(plan: Plan, operands: Mapping[Access, Operand]) -> Plan:
    """Let the operands that bound the entries of the result say where they go.

    C[i,j] = A[i,j] + B[i,j]   ->   the entries of rows up to i fit before A2_pos[i] + B2_pos[i]
    """
    rows = plan.row_levels
    if rows is None or plan.skip_zeros or plan.splits.blocks:
        return plan
    where = support_of(plan.step.body, operands)
    if plan.prefix_levels < len(plan.result):
        may_count = enabled("buckets") and rows > 0 and _rows_come_in_order(plan, rows)
        slots = _bounds(plan, operands, where, VALUES) if may_count else None
        if slots is None:
            return plan
        plan = replace(plan, prefix=0, prefix_levels=0, workspace=None, bitmap=False, workspace_words=())
        return replace(plan, assembly="buckets", slots=slots)
    row_loops = {loop for use in plan.result_uses[:rows] for loop in use.loops}
    if plan.workspace is not None or not enabled("slots") or plan.skips(row_loops):
        return plan
    slots = _bounds(plan, operands, where, rows if len(plan.result) == rows + 1 else VALUES)
    return plan if slots is None else replace(plan, assembly="rows", slots=slots)


def _bounds(
    plan: Plan, operands: Mapping[Access, Operand], where: lattice.Support, level: int
) -> tuple[tuple[str, int], ...] | None:
    """The tensors with as many entries in ``level`` together as there may be; None if there are none."""
    bounds: dict[str, int] = {}
    for clause in sorted(where, key=lambda clause: sorted(map(repr, clause))):
        fits = _has_all_indices if level == VALUES else _has_rows_of_result
        fitting = [access for access in clause if fits(plan, access, operands[access])]
        if not fitting:
            return None
        if not any(access.tensor in bounds for access in fitting):
            shortest = min(fitting, key=lambda access: (operands[access].counts[level], access.tensor))
            bounds[shortest.tensor] = level
    counts = [plan.operand(name).counts[level] for name in bounds]
    most = sum(2 ** count.bit_length() - 1 for count in counts)  # for all counts of this magnitude
    fits_index = plan.index != INT32 or most <= LAST_INT32
    return tuple(bounds.items()) if bounds and fits_index else None


def _rows_come_in_order(plan: Plan, rows: int) -> bool:
    """Whether the entries of each row come in stored order, each once, though rows may come in any."""
    inner = [use.loop for use in plan.result_uses[rows:]]
    all_loops = {use.loop for use in plan.result_uses}
    return set(plan.order) == all_loops and [loop for loop in plan.order if loop in inner] == inner


def _has_all_indices(plan: Plan, access: Access, operand: Operand) -> bool:
    """Whether every entry of the result is one of ``access`` alone."""
    return operand.is_sparse and set(access.indices) >= set(plan.step.target.indices)


def _has_rows_of_result(plan: Plan, access: Access, operand: Operand) -> bool:
    """Whether the entries of ``access`` are listed below the rows of the result, in their order."""
    result, form = plan.result_uses, operand.format
    uses = plan.uses(access)
    if not operand.is_sparse or len(uses) < len(result):
        return False
    if any(not form.levels[level].is_full for level in range(len(result) - 1)):
        return False
    last = len(result) - 1
    same = all(a.loop is not None and a.loop == b.loop for a, b in zip(uses, result, strict=False))
    kind = form.levels[last]
    return same and kind.has_coordinates and form.starts_run(last)
