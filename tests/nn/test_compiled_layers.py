"""Sparse layers inside ``scorch.compile``: fused with the activation and the residual that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.compile.recorder import Recorder
from scorch._src.nn.weights.stored_values import store_values
from scorch.errors import ShapeError
from torch_has import needs_builtins


class Block(torch.nn.Module):
    """A residual block of a layer; ``dense`` is the same in float64, with a dense weight."""

    def __init__(self, activation: Callable[[Any], Any], features: int = 24) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear: Any = scorch.nn.SparseLinear(features, features, sparsity=0.7, dtype=torch.float64)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(x)) + x

    def dense(self, x: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
        weight = self.linear.weight if values is None else values
        return self.activation(F.linear(x, weight.to_dense(), self.linear.bias)) + x


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.whole
@pytest.mark.parametrize(
    "activation",
    [torch.relu, F.relu, F.gelu, torch.nn.GELU("tanh"), torch.nn.SiLU(), torch.Tensor.relu, torch.nn.ReLU()],
)
def test_a_layer_is_fused_with_its_activation_and_residual(activation: Any) -> None:
    block, x = Block(activation), rows(2, 5, 24)
    compiled = scorch.compile(block)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), block.dense(x))
        (group,) = scorch.explain(compiled, x).groups
    assert not group.reason and len(group.calls) == 3
    assert group.statements.endswith("(sum(j, W[i,j] * x[...,j]) + bias[i]) + residual[...,i]")


def test_explain_shows_a_fused_layer() -> None:
    W, x = scorch.nn.SparseLinear(6, 6, bias=False).weight.detach(), torch.ones(2, 6)
    compiled = scorch.compile(lambda x: x + torch.relu(F.linear(x, W)))
    assert str(scorch.explain(compiled, x)) == (
        "one kernel: linear, relu, add\n  y[...,i] = relu(sum(j, W[i,j] * x[...,j])) + residual[...,i]\n\n"
        "later calls with these shapes run as they are: tracing takes longer than fusion saves"
    )
    torch.testing.assert_close(compiled(x), x + torch.relu(x @ W.to_dense().T))


def test_gradients_of_a_compiled_layer_are_those_of_dense_layers() -> None:
    block, x = Block(F.gelu), rows(5, 24).requires_grad_()
    compiled = scorch.compile(block)
    leaves = [x, block.linear.values, block.linear.bias]
    for _ in range(2):
        found = torch.autograd.grad(compiled(x).sin().sum(), leaves)
        wanted = torch.autograd.grad(block.dense(x).sin().sum(), leaves)
        torch.testing.assert_close(found, wanted)
    explanation = scorch.explain(compiled, x)
    assert explanation.unfused == (
        "linear: gradients are tracked, which need its result before the activation",
    )
    assert "not fused: linear: gradients are tracked" in str(explanation)
    with torch.no_grad():  # fused from here on
        torch.testing.assert_close(compiled(x), block.dense(x))
        assert not scorch.explain(compiled, x).unfused


def test_gradients_of_a_residual_alone_reach_it() -> None:
    layer, x, residual = scorch.nn.SparseLinear(8, 8), torch.randn(3, 8), torch.randn(3, 8)
    layer.requires_grad_(False)
    compiled = scorch.compile(lambda residual: torch.relu(layer(x)) + residual)
    with torch.no_grad():
        compiled(residual)
    residual.requires_grad_()
    compiled(residual).sum().backward()
    torch.testing.assert_close(residual.grad, torch.ones(3, 8))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # which torch calls for tangents
def test_tangents_pass_through_a_compiled_layer() -> None:
    block, x, tangent = Block(torch.relu), rows(3, 24), rows(3, 24).cos()
    compiled = scorch.compile(block)
    with torch.no_grad():
        compiled(x)
    block.requires_grad_(False)
    compiled(x)
    with torch.autograd.forward_ad.dual_level():
        found = torch.autograd.forward_ad.unpack_dual(
            compiled(torch.autograd.forward_ad.make_dual(x, tangent))
        ).tangent
    _, wanted = torch.autograd.functional.jvp(block.dense, x, tangent)
    torch.testing.assert_close(found, wanted)


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_values_in_fewer_bits_are_fused(dtype: torch.dtype) -> None:
    layer, x = scorch.nn.SparseLinear(16, 16, sparsity=0.5).eval(), torch.randn(4, 16)
    store_values(layer, dtype)
    compiled = scorch.compile(lambda x: F.silu(layer(x)) + x)
    with torch.no_grad():
        wanted = F.silu(layer(x)) + x
        torch.testing.assert_close(compiled(x), wanted)
        (group,) = scorch.explain(compiled, x).groups
        assert group.calls == ("linear", "silu", "add") and not group.reason
        with scorch.settings(backend="interpreter"):  # which has no such routine
            torch.testing.assert_close(compiled(x), wanted, rtol=1e-4, atol=1e-5)


def test_layers_follow_each_other() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(
        linear(20, 30), torch.nn.ReLU(), linear(30, 20), torch.nn.Tanh(), linear(20, 4)
    )
    model = scorch.sparsify(model, 0.6, prefer="size").eval()
    compiled, x = scorch.compile(model), torch.randn(3, 20)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        groups = scorch.explain(compiled, x).groups
    assert [group.calls for group in groups] == [("linear",)] * 3
    assert [group.reason for group in groups] == ["", "a single call", "a single call"]


@pytest.mark.whole
@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: y + torch.relu(y),
        lambda y, x: torch.relu(y) + y,
        lambda y, x: (torch.relu(y).sin() + y, y),
        lambda y, x: y + y,
        lambda y, x: (y + x, torch.relu(y)),
        lambda y, x: torch.relu(y + x) + x,  # the residual first: not fused as a whole
        lambda y, x: y + x[:1],
        lambda y, x: y + 1,
        lambda y, x: torch.add(y, x, alpha=2),
        lambda y, x: F.relu(y, inplace=True) + y,
        lambda y, x: F.gelu(F.gelu(y)),
        lambda y, x: x.add_(torch.relu(y)),
    ],
)
def test_a_result_that_is_needed_twice_is_right(function: Callable[..., Any]) -> None:
    block = Block(torch.relu)
    compiled = scorch.compile(lambda x: function(block.linear(x), x))
    with torch.no_grad():
        for _ in range(3):
            x = rows(4, 24)
            wanted = function(F.linear(x, block.linear.weight.to_dense(), block.linear.bias), x.clone())
            torch.testing.assert_close(compiled(x), wanted)


@needs_builtins
def test_a_result_that_is_needed_again_is_computed_once_from_then_on() -> None:
    block, x = Block(torch.relu), rows(4, 24)
    compiled = scorch.compile(lambda x: torch.relu(y := block.linear(x)).sin() + y)
    with torch.no_grad():
        compiled(x)
        groups = scorch.explain(compiled, x).groups
    assert [group.reason for group in groups] == ["a result inside is needed later"]


def test_changed_weights_are_read() -> None:
    block, x = Block(torch.relu), rows(4, 24)
    compiled = scorch.compile(block)
    with torch.no_grad():
        compiled(x)
        block.linear.values.mul_(2)
        torch.testing.assert_close(compiled(x), block.dense(x))
        block.linear.rewire(torch.eye(24, dtype=torch.float64), new=1.0)
        torch.testing.assert_close(compiled(x), block.dense(x))


def test_an_input_of_another_size_is_named() -> None:
    compiled = scorch.compile(Block(torch.relu))
    with torch.no_grad(), pytest.raises(ShapeError, match=r"\(2, 7\), but the layer expects 24 features"):
        compiled(rows(2, 7))


@pytest.mark.whole
@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.LSTM(16, 16, batch_first=True),
        torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        torch.nn.Conv1d(5, 5, 3),
        torch.nn.LayerNorm(16),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_take_the_output_of_a_layer(layer: torch.nn.Module) -> None:
    torch.manual_seed(0)
    model = scorch.sparsify(torch.nn.Sequential(torch.nn.Linear(16, 16), layer), 0.5, prefer="size").eval()
    compiled, x = scorch.compile(model), torch.randn(2, 5, 16)
    with torch.no_grad():
        wanted = model(x)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), wanted, rtol=1e-4, atol=1e-5)


def count_traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the calls of each recording from now on."""
    traced: list[int] = []
    leave = Recorder.__exit__

    def count(self: Recorder, *args: Any) -> None:
        traced.append(self.call_count)
        leave(self, *args)

    monkeypatch.setattr(Recorder, "__exit__", count)
    return traced


