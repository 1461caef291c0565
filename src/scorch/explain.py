"""``scorch.explain``: what a call of ``einsum`` or ``evaluate`` would do, and why.

The steps are planned just as for a call, and what the planner decided is put into words. Only steps whose
result a later step reads are run, since that one's formats depend on it; the last step never is.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from scorch.compiler.contract import factors_of
from scorch.compiler.convert_operands import Conversion
from scorch.compiler.cost import Cost, prefix_of
from scorch.compiler.describe import describe_assembly, describe_inner
from scorch.compiler.order_loops import MOST_LOOPS
from scorch.compiler.pipeline import as_statement
from scorch.compiler.plan import Operand, Plan, Step
from scorch.compiler.steps import split
from scorch.compiler.typing import dtype_of_type
from scorch.errors import NotationError
from scorch.formats import Format, as_format, dense_format
from scorch.notation.einsum import parse_einsum
from scorch.notation.nodes import Access
from scorch.notation.show import show
from scorch.ops.operands import as_operand, shape_of, squeezed
from scorch.ops.statement import kept_format, read_statement
from scorch.settings import current
from scorch.tensor.prepared import Prepared
from scorch.tensor.run import (
    copy_step,
    inferred_format,
    made_dense,
    operand_of,
    prepare,
    result_type,
    run_stored,
    stored_steps,
)
from scorch.tensor.storage import Storage

Tensors = Mapping[str, Storage | torch.Tensor]

MOST_REJECTED = 5
MOST_LINES = 60
_MENDED = (
    "over the stored entries only",
    "how many entries took part",
    "zeros that are not stored are counted in",
)
_WIDTH = 110
_LABEL = 12


@dataclass(frozen=True)
class TensorFacts:
    """A tensor of a step; ``nnz`` is None for a result whose entries are only known once it is computed."""

    name: str
    format: Format
    shape: tuple[int, ...]
    nnz: int | None
    dtype: str

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape)) or "a scalar"
        stored = ""
        if self.nnz is not None and not self.format.is_dense:
            places = math.prod(self.shape)
            stored = f", {self.nnz:,} stored" + (f" ({100 * self.nnz / places:.3g}%)" if places else "")
        return f"{self.name}: {_format_in_words(self.format)}, {sizes}{stored}, {self.dtype}"


@dataclass(frozen=True)
class OrderCost:
    """An order of loops and its expected cost; the unit is about one multiply-add.

    ``total = work + assembly + transposition``; ``reason`` says what makes it dearer than the order taken.
    """

    order: tuple[str, ...]
    total: float
    work: float
    assembly: float
    transposition: float
    reason: str


@dataclass(frozen=True)
class StepExplanation:
    """One generated kernel (``kind`` is ``kernel``), or one call of torch where all operands are dense.

    ``statement``    what is computed, in index notation
    ``purpose``      why the step is there, where it is not all of what was asked for
    ``operands``     name, format, shape, nnz and dtype of what it reads, as it was given
    ``result``       the same of what it makes; ``reasons`` say why its format
    ``conversions``  sentences: which operands are stored otherwise first, and why
    ``loop_order``   outermost first, and its ``cost``; ``paper``: Algorithm 1's order; ``rejected``: the best
    ``assembly``     how the result is built; ``workspace``: what gathers entries that come out of order
    ``inner``        how the innermost loop runs: vectors, partial sums, what stands outside it
    ``parallel``     whether threads share the outermost loop; ``threads`` says how, or why not
    ``source``       the C text of the kernel
    """

    statement: str
    kind: str
    purpose: str
    operands: tuple[TensorFacts, ...]
    result: TensorFacts
    reasons: tuple[str, ...]
    conversions: tuple[str, ...] = ()
    loop_order: tuple[str, ...] = ()
    cost: OrderCost | None = None
    paper: OrderCost | None = None
    rejected: tuple[OrderCost, ...] = ()
    assembly: str = "by torch"
    workspace: str | None = None
    inner: str = "as torch decides"
    parallel: bool = False
    threads: str = "as torch decides"
    source: str = ""


@dataclass(frozen=True)
class Explanation:
    """What a call does, step by step; print it to read it.

    ``text``           the equation or expression as it was written
    ``steps``          a ``StepExplanation`` for each kernel or call of torch, in order
    ``formats``        the format of every tensor by name, temporaries and the result included
    ``result_format``  that of the result
    ``loop_order``     of the last step, outermost first
    ``source``         the C texts of all kernels
    """

    text: str
    steps: tuple[StepExplanation, ...]

    @property
    def formats(self) -> dict[str, Format]:
        return {t.name: t.format for step in self.steps for t in (*step.operands, step.result)}

    @property
    def result_format(self) -> Format:
        return self.steps[-1].result.format

    @property
    def loop_order(self) -> tuple[str, ...]:
        return self.steps[-1].loop_order

    @property
    def source(self) -> str:
        return "\n".join(step.source for step in self.steps if step.source)

    def report(self, source: bool = True) -> str:
        """The explanation as text, with the C sources at its end unless ``source`` is False."""
        lines = _report(self)
        if source:
            for number, step in enumerate(self.steps, 1):
                if step.source:
                    lines += ["", f"source of step {number}", "", step.source.rstrip()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything as dictionaries, lists, numbers and texts, for JSON."""
        facts = {"result_format": str(self.result_format), "loop_order": list(self.loop_order)}
        return {**_plain(self), **facts}

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        made = {step.result.name for step in self.steps}
        given = ", ".join(f"{name} {form}" for name, form in self.formats.items() if name not in made)
        loops = ", ".join(self.loop_order) or "none"
        number = f"{len(self.steps)} step{'s' if len(self.steps) > 1 else ''}"
        return f"Explanation({self.text!r}: {given} -> {self.result_format}; loops {loops}; {number})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def explain(text: str, /, *operands: Any, format: str | Format | None = None, **tensors: Any) -> Explanation:
    """How ``einsum(text, *operands)`` or ``evaluate(text, **tensors)`` is computed, without computing it.

    >>> import torch, scorch
    >>> A = scorch.from_torch(torch.eye(3), format="csr")
    >>> found = scorch.explain("ij,jk->ik", A, torch.ones(3, 2))
    >>> found.loop_order, found.result_format
    (('i', 'j', 'k'), Format('dense'))
    """
    if not isinstance(text, str):
        raise NotationError(f"explain takes an equation such as 'ij,jk->ik' as a text, not {text!r}")
    if "=" in text or "[" in text:
        if operands:
            raise NotationError(f"the tensors of {text!r} are passed by name, such as A=A")
        return _explain_expression(text, tensors, format)
    if tensors:
        names = ", ".join(tensors)
        raise NotationError(f"the operands of {text!r} are passed in order and without names, not as {names}")
    return _explain_equation(text, operands, format)


