"""Layers with dense weights for sparse inputs, and optimizers that update only what a batch has met."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, CallError, OperandError, ShapeError
from scorch.nn import Linear, SparseEmbeddingBag


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)


def batch(rows: int, columns: int, density: float = 0.1, format: str = "csr") -> SparseTensor:
    return scorch.rand(rows, columns, density=density, format=format, dtype=torch.float64)


# Linear ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse_grad", [False, True])
@pytest.mark.parametrize("format", ["csr", "coo", "csc"])
def test_linear_gives_and_learns_what_the_dense_layer_does(sparse_grad: bool, format: str) -> None:
    layer = Linear(40, 6, sparse_grad=sparse_grad, dtype=torch.float64)
    x = batch(5, 40, format=format)
    assert isinstance(layer, torch.nn.Linear)
    found = layer(x)
    expected = F.linear(x.to_dense(), layer.weight, layer.bias)
    torch.testing.assert_close(found, expected)
    ours = torch.autograd.grad(found.square().sum(), list(layer.parameters()))
    theirs = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.to_dense() if isinstance(one, SparseTensor) else one, other)
    met = int(x.to_dense().any(0).sum())
    assert not sparse_grad or (isinstance(ours[0], SparseTensor) and ours[0].nnz == 6 * met)


def test_linear_of_dense_inputs_and_vectors_and_wrong_ones() -> None:
    layer = Linear(40, 6, sparse_grad=True, dtype=torch.float64)
    x = torch.randn(2, 3, 40, dtype=torch.float64)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    vector = scorch.from_torch((torch.rand(40) < 0.2).double(), "s")
    torch.testing.assert_close(layer(vector), layer(vector.to_dense()))
    with pytest.raises(ShapeError, match="40 features"):
        layer(batch(5, 41))
    assert "sparse_grad=True" in repr(layer)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_columns_that_were_met_are_updated_and_these_as_if_they_were_all(name: str) -> None:
    """The columns that every batch has are a layer of their own; the others stay as they are."""
    layer = Linear(40, 6, bias=False, sparse_grad=True, dtype=torch.float64)
    met = torch.tensor([3, 8, 21, 39])
    small = torch.nn.Linear(4, 6, bias=False).double()
    with torch.no_grad():
        small.weight.copy_(layer.weight[:, met])
    before = layer.weight.detach().clone()
    ours, theirs = OPTIMIZERS[name](layer.parameters()), OPTIMIZERS[name](small.parameters())
    for _ in range(4):
        values = torch.randn(5, 4, dtype=torch.float64)
        x = torch.zeros(5, 40, dtype=torch.float64)
        x[:, met] = values
        for net, given, optimizer in ((layer, scorch.from_torch(x, "csr"), ours), (small, values, theirs)):
            optimizer.zero_grad()
            net(given).square().sum().backward()
            optimizer.step()
    after = layer.weight.detach()
    torch.testing.assert_close(after[:, met], small.weight.detach())
    others = torch.ones(40, dtype=torch.bool)
    others[met] = False
    assert torch.equal(after[:, others], before[:, others])
    for kept, other in zip(
        ours.state[layer.weight].values(), theirs.state[small.weight].values(), strict=True
    ):
        if isinstance(kept, torch.Tensor) and kept.dim():
            torch.testing.assert_close(kept[:, met], other)


def test_a_column_is_as_it_was_left_when_it_is_met_again() -> None:
    layer = Linear(10, 2, bias=False, sparse_grad=True, dtype=torch.float64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5)

    def step(column: int) -> torch.Tensor:
        before = layer.weight.detach()[:, column].clone()
        x = torch.zeros(1, 10, dtype=torch.float64)
        x[0, column] = 1
        optimizer.zero_grad()
        layer(scorch.from_torch(x, "csr")).sum().backward()
        optimizer.step()
        return before - layer.weight.detach()[:, column]

    one = torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(step(3), 0.1 * one)
    torch.testing.assert_close(step(7), 0.1 * one)
    torch.testing.assert_close(step(3), 0.15 * one)


def test_gradients_add_up_and_are_clipped() -> None:
    layer, x, y = Linear(40, 6, sparse_grad=True, dtype=torch.float64), batch(5, 40), batch(5, 40)
    for given in (x, y):
        layer(given).square().sum().backward()
    dense = Linear(40, 6, dtype=torch.float64)
    dense.load_state_dict(layer.state_dict())
    for given in (x, y):
        dense(given.to_dense()).square().sum().backward()
    assert isinstance(layer.weight.grad, SparseTensor) and dense.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad.to_dense(), dense.weight.grad)
    norms = [torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5) for net in (layer, dense)]
    torch.testing.assert_close(norms[0], norms[1])
    torch.testing.assert_close(layer.weight.grad.to_dense(), dense.weight.grad)


@pytest.mark.parametrize("make", [lambda p: torch.optim.LBFGS(p, lr=0.1), lambda p: torch.optim.Adafactor(p)])
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # of older torch itself
def test_optimizers_that_need_all_rows_get_all_of_the_gradient(make: Any) -> None:
    layer, x = Linear(40, 6, sparse_grad=True, dtype=torch.float64), batch(5, 40)
    dense = Linear(40, 6, dtype=torch.float64)
    dense.load_state_dict(layer.state_dict())
    for net in (layer, dense):
        optimizer = make(net.parameters())

        def closure(net: Any = net, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = (net(x) - 1).square().sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
    torch.testing.assert_close(layer.weight, dense.weight)


def test_sparse_adam_updates_both_factors_of_a_sampled_product() -> None:
    mask = torch.zeros(30, 20, dtype=torch.float64)
    mask[3, 4], mask[7, 4], mask[7, 11] = 1, 1, 1
    M = scorch.from_torch(mask, "csr")
    factors = [torch.nn.Parameter(torch.randn(size, 4, dtype=torch.float64)) for size in mask.shape]
    before = [factor.detach().clone() for factor in factors]
    optimizer = torch.optim.SparseAdam(factors, lr=0.1)
    scorch.einsum("ij,ik,jk->ij", M, *factors, sparse_grad=True).values().sum().backward()
    optimizer.step()
    for factor, old, touched in zip(factors, before, (mask.any(1), mask.any(0)), strict=True):
        assert torch.equal((factor != old).any(1), touched)


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, torch.optim.Adafactor])
def test_the_gradient_is_the_same_after_a_step(make: Any) -> None:
    layer, x = Linear(40, 6, bias=False, sparse_grad=True, dtype=torch.float64), batch(5, 40)
    layer(x).square().sum().backward()
    gradient = layer.weight.grad
    make(layer.parameters()).step()
    assert layer.weight.grad is gradient and isinstance(gradient, SparseTensor)
    torch.optim.Adam(layer.parameters()).step()


def test_closures_with_lazy_rows() -> None:
    layer, x = Linear(40, 6, sparse_grad=True, dtype=torch.float64), batch(5, 40)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (layer(x) - 1).square().sum()
        loss.backward()
        return loss

    before = layer.weight.detach().clone()
    losses = [optimizer.step(closure).item() for _ in range(30)]  # type: ignore[arg-type, union-attr]
    assert losses[-1] < 0.3 * losses[0]
    assert torch.equal((layer.weight.detach() != before).any(0), x.to_dense().any(0))


def test_it_learns_which_words_matter() -> None:
    words = batch(200, 500, 0.02)
    truth = torch.zeros(500, 1, dtype=torch.float64)
    truth[:50] = 1
    y = words @ truth
    layer = Linear(500, 1, sparse_grad=True, dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    first = F.mse_loss(layer(words), y).item()
    for _ in range(150):
        optimizer.zero_grad()
        loss = F.mse_loss(layer(words), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.02 * first


# SparseEmbeddingBag ----------------------------------------------------------------------------------

MODES = ["sum", "mean", "max"]


def bags(mode: str, **options: Any) -> tuple[SparseEmbeddingBag, torch.nn.EmbeddingBag]:
    ours = SparseEmbeddingBag(30, 4, mode, dtype=torch.float64, **options)
    theirs = torch.nn.EmbeddingBag(30, 4, mode=mode, dtype=torch.float64, **options)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def assert_same(ours: SparseEmbeddingBag, theirs: torch.nn.EmbeddingBag, *args: Any) -> None:
    found, expected = ours(*args), theirs(*args)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert isinstance(ours.weight.grad, SparseTensor) and theirs.weight.grad is not None
    torch.testing.assert_close(ours.weight.grad.to_dense(), theirs.weight.grad)
    assert ours.weight.grad.nnz <= 4 * torch.unique(args[0]).numel()


@pytest.mark.parametrize("mode", MODES)
def test_lists_with_offsets_and_matrices_as_torch_takes_them(mode: str) -> None:
    rows = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 9])
    assert_same(*bags(mode), rows, torch.tensor([0, 4, 4, 7]))
    assert_same(*bags(mode), rows.reshape(3, 3))
    assert_same(*bags(mode, include_last_offset=True), rows, torch.tensor([0, 4, 9]))
    assert_same(*bags(mode, padding_idx=9), rows, torch.tensor([0, 4, 7]))
    assert_same(*bags(mode), rows.int(), torch.tensor([0, 2], dtype=torch.int32))


def test_weights_of_samples_and_their_gradients() -> None:
    rows, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 9]), torch.tensor([0, 4, 4, 7])
    ours, theirs = bags("sum")
    one, other = (torch.rand(9, dtype=torch.float64).requires_grad_() for _ in range(2))
    with torch.no_grad():
        other.copy_(one)
    found, expected = ours(rows, offsets, one), theirs(rows, offsets, other)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format", ["csr", "coo", "csc", "bsr(2,2)"])
def test_sparse_matrices_say_which_rows_and_how_much_of_them(mode: str, format: str) -> None:
    layer = SparseEmbeddingBag(30, 4, mode, dtype=torch.float64)
    S = scorch.from_torch(batch(6, 30, 0.2).to_dense(), format=format).requires_grad_()
    found = layer(S)
    D = S.detach().to_dense().requires_grad_()
    T = layer.weight.detach().clone().requires_grad_()
    stored = scorch.from_torch(S.detach().to_dense(), "csr") if format != "bsr(2,2)" else S.detach()
    mask = SparseTensor(
        scorch._src.storage.storage.Storage(stored.storage.pattern, stored.storage.pattern.present)
    )
    held = mask.to_dense()
    if mode == "max":
        product = (D[:, :, None] * T).masked_fill(~held[:, :, None], -torch.inf).amax(1)
        expected = torch.where(held.any(1)[:, None], product, 0)
    else:
        expected = D @ T
        expected = expected / held.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else expected
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert S.grad is not None and layer.weight.grad is not None and D.grad is not None
    if format != "bsr(2,2)" or mode != "max":
        torch.testing.assert_close(S.grad.to_dense(), D.grad * held)
        torch.testing.assert_close(layer.weight.grad.to_dense(), T.grad)


@pytest.mark.parametrize("mode", MODES)
def test_gradcheck_of_bags(mode: str) -> None:
    layer = SparseEmbeddingBag(9, 3, mode, sparse_grad=False, dtype=torch.float64)
    rows, offsets = torch.tensor([1, 2, 4, 5, 3, 3]), torch.tensor([0, 4])

    def run(weight: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(layer, {"weight": weight}, (rows, offsets, weights))
        return found

    given = (
        layer.weight.detach().clone().requires_grad_(),
        torch.rand(6, dtype=torch.float64).requires_grad_(),
    )
    assert torch.autograd.gradcheck(run, given)


def test_a_table_that_is_given_and_wrong_calls() -> None:
    table = torch.randn(9, 3)
    layer = SparseEmbeddingBag.from_pretrained(table, mode="sum")
    assert not layer.weight.requires_grad
    assert torch.equal(layer(torch.tensor([[2]])), table[2:3])
    assert not SparseEmbeddingBag(9, 3, padding_idx=-1).weight[8].any()
    with pytest.raises(ArgumentError, match="'sum', 'mean', 'max'"):
        SparseEmbeddingBag(9, 3, "median")
    with pytest.raises(ShapeError, match="one column per row"):
        layer(scorch.rand(3, 8, density=0.5))
    with pytest.raises(CallError, match="its rows are the bags"):
        layer(scorch.rand(3, 9, density=0.5), torch.tensor([0]))
    with pytest.raises(IndexError, match="out of bounds"):
        layer(torch.tensor([[9]]))
    with pytest.raises(OperandError, match="indices must be int32 or int64"):
        layer(torch.tensor([[1.0]]))
    with pytest.raises(CallError, match="per_sample_weights"):
        layer(torch.tensor([[1]]), None, torch.ones(1, 1, dtype=torch.float64))


def test_bags_by_a_matrix_of_torch() -> None:
    bag = scorch.nn.SparseEmbeddingBag(10, 4, mode="sum")
    weights = scorch.rand(3, 10, density=0.3, format="csr")
    assert torch.allclose(bag(weights.to_torch()), bag(weights))
    with pytest.raises(scorch.errors.OperandError, match=r"float32; convert weights with scorch\.from_torch"):
        bag(weights.to_dense())
    with pytest.raises(scorch.errors.ArgumentError, match="num_embeddings must be a non-negative integer"):
        scorch.nn.SparseEmbeddingBag(-1, 4)
