"""SET and RigL: what is dropped and grown, what optimizers keep, and that nothing dense is made."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import scorch
from scorch import errors
from scorch.nn import SET, RigL, SparseLinear

KINDS = [SET, RigL]


def layer(inputs: int = 30, outputs: int = 20, sparsity: float = 0.8) -> SparseLinear:
    torch.manual_seed(0)
    return SparseLinear(inputs, outputs, sparsity=sparsity)


def stored(weight: SparseLinear) -> torch.Tensor:
    return torch.zeros(weight.out_features, weight.in_features).index_put(
        tuple(weight.weight.detach().to_format("coo").indices()), torch.ones(weight.nnz)
    )


def places(mask: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(place) for place in mask.nonzero().tolist()]


def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_are_dropped_and_as_many_grown_from_zero(kind) -> None:
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    exchange = kind(model, optimizer, update_every=2, stop_step=100, fraction=0.4)
    before, values = stored(model), model.weight.detach().to_dense()
    x = torch.randn(8, 30)
    learn(model, optimizer, x)
    assert not exchange.step() and torch.equal(stored(model), before)
    learn(model, optimizer, x)
    assert exchange.step()
    after = stored(model)
    count = round(0.2 * (1 + math.cos(math.pi * 2 / 100)) * model.nnz)
    dropped, grown = (before > after), (after > before)
    assert int(dropped.sum()) == int(grown.sum()) == count
    kept = (before > 0) & (after > 0)
    assert float(values[dropped].abs().max()) <= float(values[kept].abs().min())
    now = model.weight.detach().to_dense()
    torch.testing.assert_close(now[kept], values[kept])
    assert not bool(now[grown].any())


def test_rigl_grows_where_the_gradient_is_largest() -> None:
    model = layer()
    dense = model.to_dense()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exchange = RigL(model, optimizer, update_every=1, stop_step=10)
    before = stored(model)
    x = torch.randn(8, 30)
    for part in x.split(4):  # gradients may be accumulated
        (model(part).square().sum()).backward()
        (dense(part).square().sum()).backward()
    optimizer.step()
    assert exchange.step()
    grown = (stored(model) > before).nonzero().tolist()
    sizes = dense.weight.grad.abs().masked_fill(before > 0, -1.0).reshape(-1)
    expected = sizes.topk(len(grown)).indices
    assert sorted(map(tuple, grown)) == sorted(divmod(key, 30) for key in expected.tolist())
    exchange.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_what_the_optimizer_keeps_moves_along(kind, make) -> None:
    model = layer()
    optimizer = make(model.parameters())
    exchange = kind(model, optimizer, update_every=2, stop_step=10)
    x = torch.randn(8, 30)
    learn(model, optimizer, x)
    exchange.step()
    learn(model, optimizer, x)
    name = "exp_avg" if "exp_avg" in optimizer.state[model.values] else "momentum_buffer"
    before = stored(model)
    pattern = model.pattern
    kept_before = dict(zip(places(before), optimizer.state[model.values][name], strict=True))
    exchange.step()
    assert model.pattern is not pattern
    kept = dict(zip(places(stored(model)), optimizer.state[model.values][name], strict=True))
    for place, value in kept.items():
        assert value == kept_before.get(place, 0.0)
    learn(model, optimizer, x)  # and training goes on
    exchange.close()


class Sizes(TorchDispatchMode):
    """The largest tensor that any operator gives."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, torch.Tensor):
                self.most = max(self.most, tensor.numel())
        return found


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_as_large_as_the_weight_is_made(kind, monkeypatch) -> None:
    import importlib

    monkeypatch.setattr(importlib.import_module("scorch._src.nn.grad_topk"), "TILE_ELEMENTS", 4096)
    model = SparseLinear(400, 500, sparsity=0.98)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(4, 400)
    with Sizes() as sizes:
        exchange = kind(model, optimizer, update_every=1, stop_step=5)
        for _ in range(4):
            learn(model, optimizer, x)
            exchange.step()
    assert model.values.grad.numel() == model.nnz == 4000
    assert all(value.numel() in (1, 4000) for value in optimizer.state[model.values].values())
    assert sizes.most <= 4 * 4096 < 400 * 500 // 10
    exchange.close()


@pytest.mark.parametrize("kind", KINDS)
def test_learning_goes_on_to_a_solution(kind) -> None:
    torch.manual_seed(1)
    target = torch.zeros(10, 40)
    target[torch.arange(10), torch.arange(10) * 4] = 3.0
    model = SparseLinear(40, 10, sparsity=0.9, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    exchange = kind(model, optimizer, update_every=10, stop_step=300, fraction=0.5)
    for _ in range(400):
        x = torch.randn(32, 40)
        optimizer.zero_grad()
        F.mse_loss(model(x), x @ target.T).backward()
        optimizer.step()
        exchange.step()
    with torch.no_grad():
        found = F.mse_loss(model(x), x @ target.T)
    assert found < (0.05 if kind is RigL else 9.0)  # at random ten places of 400 are rarely all found


def test_steps_are_saved_and_exchanges_end() -> None:
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = RigL(model, optimizer, update_every=2, stop_step=6)
    x = torch.randn(8, 30)
    changes = []
    for _ in range(3):
        learn(model, optimizer, x)
        changes.append(first.step())
    state = first.state_dict()
    first.close()
    second = RigL(model, optimizer, update_every=2, stop_step=6)
    second.load_state_dict(state)
    for _ in range(5):
        learn(model, optimizer, x)
        changes.append(second.step())
    assert changes == [False, True, False, True, False, False, False, False]
    assert not scorch._src.tensor.autograd.WATCHED


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arguments(kind) -> None:
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong in (
        {"update_every": 0, "stop_step": 5},
        {"stop_step": 0},
        {},
        {"stop_step": 5, "fraction": 0.0},
    ):
        with pytest.raises(errors.ArgumentError):
            kind(model, optimizer, **wrong)
    with pytest.raises(errors.ArgumentError, match="no sparse layers"):
        kind(torch.nn.Linear(3, 3), optimizer, stop_step=5)
    with pytest.raises(errors.ArgumentError, match="optimizer does not contain"):
        kind(layer(), optimizer, stop_step=5)
    blocked = SparseLinear(8, 8, sparsity=0.5, blocks=2)
    with pytest.raises(errors.UnsupportedError, match="blocks"):
        kind(blocked, torch.optim.SGD(blocked.parameters(), lr=0.1), stop_step=5)
