"""``+ - * /`` of a sparse tensor and a dense one: kernels, and the general rule where its format differs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scorch
from scorch._src.events import LISTENERS, Event
from scorch._src.ops.pointwise import arithmetic
from scorch.errors import DensityError

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
SHAPES = {"same": (5, 6), "row": (6,), "column": (5, 1), "single row": (1, 6), "number": ()}


def sparse_and_dense(dtype: torch.dtype = torch.float64) -> tuple[scorch.SparseTensor, torch.Tensor]:
    dense = torch.randn(5, 6, dtype=dtype) * (torch.rand(5, 6) < 0.4)
    dense[0, 0], dense[1, 1] = 1.5, 0.0
    return scorch.from_torch(dense, format="csr"), dense  # type: ignore[return-value]


def same(got: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.to_dense(), expected, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sign", SIGNS)
def test_dense_operands(sign: str, shape: str) -> None:
    S, dense = sparse_and_dense()
    x = torch.rand(SHAPES[shape], dtype=torch.float64) + 0.5
    for _ in range(2):  # planned, then cached
        result = SIGNS[sign](S, x)
        same(result, SIGNS[sign](dense, x))
        assert isinstance(result, scorch.SparseTensor) == (sign in "*/")
        if sign != "/":
            same(SIGNS[sign](x, S), SIGNS[sign](x, dense))


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("special", [0.0, float("inf"), float("nan")])
def test_special_values_after_a_cached_call(sign: str, special: float) -> None:
    S, dense = sparse_and_dense()
    x = torch.rand(5, 6, dtype=torch.float64) + 0.5
    SIGNS[sign](S, x), SIGNS[sign](S, x)
    x[2, 3] = special
    same(SIGNS[sign](S, x), SIGNS[sign](dense, x))
    same(SIGNS[sign](S, S.clone() * special), SIGNS[sign](dense, dense * special))


@pytest.mark.parametrize("sign", ["+", "-"])
def test_sum_with_zeros_stays_sparse(sign: str) -> None:
    S, dense = sparse_and_dense()
    x, zeros = torch.ones(5, 6, dtype=torch.float64), torch.zeros(5, 6, dtype=torch.float64)
    for other in (x, zeros, x, zeros):
        result = SIGNS[sign](S, other)
        same(result, SIGNS[sign](dense, other))
        assert isinstance(result, scorch.SparseTensor) == (other is zeros)
    full = scorch.from_torch(x, format="csr")
    assert isinstance(SIGNS[sign](full, x), scorch.SparseTensor)  # as before: nothing is implicit


@pytest.mark.parametrize("call", [lambda S, x: S + x, lambda S, x: x - S, lambda S, x: S * x])
@pytest.mark.parametrize("shape", ["same", "row"])
def test_gradients(call: Callable[..., Any], shape: str) -> None:
    S, dense = sparse_and_dense()
    x = torch.rand(SHAPES[shape], dtype=torch.float64).requires_grad_()
    leaf, twin, y = S.requires_grad_(), dense.requires_grad_(), x.detach().requires_grad_()
    for _ in range(2):
        ours = torch.autograd.grad(call(leaf, x).to_dense().square().sum(), (leaf, x), create_graph=True)
        theirs = torch.autograd.grad(call(twin, y).square().sum(), (twin, y), create_graph=True)
        stored = (dense != 0).double()
        same(ours[0], theirs[0] * stored)
        same(ours[1], theirs[1])
        second, other = torch.autograd.grad(ours[1].sum(), x), torch.autograd.grad(theirs[1].sum(), y)
        same(second[0], other[0])


def test_functions_of_torch_func() -> None:
    S, dense = sparse_and_dense()
    x = torch.rand(5, 6, dtype=torch.float64)
    got = torch.func.grad(lambda x: (S + x).to_dense().square().sum())(x)
    same(got, 2 * (dense + x))
    batch = torch.rand(3, 5, 6, dtype=torch.float64)
    same(torch.func.vmap(lambda x: (S * x).to_dense())(batch), dense * batch)


def test_sums_keep_the_budget() -> None:
    S, _ = sparse_and_dense()
    bias = torch.rand(6, dtype=torch.float64)
    with scorch.settings(dense_budget=100), pytest.raises(DensityError, match="add of a tensor"):
        S + bias
    x = torch.rand(5, 6, dtype=torch.float64)
    for _ in range(2):  # new, and cached by the call without a budget
        with scorch.settings(dense_budget=100):  # no larger than an operand
            S + x
        S + x


def test_sums_lie_in_memory_as_the_dense_operand() -> None:
    S, dense = sparse_and_dense()
    x = torch.rand(6, 5, dtype=torch.float64).T
    assert (S + x).stride() == (scorch.from_torch(dense, format="coo") + x).stride()
    same(S + x, dense + x)


@pytest.mark.parametrize("sign", "+-*")
def test_tensors_on_one_pattern_are_combined_value_by_value(sign: str) -> None:
    dense = torch.randn(100, 90) * (torch.rand(100, 90) < 0.6)
    S = scorch.from_torch(dense, format="csr")
    T = S * 2
    T.values()[0] = torch.inf
    found, other = SIGNS[sign](S, T), T.to_dense()
    assert found.storage.pattern is S.storage.pattern
    assert torch.equal(found.values(), SIGNS[sign](S.values(), T.values()))
    same(found, torch.where(dense == 0, 0, SIGNS[sign](dense, other)))


@pytest.mark.whole
@pytest.mark.parametrize("sign", "+-*")
def test_no_kernel_combines_values_on_one_pattern_on_other_devices(
    sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch does it in one call, however few there are."""
    A, dense = sparse_and_dense()
    B, ran = A * 3, list[Event]()
    monkeypatch.setattr(arithmetic, "HOST", torch.device("meta"))  # so that the CPU is another device
    LISTENERS.append(ran.append)
    try:
        found = [SIGNS[sign](A, B) for _ in range(2)]
    finally:
        LISTENERS.remove(ran.append)
    assert not ran
    for each in found:
        assert each.storage.pattern is A.storage.pattern
        same(each, SIGNS[sign](dense, 3 * dense))
