"""Sparse layers inside of one graph for inference: each is one operator, ``scorch::linear``."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import scorch
from scorch._src.nn.weights.stored_values import store_values
from scorch._src.tensor.flatten import pattern_of
from scorch.errors import ShapeError, UnsupportedError


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


class Graphs:
    """A backend of ``torch.compile`` that keeps the graphs it gets."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs.append(graph)
        return graph

    def count(self, name: str) -> int:
        return sum(str(node.target).endswith(name) for graph in self.graphs for node in graph.graph.nodes)


def layer_of(format: str = "csr", **options: Any) -> Any:
    options = {"sparsity": 0.5, **options}
    return scorch.nn.SparseLinear(16, 16, format=format, **options).eval()


def stored_as(dtype: torch.dtype) -> Any:
    layer = layer_of()
    store_values(layer, dtype)
    return layer


LAYERS: dict[str, Callable[[], Any]] = {
    "csr": layer_of,
    "without a bias": lambda: layer_of(bias=False),
    "float64": lambda: layer_of(dtype=torch.float64),
    "blocks": lambda: layer_of("auto", blocks=(4, 4)),
    "csc, which no routine takes": lambda: layer_of("csc"),
    "coo": lambda: layer_of("coo"),
    "bfloat16": lambda: stored_as(torch.bfloat16),
    "int8": lambda: stored_as(torch.int8),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_one_operator_in_inference(name: str) -> None:
    layer, backend = LAYERS[name](), Graphs()
    x = torch.randn(2, 3, 16, dtype=torch.float64 if name == "float64" else torch.float32)

    def block(x: torch.Tensor) -> torch.Tensor:
        return layer.fused(layer(x) * 2, "silu", residual=x)

    compiled = torch.compile(block, fullgraph=True, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled(x), block(x))
        torch.testing.assert_close(torch.compile(block, fullgraph=True, backend="aot_eager")(x), block(x))
    assert backend.count("scorch.linear") == 2 and not backend.count("scorch.assemble")


def test_gradients_are_those_without_a_graph() -> None:
    layer, backend, x = layer_of(), Graphs(), torch.randn(3, 16)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    wanted = torch.autograd.grad(layer(x).sin().sum(), list(layer.parameters()))
    found = torch.autograd.grad(compiled(x).sin().sum(), list(layer.parameters()))
    torch.testing.assert_close(found, wanted)
    assert not backend.count("scorch.linear")
    layer.requires_grad_(False)
    torch.compiler.reset()  # older versions of torch do not capture parameters again that were frozen
    torch.testing.assert_close(compiled(x), layer(x))
    assert backend.count("scorch.linear") == 1
    gradient = torch.autograd.grad(compiled(x.requires_grad_()).sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(layer(x).sum(), x))
    residual = torch.randn(3, 16, requires_grad=True)
    fused = torch.compile(lambda r: layer.fused(x.detach(), "relu", r), fullgraph=True, backend=backend)
    (of_residual,) = torch.autograd.grad(fused(residual).sum(), residual)
    torch.testing.assert_close(of_residual, torch.ones(3, 16))


def test_a_gradient_that_a_graph_does_not_have_is_refused() -> None:
    layer, x = layer_of().requires_grad_(False), torch.randn(3, 16)
    program = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(program(x), layer(x))
    with pytest.raises(UnsupportedError, match="export the model again"):
        program(x.requires_grad_())
    with torch.no_grad():
        torch.testing.assert_close(program(x), layer(x))


def test_autocast_is_as_without_a_graph() -> None:
    layer, x = layer_of(), torch.randn(3, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16):
        found, wanted = compiled(x), layer(x)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted)


def test_the_number_of_rows_may_change() -> None:
    layer, counter = layer_of(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for rows in (2, 5, 3, 5):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x), layer(x))
    assert counter.frame_count == 1


