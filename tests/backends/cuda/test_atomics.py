"""``settings(deterministic=False)``: sums of a grid by atomic additions, where nothing is converted then."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import scorch
from grid_emulator import noting
from scorch._src.backends.cuda.device import nvrtc
from scorch._src.backends.interpreter import interpret
from scorch._src.loops import nodes as ir
from scorch._src.loops.memory import BoundsError
from scorch._src.loops.types import FLOAT32
from scorch.errors import ScorchError

Call = Callable[..., Any]
SUMS: dict[str, Call] = {
    "transposed": lambda A, X, Y: as_dense("ij,ik->jk", A, X),
    "matrix": lambda A, X, Y: A @ Y,
    "vector": lambda A, X, Y: A @ Y[:, 0].contiguous(),
    "transposed vector": lambda A, X, Y: as_dense("ij,i->j", A, X[:, 0].contiguous()),
    "columns": lambda A, X, Y: as_dense("ij->j", A),
    "rows": lambda A, X, Y: as_dense("ij->i", A),
}
ADDS = {("csr", "transposed"), ("csr", "transposed vector"), ("csr", "columns")}
ADDS |= {("dcsr", name) for form, name in ADDS}
ADDS |= {("csc", name) for name in ("matrix", "vector", "rows")} | {("coo", name) for name in SUMS}


def as_dense(equation: str, A: Any, *others: torch.Tensor) -> torch.Tensor:
    if isinstance(A, scorch.SparseTensor):
        return scorch.einsum(equation, A, *others, format="dense")
    return torch.einsum(equation, A, *others)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, density: float = 0.3) -> torch.Tensor:
    return (torch.randint(-4, 5, shape) * (torch.rand(shape) < density)).to(dtype)


@pytest.fixture
def texts() -> Iterator[list[str]]:
    """Return the texts of the kernels that the emulator runs."""
    with noting(lambda source, name: source) as found, scorch.settings(backend="emulated"):
        yield found


def adds(texts: list[str]) -> bool:
    return any("atomicAdd(" in text or "ADD_4(" in text for text in bodies(texts))


def bodies(texts: list[str]) -> list[str]:
    """Return the kernels of statements; those of routines count by atomics."""
    return [text[text.index("KERNEL void") :] for text in texts if "scorch_compute(" in text]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("width", [1, 3, 64])
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_by_atomics_are_those_of_dense_tensors(
    name: str, form: str, width: int, dtype: torch.dtype, texts: list[str]
) -> None:
    a = drawn(30, 20, dtype=dtype)
    X, Y = (torch.randint(-3, 4, (size, width)).to(dtype) for size in a.shape)
    expected = SUMS[name](a, X, Y)
    for backend in ("emulated", "interpreted grid"):
        A = scorch.from_torch(a, format=form)
        with scorch.settings(backend=backend, deterministic=False):
            torch.testing.assert_close(SUMS[name](A, X, Y), expected)
    is_long = dtype == torch.int32 and name in ("columns", "rows")  # their sums are of int64
    assert adds(texts) == ((form, name) in ADDS and not is_long)


@pytest.mark.parametrize("form", ["csf", "coo"])
@pytest.mark.parametrize("equation", ["ijk,ir,kr->jr", "ijk,ir,jr->kr", "ijk,i->jk", "ijk,j->k"])
def test_tensors_with_three_dimensions(equation: str, form: str, texts: list[str]) -> None:
    a = drawn(7, 8, 9)
    inputs, _, _ = equation.partition("->")
    sizes = {"i": 7, "j": 8, "k": 9, "r": 32}
    dense = [torch.randint(-3, 4, [sizes[x] for x in term]).float() for term in inputs.split(",")[1:]]
    expected = torch.einsum(equation, a, *dense)
    for backend in ("emulated", "interpreted grid"):
        A = scorch.from_torch(a, format=form)
        with scorch.settings(backend=backend, deterministic=False):
            torch.testing.assert_close(scorch.einsum(equation, A, *dense, format="dense"), expected)
    assert adds(texts)


@pytest.mark.parametrize("form", ["csf", "coo"])
def test_places_that_are_found_between_the_levels_of_an_operand(form: str, texts: list[str]) -> None:
    a, X = drawn(4, 5, 6, 7, density=0.1), torch.randint(-3, 4, (4, 5, 3)).float()
    with scorch.settings(deterministic=False):
        found = scorch.einsum("ijkl,ijs->ls", scorch.from_torch(a, format=form), X, format="dense")
    torch.testing.assert_close(found, torch.einsum("ijkl,ijs->ls", a, X))
    assert adds(texts)


def test_what_is_not_added_by_atomics(texts: list[str]) -> None:
    """Half precision, complex numbers and int64, maxima, and all of it by default or if torch forbids it."""
    dtypes = torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64
    dense = [drawn(9, 7, dtype=dtype) for dtype in dtypes]
    A, *others = [scorch.from_torch(matrix, format="csr") for matrix in dense]
    texts.clear()
    for matrix, S in zip(dense[1:], others, strict=True):
        X = torch.ones(9, 3, dtype=matrix.dtype)
        with scorch.settings(deterministic=False):
            found = torch.einsum("ij,ik->jk", S, X)
        torch.testing.assert_close(found, torch.einsum("ij,ik->jk", matrix, X))
    X = torch.ones(9, 3)
    with scorch.settings(deterministic=False):
        scorch.evaluate("y[j] = max(i, A[i,j])", A=A, format="dense")
    torch.einsum("ij,ik->jk", A, X)
    torch.use_deterministic_algorithms(True)
    try:
        with scorch.settings(deterministic=False):
            torch.einsum("ij,ik->jk", A.detach().clone(), X)
    finally:
        torch.use_deterministic_algorithms(False)
    assert bodies(texts) and not adds(texts)


def test_a_pattern_that_was_converted_is_used(texts: list[str]) -> None:
    a, X = drawn(9, 7), torch.ones(9, 3)
    A = scorch.from_torch(a, format="csr")
    for is_deterministic, is_added in ((False, True), (True, False), (False, False)):
        texts.clear()
        with scorch.settings(deterministic=is_deterministic):
            torch.testing.assert_close(torch.einsum("ij,ik->jk", A, X), a.T @ X)
        assert adds(texts) == is_added


def test_calls_that_are_kept_for_one_setting_are_not_taken_for_the_other(texts: list[str]) -> None:
    a, X = drawn(11, 6), torch.ones(11, 3)
    for is_deterministic in (True, False, True, False):
        A = scorch.from_torch(a, format="csr")  # a new pattern
        texts.clear()
        with scorch.settings(deterministic=is_deterministic):
            torch.testing.assert_close(scorch.einsum("ij,ik->jk", A, X), a.T @ X)
        assert adds(texts) != is_deterministic


def test_a_sum_that_is_emptied_or_empty(texts: list[str]) -> None:
    with scorch.settings(deterministic=False):
        for shape in ((0, 4), (4, 0), (3, 3)):
            A = scorch.from_torch(torch.zeros(shape), format="csr")
            found = torch.einsum("ij,ik->jk", A, torch.ones(shape[0], 2))
            assert torch.equal(found, torch.zeros(shape[1], 2))


def test_explanations_say_that_sums_have_no_order(texts: list[str]) -> None:
    A, X = scorch.from_torch(drawn(9, 7), format="csr"), torch.ones(9, 64)
    with scorch.settings(deterministic=False):
        step = scorch.explain("ij,ik->jk", A, X).steps[-1]
        assert step.inner.endswith("adds by atomics, in no fixed order")
    assert "atomics" not in scorch.explain("ij,ik->jk", A, X).steps[-1].inner


def test_the_setting_changes_nothing_on_the_cpu() -> None:
    a, X = torch.randn(40, 30) * (torch.rand(40, 30) < 0.3), torch.randn(40, 5)
    expected = torch.einsum("ij,ik->jk", scorch.from_torch(a, format="csr"), X)
    with scorch.settings(deterministic=False):
        found = torch.einsum("ij,ik->jk", scorch.from_torch(a, format="csr"), X)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("value", [None, 0, "no"])
def test_the_setting_is_true_or_false(value: object) -> None:
    with pytest.raises(ScorchError, match="deterministic must be True or False"):
        scorch.settings(deterministic=value)


@pytest.mark.parametrize("is_atomic", [True, False])
def test_the_interpreter_tells_atomic_additions_from_races(is_atomic: bool) -> None:
    y, zero, count = ir.Array("y", FLOAT32), ir.Const(0), ir.Var("n")
    one = ir.Const(1.0, FLOAT32)
    plain = ir.Store(y, zero, ir.Binary("+", ir.Load(y, zero), one, FLOAT32))
    body = ir.AtomicAdd(y, zero, one) if is_atomic else plain
    slots = (ir.Var("parallel_for"), count, y)
    empty = ir.Block(())
    loop = ir.Parallel(ir.Var("turn"), count, ir.Const(2), empty, body, empty)
    kernel = ir.Kernel("", slots, (ir.Function("f", slots, loop, exported=True),))
    sums = np.zeros(1, np.float32)
    if is_atomic:
        assert not interpret.run(kernel, "f", [0, 5, sums])
        assert sums[0] == 5
    else:
        with pytest.raises(BoundsError, match=r"turn 1 reads y.0., which turn 0 wrote"):
            interpret.run(kernel, "f", [0, 5, sums])


def test_a_store_beside_an_atomic_addition_is_a_race() -> None:
    y, turn, count = ir.Array("y", FLOAT32), ir.Var("turn"), ir.Var("n")
    one = ir.Const(1.0, FLOAT32)
    body = ir.If(turn.equals(0), ir.AtomicAdd(y, ir.Const(0), one), ir.Store(y, ir.Const(0), one))
    slots = (ir.Var("parallel_for"), count, y)
    empty = ir.Block(())
    loop = ir.Parallel(turn, count, ir.Const(2), empty, body, empty)
    kernel = ir.Kernel("", slots, (ir.Function("f", slots, loop, exported=True),))
    with pytest.raises(BoundsError, match=r"turn 1 writes y.0., which an atomic addition wrote"):
        interpret.run(kernel, "f", [0, 2, np.zeros(1, np.float32)])


@pytest.mark.long
@pytest.mark.sampled(3)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_nvrtc_compiles_atomic_additions_without_spills(architecture: str, texts: list[str]) -> None:
    if not nvrtc.is_there():
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc")
    dtypes = itertools.cycle((torch.float32, torch.float64, torch.int32))
    for (form, name), dtype in zip(sorted(ADDS), dtypes, strict=False):
        a = drawn(30, 20, dtype=dtype)
        X, Y = (torch.ones(size, 64, dtype=dtype) for size in a.shape)
        with scorch.settings(deterministic=False):
            SUMS[name](scorch.from_torch(a, format=form), X, Y)
    for source in dict.fromkeys(texts):
        code, said = nvrtc.compile_text(source, architecture, "--ptxas-options=-v")
        assert code[:4] == b"\x7fELF", said
        used = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
        assert used and all(numbers == ("0", "0") for numbers in used), said
