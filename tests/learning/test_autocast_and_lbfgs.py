"""Autocast of products that torch does not see, optimizers that keep one state for all parameters."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.statements import autocast


def test_autocast_of_einsum_and_sparse_attention():
    q, mask = torch.randn(2, 3, 16, 8), scorch._src.nn.masks.window(16, 2)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        attended = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        product = scorch.einsum("ij,jk->ik", mask.float(), q[0, 0])
    assert attended.dtype == product.dtype == torch.bfloat16
    wanted = F.scaled_dot_product_attention(q, q, q, attn_mask=mask.to_dense())
    torch.testing.assert_close(attended.float(), wanted, rtol=0.02, atol=0.02)


@pytest.fixture(autouse=True)
def factors_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where opt_einsum is installed, PyTorch multiplies in another order, with sums in other dtypes."""
    monkeypatch.setattr(torch.backends.opt_einsum, "enabled", False)


SHAPES = {"A": (6, 7), "B": (7, 5), "C": (6, 5), "D": (6, 7), "G": (5, 7), "d": (6, 1), "s": ()}
EXPRESSIONS = {  # what torch computes of the same tensors
    "Z[i,k] = A[i,j] * B[j,k]": lambda A, B: A @ B,
    "Z[i,k] = 2 * A[i,j] * B[j,k] + C[i,k]": lambda A, B, C: 2 * (A @ B) + C,
    "Z[i,k] = exp(A[i,j] * B[j,k]) - 1": lambda A, B: torch.exp(A @ B) - 1,
    "Z[i,k] = A[i,j] * (B[j,k] - 1)": lambda A, B: A @ (B - 1),
    "Z[i,l] = A[i,j] * B[j,k] * G[k,l]": lambda A, B, G: torch.einsum("ij,jk,kl->il", A, B, G),
    "Z[i,k] = d[i,u] * A[i,j] * B[j,k]": lambda d, A, B: (d * A) @ B,
    "Z[i,k] = A[i,j] * B[j,k] * d[i,u]": lambda A, B, d: (A @ B) * d,
    "Z[i,k] = s * A[i,j] * B[j,k]": lambda s, A, B: s * (A @ B),
    "Z[i,j] = A[i,j] * C[i,k] * G[k,j]": lambda A, C, G: torch.einsum("ij,ik,kj->ij", A, C, G),
    "Z[i,j] = A[i,j] / (A[i,k] * D[i,k] + 1)": lambda A, D: A / (torch.einsum("ik,ik->i", A, D)[:, None] + 1),
    "z = A[i,j] * D[i,j]": lambda A, D: torch.einsum("ij,ij->", A, D),
    "Z[i,j] = A[i,j] * D[i,j]": lambda A, D: A * D,
    "z[i] = A[i,j]": lambda A: A.sum(1),
    "z[i] = sum(j, square(A[i,j]))": lambda A: A.square().sum(1),
    "Z[i,k] = sum(j, exp(A[i,j] * B[j,k]))": lambda A, B: torch.exp(A[:, :, None] * B).sum(1),
    "C[i,k] += A[i,j] * B[j,k]": lambda C, A, B: C + A @ B,
}


@pytest.mark.cpu("PyTorch casts other functions on a GPU")
@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_autocast_of_expressions_is_that_of_torch(dtype: torch.dtype) -> None:
    """Forward and backward, in the dtypes of contractions, elementwise operations, and both together."""
    generator = torch.Generator().manual_seed(1)
    for text, reference in EXPRESSIONS.items():
        names = inspect.signature(reference).parameters
        given = {name: torch.rand(SHAPES[name], generator=generator) for name in names}
        dense = {name: (value * (value > 0.4)).to(dtype).requires_grad_() for name, value in given.items()}
        tensors = {
            name: scorch.from_torch(value.detach(), format="csr" if name == "A" else "dense").requires_grad_()
            for name, value in dense.items()
        }
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
            wanted, found = reference(**dense), scorch.evaluate(text, **tensors)
        assert found.dtype == wanted.dtype, text
        found = found.to_dense() if isinstance(found, scorch.SparseTensor) else found
        torch.testing.assert_close(found.float(), wanted.float(), rtol=0.03, atol=0.03)
        wanted.float().sum().backward()
        found.float().sum().backward()
        for name, tensor in tensors.items():
            gradient, expected = tensor.grad, dense[name].grad
            assert gradient.dtype == dtype, text
            if name == "A":
                gradient, expected = gradient.to_dense(), expected * (dense[name] != 0)
            torch.testing.assert_close(gradient.float(), expected.float(), rtol=0.05, atol=0.05)


