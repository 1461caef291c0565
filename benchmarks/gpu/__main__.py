"""Scorch beside torch on a GPU: kernels, graph networks, attention, and what calls cost the host.

    python -m benchmarks.gpu                              all sections, on made up matrices
    python -m benchmarks.gpu --data DIR --seconds 60      on the matrices of a directory
    python -m benchmarks.gpu --only spmv,spmm32           some sections
    python -m benchmarks.gpu --device cpu --tiny          that everything runs, where there is no GPU

Times are medians of single calls between two events, in milliseconds; contestants take turns in a new order
every round, and each is compared with the right answer before. "floor" is the time in which a copy moves the
bytes that the operation must move at least. torch is shown at the best of its layouts. DIR has folders
``suitesparse``, ``ogbn_arxiv`` and ``tensors``.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import attention, fused, host, kernels, networks, tensors, unions
from benchmarks.gpu.cases import OURS, Case, Measured, first_line, measure
from benchmarks.gpu.matrices import Matrix, Source, sources
from benchmarks.gpu.timing import Device
from benchmarks.kernels.results import geometric_mean

# Sections with data of their own, given a device, a directory and whether to be tiny.
MODELS: dict[str, Callable[[str, Path | None, bool], Iterator[Case]]] = {
    **networks.SECTIONS,
    **attention.SECTIONS,
    **tensors.SECTIONS,
    **unions.SECTIONS,
}
# Sections that measure by themselves, given a device, seconds and whether to be tiny.
OTHERS: dict[str, Callable[[Device, float, bool], Iterator[Measured]]] = {
    "host": host.host,
    "compile": host.compile_times,
}
OPERATIONS = {**kernels.SECTIONS, "fused": fused.fused}
SECTIONS = [*OPERATIONS, *MODELS, *OTHERS]


def machine(device: Device) -> dict[str, str]:
    """Say what the numbers were measured with."""
    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda), "device": device.name}
    if device.is_cuda:
        found["device"] = torch.cuda.get_device_name()
        try:
            found["driver"] = subprocess.run(
                ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                timeout=30,
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            found["driver"] = "unknown"
    return found


class Run:
    """What has been measured so far; every row is shown, and saved, as soon as it is there."""

    def __init__(self, device: Device, options: argparse.Namespace) -> None:
        self.device, self.options = device, options
        self.rows: list[Measured] = []
        self.made: dict[str, Matrix] = {}
        if options.add and options.json and options.json.is_file():
            self.rows = [Measured.unpacked(row) for row in json.loads(options.json.read_text())["rows"]]
        self.told: set[tuple[str, str, str]] = set()
        self.bandwidth = device.bandwidth()
        self.about = {**machine(device), "copy_bytes_per_second": self.bandwidth}

    def take(self, row: Measured) -> None:
        self.rows.append(row)
        print(shown(row), flush=True)
        for name, why in row.failed.items():
            told = row.section, name, why
            if name == OURS or told not in self.told:  # what torch lacks is said once
                print(f"    {name} failed: {why}", flush=True)
            self.told.add(told)
        if self.options.json:
            self.save(self.options.json)

    def save(self, path: Path) -> None:
        content: dict[str, Any] = {
            "machine": self.about,
            "date": time.strftime("%Y-%m-%d"),
            "summary": summary(self.rows),
            "rows": [row.packed() for row in self.rows],
            "entries": {name: matrix.nnz for name, matrix in self.made.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")

    def section(self, name: str, chosen: Sequence[Source]) -> None:
        """Measure one section; its cases share the seconds that it has."""
        print(f"\n## {name}", flush=True)
        options = self.options
        try:
            if name in OTHERS:
                for row in OTHERS[name](self.device, options.seconds, options.tiny):
                    self.take(row)
            elif name in MODELS:
                for case in MODELS[name](self.device.name, options.data, options.tiny):
                    self.case(case, options.seconds / 4)
                    clean(self.device)
            else:
                self.kernels(name, chosen)
        except Exception as problem:
            self.failed(name, problem)

    def kernels(self, name: str, chosen: Sequence[Source]) -> None:
        """Measure a section on each matrix for which there is time."""
        made = self.made
        end = time.perf_counter() + self.options.seconds
        for number, source in enumerate(chosen):
            left = end - time.perf_counter()
            if left <= 0:
                names = ", ".join(source.name for source in chosen[number:])
                print(f"out of time: {names} left out", flush=True)
                break
            try:
                if source.name not in made:
                    made[source.name] = source.make(self.device.name)
                cases = list(OPERATIONS[name](made[source.name]))
            except Exception as problem:
                self.failed(f"{name} {source.name}", problem)
                continue
            for case in cases:
                self.case(case, max(0.02, left / (2 * len(cases) * (len(chosen) - number))))
                if self.device.is_broken():
                    return
            del cases
            clean(self.device)

    def failed(self, what: str, problem: Exception) -> None:
        print(f"{what} failed: {first_line(problem)}", flush=True)
        if self.options.traces:
            traceback.print_exc()

    def case(self, case: Case, seconds: float) -> None:
        try:
            self.take(measure(case, self.device, seconds, self.bandwidth, self.options.traces))
        except Exception as problem:
            self.failed(f"{case.label} {case.matrix}", problem)


def clean(device: Device) -> None:
    gc.collect()
    if device.is_cuda:
        torch.cuda.empty_cache()


def shown(row: Measured) -> str:
    """Show a row as a line, and a line for each wrong result."""
    is_host = row.section in ("host", "compile")
    unit = 1e6 if row.section == "host" else 1e3
    ratio = row.ratio()
    cells = [f"{name} {timing.median * unit:.4g}" for name, timing in row.times.items()]
    text = f"{row.matrix:<28} {row.label:<28}"
    text += f" x{ratio:5.2f} |" if ratio is not None else "        |"
    if not is_host:
        text += f" floor {row.floor * 1e3:.4f} |"
    lines = [f"{text} {', '.join(cells)}" + (" us" if row.section == "host" else "")]
    lines += [f"    WRONG {name}: relative error {gap:.1e}" for name, gap in row.errors.items()]
    return "\n".join(lines)


def summary(rows: Sequence[Measured]) -> dict[str, dict[str, Any]]:
    """The geometric mean of ratios and the worst of each label, and what was wrong or failed."""
    found: dict[str, dict[str, Any]] = {}
    for label in dict.fromkeys((row.section, row.label) for row in rows):
        mine = [row for row in rows if (row.section, row.label) == label]
        ratios = {row.matrix: ratio for row in mine if (ratio := row.ratio()) is not None}
        mean = geometric_mean(ratios.values())
        if mean is None and not any(OURS in {**row.failed, **row.errors} for row in mine):
            continue
        worst = min(ratios.items(), key=lambda item: item[1], default=None)
        floors = [row.times[OURS].median / row.floor for row in mine if row.floor and OURS in row.times]
        found[f"{label[0]}: {label[1]}"] = {
            "geometric_mean": mean,
            "worst": worst,
            "times_floor": geometric_mean(floors),
            "matrices": len(ratios),
            "wrong": [row.matrix for row in mine if OURS in row.errors],
            "failed": [row.matrix for row in mine if OURS in row.failed],
        }
    return found


def report(rows: Sequence[Measured]) -> str:
    """The summary as a table."""
    lines = [
        "| section | matrices | x torch | worst | times the floor | wrong | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, row in summary(rows).items():
        mean, worst, floor = row["geometric_mean"], row["worst"], row["times_floor"]
        cells = [
            label,
            row["matrices"],
            f"{mean:.2f}" if mean else "-",
            f"{worst[1]:.2f} ({worst[0]})" if worst else "-",
            f"{floor:.1f}" if floor else "-",
            len(row["wrong"]),
            len(row["failed"]),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see that it runs")
    parser.add_argument("--only", default="", metavar="A,B", help=f"some of {', '.join(SECTIONS)}")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each section (30)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="matrices; without it, made up ones")
    parser.add_argument("--matrices", default="", metavar="A,B", help="those whose names have one of these")
    parser.add_argument("--tiny", action="store_true", help="tiny matrices: a test of this program")
    parser.add_argument("--no-flush", action="store_true", help="leave the device's cache as calls leave it")
    parser.add_argument("--traces", action="store_true", help="print the whole trace of what fails")
    parser.add_argument("--add", action="store_true", help="keep what the file of --json has already")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go")
    options = parser.parse_args(arguments)
    for name in filter(None, options.only.split(",")):
        if name not in SECTIONS:
            parser.error(f"there is no section {name!r}; there are {', '.join(SECTIONS)}")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --tiny shows that the program runs")
    return options


def go_on(arguments: Sequence[str], names: Sequence[str]) -> int:
    """Measure the sections ``names`` in a process of its own, and add them to what is saved."""
    if names:
        words = [*arguments, "--add", "--only", ",".join(names)]
        subprocess.run([sys.executable, "-m", "benchmarks.gpu", *words], check=False)
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    warnings.filterwarnings("ignore")
    names = options.only.split(",") if options.only else SECTIONS
    device = Device(options.device, flush=not options.no_flush)
    run = Run(device, options)
    about = ", ".join(f"{name} {value}" for name, value in run.about.items() if isinstance(value, str))
    print(f"{about}; copy {run.bandwidth / 1e12:.3g} TB/s; milliseconds", flush=True)
    chosen = list(sources(options.data, options.tiny))
    if options.matrices:
        wanted = options.matrices.split(",")
        chosen = [source for source in chosen if any(part in source.name for part in wanted)]
    for number, name in enumerate(names):
        run.section(name, chosen)
        if device.is_broken():
            print(f"{name} broke the device; another process goes on", flush=True)
            return go_on(sys.argv[1:] if arguments is None else arguments, names[number + 1 :])
    print("\n" + report(run.rows), flush=True)
    if options.json:
        run.save(options.json)
    return 1 if any(OURS in row.errors or OURS in row.failed for row in run.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
