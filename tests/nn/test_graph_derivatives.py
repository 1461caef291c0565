"""Derivatives of graph layers of any order, and inside of ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap

import scorch
from scorch import nn
from scorch._src.backends.routines import Routines

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch's jvp
NODES = 7
EDGES = torch.tensor([[0, 1, 2, 3, 4, 2, 5, 6, 0, 0], [1, 0, 1, 1, 2, 2, 4, 5, 6, 6]])
FEATURES = torch.linspace(-1, 1, 20, dtype=torch.float64).view(10, 2)
LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "GCN": lambda: nn.GCNConv(4, 3),
    "GCN, wider": lambda: nn.GCNConv(4, 8),
    "SAGE mean": lambda: nn.SAGEConv(4, 3),
    "SAGE max": lambda: nn.SAGEConv(4, 3, aggr="max"),
    "GIN": lambda: nn.GINConv(torch.nn.Linear(4, 3), train_eps=True),
    "GAT": lambda: nn.GATConv(4, 3, heads=2),
    "GAT, features of edges": lambda: nn.GATConv(4, 3, heads=2, edge_dim=2),
}


class Layer:
    """A layer as a function of its weights and of features."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.module = LAYERS[kind]().double()
        self.weights = {name: weight.detach() for name, weight in self.module.named_parameters()}
        self.x = torch.randn(NODES, 4, dtype=torch.float64)
        self.more = (FEATURES,) if "edges" in kind else ()

    def __call__(self, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional_call(self.module, weights, (x, EDGES, *self.more))
        return found

    def loss(self, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return self(weights, x).square().sum()


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> Layer:
    return Layer(request.param)


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted)


@pytest.mark.sampled(4)
def test_gradients_have_gradients(layer: Layer) -> None:
    names = list(layer.weights)

    def call(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return layer(dict(zip(names, weights, strict=True)), x)

    inputs = [tensor.clone().requires_grad_() for tensor in (layer.x, *layer.weights.values())]
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dropout", [0.5, 1.0])
def test_dropped_weights_stay_dropped_in_gradients_of_gradients(dropout: float) -> None:
    module = nn.GATConv(4, 3, heads=2, dropout=dropout).double()
    x = torch.randn(NODES, 4, dtype=torch.float64, requires_grad=True)

    def call(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        found: torch.Tensor = module(x, EDGES)
        return found

    assert torch.autograd.gradgradcheck(call, x)


def test_gradients_of_features_of_edges_have_gradients() -> None:
    module = nn.GATConv(4, 3, heads=2, edge_dim=2).double()
    x = torch.randn(NODES, 4, dtype=torch.float64, requires_grad=True)
    features = FEATURES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: module(given[0], EDGES, given[1]), (x, features))
    assert torch.autograd.gradgradcheck(lambda *given: module(given[0], EDGES, given[1]), (x, features))


def test_gradients_of_weights_of_edges_have_gradients() -> None:
    module = nn.GCNConv(4, 3).double()
    x = torch.randn(NODES, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(10, dtype=torch.float64).add_(0.5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, weight: module(x, EDGES, weight), (x, weight))


def test_a_penalty_on_gradients_is_learned(layer: Layer) -> None:
    x = layer.x.clone().requires_grad_()
    weights = {name: weight.clone().requires_grad_() for name, weight in layer.weights.items()}
    (first,) = torch.autograd.grad(layer.loss(weights, x), x, create_graph=True)
    found = torch.autograd.grad(first.square().sum(), list(weights.values()), allow_unused=True)
    wanted = grad(lambda weights: grad(layer.loss, 1)(weights, layer.x).square().sum())(layer.weights)
    for mine, its in zip(found, wanted.values(), strict=True):
        same(torch.zeros_like(its) if mine is None else mine, its)


# torch.func --------------------------------------------------------------------------------------------


def test_grad_gives_what_backward_gives(layer: Layer) -> None:
    found = grad(layer.loss, (0, 1))(layer.weights, layer.x)
    x = layer.x.clone().requires_grad_()
    weights = {name: weight.clone().requires_grad_() for name, weight in layer.weights.items()}
    wanted = torch.autograd.grad(layer.loss(weights, x), [*weights.values(), x])
    same([*found[0].values(), found[1]], list(wanted))


def test_vjp_and_jvp_fit_together(layer: Layer) -> None:
    change = torch.linspace(-1, 1, layer.x.numel(), dtype=torch.float64).view_as(layer.x)
    out, moved = jvp(lambda x: layer(layer.weights, x), (layer.x,), (change,))
    same(out, layer(layer.weights, layer.x))
    flow = torch.linspace(1, 2, out.numel(), dtype=torch.float64).view_as(out)
    _, back = vjp(lambda x: layer(layer.weights, x), layer.x)
    same((flow * moved).sum(), (back(flow)[0] * change).sum())


def test_vmap_over_features_and_over_weights(layer: Layer) -> None:
    many = torch.stack([layer.x, 2 * layer.x, -layer.x])
    found = vmap(lambda x: layer(layer.weights, x))(many)
    same(found, torch.stack([layer(layer.weights, x) for x in many]))
    stacked = {name: torch.stack([weight, 2 * weight]) for name, weight in layer.weights.items()}
    found = vmap(lambda weights: layer(weights, layer.x))(stacked)
    doubled = {name: 2 * weight for name, weight in layer.weights.items()}
    same(found, torch.stack([layer(weights, layer.x) for weights in (layer.weights, doubled)]))


def test_gradients_of_each_sample(layer: Layer) -> None:
    many = torch.stack([layer.x, 2 * layer.x])
    found = vmap(grad(layer.loss), in_dims=(None, 0))(layer.weights, many)
    for number, x in enumerate(many):
        same({name: each[number] for name, each in found.items()}, grad(layer.loss)(layer.weights, x))


def test_a_hessian_is_that_of_gradients_of_gradients(layer: Layer) -> None:
    found = hessian(lambda x: layer.loss(layer.weights, x))(layer.x)
    same(found, jacrev(jacrev(lambda x: layer.loss(layer.weights, x)))(layer.x))


def test_a_graph_first_read_inside_of_torch_func_is_used_outside(layer: Layer) -> None:
    fresh = EDGES.clone()
    call = lambda x: functional_call(layer.module, layer.weights, (x, fresh, *layer.more))  # noqa: E731
    vmap(grad(lambda x: call(x).sum()))(torch.stack([layer.x, layer.x]))
    x = layer.x.clone().requires_grad_()
    same(call(x), layer(layer.weights, layer.x))
    torch.autograd.grad(call(x).sum(), x)


def test_weights_of_a_matrix_inside_of_torch_func() -> None:
    module = nn.GCNConv(4, 3).double()
    A: Any = scorch.from_edge_index(EDGES[:, :8], size=NODES, format="csr").to(torch.float64)
    x, pattern = torch.randn(NODES, 4, dtype=torch.float64), A.storage.pattern

    def loss(values: torch.Tensor) -> torch.Tensor:
        from scorch._src.tensor.autograd import sparse_of

        found: torch.Tensor = module(x, sparse_of(pattern, values)).square().sum()
        return found

    values = A.values().clone()
    found = grad(loss)(values)
    values.requires_grad_()
    (wanted,) = torch.autograd.grad(loss(values), values)
    same(found, wanted)
    assert not graph_keeps_tracked(A)


def graph_keeps_tracked(A: Any) -> bool:
    """Whether anything that was made inside of ``torch.func`` is kept with a graph."""
    from torch._C._functorch import is_functorch_wrapped_tensor

    from scorch._src.ops.graph.graph import graph_of

    graph, _ = graph_of(A, tuple(A.shape))
    return any(is_functorch_wrapped_tensor(weights) for weights, *_ in graph._cached)


@pytest.mark.parametrize("kind", ["GCN, wider", "SAGE mean", "SAGE max"])
@pytest.mark.parametrize("needs_x", [False, True])
def test_sums_of_columns_are_gradients_of_a_bias(
    kind: str, needs_x: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a device sums columns by itself, the map to new features has the derivatives of torch's."""
    called = Layer(kind)
    x = called.x.clone().requires_grad_(needs_x)
    wanted = [x, *called.module.parameters()] if needs_x else [*called.module.parameters()]

    def derivatives() -> list[torch.Tensor]:
        out = called.module(x, EDGES)
        first = torch.autograd.grad(out.square().sum(), wanted, create_graph=True)
        total = sum(gradient.square().sum() for gradient in first)
        assert isinstance(total, torch.Tensor)
        return [out, *first, *torch.autograd.grad(total, wanted)]

    expected = derivatives()
    summed: list[torch.Size] = []
    sum_columns = Routines.sum_columns
    monkeypatch.setattr(Routines, "min_summed", 0)
    monkeypatch.setattr(
        Routines, "sum_columns", lambda self, m: summed.append(m.shape) or sum_columns(self, m)
    )
    found = derivatives()
    assert summed
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(called.module(x, EDGES), expected[0])
    before = len(summed)
    with torch.autocast("cpu", torch.bfloat16):  # which casts what torch's function is called with
        called.module.float()(x.detach().float(), EDGES).float().sum().backward()
    assert len(summed) == before or "wider" not in kind


@pytest.mark.whole
@pytest.mark.parametrize("make", [nn.GCNConv, nn.SGConv, lambda *_: nn.APPNP(2, 0.1), nn.SAGEConv])
def test_tangents_of_features_and_weights(make: Any) -> None:
    torch.manual_seed(0)
    dense = (torch.rand(5, 5) < 0.5).double() * torch.rand(5, 5, dtype=torch.float64)
    A, x = scorch.tensor(dense, format="csr"), torch.randn(5, 3, dtype=torch.float64)
    layer = make(3, 4).double().requires_grad_(False)
    for place, tensor in enumerate((x, A)):

        def call(tensor: Any, place: int = place) -> torch.Tensor:
            return layer(*((tensor, A) if place == 0 else (x, tensor)))  # type: ignore[no-any-return]

        call(tensor)  # the weights of the graph are cached, which have no tangent
        with forward_ad.dual_level():
            change = forward_ad.unpack_dual(call(forward_ad.make_dual(tensor, tensor * 1))).tangent
        step = 1e-6
        wanted = (call(tensor * (1 + step)) - call(tensor * (1 - step))) / (2 * step)
        found = torch.zeros_like(wanted) if change is None else change
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        assert torch.equal(call(tensor), call(tensor * 1))  # nothing is left of the tangents
