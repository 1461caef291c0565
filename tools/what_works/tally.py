"""Calls counted: for each operator, dtype, variant and format how many passed, and the worst of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tools.what_works.check import OUTCOMES
from tools.what_works.workers import Call


@dataclass
class Tally:
    """The calls of one operator, dtype, variant and format."""

    operator: str
    dtype: str
    variant: str
    format: str
    counts: dict[str, int] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)  # the first of each kind
    is_sparse: bool | None = None  # where results should be sparse: whether all are

    @property
    def worst(self) -> str:
        return max(self.counts, key=OUTCOMES.index)

    def count(self, call: Call) -> None:
        kind, message, kept = call.outcome.kind, call.outcome.message, call.outcome.is_sparse
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.messages.setdefault(kind, message)
        if kept is not None:
            self.is_sparse = kept and self.is_sparse is not False


@dataclass
class Report:
    """All tallies of a run, the operators it was about, and how it was made."""

    operators: dict[str, str]  # name and family
    tallies: list[Tally]
    torch: str
    command: str
    seconds: float

    def select(self, **wanted: str) -> list[Tally]:
        """The tallies with these attributes, such as ``dtype="int64"``."""
        return [t for t in self.tallies if all(getattr(t, name) == value for name, value in wanted.items())]

    def updated(self, later: Report) -> Report:
        """This report with all that ``later`` says of its operators."""
        kept = [tally for tally in self.tallies if tally.operator not in later.operators]
        operators = {**self.operators, **later.operators}
        return replace(self, operators=operators, tallies=kept + later.tallies)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Report:
        return cls(**{**given, "tallies": [Tally(**tally) for tally in given["tallies"]]})


def tallied(calls: Iterable[Call]) -> list[Tally]:
    found: dict[tuple[str, str, str, str], Tally] = {}
    for call in calls:
        key = (call.operator, call.dtype, call.variant, call.format)
        found.setdefault(key, Tally(*key)).count(call)
    return [found[key] for key in sorted(found)]


def passed(tallies: Iterable[Tally]) -> tuple[int, int]:
    """How many operators passed every call, of how many."""
    worst: dict[str, bool] = {}
    for tally in tallies:
        worst[tally.operator] = worst.get(tally.operator, True) and tally.worst == "passed"
    return sum(worst.values()), len(worst)


def kept_sparse(tallies: Iterable[Tally]) -> tuple[int, int]:
    """Of the operators that give zeros for zeros, how many always gave a sparse tensor."""
    kept: dict[str, bool] = {}
    for tally in tallies:
        if tally.is_sparse is not None:
            kept[tally.operator] = kept.get(tally.operator, True) and tally.is_sparse
    return sum(kept.values()), len(kept)