@needs_builtins
@torch.no_grad()
def test_calls_are_traced_again_only_where_fusion_saves_more(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = count_traced(monkeypatch)
    layer = scorch.nn.SparseLinear(64, 64)
    block = scorch.compile(lambda x: torch.relu(layer(x)) + x)
    small, large = torch.randn(3, 64), torch.randn(1 << 14, 64)
    for x in (small, small, small):
        torch.testing.assert_close(block(x), torch.relu(layer(x)) + x)
    assert traced == [3]
    for _ in range(3):
        torch.testing.assert_close(block(large), torch.relu(layer(large)) + large)
    assert traced == [3, 3, 3, 3]
    block(torch.randn(2, 64))
    assert len(traced) == 5  # other shapes
    with torch.enable_grad():
        block(small).sum().backward()
    assert len(traced) == 6  # with gradients


@torch.no_grad()
def test_fused_patterns_are_always_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = count_traced(monkeypatch)
    S, Q = scorch.rand(8, 8, density=0.3), torch.rand(8, 4)
    scores = scorch.compile(lambda S, Q: torch.sparse.softmax(S * (Q @ Q.T), 1) @ Q)
    for _ in range(3):
        scores(S, Q)
    assert len(traced) == 3


@torch.no_grad()
def test_untraced_calls_change_tensors_in_place_once() -> None:
    layer, x = scorch.nn.SparseLinear(16, 16), torch.randn(2, 16)
    total = torch.zeros(2, 16)
    block = scorch.compile(lambda x: total.add_(torch.relu(layer(x))))
    for _ in range(4):
        block(x)
    torch.testing.assert_close(total, 4 * torch.relu(layer(x)))
