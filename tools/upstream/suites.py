"""Runs of another project's tests in a process of their own, and what became of each test."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
# Tests of torch_sparse that fail here, and what they need that Scorch does not have.
KNOWN = {
    "test.test_add::test_add": "TorchScript",
    "test.test_matmul::test_spspmm": "TorchScript",
    "test.test_mul::test_sparse_sparse_mul": "TorchScript",
    "test.test_metis::test_metis": "METIS",
}


def run_suite(checkout: Path, plugin: str | None, files: Iterable[str]) -> dict[str, str]:
    """Return the outcome of each test: passed, failed or skipped."""
    paths = [str(checkout.resolve()), str(ROOT / "src"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", f"--junitxml={report}"]
        options += ["-m", "not rag and not dataset", "--continue-on-collection-errors"]
        options += ["-p", plugin] if plugin else []
        command = [sys.executable, "-m", "pytest", *options, *files]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError(f"pytest wrote no report: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return outcomes(report.read_text(encoding="utf-8"))


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


def lost(without: Mapping[str, str], with_alias: Mapping[str, str]) -> list[str]:
    """Return the tests that pass without the alias and not with it."""
    return [name for name, what in without.items() if what == "passed" and with_alias.get(name) != "passed"]


def mentioning(checkout: Path, words: Iterable[str]) -> list[str]:
    """Return the test files of a checkout that contain one of ``words``."""
    files = sorted(checkout.glob("test/**/test_*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    return [str(f.relative_to(checkout)) for f, text in texts.items() if any(word in text for word in words)]
