"""Repeated calls skip all checks that the first call made: what changed since must still be seen."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import scorch
from on_device import is_on_device
from scorch._src.bounded import clear_plans
from scorch._src.statements import call_cache
from scorch.errors import DensityError, FormatError, FreedError, OperandError, ShapeError, UnsupportedError
from torch_has import needs_builtins

Call = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def dense() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(6, 6) * (torch.rand(6, 6) < 0.5)


@pytest.fixture
def product(dense: torch.Tensor) -> Call:
    """``dense @ x`` through a call that has been made before."""
    S = scorch.from_torch(dense, format="csr")

    def call(x: torch.Tensor) -> torch.Tensor:
        return scorch.einsum("ij,j->i", S, x)

    for _ in range(3):
        call(torch.randn(6))
    return call


def test_other_values_give_other_results(dense: torch.Tensor, product: Call) -> None:
    for _ in range(3):
        x = torch.randn(6)
        torch.testing.assert_close(product(x), dense @ x)


def test_another_dtype_layout_or_stride_is_seen(dense: torch.Tensor, product: Call) -> None:
    x = torch.randn(6)
    torch.testing.assert_close(product(x.double()), dense.double() @ x.double())
    torch.testing.assert_close(product(x), dense @ x)
    torch.testing.assert_close(product(torch.stack([x, -x], 1)[:, 0]), dense @ x)
    torch.testing.assert_close(product(x[:1].expand(6)), dense @ x[:1].expand(6))
    torch.testing.assert_close(product(torch.nn.Parameter(x)), dense @ x)
    found = product(x.to_sparse())
    torch.testing.assert_close(found.to_dense(), dense @ x)


def test_another_shape_is_refused(dense: torch.Tensor, product: Call) -> None:
    with pytest.raises(ShapeError, match="index 'j' is 6"):
        product(torch.randn(5))
    grown = torch.randn(6)
    product(grown)
    grown.resize_(12)
    with pytest.raises(ShapeError, match="but 12 in operand 1"):
        product(grown)
    x = torch.randn(6)
    torch.testing.assert_close(product(x), dense @ x)


def test_tensors_without_memory_are_refused(dense: torch.Tensor, product: Call) -> None:
    x = torch.randn(6)
    with pytest.raises(OperandError, match="on device meta"):
        product(x.to("meta"))
    with FakeTensorMode():
        fake = torch.randn(6)
    with pytest.raises(UnsupportedError, match="FakeTensor"):
        product(fake)
    torch.testing.assert_close(product(x), dense @ x)


def test_lazily_negated_and_conjugated_operands_are_seen() -> None:
    S = scorch.from_torch(torch.ones(2, 1), format="csr")
    z = torch.randn(1, dtype=torch.complex64)
    for x in (z.conj().imag, z.conj().imag.resolve_neg(), z.conj().imag, z.conj(), z):
        truth = x.resolve_conj().resolve_neg().expand(2)
        torch.testing.assert_close(scorch.einsum("ij,j->i", S, x), truth)


def test_numbers_may_change_between_calls(dense: torch.Tensor) -> None:
    S, x = scorch.from_torch(dense, format="csr"), torch.randn(6)
    for a in (2.0, 3.0, 4):
        found = scorch.evaluate("y[i] = a * A[i,j] * x[j]", a=a, A=S, x=x)
        torch.testing.assert_close(found, a * (dense @ x))


def test_default_dtype_may_change_between_calls(dense: torch.Tensor) -> None:
    S = scorch.from_torch(dense.int(), format="csr")
    for dtype in (torch.float64, torch.float32, torch.float64):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            assert scorch.evaluate("H[i,j] = A[i,j] / 2", A=S).dtype == dtype
        finally:
            torch.set_default_dtype(before)


def test_large_sparse_results_are_not_taken_for_dense_ones() -> None:
    places = torch.arange(0, 1_000_000, 1000)
    S = scorch.sparse_coo_tensor(
        torch.stack([places, places]), torch.ones(1000), (10**6, 10**6), format="csr"
    )
    for _ in range(3):
        assert scorch.einsum("ij,jk->ik", S, S).nnz == 1000


def test_more_kinds_of_calls_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_cache._known, "most", 2)
    for size in (2, 3, 4, 5, 2, 3):
        S = scorch.from_torch(torch.eye(size), format="csr")
        for _ in range(2):
            torch.testing.assert_close(scorch.einsum("ij,j->i", S, torch.ones(size)), torch.ones(size))
    assert len(call_cache._known) <= 2


def test_lazily_negated_vectors_are_seen(dense: torch.Tensor, product: Call) -> None:
    x = torch.randn(6)
    for _ in range(2):
        torch.testing.assert_close(product(torch._neg_view(x)), dense @ -x)
        torch.testing.assert_close(product(x), dense @ x)


def test_formats_that_are_equal_for_matrices_are_told_apart() -> None:
    T = scorch.from_torch(torch.ones(2, 2, 2), format="coo")
    for name in ("csf", "dcsr", "csf"):
        found = scorch.einsum("ijk,ijk->ijk", T, T, format=scorch.Format(name))
        assert found.format == scorch.Format(name, dims=3)


def test_default_device_does_not_matter(dense: torch.Tensor) -> None:
    x = torch.randn(6)
    with torch.device("meta"):
        S = scorch.from_torch(dense, format="dcsr")
        found = scorch.einsum("ij,j->i", S, x, format="dense")
        again = scorch.evaluate("C[i,j] = A[i,j] + A[j,i]", A=S, format="csc")
    torch.testing.assert_close(found, dense @ x)
    torch.testing.assert_close(again.to_dense(), dense + dense.T)


def test_tensors_whose_memory_was_freed_are_refused(dense: torch.Tensor, product: Call) -> None:
    x = torch.randn(6)
    x.untyped_storage().resize_(0)
    messages = []
    for _ in range(2):
        try:
            product(x)
        except FreedError as error:
            messages.append(str(error))
    x.untyped_storage().resize_(24)  # a failing test may show x, which torch could not
    told = "an operand of shape (6,) has no memory" if is_on_device() else "operand 1 has no memory"
    assert len(messages) == 2 and all(told in message for message in messages)
    torch.testing.assert_close(product(torch._efficientzerotensor(6, device=x.device)), torch.zeros(6))


def test_fake_tensor_modes_are_refused(dense: torch.Tensor, product: Call) -> None:
    x = torch.randn(6)
    with FakeTensorMode(), pytest.raises(UnsupportedError, match="fake tensor mode"):
        product(x)
    torch.testing.assert_close(product(x), dense @ x)


def test_many_dimensions_and_many_arrays_take_the_long_way() -> None:
    letters = "abcdefghijklmnopqrst"
    S = scorch.from_torch(torch.rand([1] * 19 + [2]) + 1, format="coo")
    for _ in range(3):
        found = scorch.einsum(f"{letters},t->{letters}", S, torch.ones(2), format="dense")
        torch.testing.assert_close(found, S.to_dense())
    named = {name: scorch.from_torch(torch.ones([2] * 6), format="csf") for name in "ABCDEFG"}
    total = "R[a,b,c,d,e,f] = " + " + ".join(f"{name}[a,b,c,d,e,f]" for name in named)
    for _ in range(3):
        torch.testing.assert_close(scorch.evaluate(total, format="dense", **named), torch.full([2] * 6, 7.0))


def test_budget_holds_for_repeated_calls() -> None:
    S = scorch.from_torch(torch.eye(3), format="csr")
    for _ in range(2):
        scorch.einsum("ij,k->ik", S, torch.ones(1000), format="dense")
    for _ in range(2):
        with scorch.settings(dense_budget=100), pytest.raises(DensityError, match="budget of 100"):
            scorch.einsum("ij,k->ik", S, torch.ones(1000), format="dense")


def test_calls_that_convert_an_operand_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("the long way")

    mask = (torch.rand(60, 50) < 0.2).float()
    dense = [mask, mask.roll(1, 0)]  # of one kind, with patterns of their own
    tensors, X = [scorch.from_torch(d, format="csc") for d in dense], torch.rand(8, 50)

    def product(number: int) -> torch.Tensor:
        return scorch.einsum("ij,kj->ik", tensors[number], X, format="dense")

    clear_plans()
    product(0)
    if not any(run.__qualname__.startswith("run_converted") for run in call_cache._recent.values()):
        pytest.skip("the plan for this processor converts nothing")
    with monkeypatch.context() as quick:
        quick.setattr("scorch._src.statements.call_cache._known_run", fail)
        for number in (0, 1, 0):
            torch.testing.assert_close(product(number), dense[number] @ X.T)
        tensors[0].mul_(2)
        torch.testing.assert_close(product(0), 2 * dense[0] @ X.T)
    with scorch.settings(deterministic=False):
        torch.testing.assert_close(product(1), dense[1] @ X.T)


@pytest.mark.parametrize("form", ["coo", "csf", "dds", "ssd"])
@pytest.mark.parametrize("operator", ["/", "*"])
def test_each_access_of_an_operand_is_converted_for_itself(operator: str, form: str) -> None:
    mask = torch.rand(4, 4, 4) < 0.5
    dense = [torch.rand(4, 4, 4) * each for each in (mask, mask.roll(1, 0))]
    tensors = [scorch.from_torch(each, format=form) for each in dense]

    def computed(T: torch.Tensor) -> torch.Tensor:
        return scorch.evaluate(f"R[k,i] = T[k,k,i] {operator} T[k,i,k]", format="dense", T=T)

    for number in (0, 0, 0, 1, 0):
        torch.testing.assert_close(computed(tensors[number]), computed(dense[number]), equal_nan=True)


@needs_builtins
@pytest.mark.cpu("unused memory of the host")
@pytest.mark.parametrize("requires_grad", [False, True])
def test_large_results_take_the_short_way_while_memory_is_free(
    monkeypatch: pytest.MonkeyPatch, requires_grad: bool
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("the long way")

    for place in ("storage.budget", "engine.executable"):
        monkeypatch.setattr(f"scorch._src.{place}.UNCHECKED_BYTES", 1000)
    clear_plans()
    S, X = scorch.from_torch(torch.eye(30), format="csr"), torch.rand(30, 40, requires_grad=requires_grad)
    for _ in range(3):
        S @ X
    with monkeypatch.context() as quick:
        for place in ("call_cache._known_run", "autograd._repeat_known"):
            quick.setattr(f"scorch._src.statements.{place}", fail)
        quick.setattr("scorch._src.storage.budget._free_memory", fail)
        assert torch.equal(S @ X, X)
    monkeypatch.setattr("scorch._src.storage.budget._unused_memory", lambda: 0)
    assert torch.equal(S @ X, X)
    monkeypatch.setattr("scorch._src.storage.budget._free_memory", lambda device: 4000)
    for _ in range(2):
        with pytest.raises(DensityError, match="budget of 1,000"):
            S @ X
    clear_plans()


@pytest.mark.parametrize("format", [["d", "s"], 5, {"a": 1}])
def test_formats_that_are_none_are_refused(format: object) -> None:
    S = scorch.from_torch(torch.eye(3), format="csr")
    for _ in range(2):
        with pytest.raises(FormatError, match="a format is a name"):
            scorch.einsum("ij->ij", S, format=format)
        with pytest.raises(FormatError, match="a format is a name"):
            scorch.evaluate("B[i,j] = A[i,j]", A=S, format=format)


def test_numbers_of_numpy_are_taken_and_numbers_too_large_refused(dense: torch.Tensor) -> None:
    S = scorch.from_torch(dense, format="csr")
    torch.testing.assert_close(scorch.einsum(",ij->ij", np.float32(2), S).to_dense(), 2 * dense)
    with pytest.raises(OperandError, match="does not fit in 64 bits"):
        scorch.einsum(",ij->ij", 2**70, S)


def test_many_operands_are_planned_quickly() -> None:
    letters = "abcdefghijklmnop"
    vectors = [scorch.from_torch(torch.ones(1), format="s")] * len(letters)
    found = scorch.einsum(f"{','.join(letters)}->{letters}", *vectors)
    assert found.nnz == 1


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,ik,kj->ij"])
def test_views_take_the_short_way_too(monkeypatch: pytest.MonkeyPatch, equation: str) -> None:
    """Transposed views are read as they lie, views with gaps are copied; neither is parsed again."""
    torch.manual_seed(1)
    D = torch.randn(7, 9, dtype=torch.float64) * (torch.rand(7, 9) < 0.5)
    S = scorch.from_torch(D, format="csr")
    left = (torch.randn(7, 5, dtype=torch.float64),) if equation.count(",") == 2 else ()
    base = torch.randn(5, 9, dtype=torch.float64)
    wide = torch.randn(9, 10, dtype=torch.float64)
    matrices = [base.t(), wide[:, ::2], wide[:, :5], torch.randn(9, 5, dtype=torch.float64)]
    if left:
        matrices = [base, wide.t()[::2], wide[:, :5].t(), torch.randn(5, 9, dtype=torch.float64)]
    wanted = [torch.einsum(equation, D, *left, matrix) for matrix in matrices]
    for matrix in matrices:
        scorch.einsum(equation, S, *left, matrix)

    def fail(*_: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(sys.modules["scorch._src.statements.einsum"], "parse_einsum", fail)
    for _ in range(2):
        for matrix, dense in zip(matrices, wanted, strict=True):
            found = scorch.einsum(equation, S, *left, matrix)
            torch.testing.assert_close(found.to_dense(), dense)


@needs_builtins
@pytest.mark.parametrize("has_gradient", [False, True])
def test_dense_operands_of_several_widths_take_turns(
    has_gradient: bool, dense: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the layers of a network: each call finds the last one of its width."""
    S = scorch.from_torch(dense, format="csr").requires_grad_(has_gradient)
    widths = [torch.randn(6, width) for width in (3, 5, 8)]
    for _ in range(3):
        for x in widths:
            S @ x

    def fail(*_: object) -> None:
        raise AssertionError("looked up with all shapes and strides")

    monkeypatch.setattr("scorch._src.statements.call_cache._known_run", fail)
    monkeypatch.setattr("scorch._src.statements.autograd._repeat_known", fail)
    for x in (*widths, *reversed(widths)):
        torch.testing.assert_close((S @ x).detach(), dense @ x)
