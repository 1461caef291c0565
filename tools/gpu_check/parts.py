"""The parts of the check; each gives what goes into the file of results, with ``"problems"`` counted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tools.gpu_check.kernels import GROUPS, LAUNCHED, names_of_kernels
from tools.gpu_check.large import CHECKS as LARGE_CHECKS
from tools.gpu_check.large import NEEDED_BYTES, is_fine
from tools.gpu_check.layers import CHECKS
from tools.gpu_check.processes import ROOT, Counts, count, environment, python

# How many cases of each kind are drawn.
DRAWN = {"einsum": 3_000, "evaluate": 2_000, "gradients": 1_000, "einsum gradients": 500}
TEST_FOLDERS = ("tests/ops", "tests/tensor", "tests/learning")
MOST_TESTS = 1_000  # that are named where they do not pass
MOST_JOBS_OF_LAYERS = 4


@dataclass(frozen=True)
class Sanitizer:
    """How many drawn cases a tool of compute-sanitizer looks at, and what it is told; kernels it sees all."""

    cases: int
    words: tuple[str, ...] = ()
    within: str = ""  # a module that runs the module which is watched


SANITIZERS = {
    "memcheck": Sanitizer(20),
    # Tens of times slower, and about shared memory alone: of our own kernels, those that have some.
    "racecheck": Sanitizer(4, ("--kernel-name", "kns=scorch"), "tools.gpu_check.halves_in_float32"),
}
KERNELS = "kernels"
SANITIZER_WORDS = ("--target-processes", "all", "--error-exitcode", "9")
OUT_OF_TIME = "out of time\n"
TO_START = 60.0  # seconds that the operators' processes may take before their first call


@dataclass(frozen=True)
class Options:
    """What all parts are told."""

    device: str
    jobs: int
    limit: float  # seconds for a part
    silence: float  # seconds after which a process that says nothing is ended
    cases: int | None = None
    seed: int = 0
    tests: tuple[str, ...] = TEST_FOLDERS
    operators: str = ""
    formats: str = "csr coo bsr(2,2)"
    dtypes: str = "float32 bfloat16 int64"
    data: Path | None = None
    tiny: bool = False
    seconds: float = 30.0

    @property
    def end(self) -> float:
        return time.monotonic() + self.limit


def drawn(options: Options) -> dict[str, Any]:
    """Draw einsums, expressions and gradients in several processes."""
    found: dict[str, Any] = {}
    end = options.end
    for kind, usual in DRAWN.items():
        wanted = usual if options.cases is None else options.cases
        jobs = max(1, min(options.jobs, wanted // 10))
        shares = [wanted // jobs + (number < wanted % jobs) for number in range(jobs)]

        def share(number: int, kind: str = kind, shares: Sequence[int] = shares) -> Counts:
            def command(start: int, so_far: Counts) -> list[str] | None:
                left = shares[number] - sum(so_far.counts.values())
                seed = options.seed + 1_000 * number + start
                words = [kind, options.device, str(seed), str(left)]
                return python("-m", "tools.gpu_check.drawn", *words) if left > 0 else None

            return count(command, environment(), options.silence, end)

        counts = together(share, jobs)
        found[kind] = counts.packed()
        tell(kind, counts)
    problems = sum(_bad(row["counts"], ("passed", "refused")) for row in found.values())
    return {**found, "problems": problems}


def together(share: Callable[[int], Counts], jobs: int) -> Counts:
    total = Counts()
    with ThreadPoolExecutor(jobs) as pool:
        for one in pool.map(share, range(jobs)):
            total = total.merged(one)
    return total


def tell(what: str, counts: Counts) -> None:
    numbers = ", ".join(f"{number:,} {name}" for name, number in sorted(counts.counts.items()))
    print(f"{what}: {numbers or 'nothing'}{', cut short' if counts.cut_short else ''}", flush=True)
    for example in counts.examples[:8]:
        where = example["what"].splitlines()[0][:120] if example["what"] else ""
        print(f"    {example['outcome']}: {where}: {example['message'][:160]}", flush=True)


def _bad(counts: dict[str, int], good: tuple[str, ...]) -> int:
    return sum(number for outcome, number in counts.items() if outcome not in good)


# tests -----------------------------------------------------------------------------------------------


def tests(options: Options) -> dict[str, Any]:
    """Run the tests with new tensors on the device, files shared out among processes."""
    files: list[str] = []
    for place in options.tests:
        path = ROOT / place
        names = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        files += [str(name.relative_to(ROOT)) for name in names]
    # Large files are the long ones: each process gets some of them.
    files.sort(key=lambda name: -(ROOT / name.split("::")[0]).stat().st_size)
    jobs = max(1, min(options.jobs, len(files)))
    end = options.end
    with tempfile.TemporaryDirectory() as folder:

        def share(number: int) -> Counts:
            done = Path(folder, str(number))
            mine = files[number::jobs]
            env = environment(
                GPU_CHECK_DONE=str(done),
                GPU_CHECK_DEVICE=options.device,
                PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
            )
            words = [
                "-p",
                "tools.gpu_check.watch",
                "-p",
                "no:cacheprovider",
                "-q",
                "--no-header",
                "--tb=short",
            ]
            words += [
                "--device",
                options.device,
                *(() if options.cases is None else ("--cases", str(options.cases))),
            ]
            return count(
                lambda start, so_far: python("-m", "pytest", *words, *mine),
                env,
                options.silence,
                end,
                examples=MOST_TESTS,
            )

        counts = together(share, jobs)
    tell("tests", counts)
    return {"tests": counts.packed(), "problems": _bad(counts.counts, ("passed", "skipped"))}


# operators -------------------------------------------------------------------------------------------


def operators(options: Options) -> dict[str, Any]:
    """Try torch's operators on its own samples."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        words = ["--device", options.device, "--jobs", str(options.jobs), "--json", str(file)]
        words += ["--formats", options.formats, "--dtypes", options.dtypes, "--operators", options.operators]
        words += ["--total", str(options.limit)]
        done = run(python("-m", "tools.what_works", *words), options.limit + TO_START)
        if not file.exists():
            return {"problems": 1, "failed": done}
        report = json.loads(file.read_text())
    counts: dict[str, int] = {}
    troubles: dict[str, str] = {}
    worst: dict[str, bool] = {}
    for tally in report["tallies"]:
        place = f"{tally['operator']} {tally['dtype']} {tally['format']} {tally['variant']}"
        for outcome, number in tally["counts"].items():
            counts[outcome] = counts.get(outcome, 0) + number
            if outcome not in ("passed", "refused"):
                troubles[place] = f"{outcome}: {tally['messages'].get(outcome, '')[:160]}"
        worst[tally["operator"]] = worst.get(tally["operator"], True) and set(tally["counts"]) == {"passed"}
    print(f"operators: {sum(worst.values())} of {len(worst)} pass everything; {counts}", flush=True)
    return {
        "counts": counts,
        "operators": len(worst),
        "passing": sum(worst.values()),
        "not_passing": sorted(name for name, passes in worst.items() if not passes),
        "troubles": troubles,
        "cut_short": OUT_OF_TIME in done,
        "problems": _bad(counts, ("passed", "refused")),
    }


