"""``python -m tools.upstream --pytorch-sparse DIR --pyg DIR``: their tests on our torch_sparse.

DIR is a checkout of rusty1s/pytorch_sparse, and of pyg-team/pytorch_geometric, whose tests run twice: without
torch_sparse, and with ``scorch.compat.torch_sparse.install()``. Those that pass without must pass with it.
``--write`` records the counts, the versions and the date in ``tools/upstream/result.json``.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tools.upstream.suites import (
    KNOWN,
    RESULT,
    Runner,
    files_of,
    lost,
    run_suite,
    suite_files,
    unexpected,
    why,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where no test failed that should pass, 1 else."""
    options = make_parser().parse_args(arguments)
    runner = Runner(options.workers, options.timeout)
    results: dict[str, Any] = {}
    if options.pytorch_sparse:
        results["pytorch_sparse"] = check_pytorch_sparse(options.pytorch_sparse, runner)
    if options.pyg:
        results["pyg"] = check_pyg(options.pyg, runner, options.quick)
    if options.write:
        RESULT.write_text(json.dumps({**results, **versions()}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(result["lost"] for result in results.values()) else 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.upstream", description=__doc__)
    parser.add_argument("--pytorch-sparse", type=Path, metavar="DIR", help="a checkout of pytorch_sparse")
    parser.add_argument("--pyg", type=Path, metavar="DIR", help="a checkout of pytorch_geometric")
    parser.add_argument("--quick", action="store_true", help="only PyG's files that mention torch_sparse")
    parser.add_argument("-n", "--workers", type=int, default=1, help="the number of processes at a time")
    parser.add_argument("--timeout", type=float, default=300, help="the time limit of a test in seconds")
    parser.add_argument("--write", action="store_true", help=f"write the results to {RESULT.name}")
    return parser


def check_pytorch_sparse(checkout: Path, runner: Runner) -> dict[str, Any]:
    """Print and return what became of torch_sparse's tests."""
    found = run_suite(checkout, "tools.upstream.companions", suite_files(checkout), runner)
    bad = unexpected(found)
    show("pytorch_sparse", {"on Scorch": found}, bad)
    for name, reason in KNOWN.items():
        print(f"  known: {name} ({reason})")
    failed = sorted(name for name, what in found.items() if what == "failed" and name not in bad)
    return {"commit": commit_of(checkout), "on Scorch": count(found), "known": failed, "lost": bad}


def check_pyg(checkout: Path, runner: Runner, quick: bool) -> dict[str, Any]:
    """Print and return what became of PyG's tests with the alias and, where that may differ, without it.

    Without the alias run the files that mention torch_sparse, and those with a test that fails with it.
    """
    mentioning = suite_files(checkout, ["SparseTensor", "torch_sparse", "TORCH_SPARSE", "adj_t"])
    files = mentioning if quick else suite_files(checkout)
    with_alias = run_suite(checkout, "tools.upstream.alias", files, runner)
    failed = files_of(checkout, [name for name, what in with_alias.items() if what == "failed"])
    without = run_suite(checkout, None, sorted({*mentioning, *failed}), runner)
    bad = lost(without, with_alias)
    show("PyG", {"with install()": with_alias, "without torch_sparse": without}, bad)
    new = {name: why(name) for name, what in with_alias.items() if what == "failed" != without.get(name)}
    for name, reason in sorted(new.items()):
        print(f"  fails: {name} ({without.get(name, 'absent')} without; {reason or 'unknown reason'})")
    counts = {
        "files": f"{len(files)} of {len(suite_files(checkout))}",
        "with install()": count(with_alias),
        "without torch_sparse": count(without),
    }
    return {"commit": commit_of(checkout), **counts, "fails only with it": new, "lost": bad}


def count(found: Mapping[str, str]) -> dict[str, int]:
    return dict(sorted(Counter(found.values()).items()))


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, or an empty text where it has no history."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def versions() -> dict[str, str]:
    installed = {name: version(name) for name in ("torch", "scipy", "pytest")}
    return {
        **installed,
        "python": platform.python_version(),
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
    }


def show(suite: str, runs: Mapping[str, Mapping[str, str]], bad: Sequence[str]) -> None:
    print(f"{suite:24s}{'passed':>8s}{'failed':>8s}{'skipped':>9s}")
    for name, found in runs.items():
        counts = Counter(found.values())
        print(f"  {name:22s}{counts['passed']:8d}{counts['failed']:8d}{counts['skipped']:9d}")
    for name in bad:
        print(f"  LOST: {name}")


if __name__ == "__main__":
    sys.exit(main())
