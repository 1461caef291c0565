"""The report of ``scorch.explain`` on compiled functions: which calls were fused, and why others were not."""

from __future__ import annotations

import textwrap
from dataclasses import field
from typing import Any

from scorch._src.dataclass import dataclass
from scorch._src.explain.render import to_plain
from scorch._src.explain.statement_page import draw_loops, draw_orders, draw_tensors, draw_times
from scorch._src.explain.step import StepExplanation, TensorFacts, add_costs, format_cost
from scorch._src.html import page
from scorch._src.units import format_bytes, format_seconds
from scorch.errors import counted

NAMES = ("others", "dense", "failed", "unfused", "dense_calls")  # fields that are lists of names


@dataclass(frozen=True)
class GroupExplanation:
    """Calls that became one kernel, or that were not fused, for ``reason``.

    ``statements``
        what the kernel computes, in index notation, and how it loops
    ``gradients``
        how they are computed; empty if none are needed
    ``names``
        the names that statements show, by those in the source
    ``operands``, ``results``
        what the calls read and returned, and how many ``bytes`` that is
    ``steps``
        the statements of a generated kernel with their loops, as ``explain`` of each would show them; the
        first ``phase`` of them run for all rows before the others
    ``threads``
        how threads share the rows
    ``predicted``, ``measured``
        seconds, with ``measure=True``
    """

    calls: tuple[str, ...]
    statements: str
    source: str
    reason: str
    gradients: str = ""
    names: dict[str, str] = field(default_factory=dict)
    operands: tuple[TensorFacts, ...] = ()
    results: tuple[TensorFacts, ...] = ()
    bytes: int = 0
    steps: tuple[StepExplanation, ...] = ()
    phase: int = 0
    threads: str = ""
    predicted: float | None = None
    measured: float | None = None

    def __str__(self) -> str:
        if self.reason:
            return f"not fused: {', '.join(self.calls)}\n  {self.reason}"
        text = f"one kernel: {', '.join(self.calls)}\n" + textwrap.indent(self.statements, "  ")
        if self.measured is not None:
            predicted = "" if self.predicted is None else f"predicted {format_seconds(self.predicted)}, "
            text += f"\n  time: {predicted}measured {format_seconds(self.measured)}"
        if self.gradients:
            text += "\n  gradients:\n" + textwrap.indent(self.gradients, "    ")
        return text

    def to_html(self) -> str:
        """Return the group as a part of a page."""
        calls = page.code(", ".join(self.calls))
        if self.reason:
            return f'<div class="step"><h3>Not fused: {calls}</h3><p>{page.text(self.reason)}</p></div>'
        return f'<div class="step"><h3>One kernel: {calls}</h3>{self.draw()}</div>'

    def draw(self) -> str:
        """Draw the kernel: tensors, loops, times, rejected loop orders, details, gradients, source."""
        loops = f"<pre>{page.text(self.statements)}</pre>"
        if self.steps:
            phases = [part for part in (self.steps[: self.phase], self.steps[self.phase :]) if part]
            loops = draw_loops(phases, self.threads)
        orders = [draw_orders(step, f"Loop orders of {step.statement}") for step in self.steps]
        if len(self.steps) == 1:
            orders = [draw_orders(self.steps[0])]
        facts = [(label, page.text(text)) for label, text in self._facts()]
        return "".join(
            [
                draw_tensors(self.operands, self.results),
                loops,
                draw_times(self.predicted, self.measured),
                *orders,
                f"<h3>Details</h3>{page.definitions(facts)}",
                f"<h3>Gradients</h3><pre>{page.text(self.gradients)}</pre>" if self.gradients else "",
                page.source(self._source_title(), self.source),
            ]
        )

    def _facts(self) -> list[tuple[str, str]]:
        """Return what the drawings do not show, with labels."""
        if self.steps:
            facts = [("kernel", "; ".join(self.statements.splitlines()[len(self.steps) :]))]
            facts += [("converts", text) for step in self.steps for text in step.conversions]
            facts += [("threads", self.threads), ("cost", format_cost(add_costs(self.steps)))]
        else:
            facts = [("kernel", "a handwritten routine")]
        if self.bytes:
            facts.append(("memory", f"operands and results {format_bytes(self.bytes)}"))
        return facts

    def _source_title(self) -> str:
        names = ", ".join(f"{shown} is {own}" for own, shown in self.names.items())
        return f"source, in which {names}" if names else "source"


