"""How a sparse result is built, and where it needs a workspace (section 4.1 of the paper, made general).

A result that has an operand's pattern takes only values. Otherwise entries must come in stored order: they do
while every loop outside is over an earlier level of the result. From the first other loop on, a
workspace over the levels that are left takes them in any order and gives them back sorted; where no loop is
in order, the list that collects all entries is itself the workspace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scorch._src.compiler.plan import Plan
from scorch._src.compiler.schedule.cost import SMALL_WORKSPACE_PLACES, prefix_of
from scorch._src.dataclass import replace
from scorch.settings import enabled

LARGEST_KEY = 2**63 - 1
MAX_DENSE_PLACES = 2**25  # and never beyond this many
LONG_ROW = 64  # values inserted into a row from which on it pays to find out where they lie


def insert_workspace(plan: Plan, shape: Sequence[int]) -> Plan:
    uses, levels = plan.result_uses, len(plan.result)
    extents = [plan.result.level_size(level, shape) for level in range(levels)]
    prefix, covered = prefix_of(plan.order, uses)
    words = key_words(range(levels), extents)
    workspace = None
    if covered < levels:
        left = math.prod(extents[covered:])
        entries = sum(operand.nnz for operand in plan.operands if operand.is_sparse)
        is_small = left <= SMALL_WORKSPACE_PLACES or (
            prefix > 0 and left <= min(MAX_DENSE_PLACES, 8 * entries)
        )
        workspace = "dense" if is_small else "list" if prefix > 0 else None
        if workspace is None:
            prefix = covered = 0
    bitmap = workspace == "dense" and enabled("bitmap")
    by_rows = plan.result.dense_levels == levels - 1
    by_rows = by_rows and covered >= levels - 1 and (workspace is not None or covered == levels)
    return replace(
        plan,
        assembly="rows" if by_rows else "list",
        prefix=prefix,
        prefix_levels=covered,
        workspace=workspace,
        bitmap=bitmap,
        sweeps=bitmap and not plan.is_grid and _inserted(plan) >= LONG_ROW,
        words=words,
        workspace_words=key_words(range(covered, levels), extents) if workspace == "list" else (),
    )


def _inserted(plan: Plan) -> float:
    """About how many values are inserted into a row: as many as rows of the operands have products."""
    operands = [plan.operand(access.tensor) for access in plan.step.accesses]
    return math.prod(operand.row_length for operand in operands if operand.is_sparse)


def key_words(levels: Sequence[int], extents: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """``levels`` in groups whose coordinates fit one 64-bit key together."""
    words: list[list[int]] = []
    room = 0
    for level in levels:
        if words and room * max(extents[level], 1) <= LARGEST_KEY:
            words[-1].append(level)
            room *= max(extents[level], 1)
        else:
            words.append([level])
            room = max(extents[level], 1)
    return tuple(tuple(word) for word in words)
