"""``python -m tools.what_works``: run the PyTorch operators on sparse tensors, and write a coverage page."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from tools.what_works.check import OUTCOMES
from tools.what_works.operators import DTYPES, FORMATS, MissingPackageError, all_operators, family
from tools.what_works.page import write_page
from tools.what_works.tally import Report, tallied
from tools.what_works.workers import Call, Task, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "what-works.md"
DEFAULT_SAMPLES = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where everything passed or was refused with a clear error, 1 else, 2 for wrong input."""
    options = make_parser().parse_args(arguments)
    try:
        report = make_report(options, list(arguments or sys.argv[1:]))
    except (MissingPackageError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        Path(options.json).write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
    if options.page:
        Path(options.page).write_text(write_page(report), encoding="utf-8")
        print(f"wrote {options.page}")
    return 1 if show(report) else 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.what_works",
        description="Run the PyTorch operators on sparse tensors in every format and dtype.",
    )
    parser.add_argument("--operators", default="", metavar="PATTERN", help="only those whose name matches")
    parser.add_argument("--formats", default=" ".join(FORMATS), help="separated by spaces (default: all)")
    parser.add_argument("--dtypes", default=" ".join(DTYPES), help="separated by spaces (default: all)")
    parser.add_argument("--samples", type=int, default=DEFAULT_SAMPLES, metavar="N", help="of each operator")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where the tensors are, such as cuda")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="for one call")
    parser.add_argument("--total", type=float, default=math.inf, metavar="SECONDS", help="for all calls")
    parser.add_argument("--json", metavar="FILE", help="write all counts and messages")
    parser.add_argument(
        "--read",
        metavar="FILE",
        help="take the counts that --json wrote; with --operators try only those again",
    )
    parser.add_argument("--page", metavar="FILE", help=f"write the page (the one in the docs is {PAGE.name})")
    return parser


def make_report(options: argparse.Namespace, arguments: Sequence[str]) -> Report:
    if not options.read:
        return try_all(options, arguments)
    earlier = Report.from_dict(json.loads(Path(options.read).read_text(encoding="utf-8")))
    return earlier.updated(try_all(options, arguments)) if options.operators else earlier


def try_all(options: argparse.Namespace, arguments: Sequence[str]) -> Report:
    formats = _chosen("format", options.formats, FORMATS)
    dtypes = _chosen("dtype", options.dtypes, tuple(DTYPES))
    found = all_operators()
    operators = {name: infos for name, infos in found.items() if re.search(options.operators, name)}
    if not operators:
        raise ValueError(f"no operator matches {options.operators!r}; there are {', '.join(sorted(found))}")
    tasks = [
        Task(name, dtype, formats, options.samples, device=options.device)
        for name, infos in operators.items()
        for dtype in dtypes
        if any(info.supports_dtype(DTYPES[dtype], "cpu") for info in infos)
    ]
    begin, done = time.monotonic(), 0
    calls: list[Call] = []
    told: set[tuple[str, str, str]] = set()
    for event in run(operators, tasks, max(1, options.jobs), options.limit):
        if isinstance(event, Call):
            calls.append(event)
            _tell(event, told)
        else:
            done += 1
            seconds = time.monotonic() - begin
            _progress(
                f"{done} of {len(tasks)}  {seconds:.0f} s  {event.operator} {event.dtype}", done % 100 == 0
            )
        if time.monotonic() - begin > options.total:
            print(f"{done} of {len(tasks)} operators with a dtype were tried: out of time", flush=True)
            break
    _progress("")
    families = {name: family(infos[0]) for name, infos in operators.items()}
    command = shlex.join(["python", "-m", "tools.what_works", *_without_files(arguments)])
    return Report(
        families, tallied(calls), torch.__version__.split("+")[0], command, time.monotonic() - begin
    )


def _chosen(what: str, given: str, known: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(given.split())
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise ValueError(
            f"there is no {what} {unknown[0] if unknown else given!r}; there are {', '.join(known)}"
        )
    return chosen


def _without_files(arguments: Sequence[str]) -> list[str]:
    """The arguments that matter for the result, and the name of the page in the docs."""
    options = make_parser().parse_args(list(arguments))
    kept = []
    for name, default in (("operators", ""), ("formats", " ".join(FORMATS)), ("dtypes", " ".join(DTYPES))):
        if getattr(options, name) != default:
            kept += [f"--{name}", getattr(options, name)]
    if options.samples != DEFAULT_SAMPLES:
        kept += ["--samples", str(options.samples)]
    if options.device != "cpu":
        kept += ["--device", options.device]
    return [*kept, "--page", f"docs/{PAGE.name}"]


def _progress(text: str, is_rare: bool = False) -> None:
    """A line that the next one replaces; in a file only a rare one is written."""
    if is_rare and not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _tell(call: Call, told: set[tuple[str, str, str]]) -> None:
    """Print what should not be, once for each operator and dtype."""
    kind = call.outcome.kind
    key = (kind, call.operator, call.dtype)
    if kind not in ("passed", "refused") and key not in told:
        told.add(key)
        _progress("")
        where = f"{call.operator} {call.dtype} {call.format}, {call.variant} sparse"
        print(f"{kind}: {where}: {call.outcome.message[:150]}", flush=True)


def show(report: Report) -> int:
    """Print how many calls ended how; returns the number of those that should not have."""
    counts = {kind: sum(tally.counts.get(kind, 0) for tally in report.tallies) for kind in OUTCOMES}
    print(", ".join(f"{number:,} {kind}" for kind, number in counts.items()))
    return sum(number for kind, number in counts.items() if kind not in ("passed", "refused"))


if __name__ == "__main__":
    sys.exit(main())
