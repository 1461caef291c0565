"""``scorch.explain``: explain what a call of ``einsum`` or ``evaluate`` would do, and why.

The steps are planned just as for a call, and the decisions of the planner are put into words. Only steps
whose result a later step reads are run, since that one's formats depend on it; the last step never is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import torch

from scorch._src.compile.api import Compiled, CompiledModule
from scorch._src.compiler.pipeline import as_statement
from scorch._src.compiler.plan import Operand, Step
from scorch._src.compiler.schedule.contract import factors_of, ways
from scorch._src.compiler.schedule.densify import prices
from scorch._src.compiler.steps import split
from scorch._src.compiler.typing import dtype_of_type, result_type
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.distributed.statements import read_einsum
from scorch._src.engine.execute import (
    Task,
    copy_step,
    densified_operand,
    inferred_format,
    operand_of,
    prepare,
    run_stored,
    stored_steps,
)
from scorch._src.explain.explain_function import RUNS, Explainer
from scorch._src.explain.explain_fusion import explain_fusion
from scorch._src.explain.explain_kernel import (
    Tensors,
    describe_tensor,
    dtype_name,
    explain_kernel,
    shape_of_result,
)
from scorch._src.explain.explain_sharded import explain_sharded
from scorch._src.explain.function_report import FunctionExplanation
from scorch._src.explain.fusion_report import FusionExplanation
from scorch._src.explain.report import Explanation
from scorch._src.explain.step import StepExplanation, TensorFacts
from scorch._src.formats import Format, as_format, dense_format
from scorch._src.name_hints import unknown_keyword
from scorch._src.notation.indexing import parse
from scorch._src.notation.nodes import Access
from scorch._src.notation.parse_einsum import parse_einsum
from scorch._src.notation.show import show
from scorch._src.statements.contraction import MAX_OPERANDS
from scorch._src.statements.einsum import autocast_operands, einsum, planned_contractions
from scorch._src.statements.evaluate import autocast_tensors, evaluate, unnamed_tensors
from scorch._src.statements.operands import as_operand, shape_of, squeezed
from scorch._src.statements.statement import accumulation_format, is_long, read_statement, short_statements
from scorch._src.storage.storage import Storage
from scorch.errors import NotationError, kind_of
from scorch.settings import enabled

_IMPLICIT_ZERO_PURPOSES = (
    "over the stored elements",
    "number of stored elements",
    "with implicit zeros",
)


@overload
def explain(
    text: str, /, *operands: Any, format: str | Format | None = None, measure: bool = False, **tensors: Any
) -> Explanation: ...


@overload
def explain(text: Callable[..., Any], /, *, runs: int = RUNS) -> Explainer: ...


@overload
def explain(
    text: Callable[..., Any], /, *operands: Any, runs: int = RUNS, measure: bool = False, **tensors: Any
) -> FunctionExplanation | FusionExplanation | Explainer: ...


def explain(
    text: Any,
    /,
    *operands: Any,
    format: str | Format | None = None,
    runs: int = RUNS,
    measure: bool = False,
    **tensors: Any,
) -> Any:
    """Show how a call would be computed: formats, loop order, workspaces, costs and the source.

    ``explain("ij,jk->ik", A, B)`` and ``explain("C[i] = A[i,j] * b[j]", A=A, b=b)`` take what ``einsum`` and
    ``evaluate`` take. ``explain(fn)(*args)`` calls a function or module (``2 * runs + 2`` times) and shows
    every kernel that ran, with formats, bytes, predicted and measured time, what was fused, what was
    converted, and how to avoid that. ``explain(compiled, *args)`` shows which calls ``scorch.compile`` fused.

    Args:
        text: an einsum equation, an expression, or a function or module.
        operands: the operands of an equation, or the arguments of a compiled function.
        format: the format of the result; chosen by the compiler without it.
        runs: how often to measure.
        measure: whether to run the call, ``2 * runs + 2`` times; each step or fused kernel then shows its
            predicted and measured time, and the result of an equation or expression its sparsity pattern.
            Without it, the last kernel of these is not run.
        tensors: the operands of an expression by name.

    Returns:
        An ``Explanation``; for a function, a callable that returns a ``FunctionExplanation``; for a
        compiled function, a ``FusionExplanation``. Print it to read it.

    Raises:
        NotationError: the text cannot be parsed or does not match the operands.
        ShapeError: an index has different sizes in different operands.

    Example:

        >>> import torch, scorch
        >>> A = scorch.from_torch(torch.eye(3), format="csr")
        >>> explanation = scorch.explain("ij,jk->ik", A, torch.ones(3, 2))
        >>> explanation.loop_order, explanation.result_format
        (('i', 'j', 'k'), Format('dense'))
    """
    if isinstance(text, Compiled | CompiledModule) and (operands or tensors):
        fusion = explain_fusion(text, operands, tensors)
        return _measured_fusion(fusion, text, operands, tensors, runs) if measure else fusion
    if callable(text):
        explainer = Explainer(text, runs)
        return explainer(*operands, **tensors) if operands or tensors else explainer
    if not isinstance(text, str):
        raise NotationError(
            f"explain expected an equation such as 'ij,jk->ik' or a function, but got {kind_of(text)}; to "
            "explain a call, pass its function and arguments, as in scorch.explain(torch.matmul, A, x)"
        )
    if "=" in text or "[" in text:
        if operands:
            raise unnamed_tensors(text, operands)
        if any(isinstance(tensor, RowSharded) for tensor in tensors.values()):
            return explain_sharded(text, parse(text).assign, tensors, explain_local_statement)
        explanation = Explanation(text, tuple(_explain_expression(text, tensors, format)))
        call = functools.partial(evaluate, text, format=format, **tensors)
        return _measured(explanation, call, runs) if measure else explanation
    if tensors:
        for name, value in tensors.items():
            if not isinstance(value, (torch.Tensor, RowSharded)):  # a keyword, and no operand
                raise unknown_keyword("explain", name, ("format", "runs", "measure"), value)
        names = ", ".join(tensors)
        raise NotationError(f"pass the operands of {text!r} by position, not by name ({names})")
    if any(isinstance(operand, RowSharded) for operand in operands):
        assign, named = read_einsum(text, operands)
        return explain_sharded(text, assign, named, explain_local_equation)
    explanation = Explanation(text, tuple(_explain_equation(text, operands, format)))
    call = functools.partial(einsum, text, *operands, format=format)
    return _measured(explanation, call, runs) if measure else explanation


def _measured(explanation: Explanation, call: Callable[[], Any], runs: int) -> Explanation:
    """Return the explanation with the times and results of its kernels, in the order in which they ran."""
    ran = [kernel for kernel in Explainer(call, runs)().kernels if kernel.step is not None]
    steps = []
    for step in explanation.steps:
        kernel = next((kernel for kernel in ran if kernel.source == step.source), None)
        if kernel is None or kernel.result is None:
            steps.append(step)
            continue
        ran.remove(kernel)
        result = replace(step.result, nnz=kernel.result.nnz, picture=kernel.result.picture)
        steps.append(replace(step, result=result, predicted=kernel.predicted, measured=kernel.measured))
    return replace(explanation, steps=tuple(steps))


def _measured_fusion(
    explanation: FusionExplanation, compiled: Any, args: Any, kwargs: Any, runs: int
) -> FusionExplanation:
    """Return the explanation with the times of its kernels."""
    ran = list(Explainer(compiled, runs)(*args, **kwargs).kernels)
    groups = []
    for group in explanation.groups:
        kind = "fused" if group.source else "routine"
        found = (kernel for kernel in ran if kernel.kind == kind and kernel.source == group.source)
        kernel = next(found, None) if group.statements else None
        if kernel is not None:
            ran.remove(kernel)
            group = replace(group, predicted=kernel.predicted, measured=kernel.measured)
        groups.append(group)
    return replace(explanation, groups=tuple(groups))


def explain_local_equation(text: str, operands: Mapping[str, Any]) -> Explanation:
    """Explain what one process computes of an equation."""
    return Explanation(text, tuple(_explain_equation(text, list(operands.values()), None)))


def explain_local_statement(text: str, tensors: Mapping[str, Any]) -> Explanation:
    """Explain what one process computes of a statement."""
    return Explanation(text, tuple(_explain_expression(text, tensors, None)))


def _explain_equation(
    text: str, operands: Sequence[Any], format: str | Format | None
) -> Iterator[StepExplanation]:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = operands[0]
    if len(operands) > MAX_OPERANDS:
        yield from _explain_contractions(text, operands, format)
        return
    operands = autocast_operands(text, operands)
    tensors = [as_operand(f"operand {number}", operand) for number, operand in enumerate(operands)]
    parsed = parse_einsum(text, [shape_of(tensor) for tensor in tensors])
    requested = None if format is None else as_format(format, len(parsed.statement.target.indices))
    operands_by_name = {
        operand.access.tensor: squeezed(tensor, operand.squeeze)
        for operand, tensor in zip(parsed.operands, tensors, strict=True)
    }
    yield from _explain_steps(split(parsed.statement), operands_by_name, parsed.sizes, requested)


def _explain_contractions(
    text: str, operands: Sequence[Any], format: str | Format | None
) -> Iterator[StepExplanation]:
    """Explain ``einsum`` of many operands: a few at a time, of which all but the last are run."""
    tensors = list(operands)
    *contractions, last = planned_contractions(text, tuple(tuple(operand.shape) for operand in operands))
    for contraction in contractions:
        part_operands = [tensors[n] for n in contraction.takes]
        purpose = f"product {len(tensors)} of {', '.join(map(str, contraction.takes))}"
        for step in _explain_equation(contraction.equation, part_operands, None):
            yield replace(step, purpose=step.purpose or purpose)
        tensors.append(einsum(contraction.equation, *part_operands))
    yield from _explain_equation(last.equation, [tensors[n] for n in last.takes], format)


def _explain_expression(
    text: str, tensors: Mapping[str, Any], format: str | Format | None
) -> Iterator[StepExplanation]:
    if is_long(text):
        yield from _explain_parts(text, tensors, format)
        return
    tensors, _ = autocast_tensors(text, tensors)
    statement, operands, sizes = read_statement(text, tensors)
    requested = None if format is None else as_format(format, len(statement.assign.target.indices))
    result_format = accumulation_format(statement, operands, requested)
    *steps, last = _explain_steps(split(statement.assign), operands, sizes, result_format)
    if requested is None and result_format is not None:
        last = replace(last, reasons=(f"+= keeps the format of {statement.assign.target.tensor}",))
    yield from (*steps, last)


def _explain_parts(
    text: str, tensors: Mapping[str, Any], format: str | Format | None
) -> Iterator[StepExplanation]:
    """Explain ``evaluate`` of a long expression: short statements, of which all but the last are run."""
    *shorts, last = short_statements(text)
    available = dict(tensors)
    for short in shorts:
        operands = {name: available[name] for name in short.reads}
        for step in _explain_expression(show(short.statement), operands, None):
            yield replace(step, purpose=step.purpose or "part of a long expression")
        available[short.statement.assign.target.tensor] = evaluate(short.text, **short.named(available))
    operands = {name: available[name] for name in last.reads}
    yield from _explain_expression(show(last.statement), operands, format)


def _explain_steps(
    steps: Sequence[Step], tensors: Tensors, sizes: Mapping[str, int], requested: Format | None
) -> Iterator[StepExplanation]:
    """Explain steps as ``statements.statement.run_statement`` runs them, but leave out the last run."""
    available = dict(tensors)
    for step in steps:
        task = Task(step, available, sizes)
        substeps, is_last_step = stored_steps(task), step is steps[-1]
        is_inferred = len(substeps) > 1 and requested is None and is_last_step
        if is_inferred:
            requested = inferred_format(task)
        for number, substep in enumerate(substeps):
            is_last = is_last_step and number == len(substeps) - 1
            purpose = "" if is_last_step else "a reduction that a later step reads"
            product = _explain_contraction(Task(step, available, sizes), len(substeps), number)
            if product and not purpose:
                purpose = product
            elif len(substeps) > 1 and factors_of(substeps[-1].body) is not None:
                purpose = "the rest of the product" if number == len(substeps) - 1 else "a partial product"
            elif len(substeps) > 1:
                purpose = f"{step.reduction}, {_IMPLICIT_ZERO_PURPOSES[number]}"
            wanted = requested if is_last else None
            for explained in _explain_step(substep, available, sizes, wanted, purpose):
                if is_inferred and explained.reasons == ("requested",):
                    explained = replace(explained, reasons=("as if computed in one step",))
                yield explained
            if not is_last:
                available[substep.target.tensor] = run_stored(Task(substep, available, sizes))


def _explain_contraction(task: Task, step_count: int, number: int) -> str:
    """Explain why a product of many tensors is one kernel, or several."""
    problem = task.narrowed().problem()
    if not enabled("contract"):
        return ""
    candidates = ways(task.step, problem.operands, task.sizes, problem.element)
    if candidates is None or math.isinf(candidates[1].total):
        return ""
    once, pairwise = _format_number(candidates[0]), _format_number(candidates[1].total)
    costs = f"about {once} multiply-adds in one kernel, {pairwise} pairwise"
    if step_count == 1:
        return costs
    return f"the rest of the product: {costs}" if number == step_count - 1 else f"a partial product: {costs}"


def _explain_step(
    step: Step, tensors: Tensors, sizes: Mapping[str, int], requested: Format | None, purpose: str
) -> Iterator[StepExplanation]:
    operand_tensors = {access.tensor: tensors[access.tensor] for access in step.accesses}
    if requested is not None and requested.is_dense:
        requested = dense_format(requested.dims)
    task = Task(step, operand_tensors, sizes, requested)
    densified = densified_operand(task)
    if densified is None and any(isinstance(tensor, Storage) for tensor in operand_tensors.values()):
        yield explain_kernel(prepare(task), step, operand_tensors, sizes, purpose)
        return
    operands = {name: operand_of(name, tensor) for name, tensor in operand_tensors.items()}
    dtype = dtype_of_type(result_type(step, {name: operand.element for name, operand in operands.items()}))
    form, shape = dense_format(len(step.target.indices)), shape_of_result(step, sizes)
    is_copied = requested is not None and not requested.is_dense
    target = step.target if not is_copied else Access(f"{step.target.tensor}_dense", step.target.indices)
    yield StepExplanation(
        statement=show(as_statement(replace(step, target=target))),
        kind="torch",
        purpose=purpose,
        operands=tuple(map(describe_tensor, operands.values())),
        result=TensorFacts(target.tensor, form, shape, None, dtype_name(dtype)),
        reasons=("all operands are dense: computed by PyTorch",)
        if densified is None
        else _explain_fullness(step, operands[densified], sizes),
    )
    if is_copied:
        dense = torch.empty(shape, dtype=dtype, device="meta")
        if isinstance(step.body, Access) and step.body.indices == target.indices:  # with known values
            operand_tensor = operand_tensors[step.body.tensor]
            dense = operand_tensor if isinstance(operand_tensor, torch.Tensor) else dense
        yield _explain_copy(step.target, target, dense, requested)


def _explain_fullness(step: Step, operand: Operand, sizes: Mapping[str, int]) -> tuple[str, ...]:
    share = 100 * operand.nnz / math.prod(operand.shape)
    access = next(access for access in step.accesses if access.tensor == operand.name)
    columns = math.prod(sizes[index] for index in step.indices if index not in access.indices)
    stored, dense = prices(operand, columns)
    how = "its values are used directly" if operand.is_full else "it is converted to dense"
    costs = f"about {dense:,.0f} multiply-adds, {stored:,.0f} with a generated kernel"
    return (f"{operand.name} is {share:.0f}% full: {how}, since PyTorch's dense product is faster ({costs})",)


def _explain_copy(
    target: Access, source: Access, dense: torch.Tensor, requested: Format | None
) -> StepExplanation:
    """Explain the kernel that takes the nonzeros of a dense result; its source calls them A and B."""
    copy = copy_step(dense.dim())
    sizes = dict(zip(copy.target.indices, dense.shape, strict=True))
    prepared = prepare(Task(copy, {"A": dense}, sizes, requested, skip_zeros=True))
    explanation = explain_kernel(
        prepared, copy, {"A": dense}, sizes, "its nonzeros are extracted; A and B in the source"
    )
    return replace(
        explanation,
        statement=show(as_statement(Step(target, source, "sum", ()))),
        operands=tuple(replace(operand, name=source.tensor) for operand in explanation.operands),
        result=replace(explanation.result, name=target.tensor),
    )


def _format_number(number: float) -> str:
    return f"{number:,.0f}" if number < 1e6 else f"{number:.1e}"
