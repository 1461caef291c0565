"""Mixtures of experts, and a sparse autoencoder: what is chosen is computed, with the dense gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch.errors import ArgumentError, ShapeError
from scorch.nn import MoE, TopKAutoencoder, TopKGate


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(5)


def all_experts(layer: MoE, x: torch.Tensor) -> torch.Tensor:
    """Every expert on every token, those that were not chosen times zero."""
    tokens = x.reshape(-1, layer.features)
    assert isinstance(layer.gate, TopKGate)
    likely = torch.softmax(layer.gate.score(tokens), -1)
    chosen = torch.zeros_like(likely).scatter(1, likely.topk(layer.gate.k).indices, 1.0)
    gates = likely * chosen
    if layer.gate.renormalize:
        gates = gates / gates.sum(1, keepdim=True)
    results = torch.stack([expert(tokens) for expert in layer.experts], 1)
    return (gates.unsqueeze(-1) * results).sum(1).reshape(x.shape)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(("experts", "k"), [(5, 2), (3, 3), (4, 1), (1, 1), (12, 2)])
@pytest.mark.parametrize("lead", [(7,), (2, 5), (1,)])
def test_all_experts_with_zero_gates_give_the_same(
    experts: int, k: int, renormalize: bool, lead: tuple[int, ...]
) -> None:
    gate = TopKGate(6, experts, k, renormalize=renormalize, dtype=torch.float64)
    layer = MoE(6, experts, hidden=8, gate=gate, dtype=torch.float64)
    other = copy.deepcopy(layer)
    x = torch.randn(*lead, 6, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    found, expected = layer(x), all_experts(other, y)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def test_gradcheck_of_a_mixture() -> None:
    layer = MoE(3, [torch.nn.Linear(3, 2).double() for _ in range(4)], dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert layer(x).shape == (5, 2)
    assert torch.autograd.gradcheck(layer, (x,))


def test_the_gate_is_sparse_and_its_rows_add_up_to_one() -> None:
    gates = TopKGate(6, 9, 3)(torch.randn(20, 6))
    assert str(gates.format) == "csr" and gates.nnz == 60
    torch.testing.assert_close(gates.detach().to_dense().sum(1), torch.ones(20))


def test_experts_used_alike_have_a_balance_loss_of_one_and_others_more() -> None:
    gate = TopKGate(4, 4, 1, dtype=torch.float64)
    with torch.no_grad():
        gate.score.weight.copy_(10 * torch.eye(4))
    gate(torch.eye(4, dtype=torch.float64))
    assert abs(gate.balance_loss.item() - 1) < 1e-6
    gate(torch.eye(4, dtype=torch.float64)[:1].expand(4, 4))
    assert gate.balance_loss.item() > 3.9
    gate.balance_loss.backward()
    assert gate.score.weight.grad is not None and gate.score.weight.grad.any()


def test_the_balance_loss_spreads_tokens_over_experts() -> None:
    layer = MoE(4, 4, 1, hidden=4)
    assert isinstance(layer.gate, TopKGate)
    x = torch.randn(256, 4) + 2
    with torch.no_grad():
        layer.gate.score.weight[0] += 1
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    layer(x)
    before = layer.balance_loss.item()
    for _ in range(100):
        optimizer.zero_grad()
        layer(x)
        layer.balance_loss.backward()
        optimizer.step()
    assert before > 1.5 and layer.balance_loss.item() < 1.2


def test_no_tokens_and_experts_without_any() -> None:
    layer = MoE(4, 8, 2)
    assert layer(torch.zeros(0, 4)).shape == (0, 4)
    layer(torch.ones(1, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.experts.parameters())


def test_a_mixture_learns() -> None:
    x = torch.randn(256, 4)
    y = torch.where(x[:, :1] > 0, x.flip(1), -2 * x)
    layer = MoE(4, [torch.nn.Linear(4, 4) for _ in range(4)], k=2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    first = F.mse_loss(layer(x), y).item()
    for _ in range(300):
        optimizer.zero_grad()
        loss = F.mse_loss(layer(x), y) + 0.01 * layer.balance_loss
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.25 * first


def test_wrong_mixtures_are_named() -> None:
    with pytest.raises(ArgumentError, match="between 1 and 4"):
        MoE(4, 4, 5)
    with pytest.raises(ArgumentError, match="at least one"):
        MoE(4, [])
    with pytest.raises(ShapeError, match="4 features"):
        MoE(4, 4)(torch.ones(2, 5))
    with pytest.raises(ShapeError, match="expected a sparse matrix"):
        MoE(4, 4, gate=torch.nn.Linear(4, 4))(torch.ones(2, 4))


# the autoencoder -------------------------------------------------------------------------------------


@pytest.mark.parametrize("abs", [False, True])
def test_the_autoencoder_is_the_dense_one_with_all_other_features_zero(abs: bool) -> None:
    model = TopKAutoencoder(6, 30, 4, abs=abs, tied=False, dtype=torch.float64)
    x = torch.randn(5, 6, dtype=torch.float64)
    hidden = model.encoder(x - model.bias)
    hidden = hidden if abs else hidden.relu()
    chosen = (hidden.abs() if abs else hidden).topk(4).indices
    kept = torch.zeros_like(hidden).scatter(1, chosen, hidden.gather(1, chosen))
    expected = kept @ model.decoder + model.bias
    torch.testing.assert_close(model(x), expected)
    parameters = list(model.parameters())
    ours = torch.autograd.grad(model(x).square().sum(), parameters)
    theirs = torch.autograd.grad(expected.square().sum(), parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    codes = model.encode(x)
    assert isinstance(codes, scorch.SparseTensor) and codes.nnz == 20
    assert torch.equal(model.codes(x).to_dense(), codes.to_dense())
    with pytest.raises(ArgumentError, match="between 1 and 30"):
        TopKAutoencoder(6, 30, 31)


def test_the_autoencoder_encodes_sparse_inputs_without_a_dense_one() -> None:
    model = TopKAutoencoder(40, 30, 4, dtype=torch.float64)
    torch.nn.init.normal_(model.bias)
    x = torch.randn(8, 40, dtype=torch.float64) * (torch.rand(8, 40) < 0.2)
    S = scorch.from_torch(x, "csr")
    parameters = list(model.parameters())
    ours = torch.autograd.grad(model(S).square().sum(), parameters)
    theirs = torch.autograd.grad(model(x).square().sum(), parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    products = [kernel for kernel in scorch.explain(model, runs=1)(S).kernels if kernel.kind == "kernel"]
    assert [product.operands[0].shape for product in products] == [(8, 40), (8, 30)]
    torch.testing.assert_close(model(S.to_torch()), model(S))
    seen: list[torch.Tensor] = []
    with model.encoder.register_forward_hook(lambda module, args, out: seen.append(out)):
        model.encode(S)
    torch.testing.assert_close(seen[0], model.encoder(x - model.bias))


def test_the_autoencoder_finds_the_directions_data_is_made_of() -> None:
    directions = F.normalize(torch.randn(24, 16))
    weights = torch.rand(2000, 24) * (torch.rand(2000, 24) < 2 / 24)
    x = weights @ directions
    model = TopKAutoencoder(16, 48, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = F.mse_loss(model(x), x).item()
    for _ in range(200):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2 * first


def test_copies_after_a_call():
    layer = scorch.nn.MoE(16, 4, 2)
    x = torch.randn(3, 16)
    wanted = layer(x)
    copied = copy.deepcopy(layer)
    torch.testing.assert_close(copied(x), wanted)
    assert layer.balance_loss.requires_grad