@dataclass(frozen=True)
class FusionExplanation:
    """Report which calls of a compiled function were fused; print it to read it.

    ``groups``
        calls that were recorded, in the order in which they ran
    ``others``
        calls on sparse tensors that cannot be fused and ran as they are
    ``dense``
        submodules without sparse tensors, which ``torch.compile`` compiles from their second call on
    ``failed``
        such submodules where ``torch.compile`` failed, with its error; they run uncompiled
    ``unfused``
        calls that could have been fused, each with the reason why they were not
    ``dense_calls``
        calls that read no sparse tensor, which PyTorch runs once per element, not once per nonzero
    ``is_unprofitable``
        whether tracing takes longer than fusion saves: then later calls of the function with the same shapes
        are not traced
    """

    groups: tuple[GroupExplanation, ...]
    others: tuple[str, ...]
    dense: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unfused: tuple[str, ...] = ()
    dense_calls: tuple[str, ...] = ()
    is_unprofitable: bool = False

    @property
    def source(self) -> str:
        """The source of the kernels of all groups."""
        return "\n".join(group.source for group in self.groups if group.source)

    def report(self, source: bool = False) -> str:
        """Return the explanation as text, below the sources if ``source`` is True."""
        paragraphs = [self.source.rstrip()] if source and self.source else []
        paragraphs += [str(group) for group in self.groups]
        paragraphs += [f"{label}: {', '.join(names)}" for label, names in self._other_calls()]
        paragraphs += self._later_calls()
        return "\n\n".join(paragraphs) or "no calls on sparse tensors"

    def __str__(self) -> str:
        return self.report()

    def _later_calls(self) -> list[str]:
        """Return what happens to later calls, if they are not fused."""
        text = "later calls with these shapes run as they are: tracing takes longer than fusion saves"
        return [text] if self.is_unprofitable else []

    def _summary(self) -> str:
        fused = sum(not group.reason for group in self.groups)
        separate = sum(bool(group.reason) for group in self.groups) + len(self.others) + len(self.unfused)
        return f"{counted(fused, 'fused kernel')}, {counted(separate, 'other sparse call')}"

    def __repr__(self) -> str:
        return f"<{self._summary()}; print it to read it>"

    def to_dict(self) -> dict[str, Any]:
        """Convert everything to dictionaries, lists and strings, for JSON."""
        return {name: to_plain(getattr(self, name)) for name in ("groups", *NAMES, "is_unprofitable")}

    def to_html(self) -> str:
        """Return an HTML page: the fused calls, their tensors, loops, times, gradients and sources."""
        return page.document("scorch.explain: fused calls", self._repr_html_())

    def _repr_html_(self) -> str:
        others = [page.listing(label.capitalize(), names) for label, names in self._other_calls()]
        later = [f"<p>{page.text(text.capitalize())}</p>" for text in self._later_calls()]
        body = [*(group.to_html() for group in self.groups), *others, *later]
        if not body:
            return page.page(page.heading("No calls on sparse tensors"))
        hint = "For the time of each kernel, pass measure=True, or call scorch.explain(compiled)(*args)."
        is_measured = any(group.measured is not None for group in self.groups)
        hints = [] if is_measured else [f"<p>{page.faint(hint)}</p>"]
        return page.page(page.heading(self._summary()), *body, *hints)

    def _other_calls(self) -> list[tuple[str, tuple[str, ...]]]:
        labels = {
            "not fused": self.unfused,
            "not fused, because no rule fuses them": self.others,
            "not fused, because they read dense tensors only": self.dense_calls,
            "compiled by torch.compile": self.dense,
            "run uncompiled, because torch.compile failed": self.failed,
        }
        return [(label, names) for label, names in labels.items() if names]
