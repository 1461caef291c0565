"""Check Scorch on a machine with a GPU, and write what was found to a file.

    python -m tools.gpu_check                                everything, in about an hour
    python -m tools.gpu_check --only drawn,sanitize          some parts; what the file has of others stays
    python -m tools.gpu_check --limit 500                    at most so many seconds for each part
    python -m tools.gpu_check --device cpu --tiny --cases 20 --only drawn      that it runs, without a GPU

Parts: ``drawn`` (random einsums, expressions and gradients beside dense torch in float64), ``tests`` (the
suite with new tensors on the device), ``operators`` (torch's operators on its own samples), ``layers``
(training, memory, waits, captured graphs, copies, compilers, processes), ``large`` (tensors with more than
2**31 nonzeros or elements, where there are 100 GB), ``sanitize`` (every kernel, and drawn cases, under
compute-sanitizer, if there is one), ``benchmark`` (``benchmarks.gpu``). Exit code 0: nothing is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import scorch
from tools.gpu_check.parts import PARTS, ROOT, TEST_FOLDERS, Options

RESULT = Path(__file__).resolve().parent.parent / "gpu_result.json"


def environment(device: str) -> dict[str, str]:
    """Say what is checked, and on what."""
    found = {
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "nvrtc": _nvrtc(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "scorch": scorch.__version__,
        "commit": _said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
    }
    if device.startswith("cuda"):
        found["device"] = torch.cuda.get_device_name()
    return found


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else "unknown"


def _nvrtc() -> str:
    try:
        from scorch._src.backends.cuda.device import nvrtc

        return ".".join(map(str, nvrtc.version()))
    except Exception:
        return "none"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see that it runs")
    parser.add_argument("--only", default="", metavar="A,B", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--cases", type=int, metavar="N", help="of each kind that is drawn, of each property")
    parser.add_argument("--seed", type=int, default=0, help="what drawn cases depend on")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for each part")
    parser.add_argument("--silence", type=float, default=180.0, help="seconds that one case may take")
    parser.add_argument("--tests", default=",".join(TEST_FOLDERS), help="folders or files of tests")
    parser.add_argument("--operators", default="", metavar="PATTERN", help="only those whose name matches")
    parser.add_argument("--formats", default=Options.formats, help="of operators, separated by spaces")
    parser.add_argument("--dtypes", default=Options.dtypes, help="of operators, separated by spaces")
    parser.add_argument("--seconds", type=float, default=30.0, help="for a section of the benchmarks")
    parser.add_argument("--data", type=Path, metavar="DIR", help="matrices for the benchmarks")
    parser.add_argument("--tiny", action="store_true", help="tiny matrices for the benchmarks")
    parser.add_argument("--result", type=Path, default=RESULT, metavar="FILE", help="where results go")
    options = parser.parse_args(arguments)
    for name in filter(None, options.only.split(",")):
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --tiny --cases 20 shows that the program runs")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    about = environment(given.device)
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    names = given.only.split(",") if given.only else list(PARTS)
    options = Options(
        device=given.device,
        jobs=given.jobs,
        limit=given.limit,
        silence=given.silence,
        cases=given.cases,
        seed=given.seed,
        tests=tuple(given.tests.split(",")),
        operators=given.operators,
        formats=given.formats,
        dtypes=given.dtypes,
        data=given.data,
        tiny=given.tiny,
        seconds=given.seconds,
    )
    problems = 0
    for name in names:
        print(f"\n# {name}", flush=True)
        start = time.monotonic()
        try:
            found = PARTS[name](options)
        except Exception as problem:  # the other parts are worth having
            traceback.print_exc()
            found = {"problems": 1, "failed": f"{type(problem).__name__}: {problem}"}
        problems += found["problems"]
        found = {**found, "environment": about, "date": time.strftime("%Y-%m-%d %H:%M")}
        found |= {"seconds": round(time.monotonic() - start), "limit": given.limit, "seed": given.seed}
        save(given.result, name, found)
        print(f"{name}: {found['problems']} problems, {found['seconds']} s", flush=True)
    print(f"\n{problems} problems; results are in {given.result.name}", flush=True)
    return 1 if problems else 0


def save(path: Path, name: str, found: dict[str, Any]) -> None:
    """Put what one part found into the file, beside what it has of the others."""
    content: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    content[name] = found
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
