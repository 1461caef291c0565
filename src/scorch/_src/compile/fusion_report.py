"""The report of ``scorch.explain`` on compiled functions: which calls were fused, and why others were not."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, field
from typing import Any

from scorch._src.dataclass import dataclass
from scorch._src.html import page
from scorch.errors import counted

NAMES = ("others", "dense", "failed", "unfused", "dense_calls")  # fields that are lists of names


@dataclass(frozen=True)
class GroupExplanation:
    """Calls that became one kernel, or that were not fused, for ``reason``."""

    calls: tuple[str, ...]
    statements: str
    source: str
    reason: str
    gradients: str = ""  # how they are computed; "" if none are needed
    names: dict[str, str] = field(default_factory=dict)  # of the source, and those in statements

    def __str__(self) -> str:
        if self.reason:
            return f"not fused: {', '.join(self.calls)}\n  {self.reason}"
        text = f"one kernel: {', '.join(self.calls)}\n" + textwrap.indent(self.statements, "  ")
        if self.gradients:
            text += "\n  gradients:\n" + textwrap.indent(self.gradients, "    ")
        return text

    def to_html(self) -> str:
        """Return the group as a part of a page."""
        calls = page.code(", ".join(self.calls))
        if self.reason:
            return f'<div class="step"><h3>Not fused: {calls}</h3><p>{page.text(self.reason)}</p></div>'
        parts = [f"<h3>One kernel: {calls}</h3>", f"<pre>{page.text(self.statements)}</pre>"]
        if self.gradients:
            parts.append(f"<h3>Gradients</h3><pre>{page.text(self.gradients)}</pre>")
        return f'<div class="step">{"".join(parts)}{page.source(self._source_title(), self.source)}</div>'

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
    """

    groups: tuple[GroupExplanation, ...]
    others: tuple[str, ...]
    dense: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unfused: tuple[str, ...] = ()
    dense_calls: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The source of the kernels of all groups."""
        return "\n".join(group.source for group in self.groups if group.source)

    def report(self) -> str:
        """Return the explanation as text, without sources."""
        paragraphs = [str(group) for group in self.groups]
        paragraphs += [f"{label}: {', '.join(names)}" for label, names in self._other_calls()]
        return "\n\n".join(paragraphs) or "no calls on sparse tensors"

    __str__ = report

    def _summary(self) -> str:
        fused = sum(not group.reason for group in self.groups)
        separate = sum(bool(group.reason) for group in self.groups) + len(self.others) + len(self.unfused)
        return f"{counted(fused, 'fused kernel')}, {counted(separate, 'other sparse call')}"

    def __repr__(self) -> str:
        return f"<{self._summary()}; print it to read it>"

    def to_dict(self) -> dict[str, Any]:
        """Convert everything to dictionaries, lists and strings, for JSON."""
        plain = asdict(self)
        groups = [{**group, "calls": list(group["calls"])} for group in plain["groups"]]
        names = {name: list(getattr(self, name)) for name in NAMES}
        return {"groups": groups, **names}

    def to_html(self) -> str:
        """Return an HTML page: the fused calls, their statements, gradients and sources."""
        return page.document("scorch.explain: fused calls", self._repr_html_())

    def _repr_html_(self) -> str:
        others = [page.listing(label.capitalize(), names) for label, names in self._other_calls()]
        body = [*(group.to_html() for group in self.groups), *others]
        if not body:
            return page.page(page.heading("No calls on sparse tensors"))
        hint = "For the time of each kernel, call scorch.explain(compiled)(*args)."
        return page.page(page.heading(self._summary()), *body, f"<p>{page.faint(hint)}</p>")

    def _other_calls(self) -> list[tuple[str, tuple[str, ...]]]:
        labels = {
            "not fused": self.unfused,
            "not fusible, run as they are": self.others,
            "not fused, because they read dense tensors only": self.dense_calls,
            "compiled by torch.compile": self.dense,
            "run uncompiled, because torch.compile failed": self.failed,
        }
        return [(label, names) for label, names in labels.items() if names]
