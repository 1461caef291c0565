"""What is known of the sizes of a plan when its kernel is made."""

from __future__ import annotations

from scorch._src.compiler.plan import Plan
from scorch._src.loops.grid import Facts
from scorch._src.loops.types import LAST_INT32


def facts_of(plan: Plan) -> Facts:
    """Return what is known of loops and rows; only magnitudes, which all that share the kernel have."""
    extents: dict[str, int] = {}
    lengths: dict[str, int] = {}
    rows: dict[str, int] = {}
    sparse: set[str] = set()
    for access in plan.step.accesses:
        operand = plan.operand(access.tensor)
        extents |= dict(zip(access.indices, operand.shape, strict=True))
        if operand.is_sparse:
            sparse |= {*access.indices}
        above = 1
        for level, count in enumerate(operand.counts):
            pos = f"{operand.name}{level + 1}_pos"
            lengths[pos], rows[pos] = _magnitude(count) // _magnitude(above), _magnitude(above)
            above = count
    extents |= {index: _magnitude(size) for index, size in extents.items() if index in sparse}
    dense = [operand.element.bytes for operand in plan.operands if not operand.is_sparse]
    narrowest = min(dense, default=4)
    return Facts(plan.result_loops, extents, lengths, extents.keys() - sparse, narrowest, rows)


def is_narrow(plan: Plan) -> bool:
    """Check whether all sizes fit into 32 bits."""
    return all(max(operand.shape, default=0) <= LAST_INT32 for operand in plan.operands)


def _magnitude(number: int) -> int:
    return 1 << number.bit_length()
