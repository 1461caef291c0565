"""Sparse parameters in modules and optimizers: as a dense parameter that is zero outside of the pattern."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch

import scorch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError

O = torch.optim
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: O.SGD(p, lr=0.01),
    "momentum": lambda p: O.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: O.SGD(p, lr=0.01, momentum=0.9, nesterov=True, foreach=True),
    "adam": lambda p: O.Adam(p, lr=0.01, foreach=False),
    "adam foreach": lambda p: O.Adam(p, lr=0.01, foreach=True, weight_decay=0.1),
    "adam fused": lambda p: O.Adam(p, lr=0.01, fused=True),
    "amsgrad": lambda p: O.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: O.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw foreach": lambda p: O.AdamW(p, lr=0.01, foreach=True),
    "rmsprop": lambda p: O.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: O.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "adadelta": lambda p: O.Adadelta(p),
    "adamax": lambda p: O.Adamax(p),
    "nadam": lambda p: O.NAdam(p),
    "radam": lambda p: O.RAdam(p),
    "asgd": lambda p: O.ASGD(p),
    "rprop": lambda p: O.Rprop(p),
}
X = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


class Net(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w @ x


class Pair:
    """A module with a sparse parameter, and the same one with a dense parameter."""

    def __init__(self, format: str = "csr") -> None:
        torch.manual_seed(0)
        S = scorch.randn(6, 5, density=0.4, format=format, dtype=torch.float64)
        self.mask = S.to_dense() != 0
        self.sparse, self.dense = Net(S), Net(S.to_dense())
        self.dense.w.register_hook(lambda gradient: gradient * self.mask)

    def both(self) -> list[Net]:
        return [self.sparse, self.dense]

    def check(self) -> None:
        assert isinstance(self.sparse.w, SparseTensor) and isinstance(self.sparse.w, torch.nn.Parameter)
        torch.testing.assert_close(self.sparse.w.detach().to_dense(), self.dense.w.detach() * self.mask)


def learn(net: Net, optimizer: Any, scale: float = 1.0) -> torch.Tensor:
    loss: torch.Tensor = (net(X) - Y).square().sum() * scale
    loss.backward()
    return loss


def train(pair: Pair, make: Any, steps: int = 5) -> list[Any]:
    optimizers = [make(net.parameters()) for net in pair.both()]
    for _ in range(steps):
        for net, optimizer in zip(pair.both(), optimizers, strict=True):
            optimizer.zero_grad()
            learn(net, optimizer)
            optimizer.step()
    return optimizers


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_does_what_it_does_to_a_masked_dense_parameter(name: str) -> None:
    pair = Pair()
    optimizer, _ = train(pair, OPTIMIZERS[name])
    pair.check()
    kept = [value for value in optimizer.state[pair.sparse.w].values() if isinstance(value, torch.Tensor)]
    assert all(value.numel() in (1, pair.sparse.w.nnz) for value in kept)
    assert not any(isinstance(value, SparseTensor) for value in kept if value.dim())


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr"])
def test_formats(format: str) -> None:
    pair = Pair(format)
    train(pair, OPTIMIZERS["adamw"])
    pair.check()
    assert str(pair.sparse.w.format) == format


def test_lbfgs() -> None:
    pair = Pair()
    for net in pair.both():
        optimizer = O.LBFGS(net.parameters(), lr=0.05, max_iter=5)

        def closure(net: Net = net, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            return learn(net, optimizer)

        for _ in range(3):
            optimizer.step(closure)
    pair.check()


def test_optimizers_of_dense_parameters_go_on_after_closures() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = O.SGD([weight], lr=0.1)

    def closure() -> torch.Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.zero_grad()
    assert weight.grad is None
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step(closure)
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.64))


def test_steps_with_and_without_closure_alternate() -> None:
    pair = Pair()
    for net in pair.both():
        optimizer = O.Adam(net.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.step(lambda net=net, optimizer=optimizer: learn(net, optimizer))  # type: ignore[misc]
            optimizer.zero_grad()
            learn(net, optimizer)
            optimizer.step()
            optimizer.zero_grad()
    pair.check()


def test_closures_may_call_zero_grad() -> None:
    pair = Pair()
    for net in pair.both():
        optimizer = O.Adam(net.parameters(), lr=0.01)

        def closure(net: Net = net, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            return learn(net, optimizer)

        for _ in range(4):
            assert optimizer.step(closure) is not None
    pair.check()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_clipped_added_up_and_set_to_zero(set_to_none: bool) -> None:
    pair = Pair()
    for net in pair.both():
        optimizer = O.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            for _ in range(2):
                learn(net, optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            torch.nn.utils.clip_grad_value_(net.parameters(), 0.3)
            optimizer.step()
    pair.check()


def test_states_of_optimizers_are_saved_and_go_on() -> None:
    pair, other = Pair(), Pair()
    optimizers = train(pair, OPTIMIZERS["adamw"], 3)
    file = io.BytesIO()
    torch.save([pair.sparse.state_dict(), optimizers[0].state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    other.sparse.load_state_dict(weights)
    again = OPTIMIZERS["adamw"](other.sparse.parameters())
    again.load_state_dict(state)
    for net, optimizer in ((pair.sparse, optimizers[0]), (pair.dense, optimizers[1]), (other.sparse, again)):
        for _ in range(2):
            optimizer.zero_grad()
            learn(net, optimizer)
            optimizer.step()
    pair.check()
    assert torch.equal(other.sparse.w.detach().to_dense(), pair.sparse.w.detach().to_dense())


def test_schedulers_groups_and_frozen_parameters_do_not_warn() -> None:
    pair = Pair()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for net in pair.both():
            bias = torch.nn.Parameter(torch.zeros(6, 1, dtype=torch.float64))
            frozen = torch.nn.Parameter(pair.sparse.w.detach().clone(), requires_grad=False)
            optimizer = O.SGD([{"params": [frozen, bias]}], lr=0.05, momentum=0.5)
            optimizer.add_param_group({"params": net.parameters(), "lr": 0.02, "weight_decay": 0.1})
            scheduler = O.lr_scheduler.OneCycleLR(optimizer, [0.05, 0.02], total_steps=6)
            for _ in range(5):
                optimizer.zero_grad()
                (net(X) + bias - Y).square().sum().backward()
                optimizer.step()
                scheduler.step()
            assert frozen.grad is None and len(optimizer.param_groups) == 2
    pair.check()


def test_scaled_gradients() -> None:
    pair = Pair()
    for net in pair.both():
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = O.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((net(X) - Y).square().sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    pair.check()


def test_averaged_models() -> None:
    pair = Pair()
    averages = []
    for net in pair.both():
        average = O.swa_utils.AveragedModel(net, multi_avg_fn=O.swa_utils.get_ema_multi_avg_fn(0.5))
        plain = O.swa_utils.AveragedModel(net)
        optimizer = O.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            learn(net, optimizer)
            optimizer.step()
            average.update_parameters(net)
            plain.update_parameters(net)
        averages.append((average.module.w.detach(), plain.module.w.detach()))
    for ours, theirs in zip(*averages, strict=True):
        assert isinstance(ours, SparseTensor)
        torch.testing.assert_close(ours.to_dense(), theirs * pair.mask)


def test_parameters_are_back_after_an_error_inside_of_a_step() -> None:
    class Broken(O.SGD):
        fails = True

        @O.Optimizer.profile_hook_step
        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise ValueError("broken")
            return O.SGD.step.__wrapped__(self, closure)  # type: ignore[attr-defined]

    pair = Pair()
    for net in pair.both():
        optimizer = Broken(net.parameters(), lr=0.01)
        learn(net, optimizer)
        with pytest.raises(ValueError, match="broken"):
            optimizer.step()
        optimizer.zero_grad()
        assert net.w.grad is None
        assert optimizer.param_groups[0]["params"][0] is net.w
        learn(net, optimizer)
        optimizer.fails = False
        optimizer.step()
    pair.check()


class Sam(O.Optimizer):
    """Sharpness-aware minimization: a step up along the gradient, and one of another optimizer from there."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self.base = O.SGD(self.param_groups, lr=0.01, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameters = self.param_groups[0]["params"]
        for parameter in parameters:
            self.state[parameter]["old"] = parameter.data.clone()
            parameter.add_(parameter.grad, alpha=0.001)
        self.zero_grad()
        torch.enable_grad()(closure)()
        for parameter in parameters:
            parameter.data = self.state[parameter]["old"]
            parameter.grad = parameter.grad * 0.5
        self.base.step()


