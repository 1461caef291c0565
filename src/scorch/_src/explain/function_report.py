"""What the explanation of a whole function consists of, and the report that ``print`` shows of it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scorch._src.explain import html as page
from scorch._src.explain.report import StepExplanation, TensorFacts, in_bytes, plain

_WIDTH = 110
_LABEL = 12
SMALL = 0.01  # of the whole time: shorter dense calls are summed up

KINDS = {
    "kernel": "a generated kernel",
    "fused": "one generated kernel for several calls",
    "routine": "a routine of Scorch",
    "torch": "torch's dense product",
    "dense copy": "torch, on dense copies",
}


@dataclass(frozen=True)
class KernelExplanation:
    """One kernel, routine or dense product that ran.

    ``kind``
        ``kernel``, ``fused``, ``routine``, ``torch`` or ``dense copy``
    ``statement``
        what was computed, in index notation, or the name of the routine
    ``operands``
        what it read, as it was given, and ``result``: what it made
    ``loop_order``
        outermost first, and on how many ``threads``
    ``bytes``
        of operands, result and workspace
    ``predicted``
        seconds, by the cost model and the speed of this machine; None if there is no model for it
    ``measured``
        seconds, the median, without ``converting``: what went into storing operands otherwise
    ``converted``
        what was stored otherwise first, or transposed, and why; ``advice``: how to avoid it
    ``step``
        all that ``explain`` of the statement alone would show
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


