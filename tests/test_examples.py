"""The examples run, in small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ["--epochs", "1", "--widths", "784", "32", "10", "--limit", "512"]
SMALL = [
    ("rigl_mnist.py", DIGITS, "95% sparse"),
    ("rigl_mnist.py", [*DIGITS, "--growth", "random"], "a step"),
    ("prune_mlp.py", ["--width", "256"], "of the dense one"),
]


@pytest.mark.parametrize(("script", "arguments", "printed"), SMALL)
def test_example(script: str, arguments: list[str], printed: str) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / script, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    if script == "rigl_mnist.py":
        assert "generated" in done.stdout  # and says so
