"""The explanation of a statement, and the report that ``print`` shows of it."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any

from scorch._src.compiler.bounds import HUGE_PAGE, Footprint
from scorch._src.compiler.describe import describe_format
from scorch._src.compiler.schedule.order_loops import MAX_PERMUTED_LOOPS
from scorch._src.explain import html as page
from scorch._src.explain.render import WIDTH, to_plain, wrap_lines
from scorch._src.formats import Format
from scorch._src.units import format_bytes
from scorch.errors import counted

MAX_REJECTED_ORDERS = 5
MAX_REPORT_LINES = 60
_LABEL = 10


@dataclass(frozen=True)
class TensorFacts:
    """A tensor of a step; ``nnz`` is None for a result whose entries are known only after computing."""

    name: str
    format: Format
    shape: tuple[int, ...]
    nnz: int | None
    dtype: str

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape)) or "a scalar"
        stored = ""
        if self.nnz is not None and not self.format.is_dense:
            elements = math.prod(self.shape)
            stored = f", {self.nnz:,} stored" + (f" ({100 * self.nnz / elements:.3g}%)" if elements else "")
        name = f"{self.name}: " if self.name else ""
        return f"{name}{describe_format(self.format)}, {sizes}{stored}, {self.dtype}"


@dataclass(frozen=True)
class OrderCost:
    """An order of loops and its expected cost; the unit is about one multiply-add.

    ``total = work + assembly + transposition``; ``reason``: why it costs more than the order taken.
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

    ``statement``
        what is computed, in index notation
    ``purpose``
        why the step is there, where it is not all of what was asked for
    ``operands``
        name, format, shape, nnz and dtype of what it reads, as passed
    ``result``
        the same of its result; ``reasons`` say why its format
    ``conversions``
        sentences: which operands are converted first, and why
    ``loop_order``
        outermost first, and its ``cost``; ``paper``: Algorithm 1's order; ``rejected``: the best
    ``assembly``
        how the result is built; ``workspace``: what gathers entries that come out of order
    ``inner``
        how the innermost loop runs: vectors, partial sums, what stands outside it
    ``parallel``
        whether threads share the outermost loop; ``threads`` says how, or why not
    ``memory``
        bytes of operands, result and workspace, which together are the most a kernel needs
    ``predicted``
        seconds, where the device that runs the kernel tells how fast it is
    ``source``
        the C source of the kernel
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
    memory: Footprint | None = None
    predicted: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Explanation:
    """Report what a call does, step by step; print it to read it.

    ``text``
        the equation or expression as it was written
    ``steps``
        a ``StepExplanation`` for each kernel or call of torch, in order
    ``formats``
        the format of every tensor by name, temporaries and the result included
    ``result_format``
        that of the result
    ``loop_order``
        of the last step, outermost first
    ``source``
        the C sources of all kernels
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
        """Return the explanation as text, with the C sources at its end unless ``source`` is False."""
        lines = _report(self)
        for number, step in enumerate(self.steps if source else (), 1):
            if step.source:
                lines += ["", f"source of step {number}", "", step.source.rstrip()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Convert everything to dictionaries, lists, numbers and strings, for JSON."""
        summary = {"result_format": str(self.result_format), "loop_order": list(self.loop_order)}
        return {**to_plain(self), **summary}

    __str__ = report

    def __repr__(self) -> str:
        results = {step.result.name for step in self.steps}
        operands = ", ".join(f"{name} {form}" for name, form in self.formats.items() if name not in results)
        loops = ", ".join(self.loop_order) or "none"
        steps = counted(len(self.steps), "step")
        return f"Explanation({self.text!r}: {operands} -> {self.result_format}; loops {loops}; {steps})"

    def _repr_html_(self) -> str:
        head = ["", "computes", "reads", "makes", "loops", "converts"]
        return page.page(
            f"<p>{page.code(self.text)}</p>",
            page.table(head, [_html_row(number, step) for number, step in enumerate(self.steps, 1)]),
            page.source("everything", self.report(source=False)),
            page.source("C source", self.source),
        )


def _html_row(number: int, step: StepExplanation) -> list[str]:
    operands = "<br>".join(map(page.text, step.operands))
    conversions = "<br>".join(map(page.text, step.conversions)) or "nothing"
    result, loops = page.text(step.result), page.text(", ".join(step.loop_order) or "by torch")
    return [str(number), page.code(step.statement), operands, result, loops, conversions]


