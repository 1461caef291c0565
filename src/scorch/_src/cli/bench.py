"""``python -m scorch bench``: run the suites of ``benchmarks/`` by name, in a checkout or installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from scorch._src.dataclass import dataclass
from scorch.errors import ArgumentError, MissingFileError

PACKAGE = "benchmarks"
SCORCH = Path(__file__).resolve().parents[2]  # the package


@dataclass(frozen=True)
class Suite:
    """A module that measures something; ``quick`` are its arguments for a run of seconds.

    ``json``: whether it prints numbers itself with ``--json``, or writes them to a file.
    """

    module: str
    about: str
    quick: tuple[str, ...]
    json: Literal["prints", "file"] = "prints"


SUITES = {
    "kernels": Suite("kernels", "generated kernels vs. torch.sparse, SciPy and numba", ("--quick",), "file"),
    "overhead": Suite("overhead", "call overhead: warm, first, and on busy cores", ("--warm", "--quick")),
    "threads": Suite("threads", "kernels with 1, 2, 4 ... threads", ("--rows", "5000", "--entries", "50000")),
    "fusion": Suite("fusion", "scorch.compile vs. separate calls", ("--seconds", "0.02"), "file"),
    "attention": Suite("attention", "sparse vs. dense attention", ("--lengths", "256", "--seconds", "0.2")),
    "pruned": Suite("pruned", "pruned vs. dense layers", ("--width", "256", "--seconds", "0.02")),
    "graphs": Suite(
        "graphs",
        "graph layers vs. PyG's",
        ("--graphs", "cora", "--networks", "GCN", "--seconds", "0.2", "--rounds", "2"),
    ),
    "figure5": Suite("paper.figure5_gcn", "the paper's graph networks", ("--quick",), "file"),
    "figure6": Suite("paper.figure6_autoencoder", "the paper's sparse autoencoders", ("--quick",), "file"),
    "figure7": Suite("paper.figure7_bigbird", "the paper's BigBird on texts", ("--quick",), "file"),
    "figure8": Suite("paper.figure8_kernels", "the paper's kernels", ("--quick",), "file"),
    "beyond": Suite(
        "paper.beyond", "experts, top-k codes, recommender, pruned transformer ...", ("--quick",), "file"
    ),
}


def run(name: str, arguments: Sequence[str] = (), *, quick: bool = False, as_json: bool = False) -> int:
    """Run a suite in a process of its own and return its exit code.

    ``arguments`` are passed on to it; ``quick`` is for seeing that it works, not for numbers.
    """
    suite = SUITES.get(name)
    if suite is None:
        raise ArgumentError(f"unknown suite {name!r}; choose from {', '.join(SUITES)}")
    folder = find_folder()
    paths = [str(folder), str(SCORCH.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", f"{PACKAGE}.{suite.module}", *(suite.quick if quick else ()), *arguments]
    if not as_json or suite.json == "prints":
        return subprocess.run([*command, *(["--json"] if as_json else [])], env=environment).returncode
    with tempfile.TemporaryDirectory() as folder_name:
        file = Path(folder_name, "numbers.json")
        process = subprocess.run([*command, "--json", str(file)], env=environment, stdout=sys.stderr)
        if file.is_file():
            print(json.dumps(json.loads(file.read_text(encoding="utf-8")), indent=2))
    return process.returncode


def find_folder() -> Path:
    """Find the folder of the benchmark package: in an installed Scorch, else in its checkout."""
    for folder in (SCORCH / "_suites", SCORCH.parent.parent):
        if (folder / PACKAGE / "kernels" / "__main__.py").is_file():
            return folder
    raise MissingFileError(
        "the benchmarks are not installed; reinstall Scorch from a wheel, or run this command in a checkout"
    )
