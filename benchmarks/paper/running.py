"""What all scripts of the paper's figures share: options, fair timing, tables, plots and files of numbers."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.overhead import machine

Item = TypeVar("Item")
PICTURES = (".png", ".svg", ".pdf")


@dataclass
class Row:
    """One measurement: what was run on what, the median time of each contestant in milliseconds.

    ``ours`` and ``theirs`` begin the names of the contestants whose best are compared. ``facts`` are numbers
    that must agree (accuracy, loss); ``left_out`` says why a contestant did not run.
    """

    on: str
    what: str
    times: dict[str, float]
    ours: str = "Scorch"
    theirs: str = "torch"
    facts: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def best(self, begin: str) -> float | None:
        found = [time for name, time in self.times.items() if name.startswith(begin)]
        return min(found) if found else None

    @property
    def ratio(self) -> float | None:
        """How many times faster the best of ours is than the best of theirs."""
        ours, theirs = self.best(self.ours), self.best(self.theirs)
        return None if ours is None or theirs is None else theirs / ours

    @property
    def to_dense(self) -> float | None:
        """The same against a contestant called dense, which may be none of theirs."""
        ours, dense = self.best(self.ours), self.best("dense")
        return None if ours is None or dense is None else dense / ours


@dataclass
class Report:
    """All rows of a figure, and where the data came from."""

    title: str
    threads: int
    sources: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Milliseconds, the ratio, and facts, in Markdown: one table for rows with the same contestants."""
        groups = [
            list(rows) for _, rows in itertools.groupby(self.rows, key=lambda row: frozenset(row.times))
        ]
        return "\n\n".join(_table(rows) for rows in groups)

    def summary(self) -> list[str]:
        """The geometric mean of the ratios, losses, and what was left out and made up."""
        ratios = {f"{row.on}, {row.what}": row.ratio for row in self.rows if row.ratio is not None}
        found = []
        if len(ratios) > 1:
            found.append(f"geometric mean of the ratios: {geometric_mean(ratios.values()):.2f}")
        lost = [f"{name} ({ratio:.2f})" for name, ratio in ratios.items() if ratio < 1]
        found.append(f"losses: {', '.join(lost) if lost else 'none'}")
        dense = {f"{row.on}, {row.what}": row.to_dense for row in self.rows if row.to_dense is not None}
        faster = [f"{name} ({ratio:.2f})" for name, ratio in dense.items() if ratio < 1]
        if faster:
            found.append(f"dense is faster: {', '.join(faster)}")
        out = {f"{name}: {why}": None for row in self.rows for name, why in row.left_out.items()}
        return [*found, *(f"left out: {text}" for text in out), *self.notes]

    def _theirs(self) -> str:
        return " or ".join(dict.fromkeys(row.theirs for row in self.rows)) or "the others"

    def show(self) -> str:
        sources = "; ".join(f"{name}: {source}" for name, source in self.sources.items())
        head = f"{self.title}\n{machine()}, {self.threads} threads; medians in milliseconds\n{sources}\n"
        head += f"ratio: the best of {self._theirs()} over the best of Scorch; above 1 Scorch is faster\n"
        return "\n".join([head, self.table(), "", *(f"- {line}" for line in self.summary())])


