"""Entries that repeat are added up by the text of kernels for CUDA devices, run on the host."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

import scorch
from grid_emulator import EmulatedKernel, EmulatedRoutines, noting
from scorch._src.backends.by_torch import index_arrays
from scorch._src.backends.cuda.device import kernel, streams
from scorch._src.backends.cuda.device.kernel import Launches
from scorch._src.backends.cuda.routines import entries
from scorch._src.backends.routines import Routines
from scorch._src.backends.sort_entries import Sorted
from scorch._src.bounded import clear_plans
from scorch._src.ops.pointwise import arithmetic
from scorch._src.statements import call_cache
from scorch._src.tensor.registry import entry

ROUTINES = EmulatedRoutines()
METHODS: dict[str, Any] = {
    "*": operator.mul,
    "/": operator.truediv,
    "+": operator.add,
    "-": operator.sub,
}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "FEW", 4)


@given(st.data())
def test_sums_are_those_of_torch(data):
    count, places = data.draw(st.integers(0, 300)), data.draw(st.integers(1, 20))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    column = torch.randint(places, (count,), generator=generator)
    column = torch.where(torch.rand(count, generator=generator) < 0.3, places // 2, column)
    values = torch.randn(count, *data.draw(st.sampled_from([(), (2,), (0,)])), generator=generator)
    values = values.to(data.draw(st.sampled_from([torch.float32, torch.float64, torch.float16])))
    found = Routines().sort_entries([column], (places,))
    if isinstance(found, Sorted):
        sums = ROUTINES.sum_entries(found, values)
        torch.testing.assert_close(sums, Routines().sum_entries(found, values))
        assert torch.equal(sums, ROUTINES.sum_entries(found, values))


def test_the_kernel_is_taken(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("torch adds up")

    places, values = torch.randint(30, (2, 200)), torch.rand(200)
    monkeypatch.setattr(index_arrays, "sum_runs", refuse)
    with scorch.settings(backend="emulated"):
        S = scorch.sparse_coo_tensor(places, values, (30, 30))
    wanted = torch.zeros(30, 30).index_put((places[0], places[1]), values, accumulate=True)
    torch.testing.assert_close(S.to_dense(), wanted)


@pytest.mark.parametrize("width", [(), (2,)])
def test_sums_have_the_same_bits_while_their_kernel_is_compiled(
    width: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "FEW", 64)
    routines = EmulatedRoutines()
    for places, by_steps in ((90, True), (3, False)):  # few entries of a place, and many
        values = torch.randn(200, *width)
        values[::7], values[3] = -0.0, torch.inf
        found = Routines().sort_entries([torch.randint(places, (200,))], (places,))
        assert isinstance(found, Sorted)
        record = Launches()
        with monkeypatch.context() as patch:
            patch.setattr(EmulatedKernel, "is_ready", lambda kernel, may_wait=True, needed=(): may_wait)
            patch.setattr(kernel, "LAUNCHES", [record])
            early = routines.sum_entries(found, values)
        assert bool(record.launched) != by_steps
        assert torch.equal(early.view(torch.int32), routines.sum_entries(found, values).view(torch.int32))


def test_a_product_on_one_pattern_asks_for_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the host waits")

    A = scorch.tensor([[torch.inf, 0.0, torch.nan], [2.0, 0.0, 0.0]], format="csr")
    B = A * 0.5
    monkeypatch.setattr(EmulatedRoutines, "are_finite", refuse)
    with scorch.settings(backend="emulated"):
        products = [A * B for _ in range(2)]
    wanted = torch.tensor([[torch.inf, 0.0, torch.nan], [2.0, 0.0, 0.0]])
    for product in products:
        assert product.format == A.format
        torch.testing.assert_close(product.to_dense(), wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_what_is_not_finite_is_found(dtype):
    one, other = torch.rand(300).to(dtype), torch.rand(200).to(dtype)
    assert ROUTINES.are_finite([one, other]) and ROUTINES.are_finite([one]) and ROUTINES.are_finite([one[:0]])
    for array, place in ((one, 299), (other, 0), (other, 199)):
        for odd in (torch.inf, -torch.inf, torch.nan):
            changed = array.clone()
            changed[place] = odd
            pair = [changed, other] if array is one else [one, changed]
            assert not ROUTINES.are_finite(pair)
            assert ROUTINES.are_finite([one, other])


NUMBERS = [0.0, -0.0, 1.0, -2.0, torch.inf, -torch.inf, torch.nan]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_questions_about_numbers_are_answered_as_by_torch(dtype):
    for size in (0, 1, 300):
        for usual in (0.0, 3.0):
            for odd in NUMBERS:
                array = torch.full((size,), usual, dtype=dtype)
                array[-1:] = odd
                for name in ("ask_divisor", "ask_nonzero"):
                    answers = {getattr(each, name)(array)() for each in (ROUTINES, Routines())}
                    assert len(answers) == 1, (name, size, usual, odd)
                assert ROUTINES.ask_divisor(array)() == bool(array.all() and array.isfinite().all())
                assert ROUTINES.ask_nonzero(array)() == bool(array.any())


class Wrapped(torch.Tensor):
    """A subclass, whose numbers may be elsewhere."""


def test_numbers_without_memory_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Launches()
    monkeypatch.setattr(kernel, "LAUNCHES", [record])
    for zeros in (torch._efficientzerotensor((3,)), torch.zeros(3).as_subclass(Wrapped)):
        assert ROUTINES.ask_finite([zeros])() and not ROUTINES.ask_nonzero(zeros)()
        assert not ROUTINES.ask_divisor(zeros)()
    assert not record.launched
    assert not ROUTINES.ask_nonzero(torch.zeros(3))() and len(record.launched) == 1


# What each function asks of a dense operand, and a number for which the format is another one.
ASKED = {
    "*": (torch.mul, torch.inf),
    "/": (torch.div, 0.0),
    "+": (torch.add, None),
    "-": (torch.sub, None),
}


@pytest.mark.whole
@pytest.mark.parametrize("sign", ASKED)
def test_a_call_asks_first_and_waits_last(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device answers what the format depends on while the host launches the kernel, and is asked once."""
    function, odd = ASKED[sign]
    order: list[str] = []
    wait = streams.Told.wait

    def waiting(told: streams.Told) -> list[int]:
        order.append("wait")
        return wait(told)

    A, dense = torch.rand(30, 40) * (torch.rand(30, 40) < 0.2), torch.rand(30, 40) + 0.5
    monkeypatch.setattr(call_cache, "_is_same_kernel", lambda in_force: True)  # as with the usual settings
    monkeypatch.setattr(arithmetic, "HOST", None)  # as if tensors were elsewhere
    monkeypatch.setattr(call_cache.quickest, "is_known", True)  # builtins repeat calls on the host alone
    monkeypatch.setattr(entry(getattr(torch.Tensor, f"__{arithmetic.METHODS[sign]}__")), "quick", None)
    clear_plans()
    with scorch.settings(backend="emulated"):
        S = scorch.from_torch(A, format="csr")
        for _ in range(2):
            METHODS[sign](S, dense)
        monkeypatch.setattr(streams.Told, "wait", waiting)
        with noting(lambda source, name: order.append(name)):
            result = METHODS[sign](S, dense)
        assert order == ["scorch_find_infinite", "scorch_compute", "wait"]
        assert isinstance(result, scorch.SparseTensor) == (sign in "*/")
        torch.testing.assert_close(result.to_dense(), function(A, dense))
        other = torch.zeros_like(dense) if odd is None else dense.clone()
        if odd is not None:
            other[3, 4] = odd
        for _ in range(2):
            changed = METHODS[sign](S, other)
            assert isinstance(changed, scorch.SparseTensor) != isinstance(result, scorch.SparseTensor)
            torch.testing.assert_close(changed.to_dense(), function(A, other), equal_nan=True)
        assert isinstance(METHODS[sign](S, dense), type(result))
    clear_plans()


