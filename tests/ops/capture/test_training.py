"""Models that are compiled whole, and learn the same as without: gradients of sparse weights stay sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import scorch
from scorch import SparseTensor
from scorch._src.tensor.autograd import sparse_of


def drawn(*shape: int, format: str = "csr", density: float = 0.4) -> Any:
    return scorch.rand(*shape, density=density, format=format, dtype=torch.float64)


class GCN(nn.Module):
    """Two layers of ``A (X W + b)``."""

    def __init__(self, A: SparseTensor) -> None:
        super().__init__()
        self.register_buffer("A", A)
        self.first, self.second = nn.Linear(5, 4).double(), nn.Linear(4, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.A @ self.second(torch.relu(self.A @ self.first(x)))


class MLP(nn.Module):
    """A sparse weight that is a parameter."""

    def __init__(self, weight: SparseTensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.second = nn.Linear(6, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(F.linear(x, self.weight)))


class FromValues(nn.Module):
    """A sparse weight whose values are a parameter."""

    def __init__(self, weight: SparseTensor) -> None:
        super().__init__()
        self.pattern = weight.storage.pattern
        self.values = nn.Parameter(weight.storage.values.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.linear(x, sparse_of(self.pattern, self.values)))


class Attention(nn.Module):
    def __init__(self, mask: SparseTensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.project = nn.Linear(4, 12).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


def mask() -> SparseTensor:
    made = scorch.from_torch(torch.eye(8).roll(1, 0) > 0, format="csr")
    assert isinstance(made, SparseTensor)
    return made


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "graph": lambda: (GCN(drawn(6, 6)), torch.randn(6, 5, dtype=torch.float64)),
    "parameter": lambda: (MLP(drawn(6, 5)), torch.randn(3, 5, dtype=torch.float64)),
    "values csr": lambda: (FromValues(drawn(6, 5)), torch.randn(3, 5, dtype=torch.float64)),
    "values bsr": lambda: (
        FromValues(drawn(6, 4, format="bsr(2,2)")),
        torch.randn(3, 4, dtype=torch.float64),
    ),
    "attention": lambda: (Attention(mask()), torch.randn(2, 8, 4, dtype=torch.float64)),
}


def dense(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def check_training(name: str, backend: str) -> None:
    model, x = MODELS[name]()
    wanted = model(x)
    wanted.square().sum().backward()
    gradients = [dense(parameter.grad) for parameter in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    found = compiled(x)
    torch.testing.assert_close(found, wanted)
    found.square().sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(dense(parameter.grad), gradient)
        if isinstance(parameter, SparseTensor):
            assert parameter.grad.storage.pattern is parameter.storage.pattern  # type: ignore[union-attr]
    torch.optim.Adam(model.parameters(), lr=0.1).step()
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_learns_the_same(name: str) -> None:
    check_training(name, "aot_eager")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
@pytest.mark.parametrize("name", MODELS)
def test_a_model_compiled_to_machine_code_learns_the_same(name: str) -> None:
    check_training(name, "inductor")


def test_gradients_with_other_sizes_make_no_other_graph() -> None:
    graphs: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def loss(W: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(F.linear(x, W)).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend=counting, dynamic=True)
    for rows, columns, density in ((6, 5, 0.3), (7, 5, 0.5), (30, 40, 0.1)):
        W = drawn(rows, columns, density=density).requires_grad_()
        x = torch.randn(3, columns, dtype=torch.float64, requires_grad=True)
        found, wanted = (torch.autograd.grad(f(W, x), (W, x)) for f in (compiled, loss))
        assert isinstance(found[0], SparseTensor) and found[0].storage.pattern is W.storage.pattern
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(dense(one), dense(other))
    assert len(graphs) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda A: (A @ (A @ torch.ones(6, 2, dtype=A.dtype))).sum(),  # used twice
        lambda A: (A @ A.T).square().sum(),
        lambda A: (A * 2).tanh().sum(1).prod(),
        lambda A: torch.softmax(A, 1)[:, 0].sum(),
        lambda A: A.to_format("csc"),
        lambda A: (A + A.T) * A,
    ],
)
def test_gradients_are_those_without_a_graph(function: Callable[..., torch.Tensor]) -> None:
    A = drawn(6, 6).requires_grad_()
    found, wanted = (
        torch.autograd.grad(f(A).sum(), A)[0]
        for f in (torch.compile(function, fullgraph=True, backend="aot_eager"), function)
    )
    assert isinstance(found, SparseTensor) and found.storage.pattern is A.storage.pattern
    torch.testing.assert_close(found.to_dense(), wanted.to_dense())


def test_gradients_of_a_huge_weight_take_memory_for_its_entries() -> None:
    W: Any = scorch.rand(100_000, 100_000, density=1e-6, format="csr").requires_grad_()  # 40 GB if dense
    x = torch.ones(2, 100_000)
    compiled = torch.compile(
        lambda W, x: torch.relu(F.linear(x, W)).sum(), fullgraph=True, backend="aot_eager"
    )
    compiled(W, x).backward()
    assert W.grad.storage.pattern is W.storage.pattern
    torch.testing.assert_close(W.grad.values(), torch.full((W.nnz,), 2.0))


def test_random_numbers_are_the_same_forward_and_backward() -> None:
    V = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)

    def attend(V: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = torch.ones(8, 4, dtype=torch.float64)
        return F.scaled_dot_product_attention(rows, rows, V, attn_mask=mask, dropout_p=0.5)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    first, second = compiled(V, mask()), compiled(V, mask())
    assert not torch.equal(first, second)
    gradient = torch.autograd.grad(first.sum(), V)[0]
    torch.testing.assert_close((gradient * V).sum(), first.sum())  # it is linear in V


def test_dropout_drops_entries() -> None:
    A = drawn(6, 6).requires_grad_()
    found = torch.compile(lambda A: F.dropout(A, 0.5), fullgraph=True, backend="aot_eager")(A)
    assert isinstance(found, SparseTensor)
    kept = found.detach().values() != 0
    torch.testing.assert_close(found.detach().values()[kept], 2 * A.detach().values()[kept])


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr(2,2)"])
def test_gradients_that_torch_expands_have_a_value_for_each_entry(format: str) -> None:
    A = drawn(6, 6, format=format).requires_grad_()
    torch.compile(lambda A: A.values().sum(), backend="aot_eager")(A).backward()
    assert A.grad.values().is_contiguous()
    wanted = torch.autograd.grad(A.values().sum(), A)[0].to_dense()
    torch.testing.assert_close(A.grad.to_dense(), wanted)
    torch.testing.assert_close((A.grad @ torch.ones(6, 1, dtype=A.dtype)).sum(), wanted.sum())


def test_rigl_hears_a_compiled_model() -> None:
    def trained(backend: str | None) -> Any:
        torch.manual_seed(0)
        layer = scorch.nn.SparseLinear(16, 8)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        exchange = scorch.nn.RigL(layer, optimizer, update_every=2, stop_step=10)
        model = layer if backend is None else torch.compile(layer, fullgraph=True, backend=backend)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 16)).square().sum().backward()
            optimizer.step()
            exchange.step()
        exchange.close()
        return layer.weight.detach().to_dense()

    torch.testing.assert_close(trained("aot_eager"), trained(None))


def test_growth_that_no_graph_tells_of_is_refused() -> None:
    W = drawn(6, 5).requires_grad_()
    compiled = torch.compile(lambda W: ((W * 2) @ torch.ones(5, 2, dtype=W.dtype)).sum(), backend="aot_eager")
    with pytest.raises(scorch.errors.CallError, match="no backward pass"), scorch.grad_topk(W, k=2):
        compiled(W).backward()