def _table(rows: Sequence[Row]) -> str:
    names = list(rows[0].times)
    facts = list(dict.fromkeys(name for row in rows for name in row.facts))
    head = ["data", "what", *names, "ratio", *facts]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [f"{row.times[name]:.3g}" for name in names]
        cells.append("-" if row.ratio is None else f"{row.ratio:.2f}")
        cells += [f"{row.facts[name]:.4g}" if name in row.facts else "-" for name in facts]
        lines.append(f"| {row.on} | {row.what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def geometric_mean(numbers: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(number) for number in numbers))


# options ---------------------------------------------------------------------------------------------


def parser(about: str) -> argparse.ArgumentParser:
    """The options that all scripts take."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--data", type=Path, metavar="DIR", help="real data; without it, made up data")
    made.add_argument("--download", action="store_true", help="fetch what DIR does not have")
    made.add_argument("--threads", type=int, default=torch.get_num_threads())
    made.add_argument("--runs", type=int, default=50, help="timed runs of each contestant")
    made.add_argument("--quick", action="store_true", help="small, to see that it works: not for numbers")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios there (png, svg, pdf)")
    return made


def started(options: argparse.Namespace, title: str) -> Report:
    """Threads set and a report begun."""
    if options.download and options.data is None:
        raise SystemExit("--download needs --data DIR, where to keep what is fetched")
    if options.data is not None and not options.data.is_dir() and not options.download:
        raise SystemExit(f"--data: there is no folder {options.data}; without --data, data is made up")
    if options.threads < 1 or options.runs < 1:
        raise SystemExit("--threads and --runs are numbers from 1 on")
    for name in ("json", "plot"):
        file = getattr(options, name)
        if file is not None and not file.absolute().parent.is_dir():
            raise SystemExit(f"--{name}: there is no folder {file.parent}")
    if options.plot is not None and options.plot.suffix not in PICTURES:
        raise SystemExit(f"--plot: a file that ends in {', '.join(PICTURES)}, not {options.plot}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return Report(title + (" (--quick: not for numbers)" if options.quick else ""), options.threads)


def finished(report: Report, options: argparse.Namespace) -> int:
    """Print the report, and write what was asked for."""
    print(report.show())
    if options.json is not None:
        found = {
            "machine": machine(),
            "date": datetime.date.today().isoformat(),
            "command": " ".join(["python -m", _module(), *sys.argv[1:]]),
            **asdict(report),
        }
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if options.plot is not None:
        plot(report, options.plot)
    return 0


def _module() -> str:
    """The script that runs, as ``python -m`` knows it."""
    return f"benchmarks.paper.{Path(sys.argv[0]).stem}"


def progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """``items`` with a bar on the screen; none where nobody looks."""
    is_seen = sys.stderr.isatty()
    for number, item in enumerate(items):
        if is_seen:
            done = 30 * number // len(items)
            print(f"\r{what:<40.40} [{'#' * done:<30}] {number}/{len(items)}", end="", file=sys.stderr)
        yield item
    if is_seen:
        print("\r" + " " * 90 + "\r", end="", file=sys.stderr)


# timing ----------------------------------------------------------------------------------------------


TURN = 2e-3  # seconds: a contestant that is faster runs several times in its turn


def contest(
    calls: dict[str, Callable[[], Any]], runs: int, warm_ups: int, what: str = ""
) -> dict[str, float]:
    """The median time of each in milliseconds over ``runs`` turns, which they take one after the other."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        for _ in range(warm_ups):
            call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, math.ceil(TURN / (time.perf_counter() - start)))
    for _ in progress(range(runs), what):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) * 1e3 / repeats[name])
    return {name: statistics.median(found) for name, found in times.items()}


def agreeing(
    calls: dict[str, Callable[[], torch.Tensor]], tolerance: float = 1e-3
) -> tuple[dict[str, Callable[[], torch.Tensor]], dict[str, str]]:
    """Those contestants that give what the first gives, and what is wrong with the others."""
    able: dict[str, Callable[[], torch.Tensor]] = {}
    left_out: dict[str, str] = {}
    reference: torch.Tensor | None = None
    for name, call in calls.items():
        try:
            found = call().detach()
        except Exception as error:
            if reference is None:
                raise
            left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
            continue
        reference = found if reference is None else reference
        apart = float((found - reference).abs().max() / reference.abs().max().clamp(min=1e-12))
        if apart <= tolerance:
            able[name] = call
        else:
            left_out[name] = f"differs from {next(iter(calls))} by {apart:.1e}"
    return able, left_out


# plots -----------------------------------------------------------------------------------------------


def plot(report: Report, path: Path) -> None:
    """Bars of how many times faster each contestant is than the best of theirs; a line at one."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: it needs matplotlib (pip install matplotlib)", file=sys.stderr)
        return
    names = list(dict.fromkeys(name for row in report.rows for name in row.times))
    width = 0.8 / len(names)
    figure = Figure(figsize=(2.5 + 0.35 * len(names) * len(report.rows), 4.2), layout="constrained")
    axes = figure.subplots()
    shades = colormaps["tab20" if len(names) > 10 else "tab10"].colors  # type: ignore[attr-defined]
    colours = {name: shades[number % len(shades)] for number, name in enumerate(names)}
    for place, row in enumerate(report.rows):
        base = row.best(row.theirs) or next(iter(row.times.values()))
        for number, (name, found) in enumerate(row.times.items()):
            bar = axes.bar(place + (number - (len(row.times) - 1) / 2) * width, base / found, width * 0.95)
            bar[0].set_color(colours[name])
            axes.bar_label(bar, fmt="%.2g", fontsize=7)
    axes.axhline(1, color="0.4", linewidth=0.8)
    axes.set_xticks(range(len(report.rows)), [f"{row.on}\n{row.what}" for row in report.rows], fontsize=8)
    axes.set_ylabel("times as fast as the best of torch")
    axes.set_title(report.title, fontsize=10)
    handles = [axes.plot([], [], color=colours[name], linewidth=6, label=name)[0] for name in names]
    figure.legend(handles=handles, fontsize=7, loc="outside right upper")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
