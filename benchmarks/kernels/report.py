"""Markdown from results: what was promised, geometric means, the worst cases, and a table by matrix."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kernels.cases import OURS
from benchmarks.kernels.matrix_kernels import LIMITS
from benchmarks.kernels.results import Measured, Results, geometric_mean
from benchmarks.kernels.switches import ALL_ON, NAMES, idle
from scorch.settings import OPTIMIZATIONS

MANY = 10_000  # entries from which on a matrix counts for the goals
LOST = 0.9  # of the best contestant; below it a matrix is named


@dataclass(frozen=True)
class Goal:
    """The geometric mean against torch's best, or another contestant, that a kernel should reach."""

    label: str
    least: float
    rival: str = "torch"

    def ratio(self, case: Measured) -> float | None:
        return case.against_torch() if self.rival == "torch" else case.against(self.rival)


PEERS = ("torch", "SciPy")
GOALS = [
    Goal("SpMM k=32", 2.0),
    Goal("SpMM k=128", 2.0),
    Goal("SDDMM k=64, Y by rows", 2.0),
    Goal("SDDMM k=64, Y by columns", 2.0, "torch CSR int32, Y by columns"),  # which is given the same
    Goal("SpMSpM A @ A.T", 1.3),
    Goal("A + shifted", 1.5),
    Goal("A + A.T", 1.5),
    Goal("A * shifted", 1.5),
    Goal("A * A.T", 1.5),
    Goal("SpMV", 1.0),
    Goal("MTTKRP r=32", 3.0),
    Goal("S[256 rows]", 0.83, "SciPy"),
    Goal("S[all rows]", 0.83, "SciPy"),
    *(
        Goal(label, 1.0, rival)
        for label in ("cat of rows", "cat of columns", "A.T in CSR", "CSR to CSC", "CSC to CSR", "CSR to COO")
        for rival in PEERS
    ),
    *(Goal(label, 1.0, rival) for label in ("COO to CSR", "sum(1)", "sum(0)") for rival in PEERS),
]
TITLES = {
    "kernels": "Kernels on {architecture}",
    "threads": "Kernels by number of threads on {architecture}",
    "switches": "What each optimization contributes on {architecture}",
}


def report(results: Results, images: Sequence[Path] = (), relative_to: Path | None = None) -> str:
    """The section of one run."""
    parts = [
        f"## {TITLES[results.mode].format(architecture=results.architecture)}",
        f"    {results.command}",
        f"{results.machine}. {results.data}.",
    ]
    if results.mode == "switches":
        parts += _switches(results)
    else:
        judged = 2 if 2 in results.threads() else max(results.threads())
        parts.append(_how())
        parts.append(_spread(results))
        parts += _wrong(results)
        parts += _goals(results, judged)
        if len(results.threads()) > 2:
            parts += _scaling(results)
        parts += _means(results)
        parts += _contestants(results, judged)
        parts += _plots(images, relative_to)
        parts += _losses(results, judged)
        parts += _by_matrix(results, judged)
    parts += _skipped(results)
    if results.mode == "switches":
        parts += _wrong(results)
    return "\n\n".join(parts) + "\n"


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the part of a file between this section's marks, or add it at the end; the rest stays."""
    first, last = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    block = f"{first}\n{text}{last}\n"
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    pattern = re.compile(re.escape(first) + r".*?" + re.escape(last) + r"\n?", re.DOTALL)
    if pattern.search(old):
        new = pattern.sub(lambda _: block, old, count=1)
    else:
        new = old.rstrip("\n") + ("\n\n" if old.strip() else "") + block
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(new, encoding="utf-8")


# small pieces ----------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, the first ``left`` columns aligned to the left."""
    line = "|" + "|".join("---" if column < left else "--:" for column in range(len(head))) + "|"
    return "\n".join(["| " + " | ".join(cells) + " |" for cells in [head]] + [line] + [
        "| " + " | ".join(row) + " |" for row in rows
    ])  # fmt: skip


def ratio(value: float | None, least: float | None = None) -> str:
    """A ratio, bold where it is below ``least``."""
    if value is None:
        return ""
    text = f"{value:.2f}" if value < 9.95 else f"{value:.0f}"
    return f"**{text}**" if least is not None and value < least else text


