"""Whether two levels that are multiplied meet through a map of positions instead of being merged.

A merge of two rows takes one step after the other: each waits for what the last one loaded, and nobody can
foretell which row goes on. Instead the positions of one row are noted under their coordinates, and each
entry of the other one is looked up: no step waits for another.

A row that stays the same while the loop around the innermost one goes on is noted once for all of its turns,
where a merge would walk it in each:

    C[i,k] = M[i,k] * A[i,j] * B[j,k], loops i, j, k   ->   row i of M is noted before the loop over j
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scorch._src.compiler import lattice
from scorch._src.compiler.plan import LevelUse, Operand, Plan
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.dataclass import replace
from scorch._src.formats import Format
from scorch._src.notation.nodes import Access
from scorch.settings import enabled


def map_places(plan: Plan, operands: Mapping[Access, Operand], sizes: Mapping[str, int]) -> Plan:
    """Choose the operand whose positions are noted: not the one that bounds the entries of the result.

    C[i,j] = A[i,j] * B[i,j], in slots of B   ->   where A has j is noted, for all j of a row
    """
    if not plan.order or plan.is_grid or plan.splits.blocks or not enabled("lookup"):
        return plan
    noted = _noted_once(plan, operands) or _noted_in_turn(plan, operands)
    # An array with a place for each coordinate, which would be more to clear than to merge.
    is_small = sizes[plan.order[-1]] <= sum(operand.nnz for operand in operands.values() if operand.is_sparse)
    return replace(plan, noted=noted) if noted is not None and is_small else plan


def _noted_in_turn(plan: Plan, operands: Mapping[Access, Operand]) -> Access | None:
    """The factor of an elementwise product whose row is noted whenever the other's is walked."""
    where = support_of(plan.step.body, operands)
    pair = next(iter(where)) if len(where) == 1 else frozenset()
    stored = {access for access, operand in operands.items() if operand.is_sparse}
    if len(pair) != 2 or stored != pair or len(plan.slots) != 1:
        return None
    if plan.assembly != "rows" or not all(_is_walked_once(plan, a, operands[a]) for a in pair):
        return None
    noted = [access for access in pair if access.tensor != plan.slots[0][0]]
    return noted[0] if len(noted) == 1 else None


def _is_walked_once(plan: Plan, access: Access, operand: Operand) -> bool:
    """Whether each entry is visited once, by the innermost loop, in the order of a row."""
    last = len(operand.format) - 1
    is_list = operand.format.levels[last].has_coordinates and operand.format.starts_run(last)
    is_whole = sorted(access.indices) == sorted(plan.step.indices)
    is_innermost = plan.uses(access)[last].loop == plan.order[-1] and (access, last) not in plan.searched
    return is_list and is_whole and is_innermost and operand.format.is_unique(last)


def _noted_once(plan: Plan, operands: Mapping[Access, Operand]) -> Access | None:
    """The factor whose row is noted for all turns of the loop around the innermost one."""
    met = {
        access: uses
        for access, operand in operands.items()
        for uses in [plan.uses(access)]
        if any(
            use.loop == plan.order[-1] and not operand.format.levels[use.level].is_full
            for use in uses
            if (access, use.level) not in plan.searched
        )
    }
    where = lattice.support_by(plan.step.body, met)
    if len(met) != 2 or where != frozenset({frozenset(met)}):
        return None
    return fixed_row(plan.order, {access: (operands[access].format, uses) for access, uses in met.items()})


def fixed_row(order: Sequence[str], met: Mapping[Access, tuple[Format, Sequence[LevelUse]]]) -> Access | None:
    """The one of two accesses that meet innermost whose row the loop around that does not change."""
    fixed = [access for access, (form, uses) in met.items() if _is_fixed(order, form, uses)]
    return fixed[0] if len(fixed) == 1 else None


def _is_fixed(order: Sequence[str], form: Format, uses: Sequence[LevelUse]) -> bool:
    *above, last = uses
    outside = {loop for use in above for loop in use.loops}
    is_list = form.levels[last.level].has_coordinates and form.starts_run(last.level)
    is_row = is_list and form.is_unique(last.level) and last.loop == order[-1]
    return is_row and bool(outside) and outside <= set(order[:-2])
