"""Compare results of ``python -m benchmarks.gpu --json FILE`` with what is asked of Scorch on one H200.

python -m benchmarks.gpu.goals FILE [FILE ...]          later files replace sections of earlier ones
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS = "scorch"
TORCH_SPARSE = ("torch C",)  # CSR, CSC and COO: names of others begin with "torch", too
MILLION = 1_000_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """How many times as fast as the fastest of ``rivals`` a label of a section should be.

    ``rivals``: how their names begin; ``entries``: of how many entries on matrices count.
    """

    section: str
    label: str
    mean: float | None = None
    worst: float | None = None
    rivals: tuple[str, ...] = ("torch", "PyG")
    entries: int = 0

    def title(self) -> str:
        against = " or ".join(self.rivals)
        least = f", from {self.entries:,} entries on" if self.entries else ""
        return f"{self.label}{least}, vs. {'torch.sparse' if self.rivals == TORCH_SPARSE else against}"

    def ratio(self, row: Row) -> float | None:
        times = row["milliseconds"]
        others = [time for name, time in times.items() if name.startswith(self.rivals)]
        return min(others) / times[OURS] if others and times.get(OURS) else None

    def concerns(self, row: Row, entries: dict[str, int]) -> bool:
        is_large = not self.entries or entries.get(row["matrix"], 0) >= self.entries
        return row["section"] == self.section and row["label"] == self.label and is_large


@dataclass(frozen=True)
class Limit:
    """The most microseconds or milliseconds that a row may show for one of its ways."""

    section: str
    label: str
    way: str
    most: float
    unit: str


GOALS: list[Goal | Limit] = [
    Goal("spmv", "S @ x", 1.3, 0.9, TORCH_SPARSE),
    Goal("spmm32", "S @ X, 32 columns, float32", 1.5, 0.95, TORCH_SPARSE),
    *(
        Goal("spmm128", f"S @ X, 128 columns, {dtype}", 1.2, 0.95, TORCH_SPARSE)
        for dtype in ("float32", "bf16", "fp16")
    ),
    Goal("sddmm64", "S * (P @ Q.T), 64", 5.0, None, TORCH_SPARSE),
    Goal("sddmm64", "S * (P @ Q.T), 64", 8.0, None, TORCH_SPARSE, MILLION),
    Goal("softmax", "row softmax", 20.0, None, TORCH_SPARSE),
    Goal("softmax", "row softmax", None, None, ("torch scatters",)),
    *(
        Goal(section, f"A {sign} B, {pattern}", None, 1.0, TORCH_SPARSE)
        for section, sign in (("add", "+"), ("mul", "*"))
        for pattern in ("one pattern", "other pattern")
    ),
    Goal("spgemm", "A @ A, sparse", 1.5, None, TORCH_SPARSE),
    Goal("spgemm", "A @ A.T, sparse", 1.5, None, TORCH_SPARSE),
    Goal("transpose", "CSR to CSC", 3.0, None, TORCH_SPARSE),
    Goal("coalesce", "COO, repeats summed", 3.0, None, TORCH_SPARSE),
    Goal("gcn", "GCN step, 128 to 40", 1.5, None, ("torch CSR int32",)),
    Goal("gcn", "GCN step, 128 to 40", 4.0, None, ("PyG",)),
    Goal("gcn", "GCN step, 128 to 40, captured", 1.5, None, ("torch CSR int32",)),
    Goal("gat", "GAT layer, 8 heads of 16", 5.0, None, ("PyG",)),
    Goal("gat", "GAT layer, 8 heads of 16", None, None, ("torch scatters",)),
    *(
        Goal("attention", f"16,384 tokens, {kind}", 1.0, None, ("torch FlexAttention",))
        for kind in ("forward", "both")
    ),
    *(
        Goal("attention", f"4,096 tokens, {kind}", None, None, ("torch dense",))
        for kind in ("forward", "both")
    ),
    Limit("host", "S @ x", OURS, 15.0, "us"),
    *(
        Limit("compile", label, "empty cache", 100.0, "ms")
        for label in (
            "first: S @ x",
            "S @ X",
            "SDDMM",
            "softmax",
            "new expression",
            "S + S.T",
            "S @ S",
            "coalescing",
            "first: coalescing",
        )
    ),
]
SYMMETRIC = ", symmetric"  # a matrix that torch's way is told more about than ours


def judged(goal: Goal | Limit, rows: Sequence[Row], entries: dict[str, int]) -> list[str] | None:
    """Return the cells of a goal; None where nothing was measured for it."""
    if isinstance(goal, Limit):
        return _below(goal, rows)
    mine = [row for row in rows if goal.concerns(row, entries)]
    if goal.rivals == ("torch CSR int32",):
        mine = [_without(row, SYMMETRIC) for row in mine]
    ratios = [(ratio, row["matrix"]) for row in mine if (ratio := goal.ratio(row)) is not None]
    wrong = [row["matrix"] for row in mine if OURS in {**row["errors"], **row["failed"]}]
    if not ratios and not wrong:
        return None
    mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios)) if ratios else math.nan
    worst = min(ratios, default=(math.nan, "-"))
    asked = [
        f"{word} {least:g}"
        for word, least in (("mean", goal.mean), ("worst", goal.worst))
        if least is not None
    ]
    holds = not wrong and mean >= (goal.mean or 0) and worst[0] >= (goal.worst or 0)
    lost = [f"{matrix} {ratio:.2f}" for ratio, matrix in sorted(ratios) if goal.worst and ratio < goal.worst][
        :6
    ]
    notes = [f"below: {', '.join(lost)}"] if lost else []
    notes += [f"WRONG OR FAILED: {', '.join(wrong)}"] if wrong else []
    alone = sum(goal.ratio(row) is None and OURS in row["milliseconds"] for row in mine)
    notes += [f"{alone} only here"] if alone else []
    answer = ("yes" if holds else "NO") if asked or wrong else "-"
    cells = [goal.title(), str(len(ratios)), f"{mean:.2f}", f"{worst[0]:.2f} ({worst[1]})"]
    return [*cells, ", ".join(asked) or "-", answer, "; ".join(notes)]


def _without(row: Row, ending: str) -> Row:
    times = {name: time for name, time in row["milliseconds"].items() if not name.endswith(ending)}
    return {**row, "milliseconds": times}


def _below(limit: Limit, rows: Sequence[Row]) -> list[str] | None:
    unit = 1e3 if limit.unit == "us" else 1.0
    for row in rows:
        times = {name: time * unit for name, time in row["milliseconds"].items()}
        if (row["section"], row["label"]) == (limit.section, limit.label) and limit.way in times:
            found = times.pop(limit.way)
            others = ", ".join(f"{name} {time:.4g}" for name, time in times.items())
            asked, answer = f"at most {limit.most:g} {limit.unit}", "yes" if found <= limit.most else "NO"
            title = f"{limit.section}, {limit.label}"
            return [title, "1", f"{found:.4g} {limit.unit}", "", asked, answer, others]
    return None


def read(paths: Iterable[str]) -> list[Row]:
    """Read the rows of files, by section."""
    sections: dict[str, list[Row]] = {}
    for path in paths:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = [{**row, "entries": found.get("entries", {}).get(row["matrix"], 0)} for row in found["rows"]]
        for name in dict.fromkeys(row["section"] for row in rows):
            sections[name] = [row for row in rows if row["section"] == name]
    return [row for rows in sections.values() for row in rows]


def table(rows: Sequence[Row]) -> str:
    """Return every goal that something was measured for, and whether it holds."""
    entries = {row["matrix"]: row["entries"] for row in rows if row.get("entries")}
    lines = ["| | n | mean | worst | asked | holds | |", "|---|---|---|---|---|---|---|"]
    for goal in GOALS:
        cells = judged(goal, rows, entries)
        if cells is not None:
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read(sys.argv[1:])))
