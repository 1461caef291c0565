"""What an explanation consists of, and the report that ``print`` shows of it."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from scorch._src.compiler.bounds import HUGE_PAGE, Footprint
from scorch._src.compiler.describe import describe_format
from scorch._src.compiler.schedule.order_loops import MOST_LOOPS
from scorch._src.explain import html as page
from scorch._src.formats import Format

MOST_REJECTED = 5
MOST_LINES = 60
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
        name = f"{self.name}: " if self.name else ""
        return f"{name}{describe_format(self.format)}, {sizes}{stored}, {self.dtype}"


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

    ``statement``
        what is computed, in index notation
    ``purpose``
        why the step is there, where it is not all of what was asked for
    ``operands``
        name, format, shape, nnz and dtype of what it reads, as it was given
    ``result``
        the same of what it makes; ``reasons`` say why its format
    ``conversions``
        sentences: which operands are stored otherwise first, and why
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
    ``source``
        the C text of the kernel
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
    source: str = ""


@dataclass(frozen=True)
class Explanation:
    """What a call does, step by step; print it to read it.

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
        the C texts of all kernels
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
        return {**plain(self), **facts}

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        made = {step.result.name for step in self.steps}
        given = ", ".join(f"{name} {form}" for name, form in self.formats.items() if name not in made)
        loops = ", ".join(self.loop_order) or "none"
        number = f"{len(self.steps)} step{'s' if len(self.steps) > 1 else ''}"
        return f"Explanation({self.text!r}: {given} -> {self.result_format}; loops {loops}; {number})"

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
    loops = ", ".join(step.loop_order) or "by torch"
    return [
        str(number),
        page.code(step.statement),
        operands,
        page.text(step.result),
        page.text(loops),
        conversions,
    ]


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
    lines += _labelled("memory", _memory_in_words(step.memory)) if step.memory else []
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


def _memory_in_words(memory: Footprint) -> str:
    parts = []
    if memory.each_thread:
        each = f" for each of {memory.threads} threads" if memory.threads > 1 else ""
        parts.append(in_bytes(memory.each_thread) + each)
    if memory.once:
        parts.append(in_bytes(memory.once) + (" for all" if parts else ""))
    if memory.copies:
        parts.append(f"{in_bytes(memory.copies)} for copies of operands")
    most = "" if memory.exact else "up to "
    sizes = f"operands {in_bytes(memory.operands)}, result {most}{in_bytes(memory.result)}"
    kept = "; once it is freed, large arrays serve the next results" if memory.result >= HUGE_PAGE else ""
    return f"{sizes}, workspace {' and '.join(parts) or 'none'}{kept}"


def in_bytes(size: float) -> str:
    """``1.2 MB``: three digits at most."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


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


def plain(value: Any) -> Any:
    """A value as dictionaries, lists, numbers and texts."""
    if isinstance(value, Format):
        return str(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value
