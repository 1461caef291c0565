"""Sparse layers with what follows them, and with values in fewer bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.nn.pruned.fused_modules import FusedEncoderLayer, FusedSequential
from scorch._src.nn.weights.stored_values import store_values
from scorch.errors import ArgumentError, CallError


def densify(model: torch.nn.Module) -> torch.nn.Module:
    """A plain copy, all of whose layers are dense."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, "to_dense"):
                setattr(parent, name, child.to_dense().eval())
    return model


def perceptron(activation: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(40, 64), activation, linear(64, 30), torch.nn.Dropout(), activation)
    return scorch.sparsify(model, 0.7, prefer="size").eval()


@pytest.mark.parametrize(
    "activation", [torch.nn.ReLU(), torch.nn.GELU(), torch.nn.GELU("tanh"), torch.nn.SiLU(), torch.nn.Tanh()]
)
def test_a_sequence_gives_what_its_modules_give(activation: torch.nn.Module) -> None:
    model, x = perceptron(activation), torch.randn(5, 40)
    assert type(model) is FusedSequential and isinstance(model, torch.nn.Sequential)
    wanted = densify(model)(x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), wanted)
    torch.testing.assert_close(model(x), wanted)  # with gradients


def test_gradients_of_a_fused_layer_are_those_of_its_parts() -> None:
    layer, x = scorch.nn.SparseLinear(20, 30, sparsity=0.5), torch.randn(4, 20, requires_grad=True)
    residual = torch.randn(4, 30, requires_grad=True)
    fused = layer.fused(x, "gelu", residual)
    found = torch.autograd.grad(fused.square().sum(), [x, residual, layer.values])
    plain = F.gelu(layer(x)) + residual
    wanted = torch.autograd.grad(plain.square().sum(), [x, residual, layer.values])
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("rows", [4, 400])
def test_gelu_and_a_residual_follow_batches_of_any_size(rows: int) -> None:
    layer, x = scorch.nn.SparseLinear(20, 100, sparsity=0.5), torch.randn(rows, 20)
    residual = torch.randn(rows, 100)
    kept = residual.clone()
    with torch.no_grad():
        torch.testing.assert_close(layer.fused(x, "gelu", residual), F.gelu(layer(x)) + kept)
    assert torch.equal(residual, kept)


def test_hooks_of_fused_modules_run() -> None:
    model, seen = perceptron(torch.nn.ReLU()), []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(torch.randn(2, 40))
    assert len(seen) == 1 and bool((seen[0] < 0).any())  # before the activation


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(
        ArgumentError, match="unknown activation 'tanh'; choose from relu, gelu, gelu_tanh, silu"
    ):
        scorch.nn.SparseLinear(4, 4).fused(torch.ones(1, 4), "tanh")


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("mask", [None, "causal", "padding"])
def test_an_encoder_layer_gives_what_its_modules_give(norm_first: bool, mask: str | None) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        16, 2, 32, activation="gelu", batch_first=True, norm_first=norm_first
    )
    model = scorch.sparsify(
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 0.5, prefer="size"
    )
    assert type(model.eval().layers[0]) is FusedEncoderLayer  # type: ignore[index, union-attr]
    options: dict[str, Any] = {}
    if mask == "causal":
        options = {"mask": torch.nn.Transformer.generate_square_subsequent_mask(6), "is_causal": True}
    elif mask == "padding":
        options = {"src_key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])}
    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x, **options), densify(model)(x, **options), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_values_in_fewer_bits_are_saved_and_loaded(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dense = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 30))
    model = scorch.sparsify(dense, 0.7, prefer="size", weight_dtype=dtype).eval()
    report, x = model.sparsification, torch.randn(5, 40)
    assert 0 < report.error < 0.01 and report.bytes < report.dense_bytes  # type: ignore[union-attr]
    assert "weights change by up to" in str(report)
    wanted = densify(model)(x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), wanted)
    with torch.device("meta"):
        empty = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 30))
    for fresh in (empty, copy.deepcopy(dense)):
        loaded: Any = scorch.nn.load_sparse(fresh, model.state_dict()).eval()
        assert loaded[0].values.dtype == dtype
        torch.testing.assert_close(loaded(x), wanted)


def test_a_fine_tuned_sparse_model_is_stored_in_8_bits() -> None:
    torch.manual_seed(0)
    dense = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.Embedding(8, 40), torch.nn.Linear(40, 64))
    tuned = scorch.sparsify(dense, 0.8, prefer="size").eval()
    tuned[2].values = tuned[0].values  # type: ignore[index, union-attr]
    stored: Any = scorch.sparsify(tuned, 0.8, prefer="size", weight_dtype=torch.int8)
    x = torch.randn(5, 40)
    assert stored[0].values.dtype == torch.int8 and tuned[0].values.dtype == torch.float32
    assert stored[2].values is stored[0].values and stored[2].scales is stored[0].scales
    assert 0 < stored.sparsification.error < 0.01
    with torch.no_grad():
        torch.testing.assert_close(stored[0](x), tuned[0](x), rtol=0.02, atol=0.02)


def test_sparse_layers_that_are_not_pruned_further_are_warned_of() -> None:
    model = scorch.sparsify(torch.nn.Sequential(torch.nn.Linear(40, 64)), 0.5, prefer="size")
    stored = scorch.sparsify(model, weight_dtype=torch.bfloat16, sparsity=0.5)
    assert stored[0].nnz == model[0].nnz  # type: ignore[index]
    eight_bits = scorch.sparsify(model, 0.5, weight_dtype=torch.int8)
    for source, arguments in ((model, {}), (eight_bits, {"sparsity": 0.9})):
        with pytest.warns(
            scorch.errors.ScorchWarning, match="reached 50.0%: layers that are sparse already .*: 0"
        ):
            scorch.sparsify(source, **arguments)
    scorch.sparsify(model, 0.9, skip=["0"])  # silent