def _explain_equation(text: str, operands: Sequence[Any], format: str | Format | None) -> Explanation:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = operands[0]
    tensors = [as_operand(f"operand {number}", operand) for number, operand in enumerate(operands)]
    parsed = parse_einsum(text, [shape_of(tensor) for tensor in tensors])
    requested = None if format is None else as_format(format, len(parsed.statement.target.indices))
    named = {
        operand.access.tensor: squeezed(tensor, operand.squeeze)
        for operand, tensor in zip(parsed.operands, tensors, strict=True)
    }
    return Explanation(text, tuple(_explain_steps(split(parsed.statement), named, parsed.sizes, requested)))


def _explain_expression(text: str, tensors: Mapping[str, Any], format: str | Format | None) -> Explanation:
    statement, named, sizes = read_statement(text, tensors)
    requested = None if format is None else as_format(format, len(statement.assign.target.indices))
    kept = kept_format(statement, named, requested)
    *steps, last = _explain_steps(split(statement.assign), named, sizes, kept)
    if requested is None and kept is not None:
        last = replace(last, reasons=(f"+= keeps the format of {statement.assign.target.tensor}",))
    return Explanation(text, (*steps, last))


# steps -----------------------------------------------------------------------------------------------


def _explain_steps(
    steps: Sequence[Step], tensors: Tensors, sizes: Mapping[str, int], requested: Format | None
) -> Iterator[StepExplanation]:
    """As ``ops.statement.run_statement``, but the last step is left undone."""
    given = dict(tensors)
    for step in steps:
        parts = stored_steps(step, given, sizes)
        is_inferred = len(parts) > 1 and requested is None and step is steps[-1]
        if is_inferred:
            requested = inferred_format(step, given, sizes)
        for number, part in enumerate(parts):
            is_last = step is steps[-1] and number == len(parts) - 1
            purpose = "" if step is steps[-1] else "a reduction that a later step reads"
            if len(parts) > 1 and factors_of(parts[-1].body) is not None:
                purpose = "the rest of the product" if number == len(parts) - 1 else "a partial product"
            elif len(parts) > 1:
                purpose = f"{step.reduction}, {_MENDED[number]}"
            for found in _explain_step(part, given, sizes, requested if is_last else None, purpose):
                if is_inferred and found.reasons == ("asked for",):
                    found = replace(found, reasons=("as for the statement in one step",))
                yield found
            if not is_last:
                given[part.target.tensor] = run_stored(part, given, sizes)