def run(command: Sequence[str], limit: float, **env: str) -> str:
    """Run a command whose output is shown, and give back the last lines of it."""
    tail: deque[str] = deque(maxlen=200)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(PYTHONUNBUFFERED="1", **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def show() -> None:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            tail.append(line)

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        process.wait(timeout=max(0.0, limit))
    except subprocess.TimeoutExpired:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)  # those that it started, too
        process.kill()
        process.wait()
        tail.append(OUT_OF_TIME)
    shower.join(timeout=5)
    if process.stdout is not None and not shower.is_alive():
        process.stdout.close()
    return "".join([*tail, f"exit code {process.returncode}"])


# layers ----------------------------------------------------------------------------------------------


def layers(options: Options) -> dict[str, Any]:
    """Try what stands above single operations: training, graphs, copies, compilers."""
    names, jobs = list(CHECKS), max(1, min(options.jobs, MOST_JOBS_OF_LAYERS))

    def share(number: int) -> str:
        return run(
            python("-m", "tools.gpu_check.layers", options.device, *names[number::jobs]), options.limit
        )

    with ThreadPoolExecutor(jobs) as pool:
        said = "\n".join(pool.map(share, range(jobs)))
    lines = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    found = {name: lines.get(name, "did not end") for name in CHECKS}
    return {**found, "problems": sum(outcome != "ok" for outcome in found.values())}


# compute-sanitizer -----------------------------------------------------------------------------------


def sanitizer_program() -> str | None:
    places = [*sorted(Path("/usr/local").glob("cuda*/bin")), *sorted(Path("/opt").glob("cuda*/bin"))]
    folders = os.pathsep.join([os.environ.get("PATH", ""), *map(str, places)])
    return shutil.which("compute-sanitizer", path=folders)


