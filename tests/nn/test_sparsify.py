"""``scorch.sparsify``: the same model as dense torch with pruned weights, whatever is stored how."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import prune as torch_prune

import scorch
from scorch import errors
from scorch._src.nn import timing
from scorch.nn import SparseEmbedding, SparseLinear


def mlp() -> torch.nn.Sequential:
    torch.manual_seed(0)
    linear, relu = torch.nn.Linear, torch.nn.ReLU()
    return torch.nn.Sequential(linear(24, 32), relu, linear(32, 16), relu, linear(16, 8))


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(30, 8)
        self.out = torch.nn.Linear(8, 30)
        self.out.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(x))


def faster(which: str):
    """``timing.measure_fastest`` on a machine where ``which`` wins."""

    def measure_fastest(calls):
        for call in calls.values():
            call()
        return {name: 1.0 if name == which else 2.0 for name in calls}

    return mock.patch.object(timing, "measure_fastest", measure_fastest)


def pruned(model: torch.nn.Module, sparsity: float) -> torch.nn.Module:
    """The truth: zeros in a dense model."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                weight = module.weight
                order = weight.abs().reshape(-1).sort().indices
                weight.reshape(-1)[order[: weight.numel() - round((1 - sparsity) * weight.numel())]] = 0.0
    return model


