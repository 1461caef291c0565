"""A machine without a compiler, inside a process that has one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import pytest

import scorch
from scorch._src.backends.cpu import invoke, jit, launch, toolchain
from scorch._src.engine.by_torch import run as by_torch
from scorch.errors import CompilerNotFoundError


def forget_plans() -> None:
    """Let go of everything that holds a kernel."""
    scorch.clear_plans()
    jit._function_address.cache_clear()


@contextlib.contextmanager
def without_compiler(warned: bool = True) -> Iterator[None]:
    """No compiler is found, and nothing that was compiled before is used; ``warned``: that was said."""

    def none() -> None:
        raise CompilerNotFoundError("none")

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as empty:
        patch.setenv("PATH", empty)
        patch.delenv("SCORCH_CC", raising=False)
        patch.setattr(toolchain, "_zig_command", list)
        patch.setattr(jit, "_libraries", {})
        patch.setattr(launch, "_builtins", none)
        patch.setattr(invoke, "_caller", None)
        patch.setattr(by_torch, "_warned", {"cpu"} if warned else set())
        forget_plans()
        toolchain.forget()
        try:
            yield
        finally:
            forget_plans()
    toolchain.forget()
