"""Training while the sparsity patterns of layers change, as masked dense layers are trained."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import scorch
from nn.test_sparse_layers import F64, LAYERS, drawn, tensors_in
from scorch._src.nn.pruned.choose_storage import prune_layer
from scorch._src.nn.pruned.prunable import kind_of_layer, tables_of
from scorch._src.storage.storage import Storage
from scorch.errors import InPlaceError, ShapeError
from scorch.nn import SparseLinear

EVERY_LAYER: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    **LAYERS,
    "Linear": (lambda: nn.Linear(8, 6, dtype=F64), lambda: (drawn(5, 8),)),
    "Linear, no bias": (lambda: nn.Linear(12, 6, bias=False, dtype=F64), lambda: (drawn(2, 3, 12),)),
    "Embedding": (lambda: nn.Embedding(9, 6, dtype=F64), lambda: (torch.tensor([[0, 8, 1], [4, 4, 2]]),)),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda given: torch.optim.SGD(given, lr=0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda given: torch.optim.AdamW(given, lr=0.01, foreach=True),
    "fused Adam": lambda given: torch.optim.Adam(given, lr=0.01, amsgrad=True, fused=True),
}


def spread(layer: SparseLinear, values: torch.Tensor) -> torch.Tensor:
    return scorch.SparseTensor(Storage(layer.pattern, values.detach())).to_dense()


def mask_of(layer: SparseLinear) -> torch.Tensor:
    return spread(layer, torch.ones(layer.nnz)) != 0


class Twins:
    """A sparse layer, and torch's with a mask, each with an optimizer."""

    def __init__(self, name: str, optimizer: str) -> None:
        make, self.inputs = EVERY_LAYER[name]
        layer = make()
        self.sparse = scorch.sparsify(layer, 0.6, prefer="size", format="csr")
        self.tables = tables_of(self.sparse)
        self.dense = prune_layer(layer, {name: mask_of(table) for name, table in self.tables.items()})
        self.parts = [(self.tables[part.table], part) for part in kind_of_layer(self.dense).parts(self.dense)]
        self.optimizers = [OPTIMIZERS[optimizer](one.parameters()) for one in (self.sparse, self.dense)]
        self.arguments = self.inputs()

    def weights(self, of_part: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The parameter of the dense layer, and its view as a matrix."""
        weight = getattr(of_part.owner, of_part.name)
        return weight, of_part.as_matrix(weight.detach())

    def check(self) -> None:
        found, wanted = (tensors_in(one(*self.arguments)) for one in (self.sparse, self.dense))
        for result, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(result, expected)

    def step(self) -> list[torch.Tensor]:
        """Make a step; return the losses, which hold on to the graphs."""
        losses = []
        for one, optimizer in zip((self.sparse, self.dense), self.optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(sum(tensor.square().sum() for tensor in tensors_in(one(*self.arguments))))
            losses[-1].backward()
        for table, part in self.parts:
            mask, (weight, _) = mask_of(table), self.weights(part)
            part.as_matrix(weight.grad).mul_(mask)
            torch.testing.assert_close(spread(table, table.values.grad), part.as_matrix(weight.grad))
        for optimizer in self.optimizers:
            optimizer.step()
        for table, part in self.parts:
            self.weights(part)[1].mul_(mask_of(table))
        return losses

    def change(self, density: float) -> None:
        """Change all patterns: new values are 0.1, and the state of optimizers is zero there."""
        for table, part in self.parts:
            before, (weight, matrix) = mask_of(table), self.weights(part)
            mask = torch.rand(before.shape) < density
            mask[0, 0] = True
            table.rewire(mask, new=0.1)
            matrix.copy_(torch.where(before, matrix, 0.1) * mask)
            for value in self.optimizers[1].state[weight].values():
                if value.shape == weight.shape:
                    part.as_matrix(value).mul_(mask & before)


@pytest.mark.whole
@pytest.mark.parametrize("name", EVERY_LAYER)
def test_training_goes_on_with_other_numbers_of_values(name: str) -> None:
    torch.manual_seed(0)
    twins = Twins(name, [*OPTIMIZERS][len(name) % len(OPTIMIZERS)])
    with torch.inference_mode():
        for one in (twins.sparse, twins.dense):
            one.eval()
        twins.check()
        twins.check()
    twins.sparse.train(), twins.dense.train()
    losses = twins.step()
    for density in (0.2, 0.8, 0.4, 1.0, 0.0):
        twins.change(density)
        twins.check()
        losses = twins.step()
        with torch.no_grad():
            twins.check()
    assert all(map(torch.isfinite, losses))
    copied = copy.deepcopy(twins.sparse)
    copied.load_state_dict(twins.sparse.state_dict())
    for result, expected in zip(
        tensors_in(copied(*twins.arguments)), tensors_in(twins.sparse(*twins.arguments)), strict=True
    ):
        assert torch.equal(result, expected)


@pytest.mark.whole
@pytest.mark.parametrize("name", EVERY_LAYER)
def test_a_graph_of_another_number_of_values_is_refused(name: str) -> None:
    torch.manual_seed(0)
    twins = Twins(name, "SGD")
    twins.step()
    for density in (0.05, 0.9):
        before = {table: table.nnz for table, _ in twins.parts}
        results = tensors_in(twins.sparse(*twins.arguments))
        twins.change(density)
        assert all(table.nnz != count for table, count in before.items())
        with pytest.raises((InPlaceError, RuntimeError), match=r"number of values|modified by an inplace"):
            sum(tensor.sum() for tensor in results).backward()
        twins.step()


@pytest.mark.parametrize("name", ["Linear", "Linear, no bias", "Embedding"])
def test_a_gradient_follows_its_values_to_other_positions(name: str) -> None:
    torch.manual_seed(0)
    twins = Twins(name, "SGD")
    (table, part), *_ = twins.parts
    results = [one(*twins.arguments).square().sum() for one in (twins.sparse, twins.dense)]
    other = mask_of(table).flip(0)
    table.rewire(other, new=0.0)
    assert table.nnz == int(other.sum())
    for result in results:
        result.backward()
    weight, matrix = twins.weights(part)
    wanted = part.as_matrix(weight.grad) * (matrix != 0) * other
    torch.testing.assert_close(spread(table, table.values.grad), wanted)


def test_states_of_optimizers_follow_a_state_dict() -> None:
    torch.manual_seed(0)
    layer, other = SparseLinear(9, 7, 0.5), SparseLinear(9, 7, 0.8)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(4, 9)).square().sum().backward()
    optimizer.step()
    before = spread(layer, optimizer.state[layer.values]["exp_avg"])
    layer.load_state_dict(other.state_dict())
    after = spread(layer, optimizer.state[layer.values]["exp_avg"])
    torch.testing.assert_close(after, before * mask_of(layer))
    layer(torch.randn(4, 9)).square().sum().backward()
    optimizer.step()


def test_a_model_is_pruned_further_during_training() -> None:
    torch.manual_seed(0)
    model = scorch.sparsify(nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 5)), 0.6, prefer="size")
    optimizer, x = torch.optim.Adam(model.parameters(), lr=0.01, fused=True), torch.randn(4, 9)
    for sparsity in (0.7, 0.8, 0.9):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().sum()
        loss.backward()
        optimizer.step()
        moment = spread(model[0], optimizer.state[model[0].values]["exp_avg"])
        scorch.sparsify(model, sparsity, prefer="size", inplace=True)
        kept = spread(model[0], optimizer.state[model[0].values]["exp_avg"])
        torch.testing.assert_close(kept, moment * mask_of(model[0]))


def test_states_that_do_not_fit_are_refused() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 9)
    layer = SparseLinear(9, 7, 0.5)
    optimizer = torch.optim.Adam(layer.parameters(), fused=True)
    layer(x).square().sum().backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    layer.rewire(torch.ones(7, 9), new=0.0)
    optimizer.load_state_dict(state)  # of fewer values
    with pytest.raises(ShapeError, match="has 63 stored elements"):
        optimizer.step()
    layer = SparseLinear(9, 7, 0.5)
    search = torch.optim.LBFGS(layer.parameters())

    def loss() -> torch.Tensor:
        search.zero_grad()
        found = layer(x).square().sum()
        found.backward()
        return found

    search.step(loss)
    layer.rewire(mask_of(layer).flip(0), new=0.0)
    search.step(loss)
    layer.rewire(torch.ones(7, 9), new=0.0)
    with pytest.raises(ShapeError, match="create a new optimizer"):
        search.step(loss)


def test_compiled_functions_follow_other_numbers_of_values() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(SparseLinear(9, 7, 0.5, dtype=F64), nn.ReLU(), SparseLinear(7, 5, 0.5, dtype=F64))
    run, x = scorch.compile(model), drawn(4, 9)
    for density in (0.2, 0.9, 0.5, 0.5):
        found, wanted = run(x), model(x)
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad(out.square().sum(), [*model.parameters()]) for out in (found, wanted)]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x))
        model[0].rewire(torch.rand(7, 9) < density, new=0.1)


@pytest.mark.whole
@pytest.mark.parametrize("size", ["as many", "more"])
def test_an_average_of_a_model_with_another_pattern_is_refused(size: str) -> None:
    torch.manual_seed(0)
    layer, x = SparseLinear(9, 7, 0.5), torch.randn(4, 9)
    model = torch.nn.Sequential(torch.nn.Linear(9, 9), layer)
    average = pickle.loads(pickle.dumps(torch.optim.swa_utils.AveragedModel(model)))
    average.update_parameters(model)
    other = mask_of(layer).flip(0) if size == "as many" else torch.ones(7, 9)
    layer.rewire(other, new=0.1)
    torch.nn.init.ones_(model[0].weight)
    before = copy.deepcopy(average.state_dict())
    with pytest.raises(scorch.errors.CallError, match=r"averaged\.module\.1\.rewire\(model\.1\.weight"):
        average.update_parameters(model)
    assert str(before) == str(average.state_dict())
    average.module[1].rewire(other, new=0.0)
    average.update_parameters(model)
    assert average(x).isfinite().all() and type(average).__name__ == "AveragedModel"
