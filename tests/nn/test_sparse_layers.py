"""Layers that ``scorch.sparsify`` makes, beside linear ones: each is torch's layer with pruned weights."""

from __future__ import annotations

import copy
import io
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import scorch
from scorch._src.nn import timing
from scorch._src.nn.pattern import weight_format
from scorch._src.nn.pruned.choose_storage import make_sparse, prune_layer
from scorch._src.nn.pruned.prunable import kind_of_layer, tables_of
from scorch._src.nn.pruned.sparse_conv import SparseConvNd
from scorch.errors import FileError, OperandError, ShapeError

F64 = torch.float64


class Conv1D(nn.Module):
    """As in transformers.pytorch_utils."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.randn(nx, nf, dtype=F64))
        self.bias = nn.Parameter(torch.randn(nf, dtype=F64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64)


def attention_inputs(kdim: int = 8, vdim: int = 8, batch: tuple[int, ...] = (2,)) -> tuple[Any, ...]:
    return drawn(5, *batch, 8), drawn(7, *batch, kdim), drawn(7, *batch, vdim)


def same_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x, x, x


def packed(size: int) -> Any:
    return pack_padded_sequence(drawn(5, 3, size), torch.tensor([2, 5, 3]), enforce_sorted=False)


CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False] * 5, [False, False, True, True, True]])
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "Conv1D": (lambda: Conv1D(6, 8), lambda: (drawn(2, 3, 8),)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, 2, 1, groups=2, dtype=F64), lambda: (drawn(2, 4, 9),)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, (3, 2), 1, 1, bias=False, dtype=F64), lambda: (drawn(2, 3, 6, 5),)),
    "Conv2d, no batch": (
        lambda: nn.Conv2d(3, 4, 3, 2, "valid", 2, padding_mode="circular", dtype=F64),
        lambda: (drawn(3, 9, 8),),
    ),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True, dtype=F64),
        lambda: (*same_input(drawn(2, 5, 8)), PADDING, True, CAUSAL),
    ),
    "attention, causal": (
        lambda: nn.MultiheadAttention(8, 2, bias=False, dtype=F64),
        lambda: (*same_input(drawn(5, 2, 8)), None, False, CAUSAL, True, True),
    ),
    "attention to others": (lambda: nn.MultiheadAttention(8, 2, dtype=F64), attention_inputs),
    "attention, two tensors": (
        lambda: nn.MultiheadAttention(8, 2, dtype=F64),
        lambda: (drawn(5, 2, 8), *[drawn(7, 2, 8)] * 2, None, False),
    ),
    "attention, sizes": (
        lambda: nn.MultiheadAttention(8, 2, kdim=4, vdim=6, dtype=F64),
        lambda: (*attention_inputs(4, 6), None, True, None, False),
    ),
    "attention, more keys": (
        lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True, dtype=F64),
        attention_inputs,
    ),
    "attention, no batch": (
        lambda: nn.MultiheadAttention(8, 2, dtype=F64),
        lambda: attention_inputs(batch=()),
    ),
    "LSTM": (
        lambda: nn.LSTM(4, 6, 2, bidirectional=True, proj_size=3, batch_first=True, dtype=F64),
        lambda: (drawn(3, 5, 4), (drawn(4, 3, 3), drawn(4, 3, 6))),
    ),
    "LSTM, packed": (lambda: nn.LSTM(4, 6, bidirectional=True, dtype=F64), lambda: (packed(4),)),
    "GRU": (lambda: nn.GRU(4, 6, 2, bias=False, dtype=F64), lambda: (drawn(5, 3, 4),)),
    "GRU, packed": (
        lambda: nn.GRU(4, 6, bidirectional=True, dtype=F64),
        lambda: (packed(4), drawn(2, 3, 6)),
    ),
    "RNN, no batch": (
        lambda: nn.RNN(4, 6, nonlinearity="relu", dtype=F64),
        lambda: (drawn(5, 4), drawn(1, 6)),
    ),
    "LSTMCell": (lambda: nn.LSTMCell(4, 6, dtype=F64), lambda: (drawn(3, 4), (drawn(3, 6), drawn(3, 6)))),
    "GRUCell": (lambda: nn.GRUCell(4, 6, dtype=F64), lambda: (drawn(3, 4),)),
    "RNNCell": (lambda: nn.RNNCell(4, 6, dtype=F64), lambda: (drawn(3, 4), drawn(3, 6))),
}


def tensors_in(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    return [] if result is None else [tensor for part in result for tensor in tensors_in(part)]


def pruned_pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """A sparse layer, and torch's with zeros in the same places."""
    layer = make()
    sparse = scorch.sparsify(layer, 0.75, prefer="size", format="csr")
    masks = {name: table.weight.detach().to_dense() != 0 for name, table in tables_of(sparse).items()}
    return sparse, prune_layer(layer, masks)