def sanitize(options: Options) -> dict[str, Any]:
    """Run every kernel, and drawn cases, under memcheck, then racecheck, in several processes."""
    program = sanitizer_program()
    if program is None or not options.device.startswith("cuda"):
        print("sanitize: there is no compute-sanitizer, or no GPU", flush=True)
        return {"skipped": "there is no compute-sanitizer, or no GPU", "problems": 0}
    found: dict[str, Any] = {}
    end = options.end
    for number, (tool, sanitizer) in enumerate(SANITIZERS.items()):
        # What one tool leaves of its share the others have.
        limit = (end - time.monotonic()) / (len(SANITIZERS) - number)
        before = [program, *SANITIZER_WORDS, "--tool", tool, *sanitizer.words]
        commands = sanitized(sanitizer, options)

        def said(command: list[str], before: list[str] = before, limit: float = limit) -> str:
            # Without torch's pool every array is an allocation of its own, whose bounds are known.
            return run([*before, *command], limit, PYTORCH_NO_CUDA_MEMORY_CACHING="1")

        with ThreadPoolExecutor(len(commands)) as pool:
            texts = dict(zip(commands, pool.map(said, commands.values()), strict=True))
        if any("Device not supported" in text for text in texts.values()):
            return {"skipped": "compute-sanitizer does not support this device", "problems": 0}
        for name, text in texts.items():
            row = found[f"{tool} {name}"] = _sanitized_row(text)
            outcome = f"{row['errors']} errors" if row["errors"] is not None else "no summary"
            outcome = "out of time" if row["cut_short"] else outcome
            print(
                f"sanitize, {tool} {name}: {outcome}{', and it failed' if row['failed'] else ''}", flush=True
            )
        missing = _never_launched(texts)
        if missing:
            print(f"sanitize, {tool}: never launched: {', '.join(missing)}", flush=True)
        found[f"{tool} never launched"] = missing
    return {**found, "problems": sum(_is_bad(row) for row in found.values())}


def _sanitized_row(text: str) -> dict[str, Any]:
    errors, is_cut = sanitizer_errors(text), OUT_OF_TIME in text
    has_failed = not is_cut and re.search(r"exit code -?[1-9]", text) is not None
    tail = text[-1500:] if errors != 0 or has_failed else ""
    return {"errors": errors, "cut_short": is_cut, "failed": has_failed, "tail": tail}


def _never_launched(texts: dict[str, str]) -> list[str]:
    """Return the kernels that no process launched, if all processes ended."""
    said = "\n".join(text for name, text in texts.items() if name.startswith(KERNELS))
    launched = re.findall(rf"^{LAUNCHED}(.*)", said, re.MULTILINE)
    if len(launched) < sum(name.startswith(KERNELS) for name in texts):
        return []
    return sorted(names_of_kernels() - {name for names in launched for name in names.split(", ")})


def _is_bad(row: dict[str, Any] | list[str]) -> bool:
    if isinstance(row, list):
        return bool(row)
    is_silent = row["errors"] is None and not row["cut_short"]
    return bool(row["errors"]) or row["failed"] or is_silent


def sanitized(sanitizer: Sanitizer, options: Options) -> dict[str, list[str]]:
    """The commands that a tool watches at the same time, by their names; groups of kernels are shared out."""
    cases = sanitizer.cases if options.cases is None else min(sanitizer.cases, options.cases)
    words = [options.device, str(options.seed), str(cases)]
    modules = {kind: ["tools.gpu_check.drawn", kind, *words] for kind in ("einsum", "evaluate")}
    names, shares = list(GROUPS), max(1, min(options.jobs - len(modules), len(GROUPS)))
    for number in range(shares):
        modules[f"{KERNELS} {number + 1}"] = [
            "tools.gpu_check.kernels",
            options.device,
            *names[number::shares],
        ]
    within = [sanitizer.within] if sanitizer.within else []
    return {name: python("-m", *within, *module) for name, module in modules.items()}


def sanitizer_errors(text: str) -> int | None:
    """The number in the summaries of compute-sanitizer; None if there is none."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", text)
    return sum(map(int, found)) if found else None


# large tensors ---------------------------------------------------------------------------------------


def large(options: Options) -> dict[str, Any]:
    """Try tensors with more than 2**31 nonzeros or elements, where there is memory for them."""
    if not has_room(options):
        print("large: there is too little memory", flush=True)
        return {"skipped": "there is too little memory", "problems": 0}
    words = ["--small"] if options.tiny else []
    said = run(python("-m", "tools.gpu_check.large", options.device, *words), options.limit)
    lines = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    found = {name: lines.get(name, "did not end") for name in LARGE_CHECKS}
    return {**found, "problems": sum(not is_fine(outcome) for outcome in found.values())}


def has_room(options: Options) -> bool:
    """Check whether the device has memory for large tensors, which a trial makes small."""
    if options.tiny or not options.device.startswith("cuda"):
        return options.tiny
    return torch.cuda.get_device_properties(options.device).total_memory >= NEEDED_BYTES


# benchmarks ------------------------------------------------------------------------------------------


def benchmark(options: Options) -> dict[str, Any]:
    """Measure everything beside torch."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        words = ["--device", options.device, "--json", str(file), "--seconds", str(options.seconds)]
        words += ["--data", str(options.data)] if options.data else []
        words += ["--tiny"] if options.tiny else []
        done = run(python("-m", "benchmarks.gpu", *words), options.limit)
        if not file.exists():
            return {"problems": 1, "failed": done[-1500:]}
        found = json.loads(file.read_text())
    problems = sum(len(row["wrong"]) + len(row["failed"]) for row in found["summary"].values())
    return {**found, "problems": problems}


PARTS: dict[str, Callable[[Options], dict[str, Any]]] = {
    "drawn": drawn,
    "tests": tests,
    "operators": operators,
    "layers": layers,
    "large": large,
    "sanitize": sanitize,
    "benchmark": benchmark,
}
