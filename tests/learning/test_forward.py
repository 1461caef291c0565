"""Forward derivatives by ``torch.autograd.forward_ad``: right, or refused; never lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

import scorch
from scorch import SparseTensor
from scorch.autograd import gradcheck
from scorch.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own

generator = torch.Generator().manual_seed(0)
S = scorch.rand(6, 5, density=0.4, format="csr", dtype=torch.float64, generator=generator)
D = S.to_dense()
X = torch.randn(5, 3, dtype=torch.float64, generator=generator)
CHANGE = torch.randn(6, 5, dtype=torch.float64, generator=generator) * (D != 0)

FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda A, x: A @ x,
    "dense first": lambda A, x: x.t() @ A.t(),
    "linear": lambda A, x: F.linear(x.t(), A),
    "vector": lambda A, x: torch.mv(A, x[:, 0]),
    "sparse product": lambda A, x: (A @ A.t()).to_dense() + (A @ x)[:, :1],
    "times dense": lambda A, x: A * x[:, 0],
    "einsum": lambda A, x: torch.einsum("ij,jk->ik", A, x),
    "addmm": lambda A, x: torch.addmm(torch.ones(6, 3, dtype=torch.float64), A, x),
    "chain": lambda A, x: (torch.tanh(A * x[:, 0]) @ x).sum(0),
    "relu": lambda A, x: torch.relu(A - 0.5 * A) @ x,
    "sums": lambda A, x: (A * x[:, 1]).sum(1),
    "mean": lambda A, x: (A * x[:, 1]).mean(),
    "largest": lambda A, x: (A * x[:, 0]).amax(1),
    "slices": lambda A, x: A[1:3] @ x,
    "joined": lambda A, x: torch.cat([A, A]) @ x,
    "reshaped": lambda A, x: (A * x[:, 1]).reshape(5, 6).sum(0),
    "converted": lambda A, x: A.to_dense() @ x,
    "plus dense": lambda A, x: A + x[:, 0],
    "softmax": lambda A, x: torch.softmax(A, 1) @ x,
    "norm": lambda A, x: torch.linalg.norm(A * x[:, 0]),
    "cumulated": lambda A, x: torch.cumsum(A, 0) @ x,
    "logarithms": lambda A, x: torch.logsumexp(A * x[:, 0], 1),
    "where": lambda A, x: torch.where(A > 0.5, A, A * x[:, 0]).sum(1),
    "loss": lambda A, x: F.mse_loss(A * x[:, 0], A),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("moving", ["dense", "sparse", "both"])
def test_tangents_are_those_of_dense_tensors(name: str, moving: str) -> None:
    function = FUNCTIONS[name]
    with dual_level():
        x = X if moving == "sparse" else make_dual(X, X.cos())
        sparse = S if moving == "dense" else make_dual(S, scorch.from_torch(CHANGE, format="coo"))
        dense = D if moving == "dense" else make_dual(D, CHANGE)
        wanted = unpack_dual(function(dense, x)).tangent
        found = unpack_dual(function(sparse, x)).tangent
        if wanted is None:  # nothing of what moves is used
            assert found is None
            return
        assert found is not None, "lost"
        torch.testing.assert_close(found.to_dense() if isinstance(found, SparseTensor) else found, wanted)


def test_direct_calls_and_facts() -> None:
    with dual_level():
        T = make_dual(S, 2 * S)
        assert (T.shape, T.dim(), T.numel(), T.dtype, T.is_floating_point()) == ((6, 5), 2, 30, S.dtype, True)
        for product in (
            scorch.einsum("ij,jk->ik", T, X),
            scorch.evaluate("y[i,k] = A[i,j] * x[j,k]", A=T, x=X),
        ):
            torch.testing.assert_close(unpack_dual(product).tangent, 2 * D @ X)
        torch.testing.assert_close(unpack_dual(T.values()).tangent, 2 * S.values())
        assert unpack_dual(T.detach()).tangent is None and unpack_dual(torch.zeros_like(T)).tangent is None
        primal, tangent = unpack_dual(T * 3)
        torch.testing.assert_close(primal.to_dense(), 3 * D)
        torch.testing.assert_close(tangent.to_dense(), 6 * D)


def test_checks_of_forward_derivatives() -> None:
    T, x = S.clone().requires_grad_(), X.clone().requires_grad_()
    assert gradcheck(lambda T, x: torch.tanh(T) @ x, (T, x), check_forward_ad=True)
    with pytest.raises(UnsupportedError, match=r"scorch\.autograd\.gradcheck"):
        torch.autograd.gradcheck(lambda T, x: T @ x, (T, x), check_forward_ad=True)


def test_batches_of_directions() -> None:
    """``vectorize=True`` runs one pass for all rows: backward it works, forward it says what does."""
    jacobian = torch.autograd.functional.jacobian
    wanted = jacobian(lambda x: torch.sin(D @ x), X)
    torch.testing.assert_close(jacobian(lambda x: torch.sin(S @ x), X, vectorize=True), wanted)
    with pytest.raises(UnsupportedError, match=r"torch\.func\.jacfwd"):
        jacobian(lambda x: S @ x, X, vectorize=True, strategy="forward-mode")
    x = X.clone().requires_grad_()
    seeds = torch.randn(4, 6, 3, dtype=torch.float64)
    (found,) = torch.autograd.grad(S @ x, x, seeds, is_grads_batched=True)
    torch.testing.assert_close(found, D.t() @ seeds)


def test_batches_of_directions_in_another_thread() -> None:
    """Gradients of tensors on a device run in threads of torch, which know no level of batches."""
    x = X.clone().requires_grad_()
    product, seeds = S @ x, torch.randn(4, 6, 3, dtype=torch.float64)
    found = []

    def differentiate(seed: torch.Tensor) -> torch.Tensor:
        run = threading.Thread(target=lambda: found.extend(torch.autograd.grad(product, x, seed)))
        run.start()
        run.join()
        return found.pop()

    torch.testing.assert_close(torch._vmap_internals._vmap(differentiate)(seeds), D.t() @ seeds)
