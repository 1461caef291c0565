"""Groups of calls on CUDA devices, where there is none: the tests of ``scorch.compile``, emulated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import grid_emulator
import scorch
from grid_emulator import noting
from ops.test_compile import (  # noqa: F401 - the tests of what is computed, not of how functions are called
    attend,
    dense,
    gat,
    gcn,
    gradients,
    same,
    sparse,
    test_addmm_with_bias_and_activation,
    test_attention_is_one_kernel,
    test_chains_of_tensors_of_higher_order,
    test_elementwise_chains_are_one_kernel_in_every_format,
    test_gradients_are_tracked_where_the_call_stood,
    test_gradients_of_chains_are_one_kernel_too,
    test_gradients_of_several_results_and_uses,
    test_graph_attention_is_one_kernel,
    test_graph_convolution_is_one_kernel,
    test_index_notation_is_joined,
    test_infinities_and_nan_come_through,
    test_log_softmax_and_vectors,
    test_masks_times_products_never_form_the_whole_product,
    test_other_dtypes,
    test_row_sums_are_joined,
    test_sampled_addmm_adds_what_is_stored,
    test_tensors_on_several_patterns,
)
from scorch._src.backends.cuda.device import nvrtc
from scorch._src.backends.cuda.executables import group as cuda_group
from scorch._src.engine.fused_executable import Steps, fused_kernel

MAX_REGISTERS = 96  # of a thread: with more, fewer threads run at once


@pytest.fixture(autouse=True)
def emulated() -> Iterator[list[str]]:
    """Run the kernels of CUDA devices on the host; return the names of the functions that were run."""
    with noting(lambda source, function: function) as names, scorch.settings(backend="emulated"):
        yield names


def row_sums(A: Any, a: Any, b: Any, X: Any) -> Any:
    return torch.relu((A * a[:, None] * b).sum(1) + 1)


def dense_row_sums(A: Any, a: Any, b: Any, X: Any) -> Any:
    return torch.relu((A * a[:, None]) @ X + 1) * (A * b).sum(1)[:, None]


def several(A: Any, a: Any, b: Any, X: Any) -> Any:
    shares = torch.sparse.softmax(A * a[:, None] * b, 1)
    return (shares @ X).sigmoid() + shares.sum(1)[:, None]


def sampled(A: Any, a: Any, b: Any, X: Any) -> Any:
    return attend(A, X * a[:, None], X, X)


def convolved(A: Any, a: Any, b: Any, X: Any) -> Any:
    return gcn(A, a, X, X[0])


GROUPS = [gat, row_sums, dense_row_sums, several, sampled, convolved]


def operands(n: int, density: float, width: int, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    given = sparse(n, n, density=density), dense(n), dense(n, seed=1), dense(n, width, seed=2)
    return tuple(each.to(dtype) for each in given)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("width", [3, 64, 130])
@pytest.mark.parametrize("n, density", [(9, 0.2), (70, 0.2)])
@pytest.mark.parametrize("function", GROUPS)
def test_threads_of_a_unit_share_what_a_row_has(
    function: Callable[..., Any], n: int, density: float, width: int, emulated: list[str]
) -> None:
    args = operands(n, density, width)
    compiled = scorch.compile(function)
    found = compiled(*args)
    emulated.clear()
    assert torch.equal(compiled(*args), found)  # bit for bit
    assert set(emulated) == {"scorch_compute"}
    with scorch.settings(backend="cpu"):
        truth = function(*args)
        expected = gradients(function, args)
    same(found, truth)
    for ours, theirs in zip(gradients(compiled, args), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("function", GROUPS)
def test_long_rows_are_left_to_kernels_that_cut_them(
    function: Callable[..., Any], emulated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_group, "MAX_EVEN_ROW", 8)
    A, *others = operands(300, 0.005, 32)
    A = scorch.from_torch(torch.cat([A.to_dense()[:-1], dense(1, 300)]), format="csr")
    args = A, *others
    compiled = scorch.compile(function)
    found = compiled(*args)
    assert "scorch_cut" in emulated and "scorch_combine" in emulated
    assert torch.equal(compiled(*args), found)
    with scorch.settings(backend="cpu"):
        truth, expected = function(*args), gradients(function, args)
    same(found, truth)
    for ours, theirs in zip(gradients(compiled, args), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", GROUPS)
def test_the_interpreter_runs_groups(function: Callable[..., Any]) -> None:
    args = operands(20, 0.2, 12)
    with scorch.settings(backend="interpreted grid"):
        compiled = scorch.compile(function)
        found, ours = compiled(*args), gradients(compiled, args)
    with scorch.settings(backend="cpu"):
        same(found, function(*args))
        for gradient, expected in zip(ours, gradients(function, args), strict=True):
            torch.testing.assert_close(gradient, expected)


@pytest.mark.long
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [8, 128])
def test_nvrtc_compiles_groups_without_spills(dtype: torch.dtype, width: int) -> None:
    if not nvrtc.is_there():
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc")
    with noting(lambda text, function: text) as texts:
        for function in GROUPS:
            gradients(scorch.compile(function), operands(70, 0.1, width, dtype))
    for text in dict.fromkeys(texts):
        _, said = nvrtc.compile_text(text, "sm_90", "--ptxas-options=-v")
        used = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
        assert used and all(numbers == ("0", "0") for numbers in used), said
        assert all(int(number) <= MAX_REGISTERS for number in re.findall(r"Used (\d+) registers", said)), said


def test_explanations_say_how_threads_share_rows() -> None:
    plan = scorch.explain(scorch.compile(gat), *operands(70, 0.2, 64))
    text, page = str(plan), plan.to_html()
    assert "thread: too little work" not in page and "C compiler" not in page.partition("<details>")[0]
    assert page.count("<svg") > 2 and "16 threads to a row" in page
    assert "16 threads to a row; rows much longer than others: a kernel for each step" in text


def test_tensors_on_several_devices_are_not_joined() -> None:
    elsewhere = SimpleNamespace(device=torch.device("cuda:1"), dtype=torch.float32, is_meta=False)
    given: Any = {"x": torch.ones(2), "y": elsewhere}
    found = fused_kernel(Steps((), (), (), frozenset(), ()), None, given)
    assert found == "tensors on several devices: cpu, cuda:1"


def test_debug_mode_runs_the_interpreter_too() -> None:
    args = operands(20, 0.2, 12)
    with scorch.settings(backend="emulated", debug=True):
        found = scorch.compile(several)(*args)
    same(found, several(*args))


def test_what_has_no_kernel_runs_one_by_one_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    A, a, b, X = operands(12, 0.2, 4)
    monkeypatch.setattr(cuda_group, "MAX_SLOTS", 3)
    scorch.clear_plans()
    compiled = scorch.compile(gat)
    same(compiled(A, a, b, X), gat(A, a, b, X))
    assert "one kernel would take more than 3 arguments" in str(scorch.explain(compiled, A, a, b, X))
    monkeypatch.undo()
    monkeypatch.setattr(grid_emulator.EmulatedKernel, "is_ready", lambda self: False)
    with scorch.settings(backend="emulated"):
        scorch.clear_plans()
        text = str(scorch.explain(scorch.compile(row_sums), A, a, b, X))
    assert "NVRTC could not compile the fused kernel" in text
    scorch.clear_plans()


def test_a_thread_takes_two_entries_at_once_where_rows_are_short() -> None:
    for columns, are_short in ((20, True), (300, False)):
        values = torch.rand(12, columns)
        with noting(lambda text, function: text) as texts:
            found = torch.sparse.softmax(scorch.from_torch(values.to_sparse_csr()), 1)
        assert ("#pragma unroll 2" in texts[-1]) == are_short
        torch.testing.assert_close(found.to_dense(), values.softmax(1))
