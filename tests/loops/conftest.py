"""Compile kernels as the runtime does and run them beside the interpreter."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scorch._src.backends.interpreter.interpret import run
from scorch._src.backends.print.c import print_kernel
from scorch._src.loops.nodes import Kernel

FLAGS = ["-x", "c", "-O3", "-nostdlib", "-fPIC", "-shared", "-std=gnu11", "-fwrapv", "-fopenmp-simd"]
FLAGS += ["-Wall", "-Werror"]
UNUSED = ["-Wno-unused-variable", "-Wno-unused-function"]


class Native:
    """Kernels as shared objects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiler = shutil.which("gcc") or shutil.which("cc")
        if self.compiler is None:
            pytest.skip("no C compiler")

    def compile(self, source: str, flags: list[str] | None = None) -> ctypes.CDLL:
        name = hashlib.sha256(repr((source, flags)).encode()).hexdigest()[:16]
        target = self.folder / f"{name}.so"
        if not target.exists():
            text = self.folder / f"{name}.c"
            text.write_text(source)
            assert self.compiler is not None
            command = [self.compiler, *(flags or FLAGS), *UNUSED, "-o", str(target), str(text)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr + source
        return ctypes.CDLL(str(target))

    def call(self, kernel: Kernel, function: str, slots: list[Any], *extra: str) -> int:
        """Run compiled ``function`` on slots, which receive what it puts (addresses for arrays)."""
        library = self.compile(print_kernel(kernel), [*FLAGS, *extra])
        values = [s.ctypes.data if isinstance(s, np.ndarray) else s for s in slots]
        block = (ctypes.c_longlong * len(values))(*values)
        entry = library[function]
        entry.restype = ctypes.c_longlong
        result = int(entry(block))
        for position, before in enumerate(values):
            if block[position] != before:
                slots[position] = block[position]
        return result

    def both(self, kernel: Kernel, function: str, slots: list[Any]) -> tuple[list[Any], list[Any]]:
        """The slots after C and after the interpreter, arrays that were put read back alike."""
        by_c = [s.copy() if isinstance(s, np.ndarray) else s for s in slots]
        by_python = [s.copy() if isinstance(s, np.ndarray) else s for s in slots]
        assert run(kernel, function, by_python) == self.call(kernel, function, by_c)
        for position, value in enumerate(by_python):
            if isinstance(value, np.ndarray) and isinstance(by_c[position], int):
                raw = ctypes.string_at(by_c[position], value.nbytes)
                by_c[position] = np.frombuffer(raw, value.dtype)
        return by_c, by_python


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return Native(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def agree(native: Native) -> Callable[..., list[Any]]:
    """Run a kernel both ways, insist on equal results, and return them."""

    def check(kernel: Kernel, function: str, slots: list[Any]) -> list[Any]:
        by_c, by_python = native.both(kernel, function, slots)
        for one, other in zip(by_c, by_python, strict=True):
            np.testing.assert_array_equal(one, other)
        return by_python

    return check