@dataclass(frozen=True)
class CallExplanation:
    """A call in the function: its name, the line it stands in, its kernels, and how many seconds it took."""

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
        in order, those without sparse tensors too
    ``seconds``
        of the whole call: the median of ``runs``; ``watched``: while being looked at
    ``joined``
        calls that became one kernel, because ``scorch.compile`` made the function
    ``joinable``
        calls that would become one kernel if it did
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
        return tuple(kernel for call in self.calls for kernel in call.kernels)

    @property
    def advice(self) -> tuple[str, ...]:
        """What would spare time, each sentence once."""
        found = [text for kernel in self.kernels for text in kernel.advice]
        if self.joinable:
            calls = "; ".join(", ".join(group) for group in self.joinable)
            found.append(f"scorch.compile makes one kernel of: {calls}")
        return tuple(dict.fromkeys(found))

    @property
    def source(self) -> str:
        """The C texts of all kernels, each once."""
        return "\n".join(dict.fromkeys(kernel.source for kernel in self.kernels if kernel.source))

    def report(self) -> str:
        """The explanation as text, without C sources."""
        return "\n".join(_report(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the result as dictionaries, lists, numbers and texts, for JSON."""
        facts = {name: plain(getattr(self, name)) for name in ("name", "calls", "seconds", "watched", "runs")}
        return {
            **facts,
            "joined": plain(self.joined),
            "joinable": plain(self.joinable),
            "advice": plain(self.advice),
        }

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return f"<{_title(self)}; print it to read it>"

    def _repr_html_(self) -> str:
        shown, _ = _shown(self)
        rows = [_html_row(number, call, self.watched) for number, call in enumerate(shown, 1)]
        return page.page(
            page.heading(_title(self)),
            page.table(["", "call", "", "time", "share"], rows, {3}),
            *(page.listing("One kernel for", [", ".join(group)]) for group in self.joined),
            page.listing("What would spare time", self.advice) if self.advice else "",
            page.source("C source of all kernels", self.source),
        )


def in_seconds(seconds: float | None) -> str:
    """``1.2 ms``: two or three digits."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.2g} us"


# in notebooks ----------------------------------------------------------------------------------------


def _html_row(number: int, call: CallExplanation, whole: float) -> list[str]:
    name = f"<b>{page.text(call.name)}</b><br>{page.faint(call.where)}"
    kernels = "".join(map(_html_kernel, call.kernels))
    share = call.seconds / whole if whole else 0.0
    return [str(number), name, page.code(call.line) + kernels, in_seconds(call.seconds), page.bar(share)]


def _html_kernel(kernel: KernelExplanation) -> str:
    facts = [page.faint(KINDS[kernel.kind]), *map(page.text, kernel.operands)]
    if kernel.result is not None:
        facts.append(f"&rarr; {page.text(kernel.result)}")
    if kernel.loop_order:
        facts.append(page.text(f"loops {', '.join(kernel.loop_order)}; threads {kernel.threads}"))
    facts.append(page.text(in_bytes(kernel.bytes)))
    facts += [f"<i>{page.text(sentence)}</i>" for sentence in kernel.converted]
    times = in_seconds(kernel.measured)
    if kernel.predicted is not None:
        times += f" (predicted {in_seconds(kernel.predicted)})"
    body = "<br>".join(facts) + page.source("C source", kernel.source)
    return page.opened(f"{page.code(kernel.statement)} {page.faint(times)}", body)


# the report ------------------------------------------------------------------------------------------


def _title(found: FunctionExplanation) -> str:
    kernels = len(found.kernels)
    number = f"{kernels} kernel{'' if kernels == 1 else 's'}"
    watched = f"; {in_seconds(found.watched)} while watched" if found.watched > 1.1 * found.seconds else ""
    times = "call" if found.runs == 1 else "calls"
    return f"{found.name}: {number}, {in_seconds(found.seconds)} (median of {found.runs} {times}{watched})"


def _shown(found: FunctionExplanation) -> tuple[list[CallExplanation], list[CallExplanation]]:
    """The calls to be shown one by one, and short dense ones."""
    shown: list[CallExplanation] = []
    short: list[CallExplanation] = []
    for call in found.calls:
        is_short = not call.is_sparse and not call.kernels and call.seconds < SMALL * found.watched
        (short if is_short else shown).append(call)
    return shown, short


def _report(found: FunctionExplanation) -> list[str]:
    lines = [_title(found)]
    shown, short = _shown(found)
    for number, call in enumerate(shown, 1):
        lines += ["", *_call_lines(call, number, found.watched)]
    if short:
        spent = in_seconds(sum(call.seconds for call in short))
        names = ", ".join(dict.fromkeys(call.name for call in short))
        number_of = f"{len(short)} short dense call{'' if len(short) == 1 else 's'} of torch"
        lines += ["", *_wrapped(f"and {number_of}, {spent}: {names}", "")]
    if not found.kernels and not shown:
        lines += [
            "",
            *_wrapped("no kernel of Scorch ran in this thread (a generator must be consumed)", ""),
        ]
    for group in found.joined:
        lines += ["", *_wrapped(f"one kernel for: {', '.join(group)}", "")]
    if found.advice:
        lines += ["", "what would spare time"]
        lines += [line for text in found.advice for line in _wrapped(text, "- ")]
    return lines


def _call_lines(call: CallExplanation, number: int, whole: float) -> list[str]:
    share = f", {100 * call.seconds / whole:.0f}%" if whole else ""
    kind = "" if call.is_sparse or call.kernels or "torch.sparse" in call.name else ", dense"
    place = f"  ({call.where})" if call.where else ""
    lines = [f"{number}. {call.name}{kind}: {in_seconds(call.seconds)}{share}{place}"]
    if call.line:
        lines.append(f"     {textwrap.shorten(call.line, _WIDTH - 5, placeholder=' ...')}")
    for kernel in call.kernels:
        lines += _kernel_lines(kernel)
    if call.is_sparse and not call.kernels:
        lines += _labelled("values", "on the stored values, by torch, or on the pattern alone: no kernel")
    return lines


def _kernel_lines(kernel: KernelExplanation) -> list[str]:
    lines = _labelled("kernel" if kernel.kind in ("kernel", "fused") else kernel.kind, kernel.statement)
    if kernel.operands:
        result = "" if kernel.result is None else f" -> {kernel.result}"
        lines += _labelled("formats", "; ".join(map(str, kernel.operands)) + result)
    if kernel.loop_order:
        threads = f"{kernel.threads} thread{'' if kernel.threads == 1 else 's'}"
        lines += _labelled("loops", f"{', '.join(kernel.loop_order)}; {threads}; {in_bytes(kernel.bytes)}")
    elif kernel.bytes:
        lines += _labelled("memory", in_bytes(kernel.bytes))
    if kernel.predicted is not None:
        lines += _labelled(
            "time", f"predicted {in_seconds(kernel.predicted)}, measured {in_seconds(kernel.measured)}"
        )
    else:
        lines += _labelled("time", f"measured {in_seconds(kernel.measured)}")
    for text in kernel.converted:
        lines += _labelled("converts", text)
    if kernel.converting > 0.05 * kernel.measured and kernel.converted:
        lines += _labelled("", f"which took {in_seconds(kernel.converting)}")
    return lines


def _labelled(label: str, text: str) -> list[str]:
    parts = textwrap.wrap(text, _WIDTH - _LABEL - 5, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"     {label if n == 0 else '':{_LABEL}}{part}" for n, part in enumerate(parts)]


def _wrapped(text: str, begin: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )


def groups_of(calls: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Groups of more than one call."""
    return tuple(tuple(group) for group in calls if len(group) > 1)
