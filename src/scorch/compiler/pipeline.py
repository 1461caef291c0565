"""The passes on one page: from a step and its operands to a kernel.

infer_format    what the result is stored as
split_blocks    which indices are run in blocks; operands that do not fit are converted
order_loops     the order, and which operands must be transposed for it
choose_assembly how the result is built: in place, by rows, by a sorted list; with which workspace
choose_threads  whether the outermost loop is shared, and how
lower, simplify loops; ``loops.cpp`` prints them
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scorch.compiler import lattice
from scorch.compiler.cost import (
    Problem,
    estimated_counts,
    is_against,
    prefix_of,
    transposed_format,
)
from scorch.compiler.infer_format import Inferred, carried_format, infer_format, support_of
from scorch.compiler.lattice import EVERYWHERE
from scorch.compiler.lower import lower
from scorch.compiler.order_loops import Choice, order_loops, stored_order
from scorch.compiler.plan import Operand, Plan, Splits, Step
from scorch.formats import Format, dense_format
from scorch.loops.nodes import Kernel
from scorch.loops.simplify import simplify
from scorch.loops.types import INT32, INT64, Type
from scorch.notation.nodes import Access, Assign, Expr, Op, Reduce
from scorch.notation.show import show
from scorch.notation.trees import children, substitute, with_children

LARGEST_KEY = 2**63 - 1
ALWAYS_DENSE = 2**16  # a workspace up to this many places is dense
MOST_DENSE = 2**25  # and never beyond this many


@dataclass(frozen=True)
class Conversion:
    """An operand to be stored otherwise before the kernel runs: ``name`` is what the kernel calls it."""

    tensor: str
    name: str
    format: Format
    reason: str


@dataclass(frozen=True)
class Planned:
    """A plan, the conversions it needs, and how it was chosen."""

    plan: Plan
    conversions: tuple[Conversion, ...]
    inferred: Inferred
    choice: Choice

    def kernel(self) -> Kernel:
        """The loops, simplified."""
        found = simplify(lower(self.plan))
        assert isinstance(found, Kernel)
        return found


def plan_step(
    step: Step,
    tensors: Mapping[str, Operand],
    sizes: Mapping[str, int],
    element: Type,
    requested: Format | None = None,
    skip_zeros: bool = False,
    unsorted: bool = False,
) -> Planned:
    """Every choice for one step over ``tensors``; ``element`` is the type the result is computed in.

    ``unsorted``: the entries of the only operand come in any order and may repeat.
    """
    operands = {access: tensors[access.tensor] for access in step.accesses}
    step = replace(step, body=_visit_divisors(step.body, operands))
    inferred = infer_format(step, operands, sizes)
    if requested is not None:
        inferred = Inferred(requested, ("asked for",))
    conversions: list[Conversion] = []
    step, operands = _unblock(step, operands, inferred.format, conversions)
    splits = _splits(operands)
    problem = Problem(step, operands, inferred.format, splits, sizes)
    choice = stored_order(problem) if unsorted else order_loops(problem)
    order = choice.chosen.order
    step, operands = _transpose(step, operands, order, splits, conversions)
    step, operands = _lay_out(step, operands, order, choice.chosen.laid_out, conversions)
    searched = _renamed_searches(choice.chosen.searched, operands, conversions)
    plan = _assemble(
        step, operands, order, splits, inferred.format, sizes, element, skip_zeros, unsorted, searched
    )
    plan = replace(plan, header=_header(plan, inferred, choice))
    return Planned(plan, tuple(conversions), inferred, choice)


def index_type(shape: Sequence[int], nnz: int = 0) -> Type:
    """The narrowest type for coordinates and positions: int32 while both fit."""
    return INT32 if max((*shape, nnz), default=0) <= 2**31 - 1 else INT64


def _visit_divisors(body: Expr, operands: Mapping[Access, Operand]) -> Expr:
    """Mark numerators that are visited everywhere because their divisor may be zero where it is not stored.

    A[i,j] / B[i,j]   ->   everywhere(A[i,j]) / B[i,j]

    Inside the loops this could not be seen: there a divisor that was found absent is out of sight.
    """
    parts = tuple(_visit_divisors(part, operands) for part in children(body))
    if isinstance(body, Op) and body.name == "div":
        where = lattice.support(
            body.args[1], lambda a: lattice.stored(a) if operands[a].is_sparse else EVERYWHERE
        )
        if where != EVERYWHERE:
            return Op("div", (Op("everywhere", parts[:1]), parts[1]))
    return with_children(body, parts)


def _as_written(body: Expr) -> Expr:
    """``body`` without the marks of ``_visit_divisors``."""
    if isinstance(body, Op) and body.name == "everywhere":
        return _as_written(body.args[0])
    return with_children(body, tuple(_as_written(part) for part in children(body)))


# operands --------------------------------------------------------------------------------------------


def _renamed(
    step: Step, operands: Mapping[Access, Operand], access: Access, conversion: Conversion
) -> tuple[Step, dict[Access, Operand]]:
    """``step`` reading ``access`` from its converted operand."""
    old = operands[access]
    counts = estimated_counts(conversion.format, old.shape, old.nnz)
    new = Operand(conversion.name, conversion.format, old.element, old.index, old.shape, counts)
    fresh = Access(conversion.name, access.indices)
    body = substitute(step.body, {access: fresh})
    found = {fresh if a == access else a: new if a == access else o for a, o in operands.items()}
    return replace(step, body=body), found


def _fresh_name(tensor: str, suffix: str, operands: Mapping[Access, Operand]) -> str:
    taken = {operand.name for operand in operands.values()}
    name = f"{tensor}{suffix}"
    while name in taken:
        name += suffix[-1]
    return name


def _unblock(
    step: Step, operands: Mapping[Access, Operand], result: Format, conversions: list[Conversion]
) -> tuple[Step, dict[Access, Operand]]:
    """Convert blocked operands whose blocks do not fit the other operands of the same index."""
    found = dict(operands)
    for access in step.accesses:
        operand = found[access]
        clash = next(
            (
                index
                for index in access.indices
                if _clashes(index, access, found) and operand.format.is_blocked
            ),
            None,
        )
        if clash is None:
            continue
        form = unblocked_format(operand.format)
        name = _fresh_name(access.tensor, "_unblocked", found)
        reason = f"blocks over {clash} do not fit the other operands"
        conversion = Conversion(access.tensor, name, form, reason)
        conversions.append(conversion)
        step, found = _renamed(step, found, access, conversion)
    return step, found


def _clashes(index: str, access: Access, operands: Mapping[Access, Operand]) -> bool:
    """Whether ``access`` splits ``index`` in a way that some sparse operand of the index does not."""
    mine = {operands[access].format.block(dim) for dim, i in enumerate(access.indices) if i == index}
    if mine == {None}:
        return False
    if len(mine) > 1:
        return True
    for other, operand in operands.items():
        for dim, i in enumerate(other.indices):
            if i != index or not operand.is_sparse:
                continue
            is_full = all(
                level.is_full
                for level, stored in zip(operand.format.levels, operand.format.order, strict=True)
                if stored == dim
            )
            block = operand.format.block(dim)
            if block not in mine and not (block is None and is_full):
                return True
    return False


def unblocked_format(form: Format) -> Format:
    """The format without blocks: a dimension is dense if both of its parts were."""
    order = list(dict.fromkeys(form.order))
    letters = ""
    for dim in order:
        parts = [level for level, stored in zip(form.levels, form.order, strict=True) if stored == dim]
        letters += parts[0].letter if len(parts) == 1 else "d" if all(p.is_full for p in parts) else "s"
    return Format(letters, order=order)


def _splits(operands: Mapping[Access, Operand]) -> Splits:
    blocks: dict[str, int] = {}
    for access, operand in operands.items():
        for dim, index in enumerate(access.indices):
            block = operand.format.block(dim)
            if block is not None:
                blocks[index] = block
    return Splits(tuple(blocks.items()))


def _transpose(
    step: Step,
    operands: Mapping[Access, Operand],
    order: Sequence[str],
    splits: Splits,
    conversions: list[Conversion],
) -> tuple[Step, dict[Access, Operand]]:
    """Convert the operands whose stored order conflicts with the order of loops."""
    found = dict(operands)
    for access in step.accesses:
        operand = found[access]
        uses = splits.uses(operand.format, access.indices, access.tensor, operand.index)
        if not operand.is_sparse or not is_against(order, operand.format, uses):
            continue
        form = transposed_format(order, access, operand, splits)
        name = _fresh_name(access.tensor, "_t", found)
        stored = ", ".join(access.indices[dim] for dim in operand.format.order)
        reason = f"stored by {stored}, but the loops run {', '.join(order)}"
        conversion = Conversion(access.tensor, name, form, reason)
        conversions.append(conversion)
        step, found = _renamed(step, found, access, conversion)
    return step, found


def _lay_out(
    step: Step,
    operands: Mapping[Access, Operand],
    order: Sequence[str],
    laid_out: Sequence[Access],
    conversions: list[Conversion],
) -> tuple[Step, dict[Access, Operand]]:
    """Copy dense operands so that the innermost loop runs along memory."""
    found = dict(operands)
    for access in laid_out:
        operand = found[access]
        x, _ = _splits(operands).origin(order[-1])
        last = access.indices.index(x)
        form = dense_format(
            len(access.indices), (*(dim for dim in operand.format.order if dim != last), last)
        )
        name = _fresh_name(access.tensor, "_t", found)
        conversion = Conversion(access.tensor, name, form, f"the innermost loop, over {x}, jumps in it")
        conversions.append(conversion)
        step, found = _renamed(step, found, access, conversion)
    return step, found


def _renamed_searches(
    searched: Sequence[tuple[Access, int]],
    operands: Mapping[Access, Operand],
    conversions: Sequence[Conversion],
) -> frozenset[tuple[Access, int]]:
    """Searched levels, by the names that accesses have after conversion."""
    found = set()
    for access, level in searched:
        renamed = [
            access,
            *(Access(c.name, access.indices) for c in conversions if c.tensor == access.tensor),
        ]
        found |= {(name, level) for name in renamed if name in operands}
    return frozenset(found)


# the result ------------------------------------------------------------------------------------------


def _assemble(
    step: Step,
    operands: Mapping[Access, Operand],
    order: tuple[str, ...],
    splits: Splits,
    result: Format,
    sizes: Mapping[str, int],
    element: Type,
    skip_zeros: bool,
    unsorted: bool,
    searched: frozenset[tuple[Access, int]],
) -> Plan:
    shape = [sizes[index] for index in step.target.indices]
    distinct = {operand.name: operand for operand in operands.values()}
    plan = Plan(
        step=step,
        operands=tuple(distinct.values()),
        result=result,
        element=element,
        index=index_type(shape),
        splits=splits,
        order=order,
        assembly="dense",
        pattern=None,
        prefix=0,
        prefix_levels=0,
        workspace=None,
        words=(),
        workspace_words=(),
        parallel=False,
        balance=None,
        skip_zeros=skip_zeros,
        searched=searched,
        header="",
    )
    if not result.is_dense:
        pattern = None if skip_zeros or unsorted else _shared_pattern(step, operands, result)
        if pattern is not None:
            plan = replace(plan, assembly="shared", pattern=pattern)
        else:
            plan = _choose_assembly(plan, shape)
    if unsorted:
        plan = replace(plan, assembly="list", prefix=0, prefix_levels=0, workspace=None, workspace_words=())
    return _choose_threads(plan, operands)


def _shared_pattern(step: Step, operands: Mapping[Access, Operand], result: Format) -> Access | None:
    """The access whose pattern is the result's: it alone supports the body."""
    where = support_of(step, operands)
    for access, operand in operands.items():
        is_alone = operand.is_sparse and where == lattice.stored(access)
        if is_alone and carried_format(access, operand.format, step.target) == result:
            return access
    return None


