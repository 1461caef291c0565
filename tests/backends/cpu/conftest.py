"""An empty kernel cache for tests of the cache and of compilers, a quiet machine for tests of threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from machine_load import load_file, pool, set_running
from scorch._src.backends import cache
from scorch._src.backends.cpu import jit, toolchain


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of an empty cache, which is not there yet; no compiler has been looked for."""
    place = tmp_path / "kernels"
    monkeypatch.setenv("SCORCH_CACHE_DIR", str(place))
    monkeypatch.setattr(cache, "_spare", None)
    monkeypatch.setattr(jit, "_libraries", {})
    found = toolchain._toolchain
    yield place
    toolchain._toolchain = found


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Path]:
    """Two threads on a quiet machine, whatever else is running on it: the file that says so."""
    before, file = torch.get_num_threads(), tmp_path / "load"
    torch.set_num_threads(2)
    set_running(file, 1)
    name = str(file).encode()  # which the library does not copy
    said, forget = load_file().value, ctypes.CFUNCTYPE(None)(pool().address("scorch_forget_load"))
    load_file().value = name
    forget()
    yield file
    load_file().value = said
    forget()
    torch.set_num_threads(before)
