"""The load of the machine as the threads of kernels see it, which tests choose."""

from __future__ import annotations

import ctypes
from pathlib import Path

from scorch._src.backends.cpu import jit, parallel


def load_file() -> ctypes.c_char_p:
    return ctypes.c_char_p.from_address(pool().address("scorch_load_file"))


def pool() -> jit.Library:
    found = parallel.pool()
    assert found is not None
    return found


def set_running(file: Path, threads: int) -> None:
    file.write_text(f"1.50 1.20 0.90 {threads}/200000 4711\n")