def _explain_step(
    step: Step, tensors: Tensors, sizes: Mapping[str, int], requested: Format | None, purpose: str
) -> Iterator[StepExplanation]:
    given = {access.tensor: tensors[access.tensor] for access in step.accesses}
    if requested is not None and requested.is_dense:
        requested = dense_format(requested.dims)
    full = made_dense(step, given, sizes, requested)
    if full is None and any(isinstance(tensor, Storage) for tensor in given.values()):
        yield _explain_kernel(prepare(step, given, sizes, requested), step, given, sizes, purpose)
        return
    operands = {name: operand_of(name, tensor) for name, tensor in given.items()}
    dtype = dtype_of_type(result_type(step, {name: operand.element for name, operand in operands.items()}))
    form, shape = dense_format(len(step.target.indices)), _shape(step, sizes)
    is_copied = requested is not None and not requested.is_dense
    target = step.target if not is_copied else Access(f"{step.target.tensor}_dense", step.target.indices)
    yield StepExplanation(
        statement=show(as_statement(replace(step, target=target))),
        kind="torch",
        purpose=purpose,
        operands=tuple(map(_facts, operands.values())),
        result=TensorFacts(target.tensor, form, shape, None, _word(dtype)),
        reasons=("all operands are dense: torch computes it",) if full is None else _fullness(operands[full]),
    )
    if is_copied:
        yield _explain_copy(step.target, target, torch.empty(shape, dtype=dtype, device="meta"), requested)


def _fullness(operand: Operand) -> tuple[str, ...]:
    share = 100 * operand.nnz / math.prod(operand.shape)
    return (f"{operand.name} is {share:.0f}% full: it is made dense, and torch's dense product is faster",)


def _explain_copy(
    target: Access, source: Access, dense: torch.Tensor, requested: Format | None
) -> StepExplanation:
    """The kernel that takes the nonzeros of a dense result; in its text they are called A and B."""
    copy = copy_step(dense.dim())
    sizes = dict(zip(copy.target.indices, dense.shape, strict=True))
    prepared = prepare(copy, {"A": dense}, sizes, requested, skip_zeros=True)
    found = _explain_kernel(
        prepared, copy, {"A": dense}, sizes, "its nonzeros are taken; A and B in the source"
    )
    return replace(
        found,
        statement=show(as_statement(Step(target, source, "sum", ()))),
        operands=tuple(replace(operand, name=source.tensor) for operand in found.operands),
        result=replace(found.result, name=target.tensor),
    )