@pytest.mark.parametrize("winner", ["dense", "csr"])
def test_the_result_does_not_depend_on_what_was_faster(winner: str) -> None:
    model, x = mlp(), torch.randn(5, 24)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with faster(winner):
        found = scorch.sparsify(model, 0.8)
    assert isinstance(found[0], SparseLinear if winner == "csr" else torch.nn.Linear)
    torch.testing.assert_close(found(x), pruned(model, 0.8)(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    decision = found[0].sparsified
    assert decision.is_sparse == (winner == "csr") and set(decision.seconds) == {1, 32, 512}


@pytest.mark.parametrize("winner", ["csr", "bsr(4,4)"])
def test_blocks_are_stored_as_is_faster(winner: str) -> None:
    with faster(winner):
        found = scorch.sparsify(mlp(), 0.75, blocks=4)
    assert str(found[0].format) == winner
    with faster("csr"):
        other = scorch.sparsify(mlp(), 0.75, blocks=(4, 4))
    torch.testing.assert_close(found[0].weight.detach().to_dense(), other[0].weight.detach().to_dense())
    assert found[0].density == pytest.approx(0.25)


def test_nm() -> None:
    found = scorch.sparsify(mlp(), nm=(2, 4), prefer="size")
    mask = found[0].weight.detach().to_dense().reshape(32, 6, 4) != 0
    assert bool((mask.sum(-1) == 2).all()) or isinstance(found[0], torch.nn.Linear)
    assert found[0].density == 0.5 if isinstance(found[0], SparseLinear) else True


def test_nm_as_a_text() -> None:
    found, wanted = (
        scorch.sparsify(mlp(), **options, prefer="size") for options in ({"pattern": "1:4"}, {"nm": (1, 4)})
    )
    assert torch.equal(found[0].weight.detach().to_dense(), wanted[0].weight.detach().to_dense())
    with pytest.raises(
        errors.ArgumentError, match="pattern must be of the form 'N:M', such as '2:4', but got '2/4'"
    ):
        scorch.sparsify(mlp(), pattern="2/4")
    with pytest.raises(errors.ArgumentError, match="pattern or nm, not both"):
        scorch.sparsify(mlp(), pattern="2:4", nm=(2, 4))


def test_global_and_random_and_erk() -> None:
    model = mlp()
    model[0].weight.data *= 100
    found = scorch.sparsify(model, 0.9, distribution="global", prefer="size")
    assert found[0].density > 0.15 and found[4].density == 0.0
    drawn = scorch.sparsify(mlp(), 0.9, method="random", distribution="erk", prefer="size")
    densities = [drawn[place].density for place in (0, 2)]
    assert densities[0] < densities[1]
    assert drawn[0].nnz + drawn[2].nnz < 0.2 * (24 * 32 + 32 * 16)


def test_masks_of_torch_are_taken_as_they_are() -> None:
    model, x = mlp(), torch.randn(5, 24)
    torch_prune.random_unstructured(model[0], "weight", amount=0.7)
    torch_prune.l1_unstructured(model[2], "weight", amount=0.5)
    torch_prune.l1_unstructured(model[2], "bias", amount=0.5)
    expected = model(x)
    found = scorch.sparsify(model, 0.9, prefer="size", skip=["4"])
    torch.testing.assert_close(found(x), expected)
    assert isinstance(found[0], SparseLinear)
    assert found[0].nnz == int(model[0].weight_mask.sum())
    assert hasattr(model[0], "weight_mask")
    with faster("dense"):
        dense = scorch.sparsify(model, 0.9, skip=["4"])
    torch.testing.assert_close(dense(x), expected)
    assert not hasattr(dense[0], "weight_mask") and isinstance(dense[0], torch.nn.Linear)


def test_embeddings_have_rows_and_gradients() -> None:
    torch.manual_seed(0)
    model = torch.nn.Embedding(20, 12, padding_idx=3)
    torch_prune.random_unstructured(model, "weight", amount=0.8)
    found = scorch.sparsify(model, prefer="size")
    assert isinstance(found, SparseEmbedding)
    x = torch.tensor([[3, 0, 19], [7, 7, 3]])
    weights = torch.randn(2, 3, 12)
    torch.testing.assert_close(found(x), model(x))
    (found(x) * weights).sum().backward()
    (model(x) * weights).sum().backward()
    assert isinstance(found.weight.detach(), scorch.SparseTensor)
    row, column = found.weight.detach().to_format("coo").indices()
    torch.testing.assert_close(found.table.values.grad, model.weight_orig.grad[row, column])
    with pytest.raises(errors.IndexRangeError, match="20"):
        found(torch.tensor([20]))
    with pytest.raises(errors.CallError, match="integers"):
        found(torch.ones(2))


def test_tied_weights_are_loaded_as_tied() -> None:
    class Model(Tied):
        """With a table of names as in Hugging Face's models, which store a tied weight once."""

        _tied_weights_keys: ClassVar = {
            "out.weight": "embedding.weight",
            "heads.[0-9]+.weight": "embedding.weight",
        }

    small = scorch.sparsify(Model(), 0.8, prefer="size")
    assert small._tied_weights_keys["out.values"] == "embedding.table.values"
    assert small._tied_weights_keys["heads.[0-9]+.weight"] == "embedding.table.values"
    assert "out.weight" in Model._tied_weights_keys
    whole = small.state_dict()
    once = {name: value for name, value in whole.items() if name != "out.values"}
    with torch.device("meta"):
        empty = [Model(), Model()]
    models = [Model(), Model(), scorch.sparsify(Model(), prefer="size"), *empty]
    for state, model in zip((whole, once, once, whole, once), models, strict=True):
        found = scorch.nn.load_sparse(model, state)
        assert found.out.values is found.embedding.table.values
        assert "out.values" in found._tied_weights_keys
        torch.testing.assert_close(found(torch.arange(30)), small(torch.arange(30)))


def test_save_pretrained_warns_of_a_file_that_from_pretrained_cannot_load(tmp_path: Path) -> None:
    class Pretrained(torch.nn.Sequential):
        """Saves as Hugging Face's models do."""

        def save_pretrained(self, folder: Path) -> None:
            scorch.save(folder / "model.safetensors", self.state_dict())

    def build() -> torch.nn.Module:
        return Pretrained(torch.nn.Linear(48, 8), torch.nn.Linear(8, 48))

    model = scorch.sparsify(build(), 0.9, prefer="size")
    with pytest.warns(UserWarning, match=r"scorch\.nn\.load_sparse\(model, scorch\.load") as warned:
        model.save_pretrained(tmp_path)
    assert len(warned) == 1 and warned[0].filename == __file__
    found = scorch.nn.load_sparse(build(), scorch.load(tmp_path / "model.safetensors"))
    assert torch.equal(found(torch.ones(2, 48)), model(torch.ones(2, 48)))
    build().save_pretrained(tmp_path)  # of dense layers, without a warning
    model.state_dict()


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:requested a sparsity")
def test_layers_whose_weights_are_computed_stay_dense() -> None:
    for norm, reason in (
        (torch.nn.utils.weight_norm, "its weight is computed by torch.nn.utils.weight_norm; remove it first"),
        (torch.nn.utils.spectral_norm, "its weight is computed by torch.nn.utils.spectral_norm; remove it"),
        (parametrizations.weight_norm, "its weight is computed by a parametrization; remove it first"),
    ):
        model = torch.nn.Sequential(norm(torch.nn.Linear(8, 8)), torch.nn.Linear(8, 8)).eval()
        pruned = scorch.sparsify(model, 0.5, prefer="size")
        (skipped,) = pruned.sparsification.skipped
        assert skipped.name == "0" and skipped.reason.startswith(reason)
        assert torch.equal(pruned[0](torch.ones(2, 8)), model[0](torch.ones(2, 8)))
        assert "Linear" in str(scorch.report(model)) and scorch.doctor(model, torch.ones(2, 8), quiet=True)
    recurrent = torch.nn.utils.weight_norm(torch.nn.LSTM(8, 8), "weight_hh_l0")
    (skipped,) = scorch.sparsify(recurrent, 0.5, prefer="size").sparsification.skipped
    assert skipped.reason.startswith("its weight_hh_l0 is computed by")
    attention = torch.nn.MultiheadAttention(8, 2)
    parametrizations.weight_norm(attention.out_proj)
    (skipped,) = scorch.sparsify(attention, 0.5, prefer="size").sparsification.skipped
    assert skipped.reason.startswith("its weight is computed by a parametrization")


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_weights_of_sparse_layers_cannot_be_parametrized() -> None:
    x = torch.ones(2, 8)
    for layer, name in (
        (torch.nn.Linear(8, 8), "weight"),
        (torch.nn.Conv2d(2, 2, 3), "weight"),
        (torch.nn.Embedding(8, 8), "weight"),
        (torch.nn.LSTM(8, 8), "weight_hh_l0"),
    ):
        small = scorch.sparsify(layer, 0.9, prefer="size")
        with pytest.raises(errors.UnsupportedError, match=r"apply them to layer.to_dense\(\), which"):
            parametrizations.weight_norm(small, name)
        parametrizations.weight_norm(small.to_dense(), name)
        if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d)):
            with pytest.raises(errors.UnsupportedError, match="weight_norm cannot be applied"):
                torch.nn.utils.weight_norm(small)
    linear = SparseLinear(8, 8)
    expected = linear(x)
    for name in ("values", "bias"):
        with pytest.raises(
            errors.UnsupportedError, match=r"cannot be applied to a SparseLinear, whose weight"
        ):
            parametrize.register_parametrization(linear, name, torch.nn.Identity())
        assert torch.equal(linear(x), expected)
        with pytest.raises(errors.UnsupportedError, match="and weight_norm cannot be applied"):
            torch.nn.utils.weight_norm(SparseLinear(8, 8), name, dim=None)


