"""Runs of another project's tests in a process of their own, and what became of each test."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).with_name("result.json")
# Tests of torch_sparse that fail here, and what they need that Scorch does not have.
KNOWN = {
    "test.test_add::test_add": "TorchScript",
    "test.test_matmul::test_spspmm": "TorchScript",
    "test.test_mul::test_sparse_sparse_mul": "TorchScript",
    "test.test_metis::test_metis": "METIS",
}
_SAMPLER = "test.sampler.test_sampler_neighbor_sampler"
_PYG_LIB = "needs pyg-lib; PyG runs it with torch_sparse, too"
# Tests of PyG that may fail with torch_sparse, and why.
PYG_EXCEPTIONS = {
    "test.loader.test_neighbor_loader::test_memmap_neighbor_loader": (
        "workers that are spawned, after another test chose that, do not run what installs the alias"
    ),
    f"{_SAMPLER}::test_homogeneous_neighbor_sampler_basic": _PYG_LIB,
    f"{_SAMPLER}::test_homogeneous_neighbor_sampler_weighted_backwards": _PYG_LIB,
    f"{_SAMPLER}::test_homogeneous_neighbor_sampler_temporal_backwards": _PYG_LIB,
    f"{_SAMPLER}::test_bidirectional_neighbor_sampler": _PYG_LIB,
}


@dataclass(frozen=True)
class Runner:
    """How to run a suite: in how many processes at a time, and for how many seconds each test may run."""

    workers: int = 1
    timeout: float = 300.0
    files_per_process: int = 30


def run_suite(checkout: Path, plugin: str | None, files: Sequence[str], runner: Runner) -> dict[str, str]:
    """Return the outcome of each test: passed, failed or skipped."""
    count = runner.files_per_process
    groups = [files[start : start + count] for start in range(0, len(files), count)]
    found: dict[str, str] = {}
    with ThreadPoolExecutor(runner.workers) as pool:
        for part in pool.map(lambda group: _run_files(checkout, plugin, group, runner.timeout), groups):
            found.update(part)
    return found


def _run_files(checkout: Path, plugin: str | None, files: Sequence[str], timeout: float) -> dict[str, str]:
    """Run some files in a process; if it crashes, each of them in a process of its own."""
    paths = [str(checkout.resolve()), str(ROOT / "src"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "UPSTREAM_TIMEOUT": str(timeout)}
    environment["OMP_NUM_THREADS"] = "2"  # a test of PyG's loaders needs two
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", f"--junitxml={report}"]
        options += ["-m", "not rag and not dataset", "--continue-on-collection-errors"]
        options += ["-p", "tools.upstream.limit", *(["-p", plugin] if plugin else [])]
        command = [sys.executable, "-m", "pytest", *options, *files]
        subprocess.run(command, cwd=checkout, env=environment, capture_output=True)
        if report.exists():
            return outcomes(report.read_text(encoding="utf-8"))
    if len(files) == 1:
        return {f"{files[0].removesuffix('.py').replace('/', '.')}::": "failed"}
    return {
        name: what for file in files for name, what in _run_files(checkout, plugin, [file], timeout).items()
    }


def outcomes(report: str) -> dict[str, str]:
    """Read pytest's report in JUnit's format."""
    found = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        marks = {child.tag for child in case}
        failed = bool(marks & {"failure", "error"})
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = "failed" if failed else "skipped" if "skipped" in marks else "passed"
    return found


def unexpected(found: Mapping[str, str]) -> list[str]:
    """Return the tests of torch_sparse that fail and are not ``KNOWN``."""
    return [name for name, what in found.items() if what == "failed" and name.partition("[")[0] not in KNOWN]


def why(name: str) -> str | None:
    """Return why a test of PyG may fail with torch_sparse."""
    return PYG_EXCEPTIONS.get(name.partition("[")[0])


def lost(without: Mapping[str, str], with_alias: Mapping[str, str]) -> list[str]:
    """Return the tests that pass without the alias and not with it, but for ``PYG_EXCEPTIONS``."""
    passed = [name for name, what in without.items() if what == "passed"]
    return [name for name in passed if with_alias.get(name) != "passed" and not why(name)]


def files_of(checkout: Path, names: Iterable[str]) -> list[str]:
    """Return the files that contain the tests called ``names``, which begin with the path, dotted."""
    paths = [Path(name.partition("::")[0].replace(".", "/")) for name in names]
    files = {path.with_suffix(".py") for each in paths for path in (each, each.parent)}  # perhaps a class
    return sorted(str(file) for file in files if (checkout / file).exists())


def suite_files(checkout: Path, words: Iterable[str] = ("",)) -> list[str]:
    """Return the test files of a checkout that contain one of ``words``; all of them by default."""
    files = sorted(checkout.glob("test/**/test_*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    return [str(f.relative_to(checkout)) for f, text in texts.items() if any(word in text for word in words)]
