"""``python -m tools.upstream --pytorch-sparse DIR --pyg DIR``: their tests on our torch_sparse.

DIR is a checkout of rusty1s/pytorch_sparse, and of pyg-team/pytorch_geometric, whose tests run twice: without
torch_sparse, and with ``scorch.compat.torch_sparse.install()``. Those that pass without must pass with it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.upstream.suites import KNOWN, lost, mentioning, run_suite, unexpected


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where no test failed that should pass, 1 else."""
    options = make_parser().parse_args(arguments)
    bad: list[str] = []
    if options.pytorch_sparse:
        bad += check_pytorch_sparse(options.pytorch_sparse)
    if options.pyg:
        bad += check_pyg(options.pyg, options.quick)
    return 1 if bad else 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.upstream", description=__doc__)
    parser.add_argument("--pytorch-sparse", type=Path, metavar="DIR", help="a checkout of pytorch_sparse")
    parser.add_argument("--pyg", type=Path, metavar="DIR", help="a checkout of pytorch_geometric")
    parser.add_argument("--quick", action="store_true", help="only PyG's files that mention torch_sparse")
    return parser


def check_pytorch_sparse(checkout: Path) -> list[str]:
    """Print what became of torch_sparse's tests, and return those that should have passed."""
    found = run_suite(checkout, "tools.upstream.companions", ["test"])
    bad = unexpected(found)
    show("pytorch_sparse", {"on Scorch": found}, bad)
    for name, reason in KNOWN.items():
        print(f"  known: {name} ({reason})")
    return bad


def check_pyg(checkout: Path, quick: bool) -> list[str]:
    """Print what became of PyG's tests with and without the alias, and return those that it broke."""
    files = mentioning(checkout, ["SparseTensor", "torch_sparse", "TORCH_SPARSE"]) if quick else ["test"]
    without = run_suite(checkout, None, files)
    with_alias = run_suite(checkout, "tools.upstream.alias", files)
    bad = lost(without, with_alias)
    show("PyG", {"without torch_sparse": without, "with install()": with_alias}, bad)
    for name in sorted(name for name, what in with_alias.items() if what == "failed" and name not in bad):
        print(f"  fails: {name} ({without.get(name, 'absent')} without)")
    return bad


def show(suite: str, runs: Mapping[str, Mapping[str, str]], bad: Sequence[str]) -> None:
    print(f"{suite:24s}{'passed':>8s}{'failed':>8s}{'skipped':>9s}")
    for name, found in runs.items():
        counts = Counter(found.values())
        print(f"  {name:22s}{counts['passed']:8d}{counts['failed']:8d}{counts['skipped']:9d}")
    for name in bad:
        print(f"  LOST: {name}")


if __name__ == "__main__":
    sys.exit(main())