def test_weights_that_a_file_has_apart_are_not_tied() -> None:
    """As by torch, which assigns each of them to a model without memory."""

    class Model(torch.nn.Sequential):
        def __init__(self) -> None:
            super().__init__(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
            self[1].weight = self[0].weight

    dense = Model()
    source = torch.nn.Sequential(*[scorch.nn.SparseLinear.from_dense(layer) for layer in dense])
    with torch.no_grad():
        source[1].values.mul_(2)
    narrow = source.state_dict() | {"1.values": source[1].values.detach().bfloat16()}
    for state in (source.state_dict(), narrow):
        with torch.device("meta"):
            empty = Model()
        found = scorch.nn.load_sparse(empty, state)
        assert found[0].values is not found[1].values and found[1].values.dtype == state["1.values"].dtype
        torch.testing.assert_close(found(torch.eye(8)), source(torch.eye(8)), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_values_in_bfloat16_stay_only_in_models_that_take_them(dtype: torch.dtype) -> None:
    """A layer in float32 may store its weight in bfloat16."""
    saved = scorch.sparsify(torch.nn.Linear(48, 8), 0.9, prefer="size").to(torch.bfloat16).state_dict()
    found = scorch.nn.load_sparse(torch.nn.Linear(48, 8).to(dtype), saved)
    assert found.values.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)
    assert found(torch.ones(2, 48, dtype=dtype)).dtype == dtype


def test_tied_weights_stay_tied() -> None:
    for model in (scorch.sparsify(Tied(), 0.8, prefer="size"), scorch.sparsify(Tied(), 0.0, prefer="size")):
        x = torch.tensor([1, 5])
        truth = Tied()
        truth.load_state_dict(
            {
                "embedding.weight": model.embedding.weight.detach().to_dense(),
                "out.weight": model.out.weight.detach().to_dense(),
                "out.bias": model.out.bias.detach(),
            }
        )
        torch.testing.assert_close(model(x), truth(x))
        assert len(list(model.parameters())) == 2
    assert isinstance(scorch.sparsify(Tied(), 0.8, prefer="size").out, SparseLinear)


def test_what_stays_alone() -> None:
    class Mine(torch.nn.Linear):
        pass

    model = torch.nn.ModuleDict(
        {
            "mine": Mine(8, 8),
            "normed": parametrizations.weight_norm(torch.nn.Linear(8, 8)),
            "skipped": torch.nn.Sequential(torch.nn.Linear(8, 8)),
            "table": torch.nn.Embedding(8, 8),
            "limited": torch.nn.Embedding(8, 8, max_norm=1.0),
            "taken": torch.nn.Linear(8, 8),
            "ours": scorch.nn.Linear(8, 8),
            "sparse inputs": scorch.nn.Linear(8, 8, sparse_grad=True),
        }
    )
    with pytest.warns(UserWarning, match=r"mine \(Mine\), normed \(Linear\), sparse inputs \(Linear\)"):
        found = scorch.sparsify(model, 0.9, prefer="size", skip=["skipped", torch.nn.Bilinear])
    why = {layer.name: layer.reason for layer in found.sparsification.skipped}
    assert "subclass" in why["mine"] and "sparse inputs" in why["sparse inputs"]
    assert type(found["mine"]) is Mine and type(found["limited"]) is torch.nn.Embedding
    assert type(found["skipped"][0]) is torch.nn.Linear
    assert torch.equal(found["skipped"][0].weight, model["skipped"][0].weight)
    assert isinstance(found["ours"], SparseLinear) and found["sparse inputs"].sparse_grad
    assert isinstance(found["taken"], SparseLinear) and isinstance(found["table"], SparseEmbedding)
    assert "max_norm" in found["limited"].sparsified.reason


def test_mode_hooks_and_frozen_weights_are_kept() -> None:
    model, seen = mlp().eval(), []
    model[0].weight.requires_grad_(False)
    model[0].register_forward_hook(lambda *_: seen.append(1))
    found = scorch.sparsify(model, 0.9, prefer="size", inplace=True)
    assert found is model and isinstance(found[0], SparseLinear) and not found[0].training
    found(torch.ones(24))
    assert seen and not found[0].values.requires_grad and found[0].bias.requires_grad


def test_a_shared_layer_is_replaced_everywhere() -> None:
    layer = torch.nn.Linear(8, 8)
    found = scorch.sparsify(torch.nn.Sequential(layer, torch.nn.ReLU(), layer), 0.9, prefer="size")
    assert found[0] is found[2] and isinstance(found[0], SparseLinear)


@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_files_keep_the_format(kind: str, tmp_path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(40, 24), *mlp())
    sparse = scorch.sparsify(model, 0.75, blocks=(4, 4), format="bsr(4,4)", prefer="size", skip=["5"])
    if kind == "torch":
        file = io.BytesIO()
        torch.save(sparse.state_dict(), file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(sparse.state_dict(), tmp_path / "model.safetensors")
        state = safetensors.load_file(tmp_path / "model.safetensors")
    fresh = torch.nn.Sequential(torch.nn.Embedding(40, 24), *mlp())
    found = scorch.nn.load_sparse(fresh, state)
    assert isinstance(found[0], SparseEmbedding) and str(found[1].format) == "bsr(4,4)"
    assert type(found[5]) is torch.nn.Linear
    x = torch.tensor([0, 39])
    torch.testing.assert_close(found(x), sparse(x), rtol=0, atol=0)
    again = scorch.nn.load_sparse(found, model.state_dict())  # and back to dense
    assert type(again[1]) is torch.nn.Linear and type(again[0]) is torch.nn.Embedding
    torch.testing.assert_close(again(x), model(x))


def test_a_file_of_another_model_is_refused() -> None:
    state = scorch.sparsify(mlp(), 0.9, prefer="size").state_dict()
    with pytest.raises(errors.FileError, match="no layer"):
        scorch.nn.load_sparse(torch.nn.Sequential(torch.nn.Linear(24, 32)), state)


def test_a_pruned_file_is_a_fifth() -> None:
    def size(model: torch.nn.Module) -> int:
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        return file.tell()

    model = torch.nn.Linear(1024, 1024, bias=False)
    assert size(scorch.sparsify(model, 0.9, prefer="size")) <= 0.25 * size(model)


def test_pruned_models_are_trained_on() -> None:
    model = scorch.sparsify(mlp(), 0.5, prefer="size", skip=["4"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = torch.randn(32, 24), torch.randint(8, (32,))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def zeros_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter == 0 for parameter in model.parameters() if parameter.dim() > 1]


def train(model: torch.nn.Module, kind: type = torch.optim.AdamW) -> None:
    """Take three steps that change every weight that an optimizer may change."""
    optimizer, x = kind(model.parameters(), lr=0.01), torch.randn(4, 3, 24)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        out = model(x, x, x)[0] if isinstance(model, torch.nn.MultiheadAttention) else model(x)
        total = (out[0] if isinstance(out, tuple) else out).square().sum()
        total.backward()
        return total

    for _ in range(3):
        optimizer.step(loss)


TRAINED = {
    "Linear": mlp,
    "MultiheadAttention": lambda: torch.nn.MultiheadAttention(24, 2, batch_first=True),
    "LSTM": lambda: torch.nn.LSTM(24, 8),
    "Conv1d": lambda: torch.nn.Conv1d(3, 5, 3),
}


@pytest.mark.whole
@pytest.mark.parametrize("kind", TRAINED)
def test_pruned_weights_of_dense_layers_stay_zero_in_training(kind: str) -> None:
    with faster("dense"):
        model = scorch.sparsify(TRAINED[kind](), 0.5)
    layer, keys = model[0] if kind == "Linear" else model, TRAINED[kind]().state_dict().keys()
    assert layer.sparsified.is_sparse is False and model.state_dict().keys() == keys
    zeros, before = zeros_of(model), copy.deepcopy(model)
    for optimizer in (torch.optim.AdamW, torch.optim.SGD, torch.optim.LBFGS):
        train(model, optimizer)
        assert all(map(torch.equal, zeros_of(model), zeros))
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    assert all(not torch.equal(new, old) for new, old in pairs if new.dim() > 1)
    found = scorch.report(model, measure=False, quiet=True).sparsification
    assert found.reached == model.sparsification.reached


def test_copies_of_pruned_layers_stay_pruned() -> None:
    with faster("dense"):
        model = scorch.sparsify(mlp(), 0.5)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    zeros = zeros_of(model)
    for copied in (copy.deepcopy(model), torch.load(file, weights_only=False), model.double().float()):
        train(copied)
        assert all(map(torch.equal, zeros_of(copied), zeros))


def test_weights_that_are_zero_but_not_pruned_are_trained() -> None:
    layer = torch.nn.Linear(24, 8)
    torch.nn.init.zeros_(layer.weight)
    with faster("dense"):
        model = scorch.sparsify(layer, 0.5, method="random")
    train(copied := copy.deepcopy(model))
    assert zeros_of(copied)[0].float().mean().item() == 0.5
    train(model, torch.optim.SGD)
    assert zeros_of(model)[0].float().mean().item() == 0.5


def test_loaded_weights_bring_their_own_zeros() -> None:
    with faster("dense"):
        first, second = (scorch.sparsify(mlp(), sparsity) for sparsity in (0.5, 0.8))
    zeros = zeros_of(second)
    train(first)
    first.load_state_dict(second.state_dict())
    train(first)
    assert all(map(torch.equal, zeros_of(first), zeros))


@pytest.mark.parametrize(
    "wrong",
    [
        {"sparsity": 1.5},
        {"sparsity": "much"},
        {"method": "best"},
        {"distribution": "even"},
        {"prefer": "both"},
        {"batch": 0},
        {"batch": ()},
        {"skip": ["nowhere"]},
        {"nm": (2, 4), "blocks": 4},
        {"nm": (0, 4)},
        {"method": "random", "distribution": "global"},
    ],
)
def test_wrong_arguments(wrong) -> None:
    with pytest.raises(errors.ArgumentError):
        scorch.sparsify(mlp(), **wrong)


def test_wrong_models() -> None:
    with pytest.raises(errors.OperandError):
        scorch.sparsify(torch.ones(3, 3))
    with pytest.raises(errors.OperandError):
        scorch.report(torch.ones(3, 3))
    with pytest.raises(errors.ArgumentError):
        scorch.report(mlp(), batch=0)


def test_report(capsys) -> None:
    with mock.patch.object(timing, "MIN_SECONDS_PER_CANDIDATE", 0.0):
        model = torch.nn.Sequential(torch.nn.Embedding(40, 24), *mlp(), torch.nn.LayerNorm(8))
        model = scorch.sparsify(model, 0.9, prefer="size", skip=["5"])
        found = scorch.report(model, batch=4)
    printed = capsys.readouterr().out
    assert printed == f"{found}\n"
    kinds = ["SparseEmbedding", "SparseLinear", "SparseLinear", "Linear", "LayerNorm"]
    assert [layer.kind for layer in found.layers] == kinds
    linear = found.layers[1]
    values, arrays = model[1].values, model[1].pattern.arrays
    assert linear.bytes == sum(array.numel() * array.element_size() for array in (values, *arrays))
    assert linear.dense_bytes == 24 * 32 * 4 and linear.density == pytest.approx(0.1, abs=0.01)
    assert linear.expected > 0 and linear.measured > 0 and linear.dense_measured > 0
    assert found.bytes < found.dense_bytes and "sparse: smaller" in printed and "csr" in printed
    assert "times for a batch of 4: indices in embeddings, rows in linear layers; " in printed
    norm = found.layers[-1]  # whose bias is zero
    assert norm.density == 1.0 and norm.shapes == ((8,), (8,))
    quiet = scorch.report(model, measure=False, quiet=True)
    assert capsys.readouterr().out == "" and quiet.layers[1].measured is None and "-" in str(quiet)


def test_the_report_has_one_speedup_of_each_layer() -> None:
    with faster("csr"):
        model = scorch.sparsify(mlp(), 0.9)
    assert "as fast at batch 1, 32 and 512" in model[0].sparsified.reason
    with mock.patch.object(
        timing, "measure_fastest", lambda calls: dict.fromkeys(calls, 1.0) | {"dense": 3.0}
    ):
        found = scorch.report(model, batch=4, quiet=True)
    assert found.layers[0].reason == "sparse: 3.0 x as fast at batch 4"
    assert "32 and 512" not in str(found) and "as fast" not in str(found)  # the table has the times
    assert "the minimum of several calls" in str(found)


def test_a_layer_tied_to_one_that_stays_as_it_is_stays_dense() -> None:
    """Its weight would be pruned in one place only, and no longer be shared."""

    class Scaled(torch.nn.Embedding):
        """As in Gemma and BART."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 8 * super().forward(x)

    model, x = Tied(), torch.arange(30)
    model.embedding = Scaled(30, 8)
    model.embedding.weight = model.out.weight
    for kept, skip in ((model, ()), (Tied(), "embedding"), (Tied(), "out")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the sparsity that is not reached
            found = scorch.sparsify(kept, 0.5, prefer="size", skip=skip)
        assert found.embedding.weight is found.out.weight
        torch.testing.assert_close(found(x), kept(x))
        assert found.sparsification.skipped_share == 1  # of a weight that counts once
        reasons = {layer.name: layer.reason for layer in found.sparsification.skipped}
        assert reasons["embedding" if skip == "out" else "out"] == "it shares its weights with another layer"


def test_the_linear_layer_of_timm_becomes_sparse() -> None:
    def make(module: str) -> torch.nn.Linear:
        return type("Linear", (torch.nn.Linear,), {"__module__": module})(16, 8)

    model, other = make("timm.layers.linear"), make("another.library")
    assert isinstance(scorch.sparsify(model, prefer="size"), SparseLinear)
    with pytest.warns(errors.ScorchWarning, match="stay dense"):
        assert (
            scorch.sparsify(other, prefer="size").sparsification.skipped[0].reason.endswith("something else")
        )


def test_a_layer_that_loses_at_one_batch_size_stays_dense() -> None:
    """However much it gains at another: a model is slower at no size that it was timed at, but for noise."""
    seconds = 3.3

    def loses_with_many_rows(calls: Any) -> dict[str, float]:
        rows = next(iter(calls.values()))().shape[0]
        return {name: 4.0 if name == "dense" and rows < 512 else 3.0 for name in calls} | {"csr": seconds}

    model = torch.nn.Linear(64, 32)
    with mock.patch.object(timing, "measure_fastest", loses_with_many_rows):
        found, few = scorch.sparsify(model, 0.9), scorch.sparsify(model, 0.9, batch=(1, 32))
        seconds = 3.1
        assert isinstance(scorch.sparsify(model, 0.9), scorch.nn.SparseLinear)
    assert isinstance(few, scorch.nn.SparseLinear) and type(found) is torch.nn.Linear
    wanted = "sparse takes 1.10 x the time at batch 512, although it is 1.2 x as fast at batch 1"
    assert found.sparsified.reason == wanted
    assert wanted in str(scorch.report(found, measure=False, quiet=True))


@torch.no_grad()
def test_layers_are_timed_as_under_autocast() -> None:
    """Each call of a dense layer casts its weight there, as in every pass through a model."""
    layer, x = torch.nn.Linear(1024, 512), torch.randn(1, 1024)
    casts = []
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
        with torch.profiler.profile() as profile:
            timing.measure_fastest({"dense": lambda: casts.append(layer(x).dtype)})
    assert set(casts) == {torch.bfloat16}
    copies = [event.count for event in profile.key_averages() if event.key == "aten::_to_copy"]
    assert copies[0] >= 2 * (len(casts) - 1)  # the input and the weight; the first call may have it


def test_modules_to_skip_by_name_class_and_module() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 16))
    for skip in ("0", model[0], [model[0]], ["0"]):
        small = scorch.sparsify(model, prefer="size", skip=skip)
        assert [type(layer) for layer in small] == [torch.nn.Linear, SparseLinear]
    assert type(scorch.sparsify(model, prefer="size", skip=torch.nn.Linear)[1]) is torch.nn.Linear
    named = torch.nn.ModuleDict({"layers": torch.nn.Linear(8, 8)})
    with pytest.raises(errors.ArgumentError, match=r"names 'layer', .*; did you mean 'layers'\?"):
        scorch.sparsify(named, skip="layer")
    with pytest.raises(errors.ArgumentError, match="by name, class or module, but got a Linear"):
        scorch.sparsify(model, skip=[torch.nn.Linear(2, 2)])
    for wrong in ([0], 0):
        with pytest.raises(errors.ArgumentError, match="by name, class or module, but got an int"):
            scorch.sparsify(model, skip=wrong)


def test_shapes_of_blocks_and_groups_are_checked() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    small = scorch.sparsify(model, nm="2:4", prefer="size")  # as ``pattern``
    assert torch.equal(small[0].weight.to_dense(), scorch.sparsify(model, nm=(2, 4))[0].weight.to_dense())
    with pytest.raises(errors.ArgumentError, match=r"nm must be of the form 'N:M', .* but got '2'"):
        scorch.sparsify(model, nm="2")
    for blocks in ((-1, 4), 0, (4,), (4, 2.0), True):
        with pytest.raises(errors.ArgumentError, match="blocks must be a pair of positive integers"):
            scorch.sparsify(model, blocks=blocks)
    with pytest.raises(errors.ArgumentError, match="nm must be a pair of positive integers"):
        scorch.sparsify(model, nm=(True, 4))
    for batch in (4.0, (), [True]):
        with pytest.raises(errors.ArgumentError, match="batch must be a positive integer or a sequence"):
            scorch.sparsify(model, batch=batch)


@pytest.mark.whole
@pytest.mark.parametrize("options", [{}, {"distribution": "global"}, {"method": "random"}, {"blocks": 4}])
def test_a_sparse_model_is_pruned_further_within_its_patterns(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 16), torch.nn.LSTM(16, 16)
    )
    half = scorch.sparsify(model, 0.5, prefer="size", **options)
    before = {name: table.weight.detach().to_dense() for name, table in tables_in(half).items()}
    parameters = {name: table.values for name, table in tables_in(half).items()}
    result = scorch.sparsify(half, 0.75, prefer="size", inplace=True, **options)
    assert result is half and abs(result.sparsification.reached - 0.75) < 0.01
    for name in before:
        table = tables_in(half)[name]
        after = table.weight.detach().to_dense()
        assert table.values is parameters[name] and table.values.numel() == table.nnz
        assert torch.equal(after, torch.where(after != 0, before[name], 0))  # and nothing is new
        if not options:
            dropped = before[name][(after == 0) & (before[name] != 0)].abs()
            assert dropped.max() <= after[after != 0].abs().min()
    optimizer = torch.optim.Adam(half.parameters(), lr=0.01)
    half[:3](torch.randn(5, 32)).square().sum().backward()  # type: ignore[index]
    optimizer.step()


def tables_in(model: torch.nn.Module) -> dict[str, scorch.nn.SparseLinear]:
    return {name: part for name, part in model.named_modules() if isinstance(part, scorch.nn.SparseLinear)}


def test_tied_sparse_layers_are_pruned_further_together() -> None:
    torch.manual_seed(0)
    embedding, head = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 40, bias=False)
    head.weight = embedding.weight
    half = scorch.sparsify(torch.nn.Sequential(embedding, head), 0.5, prefer="size")
    small: Any = scorch.sparsify(half, 0.9, prefer="size")
    assert small[0].values is small[1].values and small[0].nnz == small[1].nnz == 64
    assert torch.equal(small[0].weight.to_dense(), small[1].weight.to_dense())
    assert small[1](small[0](torch.tensor([3]))).shape == (1, 40)


def test_nm_patterns_of_a_sparse_model_are_part_of_it() -> None:
    half = scorch.sparsify(torch.nn.Sequential(torch.nn.Linear(32, 16)), 0.5, prefer="size")
    before = half[0].weight.to_dense() != 0
    small = scorch.sparsify(half, pattern="1:4", prefer="size")
    stored = small[0].weight.to_dense() != 0
    assert not (stored & ~before).any() and stored.unflatten(1, (8, 4)).sum(-1).max() == 1


def test_a_sparsity_that_contradicts_the_pattern_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64))
    for arguments in ({"pattern": "2:4"}, {"nm": (2, 4)}):
        with pytest.raises(errors.ArgumentError, match=r"2 of every 4 weights is a sparsity of 0.5, not 0.9"):
            scorch.sparsify(model, sparsity=0.9, prefer="size", **arguments)
        assert scorch.sparsify(model, sparsity=0.5, prefer="size", **arguments).sparsification.reached == 0.5


class WithPositions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = torch.nn.Parameter(torch.randn(64, 64))
        self.embedding, self.fc = torch.nn.Embedding(100, 64), torch.nn.Linear(64, 64)


def test_parameters_are_named_and_skipped_and_do_not_count_then() -> None:
    model = WithPositions()
    with pytest.warns(scorch.errors.ScorchWarning, match=r"layers that stay dense: positions \(Parameter\)"):
        found = scorch.sparsify(model, 0.9, prefer="size", skip="embedding").sparsification
    assert abs(found.reached - 0.45) < 0.01 and found.weights == 2 * 64 * 64
    for skip in (["embedding", "positions"], [model.embedding, model.positions]):
        found = scorch.sparsify(model, 0.9, prefer="size", skip=skip).sparsification  # silent
        assert abs(found.reached - 0.9) < 0.01 and found.weights == 64 * 64
    with pytest.raises(errors.ArgumentError, match=r"no such module or parameter; did you mean 'positions'"):
        scorch.sparsify(model, skip="position")