@pytest.mark.cpu("PyTorch casts other functions on a GPU")
def test_autocast_casts_contractions_of_einsum_and_nothing_else() -> None:
    shapes = {
        "ij,jk->ik": [(4, 5), (5, 3)],
        "ij,ij->": [(4, 5), (4, 5)],
        "ij,jk,i->ik": [(4, 5), (5, 3), (4,)],
        "i,ij,jk->ik": [(4,), (4, 5), (5, 3)],
        "ij,jk,->ik": [(4, 5), (5, 3), ()],
        "ij,ij->ij": [(4, 5), (4, 5)],
        "ij,kl->": [(4, 5), (2, 3)],
        "ij->j": [(4, 5)],
        "ij,ik->jk": [(1, 5), (1, 3)],
    }
    for equation, sizes in shapes.items():
        dense = [torch.rand(size).requires_grad_() for size in sizes]
        operands = [dense[0].detach(), *dense[1:]]
        if dense[0].dim() == 2:
            operands[0] = scorch.from_torch(operands[0], format="csr").requires_grad_()
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
            wanted = torch.einsum(equation, *dense)
            assert scorch.einsum(equation, *operands).dtype == wanted.dtype, equation
            assert torch.einsum(equation, *operands).dtype == wanted.dtype, equation


@pytest.mark.cpu("PyTorch casts other functions on a GPU")
def test_autocast_of_torch_functions_is_that_of_dense_tensors() -> None:
    matrix, square, narrow = torch.rand(4, 5), torch.rand(5, 5), torch.bfloat16
    calls = [
        lambda A: torch.mv(A, square[0]),
        lambda A: A @ square[0],
        lambda A: torch.dot(A[0], square[0]),
        lambda A: torch.kron(A, A),
        lambda A: torch.inner(A, A),
        lambda A: torch.tensordot(A, A, 0),
        lambda A: torch.nn.functional.bilinear(A, A, square[None]),
        lambda A: torch.addmm(A, A, square),
        lambda A: torch.baddbmm(A[None], A[None], square[None]),
        lambda A: torch.addbmm(A, A[None], square[None]),
        lambda A: torch.trace(A.to(narrow)[:, :4]),
        lambda A: torch.quantile(A.to(narrow), 0.5),
        lambda A: F.cross_entropy(A.to(narrow), torch.arange(4)),
        lambda A: F.triplet_margin_loss(A.to(narrow), A.to(narrow), matrix.to(narrow)),
    ]
    for number, call in enumerate(calls):
        for is_tracked in (False, True):
            dense = matrix.clone().requires_grad_(is_tracked)
            sparse = scorch.from_torch(matrix, format="csr").requires_grad_(is_tracked)
            with torch.autocast(torch.get_default_device().type, dtype=narrow):
                assert call(sparse).dtype == call(dense).dtype, (number, is_tracked)


@pytest.mark.cpu("PyTorch casts other functions on a GPU")
def test_explain_shows_the_dtypes_of_autocast() -> None:
    A, x = scorch.eye(4, format="csr"), torch.rand(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for explanation in (
            scorch.explain("ij,jk->ik", A, x),
            scorch.explain("C[i,k] = A[i,j] * x[j,k]", A=A, x=x),
        ):
            assert str(explanation).count(", bfloat16") == 3 and ", float32" not in str(explanation)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # of older torch itself
def test_lbfgs_learns_sparse_and_dense_parameters_together():
    generator = torch.Generator().manual_seed(0)
    dense = torch.rand(20, 30, generator=generator, dtype=torch.float64)
    dense *= torch.rand(20, 30, generator=generator) < 0.2
    x = torch.randn(8, 30, generator=generator, dtype=torch.float64)
    W = torch.nn.Parameter(scorch.from_torch(dense, format="csr"))
    weight, mask = dense.clone().requires_grad_(), dense != 0
    losses = []
    for matrix, given in ((W, lambda: W), (weight, lambda: weight * mask)):
        b = torch.zeros(20, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([matrix, b], lr=0.1)

        def loss(given=given, b=b, optimizer=optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            found = (F.linear(x, given(), b) - 1).square().mean()
            found.backward()
            return found

        losses.append([optimizer.step(loss).item() for _ in range(3)])
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(W.detach().to_dense(), (weight * mask).detach())


def test_products_with_vectors_are_cast_on_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autocast, "is_autocast", lambda: True)
    assert not autocast.casts_vectors(torch.device("cpu"))
    assert autocast.casts_vectors(torch.device("cuda"))
