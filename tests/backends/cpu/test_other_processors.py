"""Kernels written for other instruction sets compile with a compiler for them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import scorch
from scorch._src.backends.cpu.routines.attention import source as attention_source
from scorch._src.compiler.target import Target
from scorch._src.engine import schedules

needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="the ziglang wheel, a cross compiler, is not installed",
)
SETS = {
    "x86-64-v2": (Target("", 16, 16, 4, 1 << 20, 8 << 20), "x86_64-linux-gnu", "x86_64_v2"),
    "x86-64-v3": (Target("", 32, 16, 4, 1 << 20, 8 << 20, 32), "x86_64-linux-gnu", "x86_64_v3"),
    "x86-64-v4": (Target("", 64, 32, 4, 1 << 20, 8 << 20, 64), "x86_64-linux-gnu", "x86_64_v4"),
    "aarch64": (Target("", 16, 32, 2, 1 << 20, 8 << 20), "aarch64-linux-gnu", "generic"),
}


def sparse(*shape: int, format: str = "csr") -> scorch.SparseTensor:
    dense = torch.rand(*shape, generator=torch.Generator().manual_seed(2))
    return scorch.from_torch(torch.where(dense < 0.8, 0.0, dense), format=format)


def sources() -> list[str]:
    A, T = sparse(300, 4000), sparse(9, 8, 7, format="csf")
    calls = [
        ("ij,j->i", A, torch.rand(4000)),
        ("ij,jk->ik", A, torch.rand(4000, 100)),
        ("ij,ik,jk->ij", A, torch.rand(300, 67), torch.rand(4000, 67)),
        ("ij,kj->ik", A, A),
        ("ij,ij->ij", A, A.to_format("coo")),
        ("ijk,jr,kr->ir", T, torch.rand(8, 33), torch.rand(7, 33)),
    ]
    return [scorch.explain(*call).source for call in calls]


# A usual run compiles for the two that most machines have.
NAMES = [pytest.param(name, marks=pytest.mark.long if name[-2:] in ("v2", "v4") else ()) for name in SETS]


@needs_zig
@pytest.mark.parametrize("name", NAMES)
def test_kernels_compile_for(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, triple, cpu = SETS[name]
    for module in ("compiler.vector.vectorize", "engine.schedules", "backends.cpu.routines.attention.source"):
        monkeypatch.setattr(f"scorch._src.{module}.target", lambda: machine)
    schedules.forget()
    texts = sources() + [attention_source.source.__wrapped__(element) for element in ("float", "double")]
    schedules.forget()
    monkeypatch.setenv("ZIG_LOCAL_CACHE_DIR", str(tmp_path / "zig"))
    command = [sys.executable, "-m", "ziglang", "cc", "-target", triple, f"-mcpu={cpu}"]
    flags = ["-O2", "-shared", "-nostdlib", "-fPIC", "-std=gnu11", "-Werror=implicit-function-declaration"]
    for text in texts:
        (tmp_path / "kernel.c").write_text(text)
        words = [*command, *flags, "-o", "kernel.so", "kernel.c"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