def test_steps_contain_those_of_another_optimizer_and_assign_data_and_gradients() -> None:
    pair = Pair()
    for net in pair.both():
        optimizer = Sam(net.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            learn(net, optimizer)
            optimizer.step(lambda net=net, optimizer=optimizer: learn(net, optimizer))
        assert optimizer.base.state[net.w]["momentum_buffer"].any()
    pair.check()
    assert isinstance(pair.sparse.w.grad, SparseTensor)
    torch.testing.assert_close(pair.sparse.w.grad.to_dense(), pair.dense.w.grad)


class Twice(O.SGD):
    """Two steps of SGD, each with a gradient of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        self.zero_grad()
        return super().step(closure)


def test_steps_may_contain_steps_of_the_same_optimizer() -> None:
    pair = Pair()
    for net in pair.both():
        optimizer = Twice(net.parameters(), lr=0.01, momentum=0.9)
        for _ in range(3):
            optimizer.step(lambda net=net, optimizer=optimizer: learn(net, optimizer))
            optimizer.zero_grad()
    pair.check()


def test_methods_that_were_set_on_an_optimizer_stay() -> None:
    pair = Pair()
    calls: list[None] = []
    optimizer = O.SGD(pair.sparse.parameters(), lr=0.01)
    zero_grad = optimizer.zero_grad
    optimizer.zero_grad = lambda: calls.append(zero_grad())  # type: ignore
    learn(pair.sparse, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    assert len(calls) == 1 and pair.sparse.w.grad is None


def test_an_error_inside_of_a_closure_leaves_parameters_in_place() -> None:
    pair = Pair()
    optimizer = O.SGD(pair.sparse.parameters(), lr=0.01)

    def closure() -> float:
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        optimizer.step(closure)
    assert optimizer.param_groups[0]["params"][0] is pair.sparse.w


# modules ---------------------------------------------------------------------------------------------


def test_parameters_and_buffers_are_registered_and_change_dtype() -> None:
    net = Pair().sparse
    net.register_buffer("b", net.w.detach().clone())
    assert [name for name, _ in net.named_parameters()] == ["w"]
    assert list(net.state_dict()) == ["w", "b"]
    for changed in (copy.deepcopy(net).float(), copy.deepcopy(net).to(torch.float32)):
        assert changed.w.dtype == changed.b.dtype == torch.float32
        assert isinstance(changed.w, SparseTensor) and isinstance(changed.w, torch.nn.Parameter)
        assert changed.w.requires_grad
    assert net.double().w.dtype == torch.float64


def test_copies_are_apart() -> None:
    net = Pair().sparse
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.w.mul_(0)
    assert net.w.detach().to_dense().any() and not other.w.detach().to_dense().any()
    net.w.data = net.w.data * 2
    assert isinstance(net.w, torch.nn.Parameter) and net.w.requires_grad


@pytest.mark.parametrize("assign", [True, False])
def test_states_with_another_pattern_or_format(assign: bool) -> None:
    """What is loaded is what the module has then; only ``assign`` takes over the format too."""
    net = Pair().sparse
    for other in (
        scorch.rand(6, 5, density=0.3, format="coo", dtype=torch.float64),
        scorch.rand(6, 5, density=0.6, format="csr", dtype=torch.float64),
        torch.randn(6, 5, dtype=torch.float64),
    ):
        net.load_state_dict({"w": other}, assign=assign)
        assert torch.equal(net.w.detach().to_dense(), other.to_dense())
        learn(net, None)
    with pytest.raises(RuntimeError, match=r"size mismatch|copying"):
        net.load_state_dict({"w": torch.randn(5, 5)}, assign=assign)


@pytest.mark.parametrize("format", ["csr", "coo"])
def test_what_an_optimizer_keeps_stays_with_its_places_when_others_are_given(format: str) -> None:
    pair = Pair()
    mask = scorch.rand(6, 5, density=0.6, format=format, dtype=torch.float64)
    both = pair.mask & (mask.to_dense() != 0)
    optimizers = train(pair, OPTIMIZERS["momentum"], 3)
    before = pair.dense.w.detach() * both
    kept = optimizers[1].state[pair.dense.w]["momentum_buffer"] * both
    pair.sparse.w.data = scorch.SparseTensor(mask.storage) * 0 + scorch.from_torch(before, format)
    pair.mask = mask.to_dense() != 0
    pair.dense.w.data = before
    optimizers[1].state[pair.dense.w]["momentum_buffer"] = kept
    assert pair.sparse.w.nnz == mask.nnz
    for net, optimizer in zip(pair.both(), optimizers, strict=True):
        optimizer.zero_grad()
        learn(net, optimizer)
        optimizer.step()
    pair.check()


def test_a_state_for_another_number_of_values_is_refused() -> None:
    pair, other = Pair(), Pair()
    state = train(pair, OPTIMIZERS["adam"])[0].state_dict()
    other.sparse.w.data = scorch.rand(6, 5, density=0.8, format="csr", dtype=torch.float64)
    optimizer = OPTIMIZERS["adam"](other.sparse.parameters())
    optimizer.load_state_dict(state)
    learn(other.sparse, optimizer)
    with pytest.raises(ShapeError, match="has 24 stored elements"):
        optimizer.step()
    assert optimizer.param_groups[0]["params"][0] is other.sparse.w


def test_parameters_as_one_vector() -> None:
    net = Pair().sparse
    before = net.w.detach().to_dense()
    vector = torch.nn.utils.parameters_to_vector(net.parameters())
    assert isinstance(vector, SparseTensor) and vector.nnz == net.w.nnz
    torch.nn.utils.vector_to_parameters(2 * vector, net.parameters())
    assert isinstance(net.w, SparseTensor) and torch.equal(net.w.detach().to_dense(), 2 * before)


def test_steps_inside_of_backward() -> None:
    pair = Pair()
    for net in pair.both():
        optimizer = O.SGD(net.parameters(), lr=0.01, momentum=0.9)

        def step(_: Any, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        net.w.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            learn(net, optimizer)
            assert net.w.grad is None
    pair.check()


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
@pytest.mark.whole
def test_views_follow_a_step(format: str) -> None:
    weight = torch.nn.Parameter(scorch.from_torch(torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]), format))
    row = weight.detach()[0]
    assert row.to_dense().tolist() == [1.0, 0.0, 2.0]
    (weight * weight).sum().backward()
    torch.optim.SGD([weight], lr=1.0).step()
    assert row.to_dense().tolist() == [-1.0, 0.0, -2.0]
    row.add_(0.0)  # a write of the view writes what the step left
    assert weight.to_dense().tolist() == [[-1.0, 0.0, -2.0], [0.0, -3.0, 0.0]]
