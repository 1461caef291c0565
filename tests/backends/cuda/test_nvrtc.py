"""What NVRTC makes of the kernels for CUDA devices, which takes no device: no spills, few enough registers.

A multiprocessor has 65,536 registers: eight blocks of 128 threads with 64 of them each run on it at once,
four with 128, three with 168, two with 255. A usual run compiles the kernels of the statements in ``golden/``
for all architectures, and each of the others for one of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scorch
from backends.cuda.test_executable import CALLS, drawn
from backends.cuda.test_new_patterns import STATEMENTS
from backends.cuda.test_routines import HALVES, SHAPES
from golden_statements import NAMES, statements
from grid_emulator import noting
from scorch._src.backends.cuda.device import nvrtc
from scorch._src.backends.cuda.executables import product
from scorch._src.backends.cuda.routines import (
    attention,
    coalescing,
    entries,
    levels,
    neighbours,
    picking,
    sorting,
)
from scorch._src.loops.grid import FUNCTIONS
from scorch._src.loops.types import INT32
from scorch.errors import CompilationError

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
FORMATS = ["csr", "coo", "bitmap", "banded", "bsr(2,2)"]
# The most registers of a thread, by kind of kernel.
REGISTERS = {"grid": 64, "maxima": 64, "graph attention": 128, "pairs": 168, "attention": 255}

ATTENTION: dict[str, tuple[Any, ...]] = {
    "tiles": (torch.bfloat16, 64, 64, 2, True),
    "wide tiles": (torch.float16, 128, 128, 2, False),
    "tiles in float32": (torch.float32, 64, 64, 2, False),
    "pairs": (torch.bfloat16, 64, 128, 2, True, torch.int64),
}
MORE_ATTENTION = [
    (dtype, size, size, 2, dropout)
    for dtype in attention.KINDS
    for size in (64, 128)
    for dropout in (False, True)
]

pytestmark = pytest.mark.skipif(not nvrtc.is_there(), reason="no NVRTC here: pip install nvidia-cuda-nvrtc")


def check(source: str, architecture: str, kind: str) -> None:
    """Compile a text, and read what its functions take from what the assembler says."""
    code, said = nvrtc.compile_text(source, architecture, "--ptxas-options=-v")
    assert code[:4] == b"\x7fELF", said
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", said)]
    assert len(spills) == len(registers) == source.count("KERNEL void"), said
    assert all(numbers == ("0", "0", "0") for numbers in spills), said
    assert max(registers) <= REGISTERS[kind], said


@pytest.fixture
def printed() -> Callable[[Callable[[], Any]], list[str]]:
    """Call functions as on a CUDA device; return the texts of kernels."""

    def texts_of(call: Callable[[], Any]) -> list[str]:
        with noting(lambda source, name: source) as texts, scorch.settings(backend="emulated"):
            call()
        return list(dict.fromkeys(texts))

    return texts_of


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_golden_statements(name: str, printed: Any) -> None:
    text, operands, named = statements()[name]
    run: Callable[..., Any] = scorch.evaluate if named else scorch.einsum
    texts = printed(lambda: run(text, *operands, **named))
    assert texts
    for source, architecture in itertools.product(texts, ARCHITECTURES):
        check(source, architecture, "grid")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("form", FORMATS)
def test_calls_of_torch(form: str, printed: Any, request: pytest.FixtureRequest) -> None:
    """All for all architectures, or each for one of them."""
    A, B = (scorch.from_torch(drawn(6, 8, torch.float32), format=form) for _ in range(2))
    X = drawn(8, 5, torch.float32)
    texts = printed(lambda: [call(A, B, X) for call in CALLS.values()])
    assert len(texts) >= 8
    for number, source in enumerate(texts):
        is_long = request.config.getoption("long")
        for architecture in ARCHITECTURES if is_long else [ARCHITECTURES[number % len(ARCHITECTURES)]]:
            check(source, architecture, "grid")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["csf", "coo", "dss"])
@pytest.mark.parametrize("name", ["union of tensors", "intersection of tensors", "tensor and matrix"])
def test_new_patterns(name: str, form: str, printed: Any) -> None:
    body, _ = STATEMENTS[name]
    shapes = {"T": (20, (6, 5, 4)), "U": (20, (6, 5, 4)), "A": (5, (6, 5))}
    given = {
        tensor: scorch.from_torch(
            drawn(6, columns, torch.float32).view(shape), format=form[: len(shape)] if form == "dss" else form
        )
        for tensor, (columns, shape) in shapes.items()
        if f"{tensor}[" in body
    }
    texts = printed(lambda: scorch.evaluate(f"R[i,j,k] = {body}", format=form, **given))
    assert any("scorch_count_0" in source for source in texts)
    for source, architecture in itertools.product(texts, ARCHITECTURES):
        check(source, architecture, "grid")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("full, runs", [(0, (1, 1, 1)), (2, (1,)), (1, (1, 2))])
def test_levels(full: int, runs: tuple[int, ...], architecture: str) -> None:
    shape = levels.Shape(full, runs, INT32, INT32)
    text = levels.print_levels(shape)
    check(text, architecture, "grid")
    assert re.findall(r"KERNEL void .*?(\w+)\(const", text) == levels.functions_of(shape)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str, architecture: str) -> None:
    kind = "pairs" if name.startswith("pairs") else "attention"
    check(attention.print_attention(*ATTENTION[name]), architecture, kind)


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("form", MORE_ATTENTION)
def test_attention_in_all_forms(form: tuple[Any, ...], architecture: str) -> None:
    check(attention.print_attention(*form), architecture, "attention")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_tiles_of_masks(index: torch.dtype, architecture: str) -> None:
    check(attention.print_tiles(index), architecture, "grid")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shape", [*SHAPES, *HALVES, (32, 64, torch.float64, torch.int64)])
def test_graph_attention(shape: tuple[Any, ...], architecture: str) -> None:
    heads, features, dtype, index = shape
    check(neighbours.print_attention(dtype, index, heads, features), architecture, "graph attention")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "form",
    [
        (torch.float32, torch.int32, 4, 32),
        (torch.float64, torch.int64, 1, 4),
        (torch.float16, torch.int32, 8, 16),
    ],
)
def test_maxima_of_neighbours(form: tuple[Any, ...], architecture: str) -> None:
    check(neighbours.print_neighbour_max(*form), architecture, "maxima")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sums_of_entries(architecture: str) -> None:
    check(entries.print_sum_runs(torch.float64), architecture, "grid")
    check(entries.print_finite(torch.float64), architecture, "grid")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_orders_of_entries(architecture: str) -> None:
    check(sorting.print_transpose(torch.int32, torch.int16), architecture, "grid")
    narrow = torch.int64, torch.int32, torch.float32, 2
    wide = torch.int32, torch.int64, torch.float64, 4
    for form in (narrow, wide):
        check(coalescing.print_coalesce(*form), architecture, "grid")
    check(picking.print_pick_rows(torch.int32, torch.int64, 4), architecture, "grid")
    check(picking.print_pick_rows(torch.int64, torch.int32, 16), architecture, "grid")


def test_few_long_rows(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "MIN_LONG_ROW", 1)
    a = drawn(2, 600, torch.float64) + 1
    forms = (torch.float32, 32), (torch.bfloat16, 128), (torch.complex128, 8)
    for (dtype, width), architecture in zip(forms, ARCHITECTURES, strict=True):
        A, B = (scorch.from_torch(dense.to(dtype), format="csr") for dense in (a, a.T))
        X = torch.ones(600, width, dtype=dtype)
        texts = printed(lambda A=A, B=B, X=X: (A @ X, A @ B))
        assert "THREAD(32) / " in texts[0] and "scorch_add_parts" in texts[-1]
        for source in texts:
            check(source, architecture, "grid")


@pytest.mark.whole
@pytest.mark.parametrize("width", [32, 64, 256])
def test_threads_have_registers_for_all_they_load_at_once(width: int, printed: Any) -> None:
    """NVRTC would have loads wait for sums of others that came before, and so for memory twice."""
    S, X = scorch.from_torch(torch.eye(5), format="csr"), torch.ones(5, width)
    (text,) = printed(lambda: scorch.einsum("ij,ik,jk->ij", S, X, X))
    assert "k_run_turn < 4" in text  # turns, of which each loads runs of 4 from two rows
    _, said = nvrtc.compile_text(text, "sm_90", "--ptxas-options=-v")
    (registers,) = map(int, re.findall(r"Used (\d+) registers", said))
    assert 4 * 2 * 4 < registers <= REGISTERS["grid"], said


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_four_entries_are_loaded_at_once(dtype: torch.dtype, printed: Any) -> None:
    """Four runs of 16 bytes are kept, beside four sums or eight: fewer registers make loads wait."""
    S = scorch.from_torch(torch.ones(6, 40, dtype=dtype), format="csr")
    (text,) = printed(lambda: S @ torch.ones(40, 128, dtype=dtype))
    _, said = nvrtc.compile_text(text, "sm_90", *nvrtc.options_of(FUNCTIONS[0]), "--ptxas-options=-v")
    (registers,) = map(int, re.findall(r"Used (\d+) registers", said))
    assert 40 < registers <= REGISTERS["grid"], said


def test_parts_of_a_text_are_compiled_by_themselves(printed: Any) -> None:
    S = scorch.from_torch(torch.eye(5), format="csr")
    (text,) = printed(lambda: S @ torch.ones(5, 4))
    pick = picking.print_pick_rows(torch.int32, torch.int64, 4)
    parts = [
        (text, FUNCTIONS[0], 1),
        (text, FUNCTIONS[1], 2),
        *((pick, name, 1) for name in picking.FUNCTIONS),
    ]
    for source, part, functions in parts:
        code, said = nvrtc.compile_text(source, "sm_90", *nvrtc.options_of(part), "--ptxas-options=-v")
        assert code and said.count("Used") == functions and part in said


def test_an_older_nvrtc_makes_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    text = entries.print_sum_runs(torch.float32)
    code, _ = nvrtc.compile_text(text, "sm_90")
    monkeypatch.setattr(nvrtc, "version", lambda: (12, 0))
    assert nvrtc.compile_text(text, "sm_90")[0] == code


def test_a_text_that_is_refused_is_shown() -> None:
    with pytest.raises(CompilationError, match=r"(?s)NVRTC could not compile a kernel for y = x.*expected a"):
        nvrtc.compile_cuda('extern "C" __global__ void f( { }', "sm_90", "y = x")


def test_arrays_in_memory_are_found() -> None:
    """An array that is read at an index known only when it runs is in no register."""
    source = """
        #define KERNEL extern "C" __global__
        KERNEL void f(int *x) { int a[9]; for (int i = 0; i < 9; i++) a[x[i]] = x[i]; x[0] = a[x[1]]; }
    """
    with pytest.raises(AssertionError, match=r"[1-9]\d* bytes stack frame"):
        check(source, "sm_90", "grid")
