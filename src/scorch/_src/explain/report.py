"""The explanation of a statement, and the report that ``print`` shows of it."""

from __future__ import annotations

import textwrap
from typing import Any

from scorch._src.compiler.schedule.order_loops import MAX_PERMUTED_LOOPS
from scorch._src.dataclass import dataclass
from scorch._src.explain.render import WIDTH, to_plain, wrap_lines
from scorch._src.explain.statement_page import describe_steps, explanation_html
from scorch._src.explain.step import OrderCost, StepExplanation, format_cost, format_memory, format_number
from scorch._src.formats import Format
from scorch._src.html import page
from scorch._src.units import format_seconds
from scorch.errors import counted

MAX_REJECTED_ORDERS = 5
MAX_REPORT_LINES = 60
_LABEL = 10
_ALGORITHM = "Algorithm 1 of the Scorch paper"


@dataclass(frozen=True)
class Explanation:
    """How a call is computed, step by step; print it to read it.

    Attributes:
        text: the equation or expression as it was written.
        steps: a ``StepExplanation`` for each kernel or PyTorch operator, in order.
        formats: the format of every tensor by name, temporaries and the result included.
        result_format: the format of the result.
        loop_order: the loops of the last step, outermost first.
        source: the C sources of all kernels.

    Example:

        >>> import torch, scorch
        >>> plan = scorch.explain("ij,j->i", scorch.eye(3, format="csr"), torch.ones(3))
        >>> plan.loop_order
        ('i', 'j')
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
        """Return the explanation as text, below the C sources unless ``source`` is False."""
        lines: list[str] = []
        for number, step in enumerate(self.steps if source else (), 1):
            if step.source:
                lines += [f"source of step {number}", "", step.source.rstrip(), ""]
        return "\n".join([*lines, *_report(self)])

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
        return explanation_html(self)

    def to_html(self) -> str:
        """Return an HTML page: sparsity patterns, the loop nest, rejected loop orders, sources."""
        return page.document(f"scorch.explain: {self.text}", self._repr_html_())


def _report(explanation: Explanation) -> list[str]:
    """Return at most ``MAX_REPORT_LINES`` lines: with many steps fewer rejected orders, or none."""
    lines: list[str] = []
    for rejected_shown in (MAX_REJECTED_ORDERS, 3, 1, 0, None):
        lines = [explanation.text, *describe_steps(len(explanation.steps))]
        for number, step in enumerate(explanation.steps, 1):
            lines += _step_lines(step, f"step {number} of {len(explanation.steps)}", rejected_shown)
        if len(lines) <= MAX_REPORT_LINES:
            return lines
    remaining = len(lines) - MAX_REPORT_LINES + 1
    return [*lines[: MAX_REPORT_LINES - 1], f"... and {remaining} more lines: see .steps"]


def _step_lines(step: StepExplanation, title: str, rejected_shown: int | None) -> list[str]:
    purpose = f" ({step.purpose})" if step.purpose else ""
    kind = "a generated kernel" if step.kind == "kernel" else "a PyTorch operator"
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
    lines += _label_lines("assembly", step.assembly)
    lines += _label_lines("memory", format_memory(step.memory)) if step.memory else []
    lines += _label_lines("cost", format_cost(step.cost))
    if step.measured is not None:
        predicted = "" if step.predicted is None else f"predicted {format_seconds(step.predicted)}, "
        lines += _label_lines("time", f"{predicted}measured {format_seconds(step.measured)}")
    lines += _label_lines("paper", _format_paper_order(step.cost, step.paper, len(step.loop_order)))
    rejected = step.rejected[:rejected_shown]
    width = max((len(", ".join(order.order)) for order in rejected), default=0)
    least = max(step.cost.total, 1.0)
    return lines + _label_lines(
        "rejected",
        *(f"{', '.join(o.order):{width}}  {o.total / least:7.1f} x  {o.reason}" for o in rejected),
    )


def _format_paper_order(cost: OrderCost, paper: OrderCost, loops: int) -> str:
    if loops > MAX_PERMUTED_LOOPS:
        return f"{_ALGORITHM} chose it; with more than {MAX_PERMUTED_LOOPS} loops not all orders are tried"
    if paper.order == cost.order:
        return f"{_ALGORITHM} chooses the same order"
    return f"{_ALGORITHM} chooses {', '.join(paper.order)}, {format_number(paper.total)}: {paper.reason}"


def _label_lines(label: str, *texts: object) -> list[str]:
    """Put texts next to their label."""
    return [
        line for n, text in enumerate(texts) for line in wrap_lines(text, f"  {'' if n else label:{_LABEL}}")
    ]
