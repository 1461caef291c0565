"""Whether a result that is appended row by row can be written in place, into slots of the most it may need.

An entry of a sum is an entry of one of its terms, and an entry of a product is one of each factor. So the
rows of operands that are stored like the result say beforehand how many entries a row may get at most, and
where in the arrays of the result any range of rows may begin: nothing grows, and nothing is copied but the
parts of threads, which move together at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scorch.compiler.infer_format import support_of
from scorch.compiler.plan import Operand, Plan
from scorch.loops.types import INT32
from scorch.notation.nodes import Access
from scorch.settings import enabled


def assign_slots(plan: Plan, operands: Mapping[Access, Operand]) -> Plan:
    """Let the operands that bound the rows of the result say where they go.

    C[i,j] = A[i,j] + B[i,j]   ->   the entries of rows up to i fit before A2_pos[i] + B2_pos[i]
    """
    if plan.assembly != "rows" or plan.workspace is not None or plan.skip_zeros or not enabled("slots"):
        return plan
    if plan.splits.blocks or not every_row_is_visited(plan, operands):
        return plan
    bounds: dict[str, int] = {}
    for clause in support_of(plan.step, operands):
        fitting = [access for access in clause if _has_rows_of_result(plan, access, operands[access])]
        if not fitting:
            return plan
        level = len(plan.result) - 1
        if not any(access.tensor in bounds for access in fitting):
            shortest = min(fitting, key=lambda access: (operands[access].counts[level], access.tensor))
            bounds[shortest.tensor] = level
    counts = [plan.operand(name).counts[level] for name, level in bounds.items()]
    most = sum(2 ** count.bit_length() - 1 for count in counts)  # for all counts of this magnitude
    if plan.index == INT32 and most > 2**31 - 1:
        return plan
    return replace(plan, slots=tuple(bounds.items()))


def every_row_is_visited(plan: Plan, operands: Mapping[Access, Operand]) -> bool:
    """Whether the loops over the rows of the result skip none: no operand stores coordinates of them."""
    rows = {loop for use in plan.result_uses[:-1] for loop in use.loops}
    for access, operand in operands.items():
        for use in plan.splits.uses(operand.format, access.indices, access.tensor, operand.index):
            if use.needs <= rows and not operand.format.levels[use.level].is_full:
                return False
    return True


def _has_rows_of_result(plan: Plan, access: Access, operand: Operand) -> bool:
    """Whether the entries of ``access`` lie below the rows of the result, in their order."""
    result, form = plan.result_uses, operand.format
    uses = plan.splits.uses(form, access.indices, access.tensor, operand.index)
    if not operand.is_sparse or len(uses) < len(result):
        return False
    if any(not form.levels[level].is_full for level in range(len(result) - 1)):
        return False
    last = len(result) - 1
    same = all(a.loop is not None and a.loop == b.loop for a, b in zip(uses, result, strict=False))
    return same and not form.levels[last].is_full and form.starts_run(last)
