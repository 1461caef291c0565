"""Calls of a sparse layer that repeat the last one: as fast as they get, and never wrong."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.nn import sparse_linear
from scorch._src.ops.products import linear as products
from scorch._src.ops.products import repeat_layer
from scorch.errors import ShapeError


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """Collect the inputs of calls that are planned anew."""
    inputs: list[torch.Tensor] = []
    plan = sparse_linear.linear_of_parameter

    def count(input: torch.Tensor, *others: Any) -> Any:
        inputs.append(input)
        return plan(input, *others)

    monkeypatch.setattr(sparse_linear, "linear_of_parameter", count)
    yield inputs


def make_layer(bias: bool = True) -> tuple[scorch.nn.SparseLinear, torch.Tensor]:
    torch.manual_seed(0)
    return scorch.nn.SparseLinear(24, 40, 0.7, bias=bias), torch.randn(5, 24)


def check(layer: scorch.nn.SparseLinear, x: torch.Tensor) -> None:
    dense = layer.to_dense()
    torch.testing.assert_close(layer(x), F.linear(x, dense.weight, dense.bias), rtol=1e-5, atol=1e-5)


@pytest.mark.cpu("routines in C repeat calls")
@torch.no_grad()
def test_the_second_of_three_calls_is_prepared_and_the_third_repeats_it(planned: list[torch.Tensor]) -> None:
    layer, x = make_layer()
    for rows in (5, 1):
        for _ in range(4):
            check(layer, x[:rows])
    assert len(planned) == 2


@pytest.mark.cpu("routines in C repeat calls")
@torch.no_grad()
def test_a_call_with_another_dtype_is_prepared_anew(planned: list[torch.Tensor]) -> None:
    layer, x = make_layer()
    for _ in range(3):
        check(layer, x)
    layer.double()
    for _ in range(5):
        check(layer, x.double())
    assert [input.dtype for input in planned] == [torch.float32, torch.float64]


@torch.no_grad()
def test_calls_that_cannot_be_repeated_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = []
    monkeypatch.setattr(repeat_layer, "bind_batch", lambda *tensors: bound.append(tensors))
    layer, x = make_layer()
    for _ in range(5):
        check(layer, x)
    assert len(bound) == 1


@torch.no_grad()
def test_a_repeated_call_reads_what_the_layer_has_by_then() -> None:
    layer, x = make_layer()
    for _ in range(3):
        check(layer, x)
    layer.values.mul_(2)
    check(layer, x)
    layer.values.data = torch.randn_like(layer.values)
    check(layer, x)
    assert layer.bias is not None
    layer.bias.data = torch.randn(40)
    check(layer, x)
    layer.bias = None
    check(layer, x)
    layer.rewire(torch.rand(40, 24) < 0.2, new=1.0)
    check(layer, x)
    layer.double()
    check(layer, x.double())
    layer.load_state_dict(make_layer(bias=False)[0].double().state_dict())
    check(layer, x.double())


@torch.no_grad()
def test_a_repeated_call_takes_inputs_of_any_strides_signs_and_shapes(planned: list[torch.Tensor]) -> None:
    layer, x = make_layer()
    for _ in range(3):
        check(layer, x)
    check(layer, x.T.contiguous().T)
    check(layer, torch._neg_view(x))
    check(layer, x.reshape(1, 5, 24))
    check(layer, x[0])
    check(layer, x[:0])
    with pytest.raises(ShapeError):
        layer(x[:, :-1])
    check(layer, x)


@torch.no_grad()
def test_a_call_with_another_activation_or_residual_is_another_call() -> None:
    layer, x = make_layer()
    residual = torch.randn(5, 40)
    for _ in range(3):
        plain = layer(x)
        for _ in range(3):
            torch.testing.assert_close(layer.fused(x, "relu"), plain.relu())
        for _ in range(3):
            torch.testing.assert_close(layer.fused(x, "gelu", residual), F.gelu(plain) + residual)
        flipped = layer.fused(x, "gelu", torch._neg_view(residual))
        torch.testing.assert_close(flipped, F.gelu(plain) - residual)


def test_repeated_calls_are_differentiated_cast_and_watched() -> None:
    layer, x = make_layer()
    with torch.no_grad():
        for _ in range(3):
            check(layer, x)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert "product with a sparse weight" in str(scorch.explain(layer, x))
    layer(x).sum().backward()
    assert layer.values.grad is not None


@pytest.mark.cpu("routines in C")
@torch.no_grad()
def test_layers_under_autocast_are_one_routine() -> None:
    torch.manual_seed(0)
    layer = scorch.nn.SparseLinear(64, 40, sparsity=0.5)
    dense = layer.to_dense()
    with torch.autocast("cpu", torch.bfloat16):
        for rows in (1, 5, 70):
            x = torch.randn(rows, 64)
            with mock.patch.object(products, "_rows_by_weight", side_effect=AssertionError("by a kernel")):
                for given in (x, x.bfloat16()):
                    found, wanted = layer.fused(given, "relu"), dense(given).relu()
                    assert found.dtype == torch.bfloat16
                    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=1e-5)
            added = layer.fused(x, None, torch.ones(rows, 40))
            assert added.dtype == (dense(x) + torch.ones(rows, 40)).dtype
            with torch.enable_grad():
                assert layer(x).requires_grad
        assert layer(x.double()[:0].float()).shape == (0, 40)


@torch.no_grad()
def test_repeated_calls_with_stored_values_and_other_numbers_of_threads() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 300))
    x, threads = torch.randn(40, 512), torch.get_num_threads()
    for dtype in (None, torch.bfloat16, torch.int8):
        sparse = scorch.sparsify(model, 0.5, prefer="size", weight_dtype=dtype).eval()
        wanted = sparse(x)
        try:
            for number in (1, 2, 1, 3):
                torch.set_num_threads(number)
                for _ in range(3):
                    torch.testing.assert_close(sparse(x), wanted)
        finally:
            torch.set_num_threads(threads)


@torch.no_grad()
def test_copies_and_files_do_without_the_last_call() -> None:
    layer, x = make_layer()
    for _ in range(3):
        layer(x)
    other = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
    assert "_last_call" in vars(layer) and "_last_call" not in vars(other)
    other.values.zero_()
    check(layer, x)
    check(other, x)
