"""Vectors that are not aligned are read and written where they lie, and never passed by value.

gcc 16 for aarch64 crashes on a function that takes one.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import scorch
from scorch._src.backends.cpu.routines import (
    by_rows,
    convolve,
    graph_attention,
    join_matrices,
    linear,
    neighbour_max,
    transpose,
)
from scorch._src.backends.cpu.routines.attention import source as attention_source
from scorch._src.backends.print.c import print_kernel
from scorch._src.backends.print.scalar import print_scalar
from scorch._src.compiler.target import Target
from scorch._src.engine import schedules
from scorch._src.loops.nodes import Kernel

TARGETS = {bytes: Target("", bytes, 32 if bytes != 32 else 16, 2, 1 << 20, 8 << 20) for bytes in (16, 32, 64)}
FORMATS = ("csr", "csc", "coo", "dcsr", "bsr(4,4)")
WIDTHS = (1, 3, 16, 67)


@pytest.fixture(params=TARGETS)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    target = TARGETS[request.param]
    for module in ("compiler.vector.vectorize", "engine.schedules", "backends.cpu.routines.attention.source"):
        monkeypatch.setattr(f"scorch._src.{module}.target", lambda: target)
    schedules.forget()
    yield target
    schedules.forget()


@functools.cache
def kernels(vector_bytes: int, widths: tuple[int, ...] = WIDTHS) -> list[Kernel]:
    """Kernels of statements, formats, dtypes and widths that end in registers of every kind.

    They are for the machine that is set now, whose registers have so many bytes.
    """
    draw, found = torch.Generator().manual_seed(3), []

    def spy(kernel: Kernel) -> str:
        found.append(kernel)
        return print_kernel(kernel)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scorch._src.backends.cpu.backend.print_kernel", spy)
        for number, form in enumerate(FORMATS):
            dtype = (torch.float32, torch.float64, torch.int32)[number % 3]
            A = scorch.from_torch((torch.rand(64, 48, generator=draw) < 0.2).to(dtype), format=form)
            for width in widths:
                X, Y = torch.ones(48, width, dtype=dtype), torch.ones(64, width, dtype=dtype)
                scorch.explain("R[i,k] = sum(j, A[i,j] * X[j,k])", A=A, X=X)
                scorch.explain("R[i,k] = sum(j, A[i,j] * relu(X[j,k]))", A=A, X=X)
                scorch.explain("R[i,j] = sum(k, A[i,j] * Y[i,k] * X[j,k])", A=A, X=X, Y=Y)
    return found


def routines(machine: Target) -> Iterator[str]:
    for element in ("float", "double"):
        yield attention_source.source.__wrapped__(element)
    yield transpose.SOURCE
    yield join_matrices.SOURCE
    known = "#define KNOWN_HEADS 8\n#define KNOWN_WIDTH 16\n#define TURNS 2\n"
    for number in ("f32", "f64"):
        for text in (known + graph_attention.SOURCE, neighbour_max._SOURCE, convolve.SOURCE, linear.SOURCE):
            whole = f"{by_rows.PRELUDE}{text}INTRINSICS({number}, i32)\n"
            yield whole.replace("$VECTOR", str(machine.vector_bytes))


def unaligned_by_value(text: str) -> list[str]:
    """Where a type that is not aligned as its size wants stands for a value."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    names = set(re.findall(r"(\w+(?:##\w+)*) __attribute__\(\([^;]*\bvector_size\b[^;]*\baligned\(", text))
    wrong = []
    for name in names:
        for place in re.finditer(rf"(?<![\w#]){re.escape(name)}(?![\w#])", text):
            rest = text[place.end() :].lstrip()
            if not rest.startswith(("*", "__attribute__")):
                wrong.append(text[place.start() : place.end() + 60])
    return wrong


def test_check_sees_what_it_is_for() -> None:
    kind = "typedef float v __attribute__((vector_size(16), aligned(4), may_alias));\n"
    assert unaligned_by_value(kind + "static v twice(const float *x) { return *(const v *)x; }")
    assert not unaligned_by_value(kind + "static void f(float *x) { *(v *)x = *(const v *)x; }")


@pytest.mark.long
@pytest.mark.sampled(6)
def test_kernels_pass_only_plain_vectors(machine: Target) -> None:
    texts = [print_kernel(kernel) for kernel in kernels(machine.vector_bytes)]
    assert any("aligned(" in text for text in texts)
    for text in texts:
        assert unaligned_by_value(text) == []


def test_routines_pass_only_plain_vectors(machine: Target) -> None:
    for text in routines(machine):
        assert unaligned_by_value(text) == [], text


@pytest.mark.sampled(3)
def test_scalar_form_has_no_vectors(machine: Target) -> None:
    for kernel in kernels(machine.vector_bytes):
        text = print_scalar(kernel)
        assert "vector_size" not in text and "omp simd" not in text


CROSS = next(
    (
        found
        for name in ("aarch64-linux-gnu-gcc-16", "aarch64-linux-gnu-gcc")
        if (found := shutil.which(name))
    ),
    None,
)


@pytest.mark.skipif(CROSS is None, reason="no gcc for aarch64")
@pytest.mark.long
@pytest.mark.parametrize(("march", "first"), [("armv8-a", 1), ("armv8.2-a+sve", 0)])
def test_gcc_for_aarch64_takes_them(
    march: str,
    first: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every second width and routine for each; all for both with ``--long``."""
    target = TARGETS[16]
    some = slice(None) if request.config.getoption("long") else slice(first, None, 2)
    for module in ("compiler.vector.vectorize", "engine.schedules", "backends.cpu.routines.attention.source"):
        monkeypatch.setattr(f"scorch._src.{module}.target", lambda: target)
    schedules.forget()
    flags = [f"-march={march}", "-O3", "-shared", "-nostdlib", "-fPIC", "-std=gnu11", "-w", "-fopenmp-simd"]
    for text in dict.fromkeys([*map(print_kernel, kernels(16, WIDTHS[some])), *[*routines(target)][some]]):
        (tmp_path / "kernel.c").write_text(text)
        command = [str(CROSS), *flags, "-o", "kernel.so", "kernel.c"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
    schedules.forget()
