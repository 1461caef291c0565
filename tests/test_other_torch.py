"""A smoke test with the oldest and the newest torch, where there are environments with them.

``python3 start.py smoke`` makes them, gigabytes each, beside itself; SCORCH_TORCH_ENVIRONMENTS names others,
separated as in PATH. Without them the tests are skipped.
"""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
START = runpy.run_path(str(ROOT / "start.py"), run_name="start")


def environments() -> list[Path]:
    named = os.environ.get("SCORCH_TORCH_ENVIRONMENTS", "")
    return [*ROOT.glob(".venv-torch-*"), *(Path(name) for name in named.split(os.pathsep) if name)]


def python_with(version: str) -> Path | None:
    """The interpreter of an environment that has this version of torch."""
    for folder in environments():
        if any(folder.glob(f"lib/python3.*/site-packages/torch-{version}*.dist-info")):
            return folder / "bin" / "python"
    return None


def test_environments_are_known_by_their_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("a", "2.8.0+cpu"), ("b", "2.99.0")):
        (tmp_path / name / "lib" / "python3.12" / "site-packages" / f"torch-{version}.dist-info").mkdir(
            parents=True
        )
    folders = os.pathsep.join(str(tmp_path / name) for name in ("a", "b"))
    monkeypatch.setenv("SCORCH_TORCH_ENVIRONMENTS", folders)
    assert python_with("2.99.0") == tmp_path / "b" / "bin" / "python"
    assert python_with("2.77.0") is None


@pytest.mark.parametrize("version", START["SMOKE_TORCH"])
def test_smoke(version: str) -> None:
    python = python_with(version)
    if python is None:
        pytest.skip(f"no environment with torch {version}; python3 start.py smoke makes one")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *START["SMOKE_TESTS"]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]
