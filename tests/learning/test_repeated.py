"""Calls with gradients that are made again and again: what is remembered of one must serve the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scorch
from scorch._src.notation.indexing import parse
from scorch._src.statements import formula
from scorch._src.statements.autograd import differentiable
from scorch.errors import FormatError

FORMATS = ("csr", "csc", "coo", "dcsr", "bsr(2,2)")
CALLS: dict[str, Callable[..., Any]] = {
    "matmul": lambda S, X: S @ X,
    "matvec": lambda S, X: torch.mv(S, X[:, 0]),
    "einsum": lambda S, X: scorch.einsum("ij,jk->ik", S, X),
    "transposed": lambda S, X: scorch.einsum("ji,jk->ik", S, X),
    "elementwise": lambda S, X: scorch.evaluate("C[i,j] = S[i,j] * X[i,j]", S=S, X=X),
    "sampled": lambda S, X: scorch.evaluate("C[i,j] = S[i,j] * X[i,k] * X[j,k]", S=S, X=X),
    "twice": lambda S, X: scorch.evaluate("y[i] = S[i,j] * S[j,i] + X[i,i]", S=S, X=X),
    "relu": lambda S, X: scorch.evaluate("y[i] = relu(S[i,j] * X[j,k])", S=S, X=X),
    "squares": lambda S, X: S @ S,
    "sum of two": lambda S, X: S + S.relu(),
}
DENSE: dict[str, Callable[..., Any]] = {
    "matmul": lambda S, X: S @ X,
    "matvec": lambda S, X: torch.mv(S, X[:, 0]),
    "einsum": lambda S, X: S @ X,
    "transposed": lambda S, X: S.T @ X,
    "elementwise": lambda S, X: S * X,
    "sampled": lambda S, X: S * (X @ X.T),
    "twice": lambda S, X: (S * S.T).sum(1) + X.diagonal(),
    "relu": lambda S, X: (S @ X).sum(1).relu(),
    "squares": lambda S, X: S @ S,
    "sum of two": lambda S, X: S + S.relu(),
}


def drawn(seed: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A sparse matrix as a dense one, its mask, and a dense matrix."""
    source = torch.Generator().manual_seed(seed)
    mask = torch.rand(size, size, generator=source) < 0.5
    S = torch.randn(size, size, dtype=torch.float64, generator=source) * mask
    return S, mask, torch.randn(size, size, dtype=torch.float64, generator=source)


def compare(name: str, form: str, seed: int, needs: tuple[bool, bool], twice: bool = False) -> None:
    """Check the result and the gradients of a call against dense ones."""
    dense, _, x = drawn(seed)
    S = scorch.from_torch(dense, format=form)
    mask = _places(S)
    a, b = dense.clone().requires_grad_(needs[0]), x.clone().requires_grad_(needs[1])
    own, X = S.requires_grad_(needs[0]), x.clone().requires_grad_(needs[1])
    expected, result = DENSE[name](a, b), CALLS[name](own, X)
    whole = result.to_dense()
    torch.testing.assert_close(whole, expected)
    leaves = [(t, d) for t, d in ((own, a), (X, b)) if t.requires_grad]
    if not expected.requires_grad:
        assert not whole.requires_grad
        return
    weights = torch.arange(1.0, expected.numel() + 1, dtype=torch.float64).reshape(expected.shape)
    given = torch.autograd.grad(
        (whole * weights).sum(), [t for t, _ in leaves], create_graph=twice, allow_unused=True
    )
    asked = torch.autograd.grad(
        (expected * weights).sum(), [d for _, d in leaves], create_graph=twice, allow_unused=True
    )
    for (tensor, _), mine, theirs in zip(leaves, given, asked, strict=True):
        if theirs is None:
            assert mine is None
            continue
        wanted = theirs * mask if isinstance(tensor, scorch.SparseTensor) else theirs
        torch.testing.assert_close(mine.to_dense(), wanted)
    if not twice:
        return
    second = [
        (m, t * mask if isinstance(m, scorch.SparseTensor) else t)
        for m, t in zip(given, asked, strict=True)
        if t is not None and t.requires_grad
    ]
    for mine, theirs in second:
        ours = torch.autograd.grad(
            mine.to_dense().square().sum(), [t for t, _ in leaves], retain_graph=True, allow_unused=True
        )
        dense_ones = torch.autograd.grad(
            theirs.square().sum(), [d for _, d in leaves], retain_graph=True, allow_unused=True
        )
        for (tensor, _), one, other in zip(leaves, ours, dense_ones, strict=True):
            theirs_at = torch.zeros_like(tensor.to_dense()) if other is None else other
            wanted = theirs_at * mask if isinstance(tensor, scorch.SparseTensor) else theirs_at
            torch.testing.assert_close(torch.zeros_like(wanted) if one is None else one.to_dense(), wanted)


def _places(S: scorch.SparseTensor) -> torch.Tensor:
    """Where a tensor has entries, zeros inside of blocks included."""
    ones = S.clone()
    ones.values().fill_(1)
    return ones.to_dense() != 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", CALLS)
def test_every_repetition_has_its_own_gradients(name: str, form: str) -> None:
    plans = [(1, (True, True)), (2, (True, False)), (2, (False, True)), (3, (True, True)), (1, (True, True))]
    for seed, needs in plans:
        compare(name, form, seed, needs)
    compare(name, form, 4, (True, True), twice=True)
    compare(name, form, 4, (True, True))


