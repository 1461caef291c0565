"""The order of loops for a grid: outermost one that owns its part of the result, then columns.

    y[j] = A[i,j] * x[i], A by rows      ->      loops j, i, and A is transposed first, once for its pattern

Threads that share a sum would have to wait for each other. A turn of the outermost loop has a thread or
several to itself, so its index is one of the result, and one whose coordinates are stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from scorch._src.compiler.schedule.cost import Cost, Problem, cost
from scorch._src.notation.nodes import Access

MAX_PERMUTED_LOOPS = 5
MIN_READS_PER_ELEMENT = 2  # from which on a dense operand is laid out for threads side by side


def order_for_grid(problem: Problem, chosen: Cost, is_allowed: Callable[[Sequence[str]], bool]) -> Cost:
    """Return the order for a grid, near the one that was chosen for threads of a processor."""
    stored = {
        loop
        for access, operand in problem.operands.items()
        if operand.is_sparse
        for use in problem.uses[access]
        for loop in use.loops
    }
    order = chosen.order
    owned = problem.result_loops & stored
    if problem.result.is_dense and owned and order[0] not in owned and len(order) <= MAX_PERMUTED_LOOPS:
        others = [o for o in itertools.permutations(problem.loops) if o[0] in owned and is_allowed(o)]
        order = min((cost(problem, o) for o in others), key=lambda c: c.total, default=chosen).order
    wanted = problem.step.target.indices
    free = [x for x in order[1:] if x in wanted and x not in stored]
    free.sort(key=wanted.index)
    spread = cost(problem, (*order[:1], *free, *(x for x in order[1:] if x not in free)))
    along = free[-1] if free else spread.order[-1] if spread.order else ""
    return replace(spread, laid_out=_jumping(problem, along), along=along)


def _jumping(problem: Problem, along: str) -> tuple[Access, ...]:
    """Return the dense operands in which threads beside each other would read far from each other."""
    reads = max((o.nnz for o in problem.operands.values() if o.is_sparse), default=0)
    found = []
    for access, operand in problem.operands.items():
        if operand.is_sparse or access.indices.count(along) != 1 or len(access.indices) < 2:
            continue
        last = access.indices[operand.format.order[-1]]
        rows = operand.nnz // max(1, problem.extent(along))
        if last != along and reads >= MIN_READS_PER_ELEMENT * rows:
            found.append(access)
    return tuple(found)
