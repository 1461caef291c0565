"""Calls on sparse tensors inside of one graph: the same tensors come out as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import scorch
from scorch import SparseTensor
from scorch._src.torch_internals import build_proxy_for_size
from scorch.errors import UnsupportedError


def drawn(*shape: int, format: str = "csr", density: float = 0.4, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return scorch.rand(*shape, density=density, format=format, dtype=torch.float64)


A, B, C = drawn(6, 5), drawn(6, 5, seed=1), drawn(5, 4, seed=2)
Q, T = drawn(6, 6, format="coo"), drawn(3, 4, 5, format="csf")
X = drawn(8, 8, format="bsr(2,2)")
D = torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(6, 5)
x, v = D[:5, :3].contiguous(), D[0].clone()
PLACES = torch.tensor([0, 2, 3])

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "product": (lambda A, x: A @ x, (A, x)),
    "vector": (lambda A, v: A @ v, (A, v)),
    "dense first": (lambda A, D: D.t() @ A, (A, D)),
    "two sparse": (lambda A, C: A @ C, (A, C)),
    "linear": (lambda A, x: F.linear(x.t(), A), (A, x)),
    "blocks": (lambda X: X @ torch.ones(8, 2, dtype=torch.float64), (X,)),
    "torch einsum": (lambda A, x: torch.einsum("ij,jk->ik", A, x), (A, x)),
    "einsum": (lambda T, v: scorch.einsum("ijk,k->ij", T, v), (T, v)),
    "einsum of a format": (lambda A, C: scorch.einsum("ij,jk->ik", A, C, format="coo"), (A, C)),
    "evaluate": (lambda A, x: scorch.evaluate("y[i,k] = A[i,j] * x[j,k]", A=A, x=x), (A, x)),
    "relu": (F.relu, (A,)),
    "gelu": (F.gelu, (A,)),
    "exp": (torch.exp, (A,)),
    "power": (lambda A: A**2, (A,)),
    "sum of two": (lambda A, B: A + B, (A, B)),
    "sum with itself": (lambda A: A + A, (A,)),
    "product of two": (lambda A, B: A * B, (A, B)),
    "times dense": (lambda A, D: A * D, (A, D)),
    "plus dense": (lambda A, D: A + D, (A, D)),
    "times number": (lambda A: 2 * A / 3, (A,)),
    "compared": (lambda A: A > 0.3, (A,)),
    "where": (lambda A, B: torch.where(A > 0.3, A, B), (A, B)),
    "sum": (lambda A: A.sum(1), (A,)),
    "mean": (lambda A: A.mean(), (A,)),
    "max": (lambda A: A.max(1), (A,)),
    "sum of entries": (lambda A: A.sum(1, masked=True), (A,)),
    "mean of entries": (lambda A: scorch.mean(A, 0, keepdim=True, masked=True), (Q,)),
    "largest entries": (lambda A: A.amax((0, 1), masked=True), (A,)),
    "deviation of entries": (lambda A: A.std(1, masked=True), (Q,)),
    "running sum of entries": (lambda A: A.cumsum(1, masked=True), (A,)),
    "softmax": (lambda A: torch.softmax(A, 1), (A,)),
    "stored softmax": (lambda A: torch.sparse.softmax(A, 1), (A,)),
    "cumsum": (lambda A: A.cumsum(1), (A,)),
    "transposed": (lambda A, D: A.T @ D, (A, D)),
    "permuted": (lambda T: T.permute(2, 0, 1), (T,)),
    "reshaped": (lambda A: A.reshape(5, 6), (A,)),
    "joined": (lambda A, B: torch.cat([A, B]), (A, B)),
    "slice": (lambda A: A[1:4], (A,)),
    "row": (lambda A: A[2], (A,)),
    "element": (lambda A: A[2, 1], (A,)),
    "picked": (lambda A, i: A[i], (A, PLACES)),
    "chunks": (lambda A: A.chunk(2), (A,)),
    "diagonal": (torch.diagonal, (Q,)),
    "dense": (lambda A: A.to_dense(), (A,)),
    "other format": (lambda A: A.to_format("csc"), (A,)),
    "other dtype": (lambda A: A.float(), (A,)),
    "values": (lambda A: A.values(), (A,)),
    "loss": (F.mse_loss, (A, D)),
    "facts": (lambda A: A * A.nnz if A.format.name == "csr" and A.is_sparse else A, (A,)),
    "made of dense": (lambda D: scorch.from_torch(D, format="csr"), (D,)),
    "made of arrays": (
        lambda rows, columns, values: scorch.sparse_csr_tensor(rows, columns, values, (6, 5)),
        (A.crow_indices(), A.col_indices(), A.values()),
    ),
}
COMPUTED_SIZES = ("reshaped", "joined", "chunks")


def dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor


def check_same(got: Any, wanted: Any) -> None:
    for one, other in zip(tree_leaves(got), tree_leaves(wanted), strict=True):
        assert type(one) is type(other)
        assert getattr(one, "format", None) == getattr(other, "format", None)
        torch.testing.assert_close(dense(one), dense(other), equal_nan=True)


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch.compiler.reset()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_a_graph_gives_what_it_gives_without(name: str) -> None:
    function, args = CALLS[name]
    is_one = name not in COMPUTED_SIZES or build_proxy_for_size is not None  # or else the graph ends there
    compiled = torch.compile(function, fullgraph=is_one, backend="aot_eager", dynamic=True)
    check_same(compiled(*args), function(*args))


@pytest.mark.parametrize("name", ["two sparse", "max", "softmax", "other format"])
def test_a_call_in_a_graph_of_known_sizes(name: str) -> None:
    function, args = CALLS[name]
    check_same(torch.compile(function, fullgraph=True, backend="aot_eager")(*args), function(*args))


@pytest.mark.parametrize(
    "function",
    [
        lambda A, B: A.clone().copy_(B) @ B.T,
        lambda A, B: A * 2 if torch.equal(A, B) else B,
        lambda A, B: A * B.sum().item(),
    ],
    ids=["in place", "a decision", "a number"],
)
def test_what_no_graph_can_hold_ends_the_graph(function: Callable[..., Any]) -> None:
    check_same(torch.compile(function, backend="aot_eager")(A, B), function(A, B))
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"sparse|depends on the values|not known|item\(\)"):
        torch.compile(function, fullgraph=True, backend="aot_eager")(A, B)


IN_PLACE: dict[str, Callable[..., Any]] = {
    "times": lambda A, x: A.mul_(2) @ x,
    "operators": lambda A, x: _operators(A) @ x,
    "chain": lambda A, x: A.add_(A, alpha=2).clamp_(max=1).relu_() @ x,
    "of a copy": lambda A, x: A.clone().mul_(2) @ x + A @ x,
}


def _operators(A: Any) -> Any:
    A *= 3
    A -= 0.5 * A
    A /= 2
    return A


@pytest.mark.parametrize("name", IN_PLACE)
def test_changes_of_stored_values_reach_the_argument(name: str) -> None:
    function = IN_PLACE[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    ours, theirs = A.clone(), A.clone()
    for _ in range(2):
        check_same(compiled(ours, x), function(theirs, x))
        check_same(ours, theirs)


def test_a_result_that_breaks_its_promise_is_refused() -> None:
    compiled = torch.compile(lambda A, D: A * D, fullgraph=True, backend="aot_eager")
    check_same(compiled(A, D), A * D)
    with pytest.raises(UnsupportedError, match="infinite or NaN"):
        compiled(A, D / 0)


def test_a_changed_pattern_is_not_taken_for_the_old_one() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    compiled = torch.compile(lambda A, x: A @ x, fullgraph=True, backend="aot_eager")
    for matrix in (eye, eye.flip(0), eye.roll(1, 0)):
        S = scorch.from_torch(matrix, format="csr")
        torch.testing.assert_close(compiled(S, D[:4]), matrix @ D[:4])


def test_other_sizes_make_no_other_graph() -> None:
    graphs: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(lambda A, x: torch.relu(A @ x), fullgraph=True, backend=counting, dynamic=True)
    for rows, columns, density in ((6, 5, 0.3), (7, 5, 0.5), (9, 8, 0.2), (30, 40, 0.1)):
        S, y = drawn(rows, columns, density=density), torch.ones(columns, 3, dtype=torch.float64)
        torch.testing.assert_close(compiled(S, y), torch.relu(S @ y))
    assert len(graphs) == 1
