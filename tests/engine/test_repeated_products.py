"""A product of the same patterns as before has the same pattern, which is not found again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import scorch
from scorch._src.engine.repeated_products import KEPT, RepeatedProducts
from scorch.settings import enabled

pytestmark = pytest.mark.skipif(not enabled("repeat") or not enabled("lookup"), reason="switched off")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


def drawn(seed: int, m: int = 80, n: int = 70, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    values = torch.randn(m, n, generator=source) * 4
    return (values * (torch.rand(m, n, generator=source) < 0.3)).to(dtype)


def pair(form: str = "csr", dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    A, B = drawn(0, 80, 70, dtype), drawn(1, 70, 90, dtype)
    A[::9] = 0
    B[:, ::7] = 0
    return scorch.from_torch(A, format=form), scorch.from_torch(B, format=form)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the pattern of each product was known."""
    found: list[bool] = []
    again = RepeatedProducts.again

    def watch(self: RepeatedProducts, *given: object) -> object:
        result = again(self, *given)
        found.append(result is not None)
        return result

    monkeypatch.setattr(RepeatedProducts, "again", watch)
    return found


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", ["csr", "csc", "dcsr"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128, torch.int32, torch.bfloat16])
def test_results_have_the_same_bits(form: str, dtype: torch.dtype, threads: int) -> None:
    A, B = pair(form, dtype)
    with scorch.settings(threads=threads):
        first = A @ B
        values = first.values().clone()
        for _ in range(3):
            again = A @ B
            assert torch.equal(again.values(), values)
            assert torch.equal(again.to_dense(), first.to_dense())
            assert again.dtype == dtype


def test_a_result_shares_the_pattern_of_the_last_one(calls: list[bool]) -> None:
    A, B = pair()
    first = A @ B
    second = A @ B
    assert calls == [False, True]
    assert second.storage.pattern is first.storage.pattern
    assert second.values().data_ptr() != first.values().data_ptr()


def test_the_pattern_of_the_second_result_is_kept_where_the_first_was_dropped(calls: list[bool]) -> None:
    A, B = pair()
    expected = (A @ B).to_dense()
    for _ in range(3):
        assert torch.equal((A @ B).to_dense(), expected)
    assert calls == [False, False, True, True]


def test_other_values_on_the_same_patterns(calls: list[bool]) -> None:
    A, B = pair()
    kept = A @ B
    other = A.with_values(A.values() * 1.5)
    torch.testing.assert_close((other @ B).to_dense(), kept.to_dense() * 1.5)
    assert calls == [False, True]


def test_operands_with_other_patterns_have_results_of_their_own(calls: list[bool]) -> None:
    A, B = pair()
    C = scorch.from_torch(B.to_dense().roll(1, 1), format="csr")  # as many nonzeros, and the same kernel
    results = [A @ B, A @ C, A @ B, A @ C, A @ C]
    for result, right in zip(results, (B, C, B, C, C), strict=True):
        torch.testing.assert_close(result.to_dense(), A.to_dense() @ right.to_dense())
    assert calls == [False, False, True, True, True]


@pytest.mark.parametrize("is_first", [True, False])
def test_patterns_are_dropped_with_each_operand(is_first: bool) -> None:
    A, B = pair()
    for _ in range(2):
        A @ B
    pattern = weakref.ref((A @ B).storage.pattern)
    assert pattern() is not None
    kept = KEPT.bytes
    assert kept > 0
    if is_first:
        del A
    else:
        del B
    gc.collect()
    assert pattern() is None
    assert KEPT.bytes < kept


def test_patterns_that_are_kept_take_a_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, calls: list[bool]
) -> None:
    operands = [pair() for _ in range(4)]
    A, B = pair()
    monkeypatch.setitem(KEPT.__dict__, "most", KEPT.bytes + 2 * (A @ B).storage.pattern.bytes() + 64)
    for _ in range(2):
        for left, right in operands:
            left @ right
    calls.clear()
    for left, right in reversed(operands):
        left @ right
    assert calls[:2] == [True, True]
    assert not all(calls)
    assert KEPT.bytes <= KEPT.most


def test_what_is_cached_with_a_pattern_counts() -> None:
    A, B = pair()
    for _ in range(2):
        A @ B
    before = KEPT.bytes
    (A @ B).storage.pattern.mask(torch.float32)
    A @ B
    assert KEPT.bytes > before


def test_few_products_are_not_repeated(calls: list[bool]) -> None:
    A = scorch.from_torch(drawn(0, 20, 20), format="csr")
    for _ in range(3):
        A @ A
    assert not calls


def test_rows_that_are_nearly_full_are_found_anew(calls: list[bool]) -> None:
    """Many products for each nonzero: listing these takes little of the time."""
    dense = torch.zeros(200, 200)
    dense[:60, :60] = drawn(0, 60, 60) + 1
    A = scorch.from_torch(dense, format="csr")
    for _ in range(4):
        torch.testing.assert_close((A @ A).to_dense(), dense @ dense)
    assert not any(calls)


def test_it_can_be_switched_off(calls: list[bool]) -> None:
    A, B = pair()
    with scorch.settings(disable="repeat"):
        kept = A @ B
        assert torch.equal((A @ B).to_dense(), kept.to_dense())
    assert not calls


@pytest.mark.whole
def test_patterns_of_inference_mode_stay_there(calls: list[bool]) -> None:
    A, B = pair()
    with torch.inference_mode():
        kept = [A @ B for _ in range(3)]
    outside = A @ B
    assert calls == [False, True, True, False]
    assert not outside.storage.pattern.arrays[0].is_inference()
    assert torch.equal(outside.to_dense(), kept[0].to_dense())
    with torch.inference_mode():
        assert torch.equal((A @ B).to_dense(), outside.to_dense())
    assert calls[-1]


def test_transposes_of_a_view_have_one_pattern(calls: list[bool]) -> None:
    A, _ = pair()
    expected = A.to_dense() @ A.to_dense().T
    for _ in range(4):
        torch.testing.assert_close((A @ A.T).to_dense(), expected)
    assert calls == [False, False, True, True]


def test_training_repeats_the_pattern(calls: list[bool]) -> None:
    A, B = pair()
    A.requires_grad_()
    gradients = []
    for _ in range(4):
        A.grad = None
        (A @ B).square().sum().backward()
        assert isinstance(A.grad, scorch.SparseTensor)
        gradients.append(A.grad.values().clone())
    assert calls[-1]
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


def test_explanations_name_the_pattern(calls: list[bool]) -> None:
    A, B = pair()
    kept = [A @ B]

    def multiply(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return A @ B

    assert "pattern: csr" in scorch.explain(multiply)(A, B).report()
    assert kept


def test_an_interpreter_agrees() -> None:
    A, B = pair("csr", torch.float64)
    with scorch.settings(debug=True):
        kept = [A @ B for _ in range(3)]
    torch.testing.assert_close(kept[-1].to_dense(), A.to_dense() @ B.to_dense())


def test_patterns_are_released_with_other_memory(calls: list[bool]) -> None:
    A, B = pair()
    for _ in range(3):
        A @ B
    scorch.release_memory()
    assert KEPT.bytes == 0
    A @ B
    assert calls == [False, False, True, False]


def test_threads_may_repeat_the_same_product() -> None:
    A, B = pair()
    expected = (A @ B).to_dense()

    def multiply(turn: int) -> bool:
        if turn % 7 == 0:
            scorch.release_memory()
        return torch.equal((A @ B).to_dense(), expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(multiply, range(60)))