def test_a_warm_call_saves_what_gradients_read() -> None:
    dense, _, x = drawn(1)
    for _ in range(3):
        S, X = scorch.from_torch(dense, format="csr").requires_grad_(), x.clone().requires_grad_()
        ahead = X * 1
        result = S @ ahead
        with torch.no_grad():
            ahead.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def test_a_warm_call_is_heard_by_grad_topk() -> None:
    dense, _, x = drawn(2)
    S = scorch.from_torch(dense, format="csr").requires_grad_()
    for _ in range(3):
        with scorch.grad_topk(S, k=2) as grown:
            (S @ x).sum().backward()
        assert grown.indices.shape == (2, 2)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated"
)  # torch's own, at the first dual tensor
def test_a_warm_call_knows_transforms_batches_and_tangents() -> None:
    dense, _, x = drawn(3)
    S = scorch.from_torch(dense, format="csr").requires_grad_()
    for _ in range(2):
        (S @ x.requires_grad_()).sum().backward()
    X = x.detach()
    wanted = torch.func.grad(lambda t: (dense @ t).sin().sum())(X)
    torch.testing.assert_close(torch.func.grad(lambda t: (S.detach() @ t).sin().sum())(X), wanted)
    many = torch.stack([X, 2 * X])
    torch.testing.assert_close(torch.vmap(lambda t: S.detach() @ t)(many), dense @ many)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        tangent = torch.autograd.forward_ad.unpack_dual(S.detach() @ dual).tangent
    torch.testing.assert_close(tangent, dense @ torch.ones_like(X))
    own = X.clone().requires_grad_()
    rows = torch.autograd.grad(
        S.detach() @ own, own, torch.stack([torch.ones_like(X), X]), is_grads_batched=True
    )[0]
    torch.testing.assert_close(rows, torch.stack([dense.T @ torch.ones_like(X), dense.T @ X]))


def test_a_warm_call_checks_shapes_dtypes_and_memory() -> None:
    dense, _, x = drawn(4)
    S = scorch.from_torch(dense, format="csr").requires_grad_()
    for _ in range(2):
        (S @ x).sum().backward()
    with pytest.raises(RuntimeError):
        S @ x[:5]
    with pytest.raises(RuntimeError):
        S @ x.float()
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError):
        S @ freed
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        assert (S.float() @ x.float()).dtype is torch.bfloat16
    with pytest.raises(FormatError):
        scorch.einsum("ij,jk->ik", S, x, format=[1])


def test_plans_of_gradients_are_counted_and_cleared() -> None:
    dense, _, x = drawn(5)
    S = scorch.from_torch(dense, format="csr").requires_grad_()
    for _ in range(2):
        (S @ x).sum().backward()
    counted = scorch.plan_statistics()
    assert counted["differentiable calls"].entries and counted["formulas"].entries
    scorch.clear_plans()
    assert not scorch.plan_statistics()["differentiable calls"].entries
    (S @ x).sum().backward()


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated"
)  # torch's own, at the first dual tensor
def test_tangents_are_right_where_no_derivative_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, _, x = drawn(6)
    monkeypatch.setattr(formula, "MAX_GRADIENTS", 0)
    scorch.clear_plans()
    S = scorch.from_torch(dense, format="csr")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(S @ dual).tangent
    scorch.clear_plans()
    torch.testing.assert_close(tangent, dense @ torch.ones_like(x))


def test_a_result_that_was_known_goes_with_its_tensor() -> None:
    dense, _, x = drawn(7)
    S = scorch.from_torch(dense, format="csr").requires_grad_()
    statement = parse("y[i,k] = S[i,j] * X[j,k]")
    result = differentiable(statement, ("S", "X"), [S, x], "dense", known=dense @ x)
    memory = weakref.ref(result)
    del result
    assert memory() is None  # no cycle through the graph waits for the garbage collector


def test_a_leaf_may_be_written_to_where_its_gradient_does_not_read_it() -> None:
    dense, _, x = drawn(8)
    S = scorch.from_torch(dense, format="csr").requires_grad_()
    for _ in range(3):
        result = S @ x
        with torch.no_grad():
            S.mul_(2)
        (gradient,) = torch.autograd.grad(result.sum(), [S])
        torch.testing.assert_close(gradient.to_dense(), (dense != 0) * x.sum(1))


def test_a_leaf_that_a_gradient_reads_may_not_be_written_to() -> None:
    dense, _, x = drawn(9)
    S = scorch.from_torch(dense, format="csr").requires_grad_()
    for _ in range(3):
        result = S @ x.clone().requires_grad_()
        with torch.no_grad():
            S.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def test_a_batch_of_another_size_or_order_in_memory_takes_another_kernel() -> None:
    dense, _, x = drawn(10)
    S = scorch.from_torch(dense, format="csr").requires_grad_()
    for other in (x, x, x[:, :2].contiguous(), x.T.contiguous().T, x):
        result = S @ other
        torch.testing.assert_close(result, dense @ other)
        (gradient,) = torch.autograd.grad(result.sum(), [S])
        torch.testing.assert_close(gradient.to_dense(), (dense != 0) * other.sum(1))


def test_a_gradient_is_set_and_asked_for_without_a_graph() -> None:
    dense, _, x = drawn(11)
    S = scorch.from_torch(dense, format="csr").requires_grad_()
    (S @ x).sum().backward()
    gradient = S.grad
    assert isinstance(gradient, scorch.SparseTensor) and gradient.storage.pattern is S.storage.pattern
    S.grad = None
    assert S.grad is None
    S.grad = gradient
    assert S.grad is gradient
    with pytest.raises(RuntimeError):
        S.grad = torch.zeros(2, 2)
