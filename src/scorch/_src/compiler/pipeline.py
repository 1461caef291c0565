"""The passes on one page: from a step and its operands to a kernel.

- ``infer_format``: what the result is stored as
- ``convert_operands``: which operands are taken out of blocks, transposed or copied
- ``order_loops``: the order of the loops (``cost`` prices them)
- ``insert_workspace``: how the result is built: in place, by rows, by a sorted list; with which workspace
- ``assign_slots``: whether rows are written in place, into as much room as they may need
- ``parallelize``: whether threads share the outermost loop, and how
- ``map_places``: whether entries of a product are looked up instead of merged
- ``vectorize``: whether the innermost loop runs in vector registers, and which factors stand outside it
- ``lower`` and ``loops.simplify``: the loops, which ``backends.print.c`` prints
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scorch._src.compiler.at_zero import mark_vanishing
from scorch._src.compiler.describe import describe_assembly
from scorch._src.compiler.lattice import EVERYWHERE
from scorch._src.compiler.lower.lower import lower
from scorch._src.compiler.plan import Operand, Plan, Splits, Step
from scorch._src.compiler.schedule import convert_operands as convert
from scorch._src.compiler.schedule.assign_slots import assign_slots
from scorch._src.compiler.schedule.cost import Problem
from scorch._src.compiler.schedule.grid_order import can_add
from scorch._src.compiler.schedule.infer_format import Inferred, infer_format, shared_pattern, support_of
from scorch._src.compiler.schedule.insert_workspace import insert_workspace
from scorch._src.compiler.schedule.map_places import map_places
from scorch._src.compiler.schedule.order_loops import Choice, order_loops, order_to_add, stored_order
from scorch._src.compiler.target import target
from scorch._src.compiler.vector.parallelize import parallelize
from scorch._src.compiler.vector.vectorize import vectorize
from scorch._src.dataclass import dataclass, replace
from scorch._src.formats import Format
from scorch._src.loops.nodes import Kernel
from scorch._src.loops.simplify import simplify
from scorch._src.loops.types import INT32, INT64, LAST_INT32, Type
from scorch._src.notation.nodes import Access, Assign, Expr, Op, Reduce
from scorch._src.notation.show import show
from scorch._src.notation.trees import children, with_children


@dataclass(frozen=True)
class Planned:
    """A plan, the conversions it needs, and how it was chosen."""

    plan: Plan
    conversions: tuple[convert.Conversion, ...]
    inferred: Inferred
    choice: Choice
    stored: Type | None = None  # what the result is stored as, where that is not what it is computed in

    def kernel(self) -> Kernel:
        """The loops, simplified."""
        return simplify(lower(self.plan))


def plan_step(
    step: Step,
    tensors: Mapping[str, Operand],
    sizes: Mapping[str, int],
    element: Type,
    requested: Format | None = None,
    skip_zeros: bool = False,
    unsorted: bool = False,
    may_add: bool = False,
) -> Planned:
    """Every choice for one step over ``tensors``; ``element`` is the type the result is computed in.

    ``unsorted``: the entries of the only operand come in any order and may repeat. ``may_add``: threads of a
    grid may add to one place, in any order.
    """
    operands = {access: tensors[access.tensor] for access in step.accesses}
    step = replace(step, body=_marked(step.body, operands))
    inferred = infer_format(step, operands, sizes)
    if requested is not None:
        inferred = Inferred(requested, ("requested",))
    conversions: list[convert.Conversion] = []
    step, operands = convert.unblock(step, operands, conversions)
    is_filled = inferred.format.is_dense and (step.reduced or len(operands) > 1)
    adds = may_add and target().is_grid and is_filled and can_add(step, operands)
    if target().is_grid and is_filled and not adds:
        step, operands = convert.gather_rows(step, operands, conversions)
    if target().is_grid and not inferred.format.is_dense and not (skip_zeros or unsorted):
        step, operands = _gather_fibers(step, operands, inferred.format, conversions)
    splits = convert.split_blocks(operands)
    problem = Problem(step, operands, inferred.format, splits, sizes)
    choice = stored_order(problem) if unsorted else order_to_add(problem) if adds else order_loops(problem)
    order = choice.chosen.order
    step, operands = convert.transpose(step, operands, order, splits, conversions)
    chosen = choice.chosen
    step, operands = convert.lay_out(
        step, operands, order, splits, chosen.laid_out, conversions, chosen.along
    )
    searched = convert.renamed_searches(choice.chosen.searched, operands, conversions)
    plan = _assemble(
        step, operands, order, splits, inferred.format, sizes, element, skip_zeros, unsorted, searched, adds
    )
    plan = vectorize(plan, operands, sizes)
    plan = replace(plan, header=_header(plan))
    return Planned(plan, tuple(conversions), inferred, choice)


def result_format(step: Step, tensors: Mapping[str, Operand], sizes: Mapping[str, int]) -> Format:
    """The format that ``plan_step`` gives the result if none is requested."""
    operands = {access: tensors[access.tensor] for access in step.accesses}
    step = replace(step, body=_marked(step.body, operands))
    return infer_format(step, operands, sizes).format


def index_type(shape: Sequence[int], nnz: int = 0) -> Type:
    """The narrowest type for coordinates and positions: int32 while both fit."""
    return INT32 if max((*shape, nnz), default=0) <= LAST_INT32 else INT64


def _marked(body: Expr, operands: Mapping[Access, Operand]) -> Expr:
    """``body`` with what ``lattice.support`` cannot see said by marks."""
    return mark_vanishing(_visit_divisors(body, operands), operands)


def _visit_divisors(body: Expr, operands: Mapping[Access, Operand]) -> Expr:
    """Mark numerators that are visited everywhere because their divisor may be zero where it is not stored.

    A[i,j] / B[i,j]   ->   everywhere(A[i,j]) / B[i,j]

    Inside the loops this could not be seen: there a divisor that was found absent is out of sight.
    """
    parts = tuple(_visit_divisors(part, operands) for part in children(body))
    if isinstance(body, Op) and body.name == "div" and support_of(body.args[1], operands) != EVERYWHERE:
        return Op("div", (Op("everywhere", parts[:1]), parts[1]))
    return with_children(body, parts)


def _as_written(body: Expr) -> Expr:
    """``body`` without the marks of ``_marked``."""
    if isinstance(body, Op) and body.name in ("everywhere", "vanishing", "on"):
        return _as_written(body.args[-1])
    return with_children(body, tuple(_as_written(part) for part in children(body)))


def _gather_fibers(
    step: Step,
    operands: dict[Access, Operand],
    result: Format,
    conversions: list[convert.Conversion],
) -> tuple[Step, dict[Access, Operand]]:
    """Convert lists of entries to rows where the result then has its entries at fibers of one of them."""
    if not step.reduced or shared_pattern(step, operands, result) is not None:
        return step, operands
    further: list[convert.Conversion] = []
    other, converted = convert.gather_rows(step, operands, further, "s")
    if not further or shared_pattern(other, converted, result) is None:
        return step, operands
    conversions += further
    return other, converted


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
    adds: bool,
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
        skip_zeros=skip_zeros,
        searched=searched,
        is_grid=target().is_grid,
        adds=adds,
    )
    if not result.is_dense:
        shared = None if skip_zeros or unsorted else shared_pattern(step, operands, result)
        if shared is not None:
            plan = replace(plan, assembly="shared", pattern=shared[0], pattern_levels=shared[1])
        else:
            plan = assign_slots(insert_workspace(plan, shape), operands)
    if unsorted:
        plan = replace(plan, assembly="list", prefix=0, prefix_levels=0, workspace=None, workspace_words=())
        plan = replace(plan, bitmap=False, slots=())
    return map_places(parallelize(plan, operands), operands, sizes)


# words -----------------------------------------------------------------------------------------------


def as_statement(step: Step) -> Assign:
    """The step as index notation, for people."""
    value = _as_written(step.body)
    if step.reduced:
        value = Reduce(step.reduction, step.reduced, value)
    return Assign(step.target, value)


def _header(plan: Plan) -> str:
    formats = ", ".join(f"{operand.name} {operand.format}" for operand in plan.operands)
    lines = [
        show(as_statement(plan.step)),
        f"formats: {plan.step.target.tensor} {plan.result}; {formats}",
        f"loops: {', '.join(plan.order) or 'none'}" + (", the first in parallel" if plan.parallel else ""),
        f"result: {describe_assembly(plan)}",
    ]
    return "\n".join(lines)
