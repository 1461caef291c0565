"""Writes through views in compiled programs reach the tensor, or are refused where all is one graph."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scorch
from torch_has import needs_gradients_outside_graphs

# Whether this torch can leave a whole function alone when it meets a call in it.
SKIPS = "skip_frame" in inspect.signature(torch._dynamo.exc.Unsupported).parameters

X = torch.tensor([[1.0, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 5]])

WRITES: dict[str, Callable[[Any], Any]] = {
    "row": lambda t: t[0].mul_(2),
    "rows": lambda t: t[:2].mul_(2),
    "transposed": lambda t: t.T[0].mul_(2),
    "diagonal": lambda t: t.diagonal().mul_(2),
    "view": lambda t: t.view(-1).mul_(2),
    "unsqueeze": lambda t: t.unsqueeze(0).mul_(2),
    "to": lambda t: t.to(torch.float32).mul_(2),
}


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", WRITES)
def test_writes_through_views(name: str) -> None:
    write = WRITES[name]
    dense = X.clone()
    write(dense)
    sparse = scorch.from_torch(X, format="csr")
    if not SKIPS:
        with pytest.raises(Exception, match=r"outside torch\.compile"):
            torch.compile(write, backend="aot_eager")(sparse)
        return
    torch.compile(write, backend="aot_eager")(sparse)
    torch.testing.assert_close(sparse.to_dense(), dense)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="is a view or has views"):
        torch.compile(write, backend="aot_eager", fullgraph=True)(sparse)


@pytest.mark.skipif(not SKIPS, reason="an error in this torch, as above")
def test_reads_through_views() -> None:
    def read(t: Any) -> Any:
        view = t[0]
        t.mul_(2)
        return view * 1

    found = torch.compile(read, backend="aot_eager")(scorch.from_torch(X, format="csr"))
    torch.testing.assert_close(found.to_dense(), read(X.clone()))


@pytest.mark.skipif(not SKIPS, reason="an error in this torch, as above")
def test_gradients_through_views() -> None:
    def write(t: Any) -> Any:
        y = t * 1
        y[0].mul_(2)
        return y.sum()

    sparse = scorch.from_torch(X, format="csr").requires_grad_()
    torch.compile(write, backend="aot_eager")(sparse).backward()
    wanted = torch.where(X != 0, torch.tensor([[2.0], [1.0], [1.0]]), 0)
    torch.testing.assert_close(sparse.grad.to_dense(), wanted)


@pytest.mark.skipif(not SKIPS, reason="an error in this torch, as above")
def test_writes_in_functions_that_are_called() -> None:
    def double(view: Any) -> None:
        view.mul_(2)

    def function(t: Any) -> None:
        double(t[0])

    def by_default_device(t: Any) -> None:
        with torch.device(t.device):
            torch.compile(WRITES["row"], backend="aot_eager")(t)

    dense = X.clone()
    dense[0].mul_(2)
    for run in (torch.compile(function, backend="aot_eager"), by_default_device):
        sparse = scorch.from_torch(X, format="csr")
        run(sparse)
        torch.testing.assert_close(sparse.to_dense(), dense)


def test_values_are_still_changed_in_one_graph() -> None:
    sparse = scorch.from_torch(X, format="csr")
    torch.compile(lambda t: t.mul_(2), backend="aot_eager", fullgraph=True)(sparse)
    torch.testing.assert_close(sparse.to_dense(), X * 2)


WEIGHT_WRITES: dict[str, Callable[[Any], Any]] = {
    "data": lambda layer: setattr(layer.weight, "data", layer.weight.data * 3),
    "data of a kept weight": lambda layer: (weight := layer.weight, setattr(weight, "data", weight.data * 3)),
    "zero_": lambda layer: layer.weight.data.zero_(),
    "mul_": lambda layer: layer.weight.data.mul_(2),
    "copy_": lambda layer: layer.weight.data.copy_(layer.weight.detach() * 2),
    "assignment": lambda layer: layer.weight.data.__setitem__(slice(1, 3), 7.0),
    "data of a view": lambda layer: layer.weight[:3].data.mul_(2),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch asks for it
@pytest.mark.skipif(not SKIPS, reason="an error in this torch, as above")
@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@pytest.mark.parametrize("name", WEIGHT_WRITES)
def test_writes_to_the_weight_of_a_layer_reach_its_values(name: str, backend: str) -> None:
    torch.manual_seed(0)
    layer, x = (
        scorch.nn.SparseLinear(16, 12, density=0.3, dtype=torch.float64),
        torch.ones(2, 16, dtype=torch.float64),
    )
    compiled = copy.deepcopy(layer)

    def call(own: Any, x: torch.Tensor) -> Any:
        WEIGHT_WRITES[name](own)
        return own(x)

    expected = call(layer, x)
    found = torch.compile(call, backend=backend)(compiled, x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(compiled.values, layer.values)


def sparse_convolution() -> Any:
    torch.manual_seed(0)
    dense = torch.nn.Conv2d(2, 3, 3)
    weight = torch.where(dense.weight.abs() > 0.1, dense.weight, 0).detach()
    return scorch.nn.SparseConv2d.from_weight(scorch.from_torch(weight.flatten(1), format="csr"), dense)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch asks for it
@pytest.mark.skipif(not SKIPS, reason="an error in this torch, as above")
@pytest.mark.parametrize("name", ["data", "mul_", "zero_"])
def test_writes_to_the_weight_of_a_convolution_reach_its_values(name: str) -> None:
    layer, x = sparse_convolution(), torch.ones(1, 2, 6, 6)
    compiled = copy.deepcopy(layer)

    def call(own: Any, x: torch.Tensor) -> Any:
        WEIGHT_WRITES[name](own)
        return own(x)

    expected = call(layer, x)
    found = torch.compile(call, backend="aot_eager")(compiled, x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(compiled.values, layer.values)


@needs_gradients_outside_graphs
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch asks for it
@pytest.mark.whole
@pytest.mark.parametrize("create", [lambda: scorch.nn.SparseLinear(6, 4, density=0.5), sparse_convolution])
def test_compiled_functions_read_and_change_the_gradient_of_a_weight(create: Callable[[], Any]) -> None:
    layer = create()
    layer.values.grad = torch.ones_like(layer.values)

    @torch.compile(backend="aot_eager")
    def call() -> Any:
        gradient = layer.weight.grad
        gradient.mul_(3)
        return gradient.sum()

    assert call().item() == 3 * layer.values.numel()
    assert torch.equal(layer.values.grad, torch.full_like(layer.values, 3))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch asks for it
def test_gradients_that_are_assigned_to_a_kept_weight_are_those_of_the_values() -> None:
    layer = scorch.nn.SparseLinear(16, 12, density=0.3)

    @torch.compile(backend="aot_eager")
    def call(x: torch.Tensor) -> torch.Tensor:
        weight = layer.weight
        torch._dynamo.graph_break()
        weight.grad = weight.detach() * 3
        return weight @ x

    call(torch.ones(16))
    torch.testing.assert_close(layer.values.grad, layer.values.detach() * 3)