def _choose_assembly(plan: Plan, shape: Sequence[int]) -> Plan:
    uses, levels = plan.result_uses, len(plan.result)
    extents = [plan.result.level_size(level, shape) for level in range(levels)]
    prefix, covered = prefix_of(plan.order, uses)
    words = key_words(range(levels), extents)
    workspace = None
    if covered < levels:
        left = math.prod(extents[covered:])
        entries = sum(operand.nnz for operand in plan.operands if operand.is_sparse)
        is_small = left <= ALWAYS_DENSE or (prefix > 0 and left <= min(MOST_DENSE, 8 * entries))
        workspace = "dense" if is_small else "list" if prefix > 0 else None
        if workspace is None:
            prefix = covered = 0
    letters = plan.result.letters
    by_rows = letters[:-1] == "d" * (levels - 1) and letters[-1] in "so"
    by_rows = by_rows and covered >= levels - 1 and (workspace is not None or covered == levels)
    return replace(
        plan,
        assembly="rows" if by_rows else "list",
        prefix=prefix,
        prefix_levels=covered,
        workspace=workspace,
        words=words,
        workspace_words=key_words(range(covered, levels), extents) if workspace == "list" else (),
    )


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


def _choose_threads(plan: Plan, operands: Mapping[Access, Operand]) -> Plan:
    """Share the outermost loop if every turn of it owns its part of the result."""
    if not plan.order or plan.assembly == "list":
        return plan
    x = plan.order[0]
    owners = {loop for index in plan.step.target.indices for loop in plan.splits.loops_of(index)}
    if x not in owners or (plan.assembly == "rows" and (plan.prefix == 0 or len(plan.result) < 2)):
        return plan
    first = {}
    for access, operand in operands.items():
        uses = plan.splits.uses(operand.format, access.indices, access.tensor, operand.index)
        is_walked = bool(uses) and uses[0].loop == x and (access, 0) not in plan.searched
        if is_walked and not operand.format.levels[0].is_full:
            first[access] = operand
    where = lattice.support(plan.step.body, lambda a: lattice.stored(a) if a in first else EVERYWHERE)
    if where != EVERYWHERE and not (len(where) == 1 and len(next(iter(where))) == 1):
        return plan
    return replace(plan, parallel=True, balance=_balance(plan, operands, x) if where == EVERYWHERE else None)


