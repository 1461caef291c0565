"""Every test of this directory starts with an empty kernel cache and no compiler looked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scorch._src.backends import cache
from scorch._src.backends.cpu import jit, toolchain


@pytest.fixture(autouse=True)
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the cache, which is not there yet."""
    place = tmp_path / "kernels"
    monkeypatch.setenv("SCORCH_CACHE_DIR", str(place))
    monkeypatch.setattr(cache, "_spare", None)
    monkeypatch.setattr(jit, "_libraries", {})
    found = toolchain._toolchain
    yield place
    toolchain._toolchain = found