def _explain_kernel(
    prepared: Prepared, step: Step, tensors: Tensors, sizes: Mapping[str, int], purpose: str
) -> StepExplanation:
    planned = prepared.planned
    plan, choice = planned.plan, planned.choice
    form = plan.result
    nnz = None if plan.pattern is None else plan.operand(plan.pattern.tensor).nnz
    return StepExplanation(
        statement=show(as_statement(step)),
        kind="kernel",
        purpose=purpose,
        operands=tuple(_facts(operand_of(name, tensor)) for name, tensor in tensors.items()),
        result=TensorFacts(step.target.tensor, form, _shape(step, sizes), nnz, _word(prepared.dtype)),
        reasons=planned.inferred.reasons,
        conversions=tuple(map(_convert_in_words, planned.conversions)),
        loop_order=plan.order,
        cost=_order_cost(choice.chosen, choice.chosen, plan),
        paper=_order_cost(choice.paper, choice.chosen, plan),
        rejected=tuple(_order_cost(c, choice.chosen, plan) for c in choice.rejected[:MOST_REJECTED]),
        assembly=describe_assembly(plan),
        workspace=plan.workspace and f"{plan.workspace} over {_workspace_indices(plan)}",
        inner=describe_inner(plan),
        parallel=plan.parallel,
        threads=_threads_in_words(plan, prepared.threads()),
        source=prepared.kernel.source,
    )


def _facts(operand: Operand) -> TensorFacts:
    dtype = _word(dtype_of_type(operand.element))
    return TensorFacts(operand.name, operand.format, operand.shape, operand.nnz, dtype)


def _shape(step: Step, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[index] for index in step.target.indices)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# words -----------------------------------------------------------------------------------------------


def _format_in_words(form: Format) -> str:
    if form.is_dense and form.order != tuple(range(form.dims)):
        return f"dense with dimensions in order {', '.join(map(str, form.order))}"
    return str(form)


def _convert_in_words(conversion: Conversion) -> str:
    """``A is stored by j, i, but the loops run i, j, k: transposed to csr as A_t ...``."""
    if conversion.reason.startswith("stored"):
        why, done = f"{conversion.tensor} is {conversion.reason}", "transposed"
    else:
        why, done = f"{conversion.tensor}: {conversion.reason}", "converted"
    if conversion.format.is_dense:
        return f"{why}: copied to {_format_in_words(conversion.format)} as {conversion.name} at each call"
    return f"{why}: {done} to {conversion.format} as {conversion.name}; its pattern is kept"


def _order_cost(cost: Cost, chosen: Cost, plan: Plan) -> OrderCost:
    reason = "" if cost.order == chosen.order else _dearer_in_words(cost, chosen, plan)
    return OrderCost(cost.order, cost.total, cost.work, cost.assembly, cost.transposition, reason)


def _dearer_in_words(cost: Cost, chosen: Cost, plan: Plan) -> str:
    """What speaks against an order, beside the one taken."""
    reasons = []
    names = dict.fromkeys(access.tensor for access in cost.transposed)
    if names:
        reasons.append(f"transposes {' and '.join(names)}")
    if cost.work > 1.5 * chosen.work:
        reasons.append(f"{cost.work / max(chosen.work, 1.0):.1f} x the loop work")
    if cost.assembly > 1.5 * chosen.assembly:
        reasons.append(_assembly_in_words(cost, plan))
    if cost.order[0] not in _result_loops(plan) and chosen.order[0] in _result_loops(plan):
        reasons.append("first loop serial")
    return "; ".join(reasons) or "slightly more of everything"


def _assembly_in_words(cost: Cost, plan: Plan) -> str:
    if plan.assembly in ("dense", "shared"):
        return "adds to memory instead of a register"
    prefix, levels = prefix_of(cost.order, plan.result_uses)
    if levels == len(plan.result):
        return "appends more entries"
    return "needs a workspace" if prefix else "needs a sort"


def _threads_in_words(plan: Plan, used: int) -> str:
    if not plan.order:
        return "one thread: there are no loops"
    first = plan.order[0]
    if not plan.parallel:
        if plan.assembly == "list":
            return "one thread: entries are collected in one list"
        if first not in _result_loops(plan):
            return f"one thread: turns of {first} add to the same places"
        return f"one thread: turns of {first} cannot be shared out"
    balance = f", by the number of entries of {plan.balance[0]}" if plan.balance else ""
    if used == 1 and (current().threads or torch.get_num_threads()) > 1:
        return f"one thread: too little work to share {first}"
    return f"{used} thread{'s' if used > 1 else ''} share {first}{balance}"


