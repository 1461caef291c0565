"""Several steps in one kernel: the loops of each, one after the other, for every row.

    S[i,j] = M[i,j] * Q[i,k] * K[j,k]                 for a strip of rows:
    m[i] = max(j, S[i,j])                       ->        S of these rows; their maxima; their exponentials
    E[i,j] = exp(S[i,j] - m[i])  ...                      and the sums of those; O of these rows

Steps can be joined if the outermost loop of each runs over the same index and every turn of it reads no more
of the others' results than its own row. Each step is planned by itself, as if it were alone; their loops are
joined under one outermost loop, which threads share. It takes a few rows at a time, so that what a step reads
of dense operands is still in the first cache for the next row. A result that nobody outside asks for is kept
for the rows at hand only, and never leaves the cache.

Sparse tensors of a group have their values at the entries of one pattern, which is walked once for all of
them, however many a step reads.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

from scorch._src.compiler import lattice
from scorch._src.compiler.fuse.group import Fused, FusionError, Group
from scorch._src.compiler.fuse.join_loops import inputs_of, joined, read_by
from scorch._src.compiler.fuse.join_rows import joined_rows
from scorch._src.compiler.lower.collect import writes_everything
from scorch._src.compiler.pipeline import Planned, plan_step
from scorch._src.compiler.plan import Operand, Plan, Step
from scorch._src.compiler.schedule.convert_operands import Conversion
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.compiler.target import target
from scorch._src.dataclass import replace
from scorch._src.formats import dense_format
from scorch._src.loops.simplify import simplify
from scorch._src.loops.types import INT32, Type
from scorch._src.notation import nodes as notation
from scorch._src.notation.nodes import Access, Literal, Op
from scorch._src.notation.show import show
from scorch._src.notation.trees import accesses, substitute, walk

MAX_FACTORS = 4  # that a sum of products may gain


def fuse(group: Group) -> Fused:
    """The kernel of ``group``; ``FusionError`` says why there is none."""
    factors = group.stored if target().is_grid else frozenset()
    group = replace(group, steps=inline(group.steps, group.outputs, factors))
    planned = apply_in_registers(group, [_planned(group, step) for step in group.steps])
    group = replace(group, steps=tuple(each.plan.step for each in planned))
    copied = {made.name: made.tensor for each in planned for made in each.conversions}
    inputs = tuple((copied.get(name, name), form) for name, form in inputs_of(group, planned).items())
    work = sum(each.choice.chosen.total for each in planned)
    if target().is_grid:
        rows, scratch = joined_rows(group, planned)
        inside = frozenset(group.results) - {*group.outputs, *scratch}
        return Fused(group, rows.kernel(), inputs, inside, work, tuple(planned), rows=rows, scratch=scratch)
    loops, in_strip, phase = joined(group, planned)
    return Fused(group, simplify(loops), inputs, in_strip, work, tuple(planned), phase)


# steps that become part of others --------------------------------------------------------------------


def inline(
    steps: Sequence[Step], outputs: Sequence[str], factors: frozenset[str] = frozenset()
) -> tuple[Step, ...]:
    """Elementwise steps that one other elementwise step reads, once, as a part of that step.

    T[i,j] = A[i,j] * d[i];  R[i,j] = relu(T[i,j])    ->    R[i,j] = relu(A[i,j] * d[i])

    Products of ``factors`` become a part of sums of products, too, whose threads have a column each.
    """
    left = list(steps)
    for step in steps:
        name = step.target.tensor
        readers = [
            o for o in left for node in walk(o.body) if isinstance(node, Access) and node.tensor == name
        ]
        if step.reduced or name in outputs or len(readers) != 1:
            continue
        body = left[[other.target for other in left].index(step.target)].body
        if readers[0].reduced and not _is_factor(step.target, body, readers[0], factors):
            continue
        place = left.index(readers[0])
        left[place] = replace(readers[0], body=substitute(readers[0].body, {step.target: body}))
        left = [other for other in left if other.target != step.target]
    return tuple(left)


def _is_factor(target: Access, body: notation.Expr, reader: Step, factors: frozenset[str]) -> bool:
    """Whether a step is a short product with one of ``factors``, and the other a sum of products with it."""
    inside, outside = _leaves(body), _leaves(reader.body)
    if inside is None or outside is None or reader.reduction != "sum" or len(inside) > MAX_FACTORS:
        return False
    is_column = any(index not in target.indices for index in reader.target.indices)
    return is_column and any(isinstance(leaf, Access) and leaf.tensor in factors for leaf in inside)


def _leaves(expr: notation.Expr) -> list[notation.Expr] | None:
    """The factors of a product of tensors and numbers; None if it is none."""
    match expr:
        case Access() | Literal():
            return [expr]
        case Op("mul", (a, b)):
            left, right = _leaves(a), _leaves(b)
            return None if left is None or right is None else [*left, *right]
    return None


def apply_in_registers(group: Group, planned: Sequence[Planned]) -> list[Planned]:
    """Elementwise steps that read nothing but one sum and dense tensors, as a part of storing that sum.

    T[i,e] = sum(j, A[i,j] * X[j,e]);  R[i,e] = relu(T[i,e] + b[e])
        ->
    R[i,e] = relu(sum(j, A[i,j] * X[j,e]) + b[e])
    """
    left = list(planned)
    for each in planned:
        total = each.plan.step.target
        readers = [other for other in left if any(a.tensor == total.tensor for a in read_by(other.plan))]
        if total.tensor in group.outputs or len(readers) != 1 or not each.plan.step.reduced:
            continue
        (reader,) = readers
        applied = _applied(each, reader)
        if applied is not None:
            left[left.index(reader)] = applied
            left.remove(each)
    return left


def _applied(each: Planned, reader: Planned) -> Planned | None:
    """The plan of a sum that stores what ``reader`` makes of it, if that can be done in registers."""
    total, plan, value = each.plan.step.target, each.plan, reader.plan.value
    assert value is not None
    target = reader.plan.step.target
    others = [access for access in accesses(value) if access != total]
    if plan.applied is not None or reader.plan.step.reduced or target.indices != total.indices:
        return None
    if reader.conversions or any(access.tensor == total.tensor for access in others):
        return None
    operands = {operand.name: operand for operand in reader.plan.operands}
    if any(operands[access.tensor].is_sparse for access in others):
        return None
    if plan.row_vectors is not None:
        along = plan.row_vectors.loop
        lies = all(
            along not in access.indices or access.indices[operands[access.tensor].format.order[-1]] == along
            for access in others
        )
        if not lies or not _is_in_vectors(value):
            return None
    known = {operand.name for operand in plan.operands}
    new = [operands[access.tensor] for access in others if access.tensor not in known]
    step = replace(plan.step, target=target)
    plan = replace(plan, step=step, applied=(total, value), operands=(*plan.operands, *new))
    return replace(each, plan=plan)


def _is_in_vectors(value: notation.Expr) -> bool:
    """Whether vector registers can be given to all operators."""
    match value:
        case Access() | Literal():
            return True
        case Op("add" | "sub" | "mul" | "div" | "neg" | "relu", args):
            return all(map(_is_in_vectors, args))
        case Op("where", (Op("lt" | "gt" | "le" | "ge", (a, b)), x, y)):
            return all(map(_is_in_vectors, (a, b, x, y)))
    return False


# plans -----------------------------------------------------------------------------------------------


def dense_operand(name: str, shape: Sequence[int], element: Type) -> Operand:
    """A dense tensor that lies in memory row by row."""
    counts = tuple(itertools.accumulate(shape, operator.mul))
    return Operand(name, dense_format(len(shape)), element, INT32, tuple(shape), counts)


def _planned(group: Group, step: Step) -> Planned:
    """``step`` planned as if it were alone, with one operand for all tensors on the pattern."""
    sizes = dict(group.sizes)
    tensors = {operand.name: operand for operand in group.operands}
    for other in group.steps:
        if other.target.tensor not in group.stored:
            shape = [sizes[index] for index in other.target.indices]
            tensors[other.target.tensor] = dense_operand(other.target.tensor, shape, group.element)
    value, reads, body = step.body, {}, step.body
    if group.pattern is not None:
        tensors[group.pattern.name] = group.pattern
        walked = Access(group.pattern.name, group.walked)
        reads = {access: walked for access in step.accesses if access.tensor in group.stored}
        body = substitute(step.body, dict(reads))
        operands = {access: tensors[access.tensor] for access in replace(step, body=body).accesses}
        where = support_of(body, operands)
        if step.target.tensor in group.stored and where != lattice.stored(walked):
            body = Op("mul", (walked if step.reduced else Op("present", (walked,)), body))
    _check_rows(group, step)
    used = [tensors[access.tensor] for access in replace(step, body=body).accesses]
    planned = plan_step(
        replace(step, body=body), {operand.name: operand for operand in used}, sizes, group.element
    )
    plan = planned.plan
    for conversion in planned.conversions:
        value = _converted(group, step, value, conversion)
    extra = [replace(group.pattern, name=access.tensor) for access in reads if group.pattern is not None]
    plan = replace(
        plan,
        value=value,
        reads=tuple(reads.items()),
        operands=(*plan.operands, *extra),
        vectors=plan.vectors
        and replace(
            plan.vectors,
            opens=max(plan.vectors.opens, min(plan.vectors.depth, 1)),
            jam=1 if plan.vectors.depth <= 1 and plan.vectors.kind == "rows" else plan.vectors.jam,
            apart=1,
            panels=1,
        ),
    )
    _check(group, plan)
    return replace(planned, plan=plan)


def _check_rows(group: Group, step: Step) -> None:
    """Whether ``step`` reads other results of the group in its own row only."""
    for access in step.accesses:
        if access.tensor in group.results and access.indices[:1] != (group.outermost,):
            raise FusionError(
                f"{show(access)} reads other rows of {access.tensor} than the one that is being computed"
            )


def _converted(group: Group, step: Step, value: notation.Expr, conversion: Conversion) -> notation.Expr:
    """``value`` reading the copy of a dense operand that is laid out otherwise."""
    if conversion.tensor in group.results or not conversion.format.is_dense:
        raise FusionError(f"{conversion.tensor} would have to be converted first: {conversion.reason}")
    old = [access for access in step.accesses if access.tensor == conversion.tensor]
    if len(old) != 1:
        raise FusionError(f"{conversion.tensor} is read twice, once in a layout that needs a copy")
    return substitute(value, {old[0]: Access(conversion.name, old[0].indices)})


def _check(group: Group, plan: Plan) -> None:
    name = plan.step.target.tensor
    if not plan.order or plan.order[0] != group.outermost:
        first = f"its outermost loop is over {plan.order[0]}" if plan.order else "it has no loops"
        raise FusionError(f"{name} is not computed row by row: {first}, not over {group.outermost}")
    if plan.assembly != ("shared" if name in group.stored else "dense"):
        raise FusionError(f"{name} has another sparsity pattern than its operands")
    is_shared = plan.parallel and not plan.is_private and not plan.splits.blocks
    if not is_shared or not writes_everything(plan):
        raise FusionError(f"the rows of {name} are not computed independently")
