"""Whose entries the loops for a new pattern begin from, where each entry is on its own (``lower.driven``).

*Drivers* are operands of which at least one has an entry wherever the result has one. An entry of a sum is
one of a term, and an entry of a product is one of each factor: that with the fewest drives it.
"""

from __future__ import annotations

from scorch._src.compiler import lattice
from scorch._src.compiler.lattice import EVERYWHERE, NOWHERE
from scorch._src.compiler.plan import Plan
from scorch._src.dataclass import dataclass
from scorch._src.notation.nodes import Access


@dataclass(frozen=True)
class Drivers:
    """The operands whose entries are turns, and how many loops their coordinates are of.

    Without operands, all coordinates of these loops are turns.
    ``is_located``: each entry of the result follows from one entry, or none, of each sparse operand.
    ``is_sorted``: entries are in the order of the result, each once; else they are to be sorted and added up.
    """

    accesses: tuple[Access, ...]
    depth: int
    is_located: bool
    is_sorted: bool

    @property
    def count(self) -> int:
        """How many pairs of functions there are."""
        return len(self.accesses) or 1


def drivers_of(plan: Plan) -> Drivers | str:
    """Return what drives the loops of a plan for a new pattern, or why nothing does."""
    is_sorted = plan.workspace is None and plan.comes_sorted
    if not is_sorted and not _are_added_up(plan):
        return "entries come out of order"
    if plan.splits.blocks or plan.result.is_blocked:
        return "the result has blocks"
    sparse = [access for access in plan.step.accesses if plan.operand(access.tensor).is_sparse]
    where = lattice.support_by(plan.step.body, sparse)
    most = plan.prefix if is_sorted else _loops_of_result(plan)
    if not most or where in (EVERYWHERE, NOWHERE):
        return "its positions do not depend on operands"
    wanted = set(plan.step.target.indices)
    has_all = all(set(a.indices) == wanted and len(a.indices) == len(wanted) for a in sparse)
    is_located = has_all and not (plan.step.reduced or plan.skip_zeros)
    covered = {access: _covered(plan, access) for access in sparse}
    for depth in range(most, 0, -1):
        found = _hit(plan, where, [access for access in sparse if depth in covered[access]])
        if any(depth <= plan.operand(access.tensor).format.dense_levels for access in found):
            return Drivers((), depth, is_located, is_sorted)
        if found:
            return Drivers(tuple(found), depth, is_located, is_sorted)
    return Drivers((), 1, is_located, is_sorted)


def _are_added_up(plan: Plan) -> bool:
    """Whether the result is a sum whose terms may come in any order, several for one entry."""
    is_sum = plan.step.reduction == "sum" and plan.element.kind != "bool"
    return is_sum and bool(plan.step.reduced) and not plan.skip_zeros and plan.applied is None


def _loops_of_result(plan: Plan) -> int:
    """How many loops there are up to the innermost over an index of the result."""
    return max((plan.order.index(loop) + 1 for loop in plan.result_loops), default=0)


def _covered(plan: Plan, access: Access) -> list[int]:
    """The numbers of outer loops whose coordinates are those of entries of an access."""
    form = plan.operand(access.tensor).format
    found = []
    for use, kind, loop in zip(plan.uses(access), form.levels, plan.order, strict=False):
        if use.loop != loop or not (kind.is_full or kind.has_coordinates):
            break
        if form.is_unique(use.level):
            found.append(use.level + 1)
    return found


def _hit(plan: Plan, where: lattice.Support, able: list[Access]) -> list[Access]:
    """The fewest accesses of which every clause has one, those with few entries first; none if not all do."""
    left, found = set(where), []
    while left:
        hits = {a: sum(a in clause for clause in left) for a in able}
        best = max(able, key=lambda a: (hits[a], -plan.operand(a.tensor).nnz), default=None)
        if best is None or not hits[best]:
            return []
        found.append(best)
        left = {clause for clause in left if best not in clause}
    return [access for access in able if access in found]