def _balance(plan: Plan, operands: Mapping[Access, Operand], x: str) -> tuple[str, int] | None:
    """The largest operand whose rows lie under the outermost loop."""
    best: tuple[int, str] | None = None
    for access, operand in operands.items():
        uses = plan.splits.uses(operand.format, access.indices, access.tensor, operand.index)
        has_rows = len(uses) > 1 and uses[0].loop == x and operand.format.levels[0].is_full
        if has_rows and operand.format.starts_run(1) and (best is None or operand.nnz > best[0]):
            best = (operand.nnz, operand.name)
    return None if best is None else (best[1], 1)


# words -----------------------------------------------------------------------------------------------


def as_statement(step: Step) -> Assign:
    """The step as index notation, for people."""
    value = _as_written(step.body)
    if step.reduced:
        value = Reduce(step.reduction, step.reduced, value)
    return Assign(step.target, value)


def _header(plan: Plan, inferred: Inferred, choice: Choice) -> str:
    formats = ", ".join(f"{operand.name} {operand.format}" for operand in plan.operands)
    lines = [
        show(as_statement(plan.step)),
        f"formats: {plan.step.target.tensor} {plan.result}; {formats}",
        f"loops: {', '.join(plan.order) or 'none'}" + (", the first in parallel" if plan.parallel else ""),
        f"result: {describe_assembly(plan)}",
    ]
    return "\n".join(lines)


def describe_assembly(plan: Plan) -> str:
    """How the result is built, in words."""
    words = {
        "dense": "dense values",
        "shared": f"values on the pattern of {plan.pattern.tensor}" if plan.pattern else "",
        "rows": "appended row by row",
        "list": "a list of entries, " + ("packed" if plan.comes_sorted else "sorted and packed"),
    }[plan.assembly]
    if plan.workspace is not None:
        left = [use for use in plan.result_uses[plan.prefix_levels :]]
        over = ", ".join(dict.fromkeys(loop for use in left for loop in (use.loops or sorted(use.needs))))
        words += f", through a {plan.workspace} workspace over {over}"
    return words
