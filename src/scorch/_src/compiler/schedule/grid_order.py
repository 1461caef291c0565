"""The order of loops for a grid: outermost one that owns its part of the result, then columns.

    y[j] = A[i,j] * x[i], A by rows      ->      loops j, i, and A is transposed first, once for its pattern

Threads that share a sum would have to wait for each other. A turn of the outermost loop has a thread or
several to itself, so its index is one of the result, and one whose coordinates are stored. Where results need
not repeat bit for bit, the loops may run as the operand is stored instead, and threads add atomically.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from scorch._src.compiler import lattice
from scorch._src.compiler.plan import Operand, Step
from scorch._src.compiler.schedule.cost import Cost, Problem, cost
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.dataclass import replace
from scorch._src.formats import Format
from scorch._src.notation.nodes import Access

MAX_PERMUTED_LOOPS = 5
MIN_READS_PER_ELEMENT = 2  # from which on a dense operand is laid out for threads side by side


def order_for_grid(problem: Problem, chosen: Cost, is_allowed: Callable[[Sequence[str]], bool]) -> Cost:
    """Return the order for a grid, near the one that was chosen for CPU threads."""
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
    return _spread(problem, _fibers(problem, order), free, order)


def _fibers(problem: Problem, order: tuple[str, ...]) -> tuple[str, ...]:
    """Return the outer loops whose turns own their part: one, or all that walk one operand down to fibers."""
    sparse = [access for access, operand in problem.operands.items() if operand.is_sparse]
    if len(sparse) != 1 or not _is_nested(problem.operands[sparse[0]].format):
        return order[:1]
    walked = {loop for use in problem.uses[sparse[0]] for loop in use.loops}
    return tuple(itertools.takewhile(lambda loop: loop in walked & problem.result_loops, order)) or order[:1]


def _is_nested(form: Format) -> bool:
    """Check whether each level but the first has rows of coordinates below those above."""
    is_row = [form.levels[n].has_coordinates and form.starts_run(n) for n in range(1, len(form))]
    return all(is_row) and not form.is_blocked


def can_add(step: Step, operands: Mapping[Access, Operand]) -> bool:
    """Check whether threads could each take an entry of one operand and add to a dense sum."""
    sparse = [access for access, operand in operands.items() if operand.is_sparse]
    if step.reduction != "sum" or not step.reduced or len(sparse) != 1:
        return False
    indices = sparse[0].indices
    if len(set(indices)) < len(indices) or not {*indices} & {*step.target.indices}:
        return False
    form = operands[sparse[0]].format
    if not _is_nested(form) and (form.is_blocked or not form.is_list):
        return False
    return support_of(step.body, operands) == lattice.stored(sparse[0])


def stored_order_for_grid(problem: Problem) -> Cost:
    """Return the order of the only sparse operand, with columns of the result inside."""
    (access,) = (access for access, operand in problem.operands.items() if operand.is_sparse)
    stored = tuple(loop for use in problem.uses[access] for loop in use.loops)
    free = [x for x in problem.step.target.indices if x not in stored]
    return _spread(problem, stored, free, problem.loops)


def _spread(problem: Problem, outer: Sequence[str], free: Sequence[str], order: Sequence[str]) -> Cost:
    """Return the order ``outer``, ``free``, all others, along whose columns dense operands are laid out."""
    rest = (x for x in order if x not in (*outer, *free))
    spread = cost(problem, (*outer, *free, *rest))
    along = free[-1] if free else spread.order[-1] if spread.order else ""
    return replace(spread, laid_out=_jumping(problem, along), along=along)


def _jumping(problem: Problem, along: str) -> tuple[Access, ...]:
    """Return the dense operands in which adjacent threads would read far from each other."""
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