def duration(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit or name == "µs":
            return f"{seconds / unit:.3g} {name}"
    raise AssertionError(seconds)


def threads_word(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def worst(cases: Sequence[Measured], of: Callable[[Measured], float | None]) -> str:
    found = [(value, case.matrix) for case in cases if (value := of(case)) is not None]
    return f"{ratio(min(found)[0])} ({min(found)[1]})" if found else ""


# sections --------------------------------------------------------------------------------------------


def _how() -> str:
    return (
        "float32, warm calls. A ratio above 1 means that Scorch is faster; **bold** ratios miss the goal, or "
        f"are below {LOST} of the speed of the fastest implementation. Every result is checked against "
        "float64 before it is timed. Implementations run in turns in random order, in samples of at least "
        "five milliseconds after an untimed call, and medians are compared; those that take ten times as "
        "long as the fastest are called only a few times. Layouts are prepared beforehand.\n\n"
        "*torch* is the best of its sparse layouts (CSR with int32 and int64 indices, COO) and of equivalent "
        "calls, case by case; *best* is the fastest of all, including dense torch, SciPy and loops. "
        "SciPy uses one thread. SpMSpM returns CSR with sorted rows; all but Scorch get A.T as an input. "
        f"*Shifted* is A with its rows moved down by one. Limits: {LIMITS}."
    )


def _spread(results: Results) -> str:
    """How steady the machine was."""
    spreads = sorted(t.spread for case in results.measured for t in case.times.values())
    half, most = spreads[len(spreads) // 2], spreads[len(spreads) * 9 // 10]
    return (
        f"Spread (half the range of the middle samples, over the median): {half:.0%} or less in half of the "
        f"timings, {most:.0%} or less in nine tenths."
    )


def _goals(results: Results, threads: int) -> list[str]:
    rows = []
    for goal in GOALS:
        cases = results.select(goal.label, threads)
        if not cases:
            continue
        is_tensor = cases[0].group == "tensors"
        large = [case for case in cases if is_tensor or case.nnz >= MANY]
        found = geometric_mean(goal.ratio(case) for case in large)
        if found is None:
            continue
        rows.append(
            (
                goal.label,
                goal.rival,
                f"{goal.least:g}",
                ratio(found, goal.least),
                "yes" if found >= goal.least else "no",
                ratio(geometric_mean(goal.ratio(case) for case in cases)),
                worst(large, goal.ratio),
            )
        )
    head = (
        "kernel",
        "against",
        "goal",
        f"its time / Scorch's, at least {MANY:,} entries",
        "met",
        "all matrices",
        "worst of the large",
    )
    title = f"### Goals, {threads_word(threads)}"
    text = f"{title}\n\nGeometric means over matrices; tensors of all sizes count.\n\n"
    return [text + table(head, rows)] if rows else []


def _means(results: Results) -> list[str]:
    parts = []
    for threads in results.threads():
        rows = []
        for label in results.labels():
            cases = results.select(label, threads)
            if not any(OURS in case.times for case in cases):
                continue
            lost = sum((case.against_best() or 1) < LOST for case in cases)
            rows.append(
                (
                    label,
                    str(len(cases)),
                    ratio(geometric_mean(case.against_torch() for case in cases)),
                    worst(cases, Measured.against_torch),
                    ratio(geometric_mean(case.against_best() for case in cases)),
                    worst(cases, Measured.against_best),
                    str(lost),
                )
            )
        head = ("kernel", "cases", "torch / Scorch", "worst", "best / Scorch", "worst", f"below {LOST}")
        parts.append(f"### Geometric means, {threads_word(threads)}\n\n" + table(head, rows))
    return parts


def _contestants(results: Results, threads: int) -> list[str]:
    """Against each contestant by itself: a table for each kernel, as names differ."""
    rows = []
    for label in results.labels():
        cases = results.select(label, threads)
        names = dict.fromkeys(name for case in cases for name in case.times if name != OURS)
        cells = []
        for name in names:
            ratios = [found for case in cases if (found := case.against(name)) is not None]
            mean = geometric_mean(ratios)
            if mean is not None:
                part = "" if len(ratios) == len(cases) else f" (on {len(ratios)})"
                extra = ", not counted" if any(name in case.extras for case in cases) else ""
                cells.append(f"{name}{extra} {ratio(mean)}{part}")
        if cells:
            rows.append((label, str(len(cases)), "; ".join(cells)))
    text = (
        f"### Compared with each implementation, {threads_word(threads)}\n\n"
        "Its time over Scorch's, geometric mean over the cases it took part in.\n\n"
    )
    return [text + table(("kernel", "cases", "implementations"), rows, left=3)] if rows else []


def _plots(images: Sequence[Path], relative_to: Path | None) -> list[str]:
    parts = []
    for image in images:
        where = Path(os.path.relpath(image, relative_to)) if relative_to is not None else image
        parts.append(f"![{image.stem.replace('-', ' ')}: time against entries]({where.as_posix()})")
    return ["### Time against entries", *parts] if parts else []


def _losses(results: Results, threads: int) -> list[str]:
    """Every matrix on which another contestant is clearly faster."""
    rows = []
    for label in results.labels():
        cases = results.select(label, threads)
        lost = sorted(
            (found, case) for case in cases if (found := case.against_best()) is not None and found < LOST
        ) if len(cases) else []  # fmt: skip
        names = []
        for found, case in lost:
            best = case.best()
            assert best is not None
            names.append(f"{case.matrix} {found:.2f} ({best[0]})")
        if names:
            rows.append((label, f"{len(names)} of {len(cases)}", "; ".join(names)))
    title = f"### Slower cases, {threads_word(threads)}"
    if not rows:
        return [f"{title}\n\nNo case is below {LOST} of the speed of the fastest implementation."]
    text = (
        f"{title}\n\nCases below {LOST} of the speed of the fastest implementation, which is in "
        "parentheses.\n\n"
    )
    return [text + table(("kernel", "slower", "matrices"), rows, left=3)]


def _by_matrix(results: Results, threads: int) -> list[str]:
    """One table for each kernel, folded."""
    parts = [
        f"### By matrix, {threads_word(threads)}\n\n"
        "Scorch's time, then torch / Scorch and best / Scorch; bold where the last is below "
        f"{LOST}."
    ]
    for kernel in dict.fromkeys(case.kernel for case in results.measured):
        labels = [
            label
            for label in results.labels()
            if any(case.kernel == kernel for case in results.select(label, threads))
        ]
        by_place = {(case.matrix, label): case for label in labels for case in results.select(label, threads)}
        matrices = {case.matrix: case for case in by_place.values()}
        rows = []
        for case in sorted(matrices.values(), key=lambda case: (case.nnz, case.matrix)):
            shape = " x ".join(f"{size:,}" for size in case.shape)
            cells = [_cell(by_place.get((case.matrix, label))) for label in labels]
            rows.append((case.matrix, shape, f"{case.nnz:,}", *cells))
        body = table(("matrix", "shape", "entries", *labels), rows)
        parts.append(f"<details><summary>{', '.join(labels)}</summary>\n\n{body}\n\n</details>")
    return parts


def _cell(case: Measured | None) -> str:
    if case is None or OURS not in case.times:
        return ""
    both = f"{ratio(case.against_torch()) or '-'} / {ratio(case.against_best(), LOST) or '-'}"
    return f"{duration(case.median(OURS))}, {both}"


def _scaling(results: Results) -> list[str]:
    """How many times as fast kernels are with more threads, on matrices large enough to share."""
    counts = results.threads()
    largest = max(case.nnz for case in results.measured)
    least = min(100_000, largest)
    rows = []
    for label in results.labels():
        for name, pick in (
            ("Scorch", lambda case: case.median(OURS) if OURS in case.times else None),
            ("torch", lambda case: found[1] if (found := case.best_torch()) else None),
        ):
            at = {
                count: {case.matrix: pick(case) for case in results.select(label, count) if case.nnz >= least}
                for count in counts
            }
            alone = at[counts[0]]
            if not any(alone.values()):
                continue
            cells = []
            for count in counts:
                speedups = [
                    first / now for matrix, now in at[count].items() if now and (first := alone.get(matrix))
                ]
                cells.append(ratio(geometric_mean(speedups)))
            mean = geometric_mean(alone.values())
            rows.append((label, name, str(len(alone)), duration(mean) if mean else "", *cells))
    first = threads_word(counts[0])
    head = ("kernel", "implementation", "matrices", f"mean time, {first}", *(threads_word(n) for n in counts))
    text = (
        f"### Speedup by number of threads\n\nCompared with {first}, geometric mean over matrices with at "
        f"least {least:,} entries; *torch* is its best at each number.\n\n"
    )
    return [text + table(head, rows, left=2)] if rows else []


def _switches(results: Results) -> list[str]:
    parts = [
        "The time of each kernel with all optimizations, and how many times as long it takes with one of "
        "them turned off (`scorch.settings(disable=NAME)`) and with all of them turned off; a dot: less than "
        "3% difference. Since calls with an optimization turned off have more overhead, they are compared "
        "with a call with an irrelevant one turned off: `buckets`, or `dense` in conversions.",
        "\n".join(f"- `{name}`: {text}" for name, text in OPTIMIZATIONS.items()),
    ]
    for threads in results.threads():
        rows = []
        for label in results.labels():
            for case in results.select(label, threads):
                cells = []
                base = case.times.get(f"without {idle(label)}")
                for name in NAMES:
                    found = case.times.get(f"without {name}")
                    slower = found.median / base.median if found and base else None
                    is_same = slower is not None and 0.97 < slower < 1.03
                    cells.append("·" if is_same else ratio(slower))
                alone = duration(case.median(ALL_ON)) if ALL_ON in case.times else ""
                rows.append((label, case.matrix, alone, *cells))
        head = ("kernel", "matrix", "all on", *NAMES)
        parts.append(f"### {threads_word(threads).capitalize()}\n\n" + table(head, rows, left=2))
    return parts


def _wrong(results: Results) -> list[str]:
    if not results.wrong:
        return []
    return ["### Wrong results, not timed\n\n" + "\n".join(f"- {line}" for line in results.wrong)]


def _skipped(results: Results) -> list[str]:
    """Who did not take part and why, the same reason once."""
    reasons: dict[tuple[str, str], dict[str, int]] = {}
    for key, count in results.skipped.items():
        label, contestant, reason = key.split(" | ", 2)
        reasons.setdefault((contestant, reason), {})[label] = count
    lines = []
    for (contestant, reason), labels in sorted(reasons.items()):
        where = ", ".join(f"{label} ({count})" for label, count in labels.items())
        lines.append(f"- {contestant}: {reason}: {where}")
    if not lines:
        return []
    return ["### Not measured\n\nIn parentheses: on how many matrices.\n\n" + "\n".join(lines)]
