"""``model.sparsification``: what ``scorch.sparsify`` reached over all weights, and what it left dense."""

from __future__ import annotations

import copy
import functools
import io
import random
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import scorch
from scorch._src.nn.sparsification import Sparsification

DENSE = {  # layers that are left dense, and what is said of them
    "Conv3d": (lambda n: nn.Conv3d(n, 2, 3), "only Conv1d and Conv2d"),
    "ConvTranspose1d": (lambda n: nn.ConvTranspose1d(n, n, 2), "only Conv1d and Conv2d"),
    "Bilinear": (lambda n: nn.Bilinear(n, n, 3), "not stored sparse"),
    "weight_norm": (lambda n: parametrizations.weight_norm(nn.Linear(n, n)), "parametrization"),
}
SPARSE = {
    "Linear": lambda n: nn.Linear(3 * n, 4 * n),
    "Embedding": lambda n: nn.Embedding(5 * n, 8),
    "LayerNorm": lambda n: nn.LayerNorm(n),
    "Conv1d": lambda n: nn.Conv1d(n, n + 1, 3),
    "LSTM": lambda n: nn.LSTM(n, n, 2),
    "GRUCell": lambda n: nn.GRUCell(n, n),
    "MultiheadAttention": lambda n: nn.MultiheadAttention(2 * n, 2),
}


def made(model: nn.Module, sparsity: float, **options: object) -> tuple[nn.Module, list[str]]:
    """The sparse model, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = scorch.sparsify(model, sparsity, prefer="size", **options)
    return found, [str(warning.message) for warning in caught]


def counted(model: nn.Module) -> tuple[int, int]:
    """All weights of a model, and those that are not zero, one by one."""
    total = nonzero = 0
    for module in model.modules():
        if isinstance(module, scorch.nn.SparseLinear):
            total += module.in_features * module.out_features
            nonzero += int(torch.count_nonzero(module.weight.to_dense()))
        elif hasattr(module, "parametrizations"):
            total += module.weight.numel()
            nonzero += int(torch.count_nonzero(module.weight))
        elif not isinstance(module, nn.utils.parametrize.ParametrizationList):
            own = [value for value in module.parameters(recurse=False) if value.dim() > 1]
            total += sum(value.numel() for value in own)
            nonzero += sum(int(torch.count_nonzero(value)) for value in own)
    return total, nonzero


def test_drawn_models(cases: int) -> None:
    for seed in range(max(1, cases // 8)):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        names = [rng.choice([*DENSE, *SPARSE, *SPARSE]) for _ in range(rng.randint(1, 5))]
        layers = [(DENSE[name][0] if name in DENSE else SPARSE[name])(rng.randint(2, 4)) for name in names]
        sparsity = rng.choice([0.5, 0.8, 0.9])
        named = [str(n) for n, name in enumerate(names) if name in DENSE and rng.random() < 0.3]
        found, said = made(nn.ModuleList(layers), sparsity, skip=named)
        reached: Sparsification = found.sparsification
        total, nonzero = counted(found)
        assert reached.weights == total and reached.asked == sparsity
        assert reached.reached == pytest.approx(1 - nonzero / total if total else 0.0)
        left = {layer.name.split(".")[0] for layer in reached.skipped}
        assert left == {str(n) for n, name in enumerate(names) if name in DENSE}, names
        for layer in reached.skipped:
            name, top = names[int(layer.name.split(".")[0])], layer.name.split(".")[0]
            assert ("named in skip" if top in named else DENSE[name][1]) in layer.reason
            assert layer.name in str(reached) and layer.reason in str(reached)
        is_below = reached.reached < sparsity - 0.005 and len(named) < len(left)
        assert bool(said) == is_below, (seed, names, named, said)
        if said:
            assert len(said) == 1 and f"{reached.reached:.1%}" in said[0] and f"{sparsity:.1%}" in said[0]


def test_a_transformer() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    found, said = made(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 0.9)
    reached = found.sparsification
    assert not said and not reached.skipped and reached.reached == pytest.approx(0.9, abs=0.001)
    again = copy.deepcopy(found)
    torch.save(again, io.BytesIO())
    assert again.sparsification == reached


def test_the_report_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Conv3d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 4, 40))
    found, _ = made(model, 0.75)
    report = scorch.report(found, measure=False)
    assert report.sparsification == found.sparsification
    assert "left dense" in capsys.readouterr().out and "0 (Conv3d)" in str(report)
    plain = scorch.report(model, measure=False, quiet=True)
    assert plain.sparsification.asked is None and "asked" not in str(plain)


def test_a_model_without_sparse_layers_says_so() -> None:
    small, _ = made(nn.Linear(2, 2), 0.5)  # pruned, but smaller if stored dense
    assert type(small) is nn.Linear and small.sparsification.reached == 0.5
    assert str(small.sparsification).endswith("no layer is stored sparse: scorch.report shows why")
    assert "no layer" not in str(made(nn.Linear(64, 64), 0.5)[0].sparsification)
    assert "no layer" not in str(scorch.report(nn.Linear(2, 2), measure=False, quiet=True))


@pytest.mark.skipif(not hasattr(Exception, "add_note"), reason="Python 3.10 has no notes")
@pytest.mark.parametrize("function", [scorch.doctor, functools.partial(scorch.sparsify, sparsity=0.5)])
def test_an_example_that_the_model_refuses_is_named(function: Any) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        function(nn.Linear(4, 2), example=torch.ones(1, 3))
    assert "while the model ran on example" in caught.value.__notes__[0]


def test_what_was_left_dense_on_purpose_is_not_warned_of() -> None:
    model = nn.Sequential(nn.Conv3d(3, 8, 3), nn.Flatten(), nn.Linear(32, 40))
    assert not made(model, 0.9, skip=[nn.Conv3d])[1]
    assert made(model, 0.9)[1]
    assert not made(model, 0.0)[1]