def test_weights_and_patterns_may_change() -> None:
    layer, x = layer_of(), torch.randn(3, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        compiled(x)
        compiled(x)
        layer.values.mul_(2)
        torch.testing.assert_close(compiled(x), layer(x))
        for weight in (torch.eye(16), torch.eye(16).flip(0), torch.ones(16, 16)):  # two have equally many
            layer.rewire(weight, new=1.0)
            torch.testing.assert_close(compiled(x), layer(x))
            torch.testing.assert_close(compiled(x), layer.to_dense()(x))


def test_graphs_use_the_pattern_of_the_layer() -> None:
    """What is derived from a pattern, such as narrower columns, is there once."""
    layer = pickle.loads(pickle.dumps(layer_of()))
    for each in (layer_of(), layer, copy.deepcopy(layer)):
        pattern = each.pattern
        assert pattern_of(pattern.format, pattern.shape, pattern.entry_arrays) is pattern
        each.rewire(torch.eye(16), new=1.0)
        pattern = each.pattern
        assert pattern_of(pattern.format, pattern.shape, pattern.entry_arrays) is pattern


def test_an_input_of_another_size_is_named() -> None:
    compiled = torch.compile(layer_of(), backend="aot_eager")
    with torch.no_grad(), pytest.raises(ShapeError, match=r"\(2, 7\), but the layer expects 16 features"):
        compiled(torch.randn(2, 7))


def test_a_residual_that_is_expanded_is_added() -> None:
    layer, x = layer_of(), torch.randn(3, 16)
    compiled = torch.compile(lambda x: layer.fused(x, residual=x[:1]), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x) + x[:1])


@pytest.mark.cpu("the interpreter reads memory of the host")
def test_settings_are_those_of_the_call() -> None:
    layer, x = layer_of(), torch.randn(3, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        wanted = compiled(x)
        with scorch.settings(backend="interpreter"):
            torch.testing.assert_close(compiled(x), wanted)


def test_fused_modules_stay_fused_in_a_graph() -> None:
    linear, backend, x = torch.nn.Linear, Graphs(), torch.randn(2, 5, 16)
    encoder = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)
    perceptron = torch.nn.Sequential(linear(16, 32), torch.nn.ReLU(), linear(32, 16))
    model = scorch.sparsify(torch.nn.Sequential(encoder, perceptron), 0.5, prefer="size").eval()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        assert backend.count("scorch.linear") == 6
        assert not backend.count("gelu") and not backend.count("relu")
    torch.testing.assert_close(compiled(x), model(x))  # with gradients
    torch.compiler.reset()  # torch does not look for hooks that are registered later
    seen: list[str] = []
    model[1][0].register_forward_hook(lambda *_: seen.append("hook"))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    assert len(seen) == 2


def test_layers_are_exported_and_saved() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    model, x = scorch.sparsify(model, 0.7, prefer="size").eval(), torch.randn(3, 16)
    with torch.no_grad():
        program = torch.export.export(model, (x,))  # its parameters require gradients: it may be trained
    gradient = torch.autograd.grad(program.module()(x).sum(), list(program.parameters()))
    wanted = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    assert len(gradient) == len(wanted)
    for found, expected in zip(gradient, wanted, strict=True):
        torch.testing.assert_close(found, expected)
    model.requires_grad_(False)
    with torch.no_grad():
        rows = torch.export.Dim("rows", min=2)
        program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
        assert sum("scorch.linear" in str(node.target) for node in program.graph.nodes) == 2
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        loaded, longer = torch.export.load(file).module(), torch.randn(5, 16)
        torch.testing.assert_close(loaded(x), model(x))
        torch.testing.assert_close(loaded(longer), model(longer))


def test_the_operator_is_what_its_schema_says() -> None:
    layer, x = layer_of(), torch.randn(3, 16)
    pattern = layer.pattern
    index, bias = list(pattern.entry_arrays), layer.bias.detach()
    arguments = (x, layer.values.detach(), index, "ds:0,1:", 16, bias, None, "relu", x)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.scorch.linear.default, arguments, test_utils=tests)