def _report(explanation: Explanation) -> list[str]:
    """Return at most ``MAX_REPORT_LINES`` lines: with many steps fewer rejected orders, or none."""
    lines: list[str] = []
    for rejected_shown in (MAX_REJECTED_ORDERS, 3, 1, 0, None):
        lines = [explanation.text]
        for number, step in enumerate(explanation.steps, 1):
            lines += _step_lines(step, f"step {number} of {len(explanation.steps)}", rejected_shown)
        if len(lines) <= MAX_REPORT_LINES:
            return lines
    remaining = len(lines) - MAX_REPORT_LINES + 1
    return [*lines[: MAX_REPORT_LINES - 1], f"... and {remaining} more lines: see .steps"]


def _step_lines(step: StepExplanation, title: str, rejected_shown: int | None) -> list[str]:
    purpose = f" ({step.purpose})" if step.purpose else ""
    kind = "a generated kernel" if step.kind == "kernel" else "a call of torch"
    if rejected_shown is None:
        return [textwrap.shorten(f"{title}, {kind}: {step.statement}", WIDTH, placeholder=" ...")]
    lines = ["", f"{title}, {kind}{purpose}", *_label_lines("computes", step.statement)]
    lines += _label_lines("operands", *step.operands)
    lines += _label_lines("result", step.result, "; ".join(step.reasons))
    lines += _label_lines("converts", *step.conversions)
    if step.cost is None or step.paper is None:
        return lines
    lines += _label_lines("loops", ", ".join(step.loop_order) or "none")
    lines += _label_lines("innermost", step.inner)
    lines += _label_lines("threads", step.threads)
    lines += _label_lines("builds", step.assembly)
    lines += _label_lines("memory", _format_memory(step.memory)) if step.memory else []
    lines += _label_lines("cost", _format_cost(step.cost))
    lines += _label_lines("paper", _format_paper_order(step.cost, step.paper, len(step.loop_order)))
    rejected = step.rejected[:rejected_shown]
    width = max((len(", ".join(order.order)) for order in rejected), default=0)
    least = max(step.cost.total, 1.0)
    return lines + _label_lines(
        "rejected",
        *(f"{', '.join(o.order):{width}}  {o.total / least:7.1f} x  {o.reason}" for o in rejected),
    )


def _format_cost(cost: OrderCost) -> str:
    costs = {"loops": cost.work, "building": cost.assembly, "transposing": cost.transposition}
    terms = " + ".join(f"{name} {_format_number(value)}" for name, value in costs.items() if value)
    return f"{_format_number(cost.total)} multiply-adds or so" + (f" = {terms}" if terms else "")


def _format_memory(memory: Footprint) -> str:
    workspaces = []
    if memory.each_thread:
        per_thread = f" for each of {memory.threads} threads" if memory.threads > 1 else ""
        workspaces.append(format_bytes(memory.each_thread) + per_thread)
    if memory.once:
        workspaces.append(format_bytes(memory.once) + (" for all" if workspaces else ""))
    if memory.copies:
        workspaces.append(f"{format_bytes(memory.copies)} for copies of operands")
    bound = "" if memory.exact else "up to "
    sizes = f"operands {format_bytes(memory.operands)}, result {bound}{format_bytes(memory.result)}"
    reuse = "; once it is freed, large arrays serve the next results" if memory.result >= HUGE_PAGE else ""
    return f"{sizes}, workspace {' and '.join(workspaces) or 'none'}{reuse}"


def _format_paper_order(cost: OrderCost, paper: OrderCost, loops: int) -> str:
    if loops > MAX_PERMUTED_LOOPS:
        return f"Algorithm 1 decided; with more than {MAX_PERMUTED_LOOPS} loops not all orders are tried"
    if paper.order == cost.order:
        return "Algorithm 1 takes the same order"
    return f"Algorithm 1 takes {', '.join(paper.order)}, {_format_number(paper.total)}: {paper.reason}"


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value < 1e9 else f"{value:.2e}"


def _label_lines(label: str, *texts: object) -> list[str]:
    """Put texts beside their label."""
    return [
        line for n, text in enumerate(texts) for line in wrap_lines(text, f"  {'' if n else label:{_LABEL}}")
    ]
