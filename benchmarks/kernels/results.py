"""What a run found, in a form that goes to a file and back, so that reports are rebuilt and runs merged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kernels.cases import OURS, is_torch
from benchmarks.kernels.timing import Timing


@dataclass(frozen=True)
class Measured:
    """One case at one number of threads."""

    kernel: str
    label: str
    matrix: str
    group: str
    shape: tuple[int, ...]
    nnz: int
    threads: int
    times: dict[str, Timing]
    extras: tuple[str, ...] = ()

    def median(self, name: str) -> float:
        return self.times[name].median

    def rivals(self) -> dict[str, float]:
        """The times of the contestants that count."""
        return {name: t.median for name, t in self.times.items() if name != OURS and name not in self.extras}

    def best(self) -> tuple[str, float] | None:
        """The fastest contestant other than Scorch."""
        rivals = self.rivals()
        return min(rivals.items(), key=lambda item: item[1]) if rivals else None

    def best_torch(self) -> tuple[str, float] | None:
        """torch at the best of its layouts."""
        rivals = {name: seconds for name, seconds in self.rivals().items() if is_torch(name)}
        return min(rivals.items(), key=lambda item: item[1]) if rivals else None

    def against_torch(self) -> float | None:
        """How many times as fast as torch Scorch is."""
        return self._ratio(self.best_torch())

    def against_best(self) -> float | None:
        """How many times as fast as the best contestant Scorch is."""
        return self._ratio(self.best())

    def against(self, name: str) -> float | None:
        return self._ratio((name, self.median(name))) if name in self.times else None

    def _ratio(self, found: tuple[str, float] | None) -> float | None:
        if found is None or OURS not in self.times:
            return None
        return found[1] / self.median(OURS)


@dataclass
class Results:
    """All that one machine measured."""

    mode: str  # "kernels", "threads" (more than two numbers of them) or "switches"
    machine: str
    architecture: str
    data: str
    command: str
    measured: list[Measured] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # "label | contestant | reason": matrices
    wrong: list[str] = field(default_factory=list)

    def skip(self, label: str, contestant: str, reason: str) -> None:
        key = f"{label} | {contestant} | {reason}"
        self.skipped[key] = self.skipped.get(key, 0) + 1

    def threads(self) -> list[int]:
        return sorted({case.threads for case in self.measured})

    def labels(self) -> list[str]:
        """In the order of the suite."""
        return list(dict.fromkeys(case.label for case in self.measured))

    def select(self, label: str, threads: int) -> list[Measured]:
        found = [case for case in self.measured if case.label == label and case.threads == threads]
        return sorted(found, key=lambda case: (case.nnz, case.matrix))

    # files -------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        content: dict[str, Any] = {**asdict(self), "measured": [_packed(case) for case in self.measured]}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        cases = content.pop("measured")
        text = json.dumps(content, indent=1)[:-2] + ',\n "measured": [\n'
        partial.write_text(text + ",\n".join(json.dumps(case) for case in cases) + "\n ]\n}\n")
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> Results:
        content = json.loads(path.read_text())
        content["measured"] = [_unpacked(case) for case in content["measured"]]
        return Results(**content)

    def merge(self, other: Results) -> Results:
        """Both together; where both measured the same, the other's."""
        new = {_place(case): case for case in other.measured}
        kept = [case for case in self.measured if _place(case) not in new]
        return Results(
            other.mode,
            other.machine,
            other.architecture,
            self.data if self.data == other.data else f"{self.data}; {other.data}",
            self.command if self.command == other.command else f"{self.command}\n    {other.command}",
            kept + other.measured,
            {**self.skipped, **other.skipped},
            list(dict.fromkeys(self.wrong + other.wrong)),
        )


def _place(case: Measured) -> tuple[str, str, int]:
    return case.label, case.matrix, case.threads


def _packed(case: Measured) -> dict[str, Any]:
    times = {name: [t.median, t.spread, t.samples] for name, t in case.times.items()}
    return {**asdict(case), "times": times}


def _unpacked(row: dict[str, Any]) -> Measured:
    times = {name: Timing(*found) for name, found in row["times"].items()}
    return Measured(
        **{**row, "times": times, "shape": tuple(row["shape"]), "extras": tuple(row.get("extras", ()))}
    )


def load_all(paths: Iterable[Path]) -> list[Results]:
    """The results in the files, those of the same machine and mode merged."""
    merged: dict[tuple[str, str], Results] = {}
    for path in paths:
        found = Results.load(path)
        key = found.mode, found.machine
        merged[key] = merged[key].merge(found) if key in merged else found
    return list(merged.values())


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean of what is there; None where nothing is."""
    logarithms = [math.log(ratio) for ratio in ratios if ratio is not None]
    return math.exp(math.fsum(logarithms) / len(logarithms)) if logarithms else None
