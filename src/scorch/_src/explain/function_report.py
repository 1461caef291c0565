"""The explanation of a whole function, and the report that ``print`` shows of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import Any

from scorch._src.dataclass import dataclass
from scorch._src.explain.fusion_report import GroupExplanation
from scorch._src.explain.render import WIDTH, to_plain, wrap_lines
from scorch._src.explain.statement_page import draw_step, draw_times
from scorch._src.explain.step import StepExplanation, TensorFacts
from scorch._src.explain.trace_calls import MIN_SHOWN_SHARE
from scorch._src.html import page
from scorch._src.units import format_bytes, format_seconds
from scorch.errors import counted

KINDS = {
    "kernel": "a generated kernel",
    "fused": "a fused kernel",
    "routine": "a handwritten routine",
    "torch": "PyTorch's dense product",
    "dense copy": "a dense fallback to PyTorch",
    "exchange": "communication between ranks",
    "product": "a product of sharded tensors, with its communication and kernels",
}
LABELS = {"fused": "kernel", "dense copy": "fallback", "torch": "PyTorch"}  # others are called by their kind
MAX_OPEN_KERNELS = 2
BETWEEN_PROCESSES = ("exchange", "product")


@dataclass(frozen=True)
class KernelExplanation:
    """One kernel, routine or dense product that ran, or one exchange between ranks.

    ``kind``
        ``kernel``, ``fused``, ``routine``, ``torch`` or ``dense copy``; ``exchange``, or ``product`` of a
        sharded tensor, as its plan describes it
    ``statement``
        what was computed, in index notation, or the name of the routine; or what moved
    ``operands``
        what it read, as passed, and ``result``: what it computed
    ``loop_order``
        outermost first, and on how many ``threads``
    ``bytes``
        of operands, result and workspace; of an exchange, those that this rank received
    ``predicted``
        seconds, by the cost model and the speed of this machine; None if there is no model for it
    ``measured``
        seconds, without ``converting``: the time of converting operands
    ``converted``
        what was converted or transposed first, and why; ``advice``: how to avoid it
    ``runner_up``
        the fastest other algorithm for a sharded product
    ``step``
        everything that ``explain`` of the statement would show
    ``fused``
        of a fused kernel, the same for all of its statements
    """

    kind: str
    statement: str
    operands: tuple[TensorFacts, ...]
    result: TensorFacts | None
    loop_order: tuple[str, ...]
    threads: int
    bytes: int
    predicted: float | None
    measured: float
    converting: float = 0.0
    converted: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    step: StepExplanation | None = None
    source: str = ""
    runner_up: str = ""
    fused: GroupExplanation | None = None


@dataclass(frozen=True)
class CallExplanation:
    """A call in the function: its name, its line, its kernels, and its seconds."""

    name: str
    where: str
    line: str
    is_sparse: bool
    seconds: float
    kernels: tuple[KernelExplanation, ...] = ()


@dataclass(frozen=True)
class FunctionExplanation:
    """What a function did when it was called; print it to read it.

    ``calls``
        the calls in order, including those without sparse tensors
    ``seconds``
        the time of the whole call, the median of ``runs``; ``watched``: the median while traced, which
        the times of the calls and what Python does between them, ``seconds_between``, add up to
    ``joined``
        the calls that ``scorch.compile`` fused
    ``joinable``
        the calls that ``scorch.compile`` would fuse
    ``result``
        what the last call returned
    """

    name: str
    calls: tuple[CallExplanation, ...]
    seconds: float
    watched: float
    runs: int
    joined: tuple[tuple[str, ...], ...] = ()
    joinable: tuple[tuple[str, ...], ...] = ()
    result: Any = field(default=None, repr=False)

    @property
    def kernels(self) -> tuple[KernelExplanation, ...]:
        """All kernels, in the order in which they ran."""
        return tuple(kernel for kernel in self._events if kernel.kind not in BETWEEN_PROCESSES)

    @property
    def exchanges(self) -> tuple[KernelExplanation, ...]:
        """All exchanges between ranks, and sharded products with their plans, in order."""
        return tuple(event for event in self._events if event.kind in BETWEEN_PROCESSES)

    @property
    def _events(self) -> Iterator[KernelExplanation]:
        return (event for call in self.calls for event in call.kernels)

    @property
    def seconds_between(self) -> float:
        """The time between the calls, in Python and other libraries."""
        return max(self.watched - sum(call.seconds for call in self.calls), 0.0)

    @property
    def advice(self) -> tuple[str, ...]:
        """Suggestions to save time, each once."""
        sentences = [text for kernel in self.kernels for text in kernel.advice]
        if self.joinable:
            calls = "; ".join(", ".join(group) for group in self.joinable)
            sentences.append(f"scorch.compile would fuse into one kernel: {calls}")
        return tuple(dict.fromkeys(sentences))

    @property
    def source(self) -> str:
        """The C sources of all kernels, each once."""
        return "\n".join(dict.fromkeys(kernel.source for kernel in self.kernels if kernel.source))

    def report(self, source: bool = False) -> str:
        """Return the explanation as text, below the C sources if ``source`` is True."""
        lines = _report(self)
        return "\n".join([self.source.rstrip(), "", *lines] if source and self.source else lines)

    def to_dict(self) -> dict[str, Any]:
        """Convert everything but the result to dictionaries, lists, numbers and strings, for JSON."""
        names = ("name", "calls", "seconds", "watched", "runs", "joined", "joinable", "advice")
        return {name: to_plain(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return f"<{_title(self)}; print it to read it>"

    def to_html(self) -> str:
        """Return the explanation as a page of its own."""
        return page.document(f"scorch.explain: {self.name}", self._repr_html_())

    def _repr_html_(self) -> str:
        long_calls, _ = _split_calls(self)
        rows = [_html_row(number, call, self.watched) for number, call in enumerate(long_calls, 1)]
        between = self.seconds_between / self.watched if self.watched else 0.0
        rest = [
            "",
            "between the calls, in Python",
            format_seconds(self.seconds_between),
            page.bar(between),
        ]
        return page.page(
            page.heading(_title(self)),
            page.table(["", "call", "time", "share"], [*rows, rest], {2}),
            *_html_kernels(long_calls),
            *(page.listing("Fused into one kernel", [", ".join(group)]) for group in self.joined),
            page.listing("Suggestions", self.advice) if self.advice else "",
            page.source("C source of all kernels", self.source),
        )


def _html_row(number: int, call: CallExplanation, total: float) -> list[str]:
    where = [page.code(call.line)] if call.line else []
    where += [page.faint(call.where)] if call.where else []
    name = "<br>".join([f"<b>{page.text(call.name)}</b>", *where])
    share = call.seconds / total if total else 0.0
    return [str(number), name, format_seconds(call.seconds), page.bar(share)]


def _html_kernels(calls: Sequence[CallExplanation]) -> Iterator[str]:
    """Yield the kernels, by the numbers of their calls; all are open where they are few."""
    kernels = [(number, kernel) for number, call in enumerate(calls, 1) for kernel in call.kernels]
    for number, kernel in kernels:
        yield _html_kernel(number, kernel, len(kernels) <= MAX_OPEN_KERNELS)


def _html_kernel(number: int, kernel: KernelExplanation, is_open: bool) -> str:
    if kernel.fused is not None:
        body = kernel.fused.draw()
    elif kernel.step is not None:
        body = _draw_kernel(kernel, kernel.step)
    else:
        body = page.definitions((label, page.text(text)) for label, text in _kernel_facts(kernel))
        body += draw_times(kernel.predicted, kernel.measured) + page.source("C source", kernel.source)
    head = f"{number}. {page.code(kernel.statement)} {page.faint(format_seconds(kernel.measured))}"
    kind = f"<h3>{page.faint(KINDS[kernel.kind])}</h3>"
    return page.collapsible(head, f'<div class="step">{kind}{body}</div>', is_open)


def _draw_kernel(kernel: KernelExplanation, step: StepExplanation) -> str:
    """Draw a generated kernel, with the tensors and the times of the call that was traced."""
    drawn = replace(
        step,
        operands=kernel.operands,
        result=kernel.result or step.result,
        conversions=kernel.converted,
        predicted=kernel.predicted,
        measured=kernel.measured,
    )
    return draw_step(drawn) + page.source("C source", kernel.source)


def _title(report: FunctionExplanation) -> str:
    median = f"median of {counted(report.runs, 'call')}"
    if not 1 / 1.1 < report.watched / max(report.seconds, 1e-12) < 1.1:
        median += f"; {format_seconds(report.watched)} while traced, to which the times below add up"
    kernels = counted(len(report.kernels), "kernel")
    moves = [event for event in report.exchanges if event.kind == "exchange"]
    if moves:
        kernels += f", {counted(len(moves), 'exchange')} of {format_bytes(sum(move.bytes for move in moves))}"
    return f"{report.name}: {kernels}, {format_seconds(report.seconds)} ({median})"


def _split_calls(explanation: FunctionExplanation) -> tuple[list[CallExplanation], list[CallExplanation]]:
    """Split the calls into those shown one by one, and short dense ones."""
    calls: tuple[list[CallExplanation], list[CallExplanation]] = [], []
    for call in explanation.calls:
        is_dense = not call.is_sparse and not call.kernels
        calls[is_dense and call.seconds < MIN_SHOWN_SHARE * explanation.watched].append(call)
    return calls


def _report(explanation: FunctionExplanation) -> list[str]:
    lines = [_title(explanation)]
    long_calls, short_calls = _split_calls(explanation)
    for number, call in enumerate(long_calls, 1):
        lines += ["", *_call_lines(call, number, explanation.watched)]
    if short_calls:
        seconds = format_seconds(sum(call.seconds for call in short_calls))
        names = ", ".join(dict.fromkeys(call.name for call in short_calls))
        summary = f"{counted(len(short_calls), 'short dense PyTorch call')}"
        lines += ["", *wrap_lines(f"and {summary}, {seconds}: {names}")]
    between = explanation.seconds_between
    if long_calls and between >= MIN_SHOWN_SHARE * explanation.watched:
        share = f"{100 * between / explanation.watched:.0f}%"
        lines += ["", f"between the calls, in Python: {format_seconds(between)}, {share}"]
    if not any(explanation._events) and not long_calls:
        lines += ["", _nothing_ran(explanation.result)]
    for group in explanation.joined:
        lines += ["", *wrap_lines(f"fused into one kernel: {', '.join(group)}")]
    if explanation.advice:
        lines += ["", "Suggestions"]
        lines += [line for text in explanation.advice for line in wrap_lines(text, "- ")]
    return lines


def _nothing_ran(result: Any) -> str:
    if isinstance(result, Iterator):
        return "no Scorch kernel ran: the function returned an iterator, which must be consumed"
    return "no Scorch kernel ran in this thread"


def _call_lines(call: CallExplanation, number: int, total: float) -> list[str]:
    share = f", {100 * call.seconds / total:.0f}%" if total else ""
    kind = "" if call.is_sparse or call.kernels or "torch.sparse" in call.name else ", dense"
    location = f"  ({call.where})" if call.where else ""
    lines = [f"{number}. {call.name}{kind}: {format_seconds(call.seconds)}{share}{location}"]
    if call.line:
        lines.append(f"     {textwrap.shorten(call.line, WIDTH - 5, placeholder=' ...')}")
    facts = []
    for kernel in call.kernels:
        label = LABELS.get(kernel.kind, kernel.kind)
        facts += [(label, kernel.statement), *_kernel_facts(kernel)]
    if call.is_sparse and not call.kernels:
        facts.append(("values", "computed with PyTorch operators on values and indices: no kernel"))
    return lines + [line for label, text in facts for line in wrap_lines(text, f"     {label:12}")]


def _kernel_facts(kernel: KernelExplanation) -> Iterator[tuple[str, str]]:
    """Yield what a report says of a kernel besides its statement, with labels."""
    if kernel.operands:
        result = "" if kernel.result is None else f" -> {kernel.result}"
        yield "formats", "; ".join(map(str, kernel.operands)) + result
    if kernel.loop_order:
        loops = (", ".join(kernel.loop_order), counted(kernel.threads, "thread"), format_bytes(kernel.bytes))
        yield "loops", "; ".join(loops)
    elif kernel.bytes and kernel.kind not in BETWEEN_PROCESSES:
        yield "memory", format_bytes(kernel.bytes)
    predicted = "" if kernel.predicted is None else f"predicted {format_seconds(kernel.predicted)}, "
    yield "time", f"{predicted}measured {format_seconds(kernel.measured)}"
    if kernel.runner_up:
        yield "runner-up", kernel.runner_up
    for text in kernel.converted:
        yield "converts", text
    if kernel.converting > 0.05 * kernel.measured and kernel.converted:
        yield "", f"conversion took {format_seconds(kernel.converting)}"
