"""Whether two levels that are multiplied meet through a map of positions instead of being merged.

A merge of two rows takes one step after the other: each waits for what the last one loaded, and nobody can
foretell which row goes on. Instead the positions of one row are noted under their coordinates, and each
entry of the other one is looked up: no step waits for another.
"""

from __future__ import annotations

from collections.abc import Mapping

from scorch._src.compiler.plan import Operand, Plan
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.dataclass import replace
from scorch._src.notation.nodes import Access
from scorch.settings import enabled


def map_places(plan: Plan, operands: Mapping[Access, Operand], sizes: Mapping[str, int]) -> Plan:
    """Choose the operand whose positions are noted: not the one that bounds the entries of the result.

    C[i,j] = A[i,j] * B[i,j], in slots of B   ->   where A has j is noted, for all j of a row
    """
    where = support_of(plan.step.body, operands)
    pair = next(iter(where)) if len(where) == 1 else frozenset()
    stored = {access for access, operand in operands.items() if operand.is_sparse}
    if plan.is_grid or plan.splits.blocks or len(pair) != 2 or stored != pair or len(plan.slots) != 1:
        return plan
    if plan.assembly != "rows" or not all(_is_walked_once(plan, a, operands[a]) for a in pair):
        return plan
    entries = sum(operands[access].nnz for access in pair)
    if sizes[plan.order[-1]] > entries or not enabled("lookup"):  # which would be more to clear than to merge
        return plan
    noted = [access for access in pair if access.tensor != plan.slots[0][0]]
    return replace(plan, noted=noted[0]) if len(noted) == 1 else plan


def _is_walked_once(plan: Plan, access: Access, operand: Operand) -> bool:
    """Whether each entry is visited once, by the innermost loop, in the order of a row."""
    last = len(operand.format) - 1
    is_list = operand.format.levels[last].has_coordinates and operand.format.starts_run(last)
    is_whole = sorted(access.indices) == sorted(plan.step.indices)
    is_innermost = plan.uses(access)[last].loop == plan.order[-1] and (access, last) not in plan.searched
    return is_list and is_whole and is_innermost and operand.format.is_unique(last)