def test_int8_values_are_for_inference() -> None:
    layer = scorch.nn.SparseLinear(20, 10, sparsity=0.5)
    state, x = layer.state_dict(), torch.randn(3, 20)
    store_values(layer, torch.int8)
    with pytest.raises(CallError, match="int8, which is for inference"):
        layer(x)
    with pytest.raises(CallError, match="int8, which is for inference"):
        layer.reset_parameters()
    assert layer.eval()(x).shape == (3, 10)
    layer.load_state_dict(state)  # floats again
    assert layer.train()(x).requires_grad and layer.scales is None


def test_bfloat16_values_learn() -> None:
    layer, x = scorch.nn.SparseLinear(20, 10, sparsity=0.5), torch.randn(3, 20)
    wanted = torch.autograd.grad(layer(x).sum(), layer.values)[0]
    store_values(layer, torch.bfloat16)
    layer(x).sum().backward()
    assert layer.values.grad is not None
    torch.testing.assert_close(layer.values.grad, wanted.bfloat16())


def test_attention_stores_values_in_fewer_bits() -> None:
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    model, x = (
        scorch.sparsify(attention, 0.5, prefer="size", weight_dtype=torch.int8).eval(),
        torch.randn(2, 5, 16),
    )
    plain = model.to_dense().eval()  # type: ignore[operator]
    for inputs in ((x, x, x), (x[:, :2], x, x)):
        with torch.no_grad():
            torch.testing.assert_close(model(*inputs)[0], plain(*inputs)[0], rtol=1e-4, atol=1e-5)


def test_a_weight_dtype_that_is_not_stored_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"weight_dtype must be torch.bfloat16, torch.int8"):
        scorch.sparsify(torch.nn.Linear(4, 4), weight_dtype=torch.float16)


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_layers_with_values_in_fewer_bits_are_timed_on_the_model_s_inputs(dtype: torch.dtype) -> None:
    dense = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Linear(8, 4, bias=False))
    model = scorch.sparsify(dense, 0.5, batch=2, weight_dtype=dtype)
    assert model.eval()(torch.ones(3, 12)).dtype == torch.float32
    stored = scorch.sparsify(dense, 0.9, prefer="size", weight_dtype=dtype)
    assert "SparseLinear" in str(scorch.report(stored, batch=2))


def transformer_layer(kind: type[torch.nn.Module]) -> Any:
    torch.manual_seed(0)
    return scorch.sparsify(kind(16, 2, 32, batch_first=True), 0.5, prefer="size").eval()


def test_dropout_alone_in_training_drops_in_fused_layers() -> None:
    encoder, decoder = map(
        transformer_layer, (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)
    )
    x = torch.randn(2, 5, 16)
    for layer, dropout in ((encoder, "dropout"), (encoder, "dropout1"), (encoder, "dropout2"),
                           (decoder, "dropout"), (decoder, "dropout3")):  # fmt: skip
        inputs = (x, x) if layer is decoder else (x,)
        getattr(layer, dropout).train()
        with torch.no_grad():
            assert not torch.equal(layer(*inputs), layer(*inputs)), dropout
        layer.eval()
        with torch.no_grad():
            assert torch.equal(layer(*inputs), layer(*inputs)), dropout


def test_a_forward_that_was_replaced_is_called_in_fused_modules() -> None:
    for number in (0, 1):
        model = perceptron(torch.nn.ReLU())
        model[number].forward = lambda input: input * 0 + 1  # type: ignore[index, union-attr]
        with torch.no_grad():
            torch.testing.assert_close(model[:2](torch.zeros(2, 40)), torch.ones(2, 64 if number else 40))  # type: ignore[index, operator]


def test_an_encoder_whose_first_layer_is_dense_takes_padding() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = scorch.sparsify(torch.nn.TransformerEncoder(layer, 2), 0.5, prefer="size", skip=["layers.0"])
    x, padding = torch.randn(2, 6, 16), torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with torch.no_grad():
        found = model.eval()(x, src_key_padding_mask=padding)
        wanted = densify(model)(x, src_key_padding_mask=padding)
    torch.testing.assert_close(found[~padding], wanted[~padding], rtol=1e-4, atol=1e-5)


def test_a_layer_is_made_and_used_in_inference_mode() -> None:
    with torch.inference_mode():
        layer = scorch.nn.SparseLinear(8, 4, sparsity=0.5)
        assert layer(torch.ones(2, 8)).shape == (2, 4)


def test_a_sign_that_torch_keeps_in_a_flag_is_read() -> None:
    layer, x = scorch.nn.SparseLinear(6, 6, sparsity=0.5), torch.randn(4, 6)
    bias = torch.arange(6.0)
    wanted = F.linear(-x, layer.weight.detach().to_dense(), -bias) - x
    lazy = torch._neg_view
    with torch.no_grad():
        torch.testing.assert_close(layer.multiply(lazy(x), lazy(bias), None, lazy(x)), wanted)
    for _ in range(2):  # the second repeats a known call
        torch.testing.assert_close(layer.multiply(-x, lazy(bias)) - x, wanted)
