"""``scorch.doctor`` says which layers would gain from sparsity, and changes nothing."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch

import scorch
from scorch._src.explain.doctor_report import Diagnosis, LayerDiagnosis
from scorch.errors import ArgumentError, OperandError


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(48, 8)
    )


def test_layers_are_measured_on_what_the_model_gives_them() -> None:
    model, x = network(), torch.rand(5, 64)
    found = scorch.doctor(model, x, quiet=True)
    assert [layer.name for layer in found.layers] == ["0", "3"]
    first, second = found.layers
    assert first.shape == (48, 64) and first.input_shape == (5, 64)
    assert second.input_shape == (5, 48) and second.input_density < 1
    for layer in found.layers:
        assert layer.dense is not None and layer.dense > 0
        assert set(layer.sparse) == {0.8, 0.9, 0.95, 0.98}
        kept = [layer.norm_kept[sparsity] for sparsity in sorted(layer.norm_kept)]
        assert kept == sorted(kept, reverse=True) and 0 < kept[-1] < kept[0] < 1
        assert layer.advice


def test_the_model_is_not_changed() -> None:
    model, x = network(), torch.rand(5, 64)
    model[3].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    scorch.doctor(model, x, quiet=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and model[0].training and not model[3].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_hooks_go_when_the_model_fails() -> None:
    model = network()
    with pytest.raises(RuntimeError):
        scorch.doctor(model, torch.rand(5, 63), quiet=True)
    assert not any(module._forward_hooks for module in model.modules()) and model.training


def test_zeros_of_weights_and_inputs_are_seen() -> None:
    model = network()
    with torch.no_grad():
        model[0].weight[:, 4:] = 0
    x = torch.zeros(5, 64)
    x[:, 3] = 1
    layer = scorch.doctor(model, x, quiet=True).layers[0]
    assert layer.weight_density == pytest.approx(4 / 64) and layer.input_density == pytest.approx(1 / 64)
    assert layer.stored is not None and layer.sparse_input is not None


def test_other_layers_are_named() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(20, 8)
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
            self.conv = torch.nn.Conv1d(6, 2, 3)
            self.unused = torch.nn.Linear(3, 3)
            self.sparse = scorch.nn.SparseLinear(6, 4, sparsity=0.5)

        def forward(self, tokens, *, scale=1.0):
            x = self.words(tokens) * scale
            return self.sparse(self.conv(self.attention(x, x, x)[0]))

    found = scorch.doctor(Model(), {"tokens": torch.arange(6)[None], "scale": 2.0}, quiet=True)
    advice = {layer.name: layer.advice for layer in found.layers}
    assert set(advice) == {"words", "attention", "conv", "sparse"}  # the other was never called
    assert "sparse mask" in advice["attention"]
    for layer in found.layers[1:3]:
        assert layer.dense > 0 and set(layer.sparse) == set(layer.norm_kept) == {0.8, 0.9, 0.95, 0.98}
        assert "pruned" in layer.advice
    assert "already sparse" in advice["sparse"] and "lookup" in advice["words"]


def test_layers_with_the_same_remark_share_a_line():
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)])
    model = scorch.sparsify(model, sparsity=0.5, prefer="size", skip=["3"])
    report = str(scorch.report(model, measure=False, quiet=True)).splitlines()
    assert "0 and 2 more are sparse: smaller" in report and "1 is sparse: smaller" not in report
    found = scorch.doctor(model, torch.ones(2, 32), quiet=True)
    remark = "already sparse; scorch.report compares it with the dense layer"
    assert f"0 and 2 more: {remark}" in str(found).splitlines() and f"1: {remark}" in found.advice
    pair = scorch.doctor(model[1:3], torch.ones(2, 32), quiet=True)
    assert f"1 and 2: {remark}" in str(pair).splitlines()


def made_up(dense: float, sparse: dict[float, float]) -> LayerDiagnosis:
    norm = dict.fromkeys(sparse, 0.5)
    return LayerDiagnosis("a", "Linear", (8, 8), (2, 8), 1, dense, 1.0, 1.0, dense, None, None, sparse, norm)


def test_gains_are_those_that_last() -> None:
    layer = made_up(1.0, {0.8: 0.9, 0.9: 1.2, 0.95: 0.5, 0.98: 0.25})
    assert layer.gains_from == 0.95  # at 80 % it was luck: at 90 % there is none
    assert layer.gain(0.98) == pytest.approx(4.0) and layer.gain(0.5) is None
    found = Diagnosis("Model", 2.0, 2, (layer,))
    assert found.seconds_at(0.98) == pytest.approx(1.25) and found.seconds_at(0.9) == pytest.approx(2.0)
    assert "1.60 x" in str(found)


def test_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = scorch.doctor(network(), (torch.rand(5, 64),), sparsities=(0.9,))
    assert capsys.readouterr().out.strip() == str(found)
    assert "90% pruned" in str(found) and "48 x 64" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["layers"][0]["kind"] == "Linear"
    assert "<table>" in found._repr_html_()
    empty = scorch.doctor(torch.nn.ReLU(), torch.rand(3), quiet=True)
    assert "no layer with weights" in str(empty)


def test_wrong_arguments() -> None:
    with pytest.raises(OperandError, match=r"torch\.nn\.Module"):
        scorch.doctor(torch.relu, torch.rand(3))  # type: ignore[arg-type]
    found = scorch.doctor(network(), torch.rand(5, 64), sparsities=0.5, quiet=True)
    assert set(found.layers[0].sparse) == {0.5}
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        scorch.doctor(network(), torch.rand(5, 64), sparsities=(90,))


def test_unrest_is_said() -> None:
    assert "machine is busy" in str(Diagnosis("Model", 2.0, 2, (), 1.8))
    assert "machine is busy" not in str(Diagnosis("Model", 2.0, 2, (), 1.0))
    shapes = ((4, 4), (1, 4), 1, 1.0, 1.0, 1.0)
    for sparse_seconds, gains in ((0.5, True), (2.0, False)):  # pruning is suggested where a layer gains
        layer = LayerDiagnosis("0", "Linear", *shapes, dense=1.0, sparse={0.9: sparse_seconds})
        assert ("to prune, call" in str(Diagnosis("Model", 1.0, 2, (layer,), 1.8))) is gains


def test_layers_that_cannot_be_timed_say_why() -> None:
    dense = torch.nn.Linear(60, 3)
    given = scorch.rand(4, 60, density=0.1, format="csr")
    assert scorch.doctor(dense, given, quiet=True).layers[0].advice == "its input is already sparse"
    assert "empty" in scorch.doctor(dense, torch.rand(0, 60), quiet=True).layers[0].advice
    volumes = scorch.doctor(torch.nn.Conv3d(1, 2, 2), torch.rand(1, 1, 3, 3, 3), quiet=True)
    assert volumes.layers[0].advice == "not timed sparse: only Conv1d and Conv2d have sparse kernels"


def test_recurrent_layers_and_pruned_layers_are_one_layer_each() -> None:
    recurrent = scorch.doctor(torch.nn.LSTM(4, 3, 2), torch.rand(2, 1, 4), sparsities=0.5, quiet=True)
    assert [set(layer.sparse) for layer in recurrent.layers] == [{0.5}]
    attention = scorch.sparsify(torch.nn.MultiheadAttention(8, 2), 0.9, prefer="size")
    x = torch.rand(5, 1, 8)
    found = scorch.doctor(attention, {"query": x, "key": x, "value": x}, quiet=True)
    assert [layer.kind for layer in found.layers] == ["SparseMultiheadAttention"]
    assert "already sparse" in found.layers[0].advice and found.layers[0].input_shape == (5, 1, 8)


@pytest.mark.parametrize("call", [scorch.doctor, lambda model, x, **options: scorch.report(model, **options)])
@pytest.mark.whole
def test_in_a_notebook_it_is_shown_once(call, capsys, monkeypatch) -> None:
    model, x = network(), torch.rand(5, 64)
    call(model, x)
    assert "Linear" in capsys.readouterr().out
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    found = call(model, x)
    assert capsys.readouterr().out == "" and "<table>" in found._repr_html_()
    call(model, x, quiet=False)
    assert "Linear" in capsys.readouterr().out