def _result_loops(plan: Plan) -> set[str]:
    return {loop for index in plan.step.target.indices for loop in plan.splits.loops_of(index)}


def _workspace_indices(plan: Plan) -> str:
    left = plan.result_uses[plan.prefix_levels :]
    return ", ".join(dict.fromkeys(loop for use in left for loop in (use.loops or sorted(use.needs))))


# the report ------------------------------------------------------------------------------------------


def _report(found: Explanation) -> list[str]:
    """At most ``MOST_LINES`` lines: with many steps fewer rejected orders are shown, then only statements."""
    lines: list[str] = []
    for shown in (MOST_REJECTED, 3, 1, 0, None):
        lines = [found.text]
        for number, step in enumerate(found.steps, 1):
            lines += _step_lines(step, f"step {number} of {len(found.steps)}", shown)
        if len(lines) <= MOST_LINES:
            return lines
    left = len(lines) - MOST_LINES + 1
    return [*lines[: MOST_LINES - 1], f"... and {left} more lines: see .steps"]


def _step_lines(step: StepExplanation, title: str, shown: int | None) -> list[str]:
    purpose = f" ({step.purpose})" if step.purpose else ""
    by = "a generated kernel" if step.kind == "kernel" else "a call of torch"
    if shown is None:
        return [textwrap.shorten(f"{title}, {by}: {step.statement}", _WIDTH, placeholder=" ...")]
    lines = ["", f"{title}, {by}{purpose}", *_labelled("computes", step.statement)]
    for label, operand in zip(_once("operands", len(step.operands)), step.operands, strict=True):
        lines += _labelled(label, str(operand))
    lines += _labelled("result", str(step.result))
    lines += _labelled("", "; ".join(step.reasons))
    for label, conversion in zip(_once("converts", len(step.conversions)), step.conversions, strict=True):
        lines += _labelled(label, conversion)
    if step.cost is None or step.paper is None:
        return lines
    lines += _labelled("loops", ", ".join(step.loop_order) or "none")
    lines += _labelled("innermost", step.inner)
    lines += _labelled("threads", step.threads)
    lines += _labelled("builds", step.assembly)
    lines += _labelled("cost", _cost_in_words(step.cost))
    lines += _labelled("paper", _paper_in_words(step.cost, step.paper, len(step.loop_order)))
    rejected = step.rejected[:shown]
    width = max((len(", ".join(order.order)) for order in rejected), default=0)
    for label, order in zip(_once("rejected", len(rejected)), rejected, strict=True):
        times = order.total / max(step.cost.total, 1.0)
        lines += _labelled(label, f"{', '.join(order.order):{width}}  {times:7.1f} x  {order.reason}")
    return lines


def _cost_in_words(cost: OrderCost) -> str:
    parts = {"loops": cost.work, "building": cost.assembly, "transposing": cost.transposition}
    shown = " + ".join(f"{name} {_number(value)}" for name, value in parts.items() if value)
    return f"{_number(cost.total)} multiply-adds or so" + (f" = {shown}" if shown else "")


def _paper_in_words(cost: OrderCost, paper: OrderCost, loops: int) -> str:
    if loops > MOST_LOOPS:
        return f"Algorithm 1 decided; with more than {MOST_LOOPS} loops not all orders are tried"
    if paper.order == cost.order:
        return "Algorithm 1 takes the same order"
    return f"Algorithm 1 takes {', '.join(paper.order)}, {_number(paper.total)}: {paper.reason}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value < 1e9 else f"{value:.2e}"


def _once(label: str, number: int) -> list[str]:
    return [label, *[""] * (number - 1)] if number else []


def _labelled(label: str, text: str) -> list[str]:
    """``text`` beside its label, broken between words where it is too long."""
    room = _WIDTH - _LABEL
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    named = zip(_once(label, len(parts)), parts, strict=True)
    return [f"  {name:{_LABEL - 2}}{part}" for name, part in named]


def _plain(value: Any) -> Any:
    if isinstance(value, Format):
        return str(value)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