@pytest.mark.parametrize("sign", ASKED)
def test_gradients_ask_once_and_wait_last(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    wait, ask = streams.Told.wait, EmulatedRoutines._find
    monkeypatch.setattr(streams.Told, "wait", lambda told: [order.append("wait"), wait(told)][1])
    monkeypatch.setattr(EmulatedRoutines, "_find", lambda *args: [order.append("ask"), ask(*args)][1])
    monkeypatch.setattr(arithmetic, "HOST", None)
    A, dense = torch.rand(30, 40) * (torch.rand(30, 40) < 0.2), torch.rand(30, 40) + 0.5
    with scorch.settings(backend="emulated"):
        S, x = scorch.from_torch(A, format="csr").requires_grad_(), dense.clone().requires_grad_()
        out = METHODS[sign](S, x)
        assert order == ["ask", "wait"]
        grads = torch.autograd.grad(out.to_dense().square().sum(), [S, x])
    a, d = A.clone().requires_grad_(), dense.clone().requires_grad_()
    wanted = torch.autograd.grad(ASKED[sign][0](a, d).square().sum(), [a, d])
    torch.testing.assert_close(grads[0].to_dense(), wanted[0] * (A != 0))
    torch.testing.assert_close(grads[1].to_dense(), wanted[1])


def test_what_nobody_waits_for_is_written_to_memory_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ROUTINES.ask_finite([torch.rand(5)])
    memory = streams._pinned[-1]
    del answer
    assert any(kept is memory for kept in streams._pinned)
    assert ROUTINES.are_finite([torch.rand(5)]) and not ROUTINES.are_finite([torch.tensor([torch.nan])])


@given(st.data())
def test_sums_of_columns_are_those_of_torch(data):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    shape = data.draw(st.tuples(st.integers(0, 40), st.integers(0, 5)))
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    matrix = matrix.to(data.draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])))
    if data.draw(st.booleans()):
        matrix = matrix[:1].expand(shape[0] if shape[0] > 1 else min(1, shape[0]), -1)
    with torch.autocast("cpu", torch.bfloat16, enabled=data.draw(st.booleans())):
        sums = ROUTINES.sum_columns(matrix)
    assert sums.dtype == matrix.dtype
    torch.testing.assert_close(sums, matrix.sum(0))


def test_ones_of_sums_of_columns_are_kept_but_not_those_of_a_mode() -> None:
    matrix, routines = torch.rand(40, 3), EmulatedRoutines()
    with torch.inference_mode():
        routines.sum_columns(matrix)
    (ones,) = routines._ones.values()
    sums = routines.sum_columns(matrix.requires_grad_())  # which saves the ones: no inference tensors
    torch.testing.assert_close(sums, matrix.sum(0))
    assert [*routines._ones.values()] == [ones]
    with FakeTensorMode() as mode:
        routines.sum_columns(mode.from_tensor(torch.rand(30, 3)))
    torch.func.vmap(routines.sum_columns)(torch.rand(2, 20, 3))
    assert [*routines._ones.values()] == [ones]
