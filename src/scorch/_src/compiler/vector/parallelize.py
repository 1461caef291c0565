"""Which loop threads share: the outermost, if every turn of it owns its part of the result."""

from __future__ import annotations

from collections.abc import Mapping

from scorch._src.compiler import lattice
from scorch._src.compiler.lattice import EVERYWHERE
from scorch._src.compiler.plan import VALUES, Operand, Plan
from scorch._src.dataclass import replace
from scorch._src.notation.nodes import Access
from scorch.settings import enabled


def parallelize(plan: Plan, operands: Mapping[Access, Operand]) -> Plan:
    """Share the outermost loop if every turn of it owns its part of the result."""
    if not plan.order or plan.assembly == "list":
        return plan
    has_buckets = plan.assembly == "buckets"
    if not has_buckets and any(level == VALUES for _, level in plan.slots):  # nobody knows where rows begin
        return plan
    x = plan.order[0]
    is_private = x not in plan.result_loops and not plan.adds and not has_buckets
    if is_private and not _can_add_copies(plan):
        return plan
    if plan.assembly == "rows" and (plan.prefix == 0 or len(plan.result) < 2):
        return plan
    first = {}
    for access, operand in operands.items():
        uses = plan.uses(access)
        is_walked = bool(uses) and uses[0].loop == x and (access, 0) not in plan.searched
        if is_walked and operand.format.levels[0].is_iterable and not operand.format.levels[0].is_full:
            first[access] = operand
    where = lattice.support_by(plan.step.body, first)
    if where != EVERYWHERE and not (len(where) == 1 and len(next(iter(where))) == 1):
        return plan
    if where == EVERYWHERE:
        balance = _balance(plan, operands, x)
    else:
        (walked,) = next(iter(where))
        form = operands[walked].format
        has_rows = len(form) > 1 and form.is_unique(0) and form.starts_run(1)
        balance = (operands[walked].name, 1) if has_rows else None
    if balance is None and (is_private or has_buckets):  # whose chunks are as many as entries pay for
        return plan
    if not enabled("balance") and not (is_private or has_buckets):
        balance = None
    return replace(plan, parallel=True, is_private=is_private, balance=balance)


def _can_add_copies(plan: Plan) -> bool:
    """Whether the values of a result can be summed up from copies that threads have for themselves."""
    is_sum = plan.step.reduction == "sum" and plan.element.kind in ("float", "complex", "int")
    return plan.assembly in ("dense", "shared") and is_sum and not plan.is_grid and bool(plan.result_loops)


def _balance(plan: Plan, operands: Mapping[Access, Operand], x: str) -> tuple[str, int] | None:
    """The largest operand whose rows lie under the outermost loop."""
    best: tuple[int, str] | None = None
    for access, operand in operands.items():
        uses = plan.uses(access)
        has_rows = len(uses) > 1 and uses[0].loop == x and operand.format.levels[0].is_full
        if has_rows and operand.format.starts_run(1) and (best is None or operand.nnz > best[0]):
            best = (operand.nnz, operand.name)
    return None if best is None else (best[1], 1)