@pytest.mark.whole
@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_that_of_torch_with_gradients(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    sparse, dense = pruned_pair(make)
    arguments = inputs()
    for result, expected in zip(tensors_in(sparse(*arguments)), tensors_in(dense(*arguments)), strict=True):
        torch.testing.assert_close(result, expected)
    with torch.no_grad():
        for result, expected in zip(
            tensors_in(sparse.eval()(*arguments)), tensors_in(dense.eval()(*arguments)), strict=True
        ):
            torch.testing.assert_close(result, expected)
    for layer in (sparse, dense):
        sum(tensor.square().sum() for tensor in tensors_in(layer.train()(*arguments))).backward()
    for part in kind_of_layer(dense).parts(dense):
        table = tables_of(sparse)[part.table]
        places = table.weight.detach().to_dense() != 0
        gradient = part.as_matrix(getattr(part.owner, part.name).grad)
        torch.testing.assert_close(table.values.grad, gradient[places])
        bias = getattr(part.owner, part.bias, None) if part.bias else None
        if bias is not None:
            torch.testing.assert_close(table.bias.grad, bias.grad)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["Conv1D", "Conv2d", "attention, sizes", "attention", "LSTM", "GRUCell"])
def test_layer_is_copied_saved_and_loaded(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    sparse, arguments = nn.Sequential(scorch.sparsify(make(), 0.75, prefer="size")).eval(), inputs()
    expected = tensors_in(sparse[0](*arguments))
    file = io.BytesIO()
    torch.save(sparse.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    fresh = nn.Sequential(make())
    loaded = scorch.nn.load_sparse(fresh, state)
    copies = [copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse)), loaded.eval()]
    for found in copies:
        for a, b in zip(tensors_in(found[0](*arguments)), expected, strict=True):
            assert torch.equal(a, b)
    dense = nn.Sequential(make())
    sparse.load_state_dict(dense.state_dict())  # of which the stored places are taken
    masks = {table: own.weight.detach().to_dense() != 0 for table, own in tables_of(sparse[0]).items()}
    truth = prune_layer(dense[0], masks).eval()
    for a, b in zip(tensors_in(sparse[0](*arguments)), tensors_in(truth(*arguments)), strict=True):
        torch.testing.assert_close(a, b)
    again = scorch.nn.load_sparse(sparse, dense.state_dict())
    assert type(again[0]).__name__ == type(dense[0]).__name__
    for a, b in zip(tensors_in(again[0](*arguments)), tensors_in(dense.eval()[0](*arguments)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["Conv1D", "Conv2d", "attention, sizes", "attention", "LSTM", "GRUCell"])
def test_layer_without_memory_takes_the_tensors_of_a_file(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    sparse, arguments = nn.Sequential(scorch.sparsify(make(), 0.75, prefer="size")).eval(), inputs()
    state = sparse.state_dict()
    with torch.device("meta"):
        empty = nn.Sequential(make())
    loaded = scorch.nn.load_sparse(empty, state).eval()
    for words in [value for key, value in state.items() if key.endswith("pattern")]:
        words.zero_()  # which changes no pattern
    results = [tensors_in(model[0](*arguments)) for model in (loaded, sparse)]
    assert all(map(torch.equal, *results))
    for key, parameter in loaded.named_parameters():
        assert parameter.is_set_to(state[key]) and parameter.requires_grad
    bias = [key for key in state if key.endswith("bias")]
    if bias:
        with torch.device("meta"):
            empty = nn.Sequential(make())
        with pytest.raises(RuntimeError, match="size mismatch"):
            scorch.nn.load_sparse(empty, {**sparse.state_dict(), bias[0]: torch.ones(3)})


def draw_convolution(rng: random.Random) -> nn.Module:
    dims, groups = rng.choice([1, 2]), rng.choice([1, 1, 2])
    channels = groups * rng.choice([1, 3]), groups * rng.choice([1, 2])
    kernel, stride, dilation = (
        tuple(rng.choice(sizes) for _ in range(dims)) for sizes in ((1, 2, 3), (1, 1, 2, 3), (1, 2))
    )
    padding = rng.choice([0, 1, "valid", "same"])
    mode = rng.choice(["zeros", "zeros", "zeros", "reflect", "replicate"])
    return (nn.Conv1d, nn.Conv2d)[dims - 1](
        *channels,
        kernel,
        1 if padding == "same" else stride,
        padding,
        dilation,
        groups,
        rng.random() < 0.5,
        mode,
        dtype=rng.choice([torch.float32, torch.float64]),
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_drawn_convolutions(cases: int) -> None:
    for seed in range(2 * cases):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        layer = draw_convolution(rng)
        masks = {"kernels": torch.rand(layer.weight.flatten(1).shape) < 0.5}
        dense = prune_layer(layer, masks)
        sparse = make_sparse(dense, masks, weight_format("csr"))
        size = [rng.choice([7, 8, 20]) for _ in layer.kernel_size]
        x = torch.randn(rng.choice([1, 3]), layer.in_channels, *size, dtype=layer.weight.dtype)
        with torch.no_grad():
            torch.testing.assert_close(sparse(x), dense(x))


def test_a_transformer_is_that_of_torch() -> None:
    """Also where torch would run its fused kernel, which reads dense weights."""
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True, dtype=F64).eval()
    sparse = scorch.sparsify(model, 0.5, prefer="size", format="csr")
    assert sparse.sparsification.reached == pytest.approx(0.5, abs=0.01) and not sparse.sparsification.skipped
    dense = scorch.nn.load_sparse(copy.deepcopy(sparse), scorch_to_dense(sparse))
    source, target = drawn(2, 5, 8), drawn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(sparse(source, target), dense(source, target))


def scorch_to_dense(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a model whose sparse layers are dense again."""
    dense = copy.deepcopy(model)
    for module in list(dense.modules()):
        for name, child in module._modules.items():
            if hasattr(child, "to_dense"):
                module._modules[name] = child.to_dense()
    return dense.state_dict()


def test_layers_that_gain_little_stay_dense_where_that_is_faster() -> None:
    """Of the model with all sparse layers, with those that gain most, and with none, the fastest stays."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    x = torch.randn(2, 64)

    def first_gains_most(calls: Any) -> dict[str, float]:
        is_first = next(iter(calls.values()))().shape == (2, 32)
        return {name: (4.0 if is_first else 1.1) if name == "dense" else 1.0 for name in calls}

    for times, is_sparse in (
        ([1.0, 0.5, 0.6], [True, True]),
        ([1.0, 0.6, 0.5], [True, False]),
        ([1.0, 0.99, 0.98], [False, False]),
    ):
        with (
            mock.patch.object(timing, "measure_fastest", first_gains_most),
            mock.patch.object(timing, "compare_models", lambda switches, call, t=times: t),
        ):
            found = scorch.sparsify(model, 0.9, example=x)
        assert [found[at].sparsified.is_sparse for at in (0, 2)] == is_sparse
        assert [isinstance(found[at], scorch.nn.SparseLinear) for at in (0, 2)] == is_sparse


@pytest.mark.parametrize(("disturbed", "rounds"), [(0, 6), (8, 12)])
def test_models_are_compared_until_their_shortest_times_repeat(
    monkeypatch: pytest.MonkeyPatch, disturbed: int, rounds: int
) -> None:
    """Other processes may disturb a model in most rounds, and in different ones than its other state."""
    clock, calls = [0.0], {1.0: 0, 1.5: 0}

    def state(seconds: float) -> Any:
        def model() -> None:
            calls[seconds] += 1
            is_disturbed = seconds == 1.0 and calls[seconds] <= disturbed and calls[seconds] != 5
            clock[0] += (4.0 + calls[seconds] if is_disturbed else seconds) / 100

        return lambda: model

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    found = timing.compare_models([state(1.0), state(1.5)], ((), {}))
    assert found == pytest.approx([0.01, 0.015])
    assert calls[1.0] == calls[1.5] and calls[1.0] <= rounds


def test_a_model_slower_as_a_whole_stays_dense() -> None:
    """Layers are timed on what the example gives them, then the model."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 8)).eval()
    x, shapes = torch.randn(2, 3, 6, 6), []

    def sparse_is_faster(calls: Any) -> dict[str, float]:
        shapes.append([tuple(call().shape) for call in calls.values()])
        return {name: 2.0 if name == "dense" else 1.0 for name in calls}

    for times, is_sparse in (([2.0, 1.0], True), ([1.0, 2.0], False)):
        with (
            mock.patch.object(timing, "measure_fastest", sparse_is_faster),
            mock.patch.object(timing, "compare_models", lambda switches, call, t=times: t),
        ):
            found = scorch.sparsify(model, 0.9, example=x)
        assert isinstance(found[0], SparseConvNd) == is_sparse
        assert isinstance(found[2], scorch.nn.SparseLinear) == is_sparse
        assert found[2].sparsified.is_sparse == is_sparse
    assert "as a whole" in found[2].sparsified.reason
    assert shapes[:2] == [[(2, 8, 4, 4)] * 2, [(2, 8)] * 2]
    with mock.patch.object(timing, "measure_fastest", sparse_is_faster):
        found = scorch.sparsify(model, 0.9, example=x)  # timed in earnest
    torch.testing.assert_close(found(x), scorch.sparsify(model, 0.9, prefer="size")(x))


def test_rows_that_are_no_groups_stay_dense() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    with pytest.warns(UserWarning, match="stay dense"):
        found = scorch.sparsify(model, nm=(1, 4), prefer="size")
    assert "groups of 4" in found.sparsification.skipped[0].reason
    assert found[1].kernels.density == 0.25


def test_a_part_named_in_skip_keeps_its_layer() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16)
    found = scorch.sparsify(model, 0.9, prefer="size", skip=["self_attn.out_proj"])
    assert type(found.self_attn) is nn.MultiheadAttention
    assert [layer.name for layer in found.sparsification.skipped] == ["self_attn"]
    assert isinstance(found.linear1, scorch.nn.SparseLinear)


def test_shared_kernels_stay_dense() -> None:
    first, second = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)
    second.weight = first.weight
    with pytest.warns(UserWarning, match="stay dense"):
        found = scorch.sparsify(nn.Sequential(first, second), 0.5, prefer="size")
    assert found[0].weight is found[1].weight
    assert "shares" in found.sparsification.skipped[0].reason


@pytest.mark.whole
@pytest.mark.parametrize("blocks", [(1, 4), (4, 4), (16, 1)])
def test_blocks_are_offered_and_timed(blocks: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model, tried = nn.Sequential(nn.Linear(16, 32, dtype=F64), nn.LSTM(32, 16, dtype=F64)), []

    def blocks_are_faster(calls: Any) -> dict[str, float]:
        tried.append(list(calls))
        return {name: 1.0 if name.startswith("bsr") else 2.0 for name in calls}

    with mock.patch.object(timing, "measure_fastest", blocks_are_faster):
        found = scorch.sparsify(model, 0.75, blocks=blocks)
    stored = f"bsr({blocks[0]},{blocks[1]})"
    assert tried == [["dense", stored, "csr"]] * 5  # for three batches, then two
    assert {str(table.format) for layer in found for table in tables_of(layer).values()} == {stored}
    x = drawn(3, 2, 16)
    dense = [layer.to_dense() for layer in found]
    with torch.no_grad():
        torch.testing.assert_close(found(x)[0], dense[1](dense[0](x))[0])


def test_the_report_times_layers_of_all_kinds() -> None:
    layers = [
        nn.Conv1d(8, 8, 3),
        nn.MultiheadAttention(8, 2),
        nn.GRU(8, 8),
        nn.LSTMCell(8, 8),
        Conv1D(8, 8).float(),
    ]
    model = scorch.sparsify(
        nn.ModuleList([*layers, nn.MultiheadAttention(8, 2)]), 0.9, prefer="size", skip=["5"]
    )
    with mock.patch.object(timing, "MIN_SECONDS_PER_CANDIDATE", 0.0):
        found = scorch.report(model, batch=2, quiet=True)
    kinds = ["SparseConv1d", "SparseMultiheadAttention", "SparseGRU", "SparseRecurrentCell"]
    assert [layer.kind for layer in found.layers] == [*kinds, "SparseTransposedLinear", "MultiheadAttention"]
    assert all(layer.measured > 0 and layer.dense_measured > 0 for layer in found.layers)
    assert found.layers[2].bytes < found.layers[2].dense_bytes == 2 * 3 * 8 * 8 * 4
    for attention in (found.layers[1], found.layers[-1]):
        assert attention.format_shapes() == "24 x 8, 8 x 8" and attention.shape == (32 * 8,)


def test_a_sparse_embedding_loads_a_dense_table() -> None:
    dense, other = nn.Embedding(40, 24), nn.Embedding(40, 24)
    sparse = scorch.sparsify(dense, 0.9, prefer="size")
    sparse.load_state_dict(other.state_dict())
    pattern = sparse.weight.detach().to_dense() != 0
    torch.testing.assert_close(sparse.weight.detach().to_dense(), other.weight.detach() * pattern)


def test_loading_says_what_it_needs(tmp_path: Path) -> None:
    sparse = scorch.sparsify(nn.Sequential(nn.Linear(64, 32)), 0.9, prefer="size")
    with pytest.raises(FileError, match=r"no layer '0', .*; pass a model of the same architecture"):
        scorch.nn.load_sparse(nn.Sequential(nn.ReLU()), sparse.state_dict())
    with pytest.raises(OperandError, match=r"got a PosixPath; load a file first, .*scorch.load\(path\)"):
        scorch.nn.load_sparse(sparse, tmp_path / "model.pt")
    with pytest.raises(OperandError, match=r"call it as load_sparse\(model, state_dict\)"):
        scorch.nn.load_sparse(sparse.state_dict(), sparse)


@pytest.mark.parametrize(
    "make",
    [
        lambda: scorch.nn.GCNConv(8, 6),
        lambda: scorch.nn.GCNConv(6, 8),
        lambda: scorch.nn.SAGEConv(8, 6),
        lambda: scorch.nn.GATConv(8, 6),
        lambda: scorch.nn.Linear(8, 6, sparse_grad=True),
        lambda: scorch.nn.SparseEmbeddingBag(8, 6),
        lambda: scorch.nn.SparseLinear(8, 6, sparsity=0.5),
    ],
)
@pytest.mark.whole
def test_inputs_of_another_dtype_are_refused_as_by_torchs_linear(make) -> None:
    layer = make()
    width = getattr(layer, "in_channels", 8)
    x = scorch.rand(4, width, density=0.5, format="csr")
    graph = (scorch.eye(4, format="csr"),) if hasattr(layer, "in_channels") else ()
    assert layer(x, *graph).dtype == torch.float32
    with pytest.raises(RuntimeError, match="same dtype"):
        layer(x.double(), *graph)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x.bfloat16(), *graph)
        with pytest.raises(RuntimeError, match="same dtype"):
            layer(x.double(), *graph)
    assert layer.double()(x.double(), *graph).dtype == torch.float64


def layers_of_width_8() -> dict[str, torch.nn.Module]:
    """All layers that take a tensor of 8 features, by name."""
    dense = {
        "SparseConv1d": torch.nn.Conv1d(8, 16, 3),
        "SparseConv2d": torch.nn.Conv2d(8, 16, 3),
        "SparseGRU": torch.nn.GRU(8, 16),
        "SparseLSTM": torch.nn.LSTM(8, 16),
        "SparseRNN": torch.nn.RNN(8, 16),
        "SparseMultiheadAttention": torch.nn.MultiheadAttention(8, 2),
    }
    graph = ("GATConv", "GATv2Conv", "GCNConv", "SAGEConv", "SGConv", "TransformerConv")
    return {
        **{name: scorch.sparsify(layer, 0.9, prefer="size") for name, layer in dense.items()},
        **{name: getattr(scorch.nn, name)(8, 4) for name in graph},
        "Linear": scorch.nn.Linear(8, 4),
        "MoE": scorch.nn.MoE(8, 4),
        "SparseEmbeddingBag": scorch.nn.SparseEmbeddingBag(8, 4),
        "SparseLinear": scorch.nn.SparseLinear(8, 4, density=0.5),
        "TopKAutoencoder": scorch.nn.TopKAutoencoder(8, 32, 4),
        "TopKGate": scorch.nn.TopKGate(8, 4),
    }


def test_every_layer_says_how_many_features_it_expects() -> None:
    layers = layers_of_width_8()
    # These have no width of their own, or are torch's without pairs.
    others = {"APPNP", "GINConv", "HeteroConv", "SET", "RigL", "SparseEmbedding", "MultiheadAttention"}
    classes = {name for name in scorch.nn.__all__ if isinstance(getattr(scorch.nn, name), type)}
    assert classes == layers.keys() | others
    edges, x = torch.tensor([[0, 1], [1, 0]]), torch.randn(3, 5)
    wide = torch.randn(2, 3, 5)
    for name, layer in layers.items():
        match name:
            case "SparseMultiheadAttention":
                arguments = [wide] * 3
            case "SparseConv2d":
                arguments = [torch.randn(2, 5, 9, 9)]
            case "SparseConv1d":
                arguments = [torch.randn(2, 5, 9)]
            case "SparseGRU" | "SparseLSTM" | "SparseRNN":
                arguments = [wide]
            case "SparseEmbeddingBag":
                arguments = [scorch.from_torch(x, format="csr")]
            case _:
                arguments = [x, edges] if name.endswith("Conv") else [x]
        with pytest.raises(RuntimeError) as caught:
            layer(*arguments)
        words = ("the layer expects 8", "must have shape (", "to have 8 channels")
        assert any(each in str(caught.value) for each in words), (name, str(caught.value))


def test_an_autoencoder_checks_codes() -> None:
    model = scorch.nn.TopKAutoencoder(8, 32, 4)
    with pytest.raises(ShapeError, match=r"code matrix has shape \(4, 31\), but the layer expects 32"):
        model.decode(scorch.rand(4, 31, density=0.5, format="csr"))
