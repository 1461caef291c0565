"""Gradients against differences, of first and second order, through chains on sparse tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import scorch
from scorch import SparseTensor
from scorch.autograd import gradcheck, gradgradcheck

FORMATS = ["csr", "csc", "coo", "bsr(2,2)", "dcsr"]


def drawn(rows: int, columns: int, form: str, seed: int = 0) -> SparseTensor:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    kept = torch.rand(rows, columns, generator=generator) < 0.5
    return scorch.from_torch(dense * kept, format=form).requires_grad_()


def dense(*shape: int) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    ).requires_grad_()


CHAINS = {
    "product": lambda S, x: S @ x,
    "transposed product": lambda S, x: S.t() @ x[:4],
    "sampled product": lambda S, x: torch.einsum("ij,ik,jk->ij", S, x[:4], x),
    "sparse product": lambda S, x: S @ S.t(),
    "chain": lambda S, x: torch.tanh(S * 2 + S.sin()) @ x,
    "scaled rows": lambda S, x: (S * x[:, 0]) @ x,
    "attention": lambda S, x: torch.sparse.softmax(torch.einsum("ij,ik,jk->ij", S, x[:4], x), 1) @ x,
    "slices": lambda S, x: S[1:3] @ x + S[:2, :] @ x,
    "joined": lambda S, x: torch.cat([S, 2 * S]) @ x,
    "normalized": lambda S, x: (S / S.square().sum(1, keepdim=True).add(1)) @ x,
    "linear": lambda S, x: F.linear(x.t(), S),
    "converted": lambda S, x: S.to_format("csc").to_format("coo") @ x,
    "dense": lambda S, x: S.to_dense().exp() @ x,
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", CHAINS)
def test_first_and_second_order(name, form):
    S, x = drawn(4, 6, form), dense(6, 2)
    assert gradcheck(CHAINS[name], (S, x))
    assert gradgradcheck(CHAINS[name], (S, x))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["product", "sparse product", "chain", "slices", "normalized", "dense"])
def test_torchs_own_checks(name, form, fast_mode):
    """Of sparse inputs and results; the inputs are afterwards what they were."""
    S, x = drawn(4, 6, form), dense(6, 2)
    before, pattern = S.detach().clone(), S.storage.pattern
    assert torch.autograd.gradcheck(CHAINS[name], (S, x), fast_mode=fast_mode)
    assert torch.autograd.gradgradcheck(CHAINS[name], (S, x), fast_mode=fast_mode)
    assert S.storage.pattern is pattern and torch.equal(S.values(), before.values())


def test_torchs_own_checks_of_other_tensors():
    T = scorch.rand(3, 4, 2, density=0.4, format="csf", dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda T: (T * T).sum(1), T)
    C = scorch.rand(4, 5, density=0.5, format="csr", dtype=torch.complex128).requires_grad_()
    y = torch.randn(5, 2, dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(lambda C, y: C @ y, (C, y))
    assert torch.autograd.gradcheck(torch.abs, C)
    empty = scorch.zeros(3, 4, format="csr", dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda S: S.sin(), empty)


def test_torchs_own_checks_with_a_default_device():
    """Calls go through a mode of torch then, and are still seen to come from a check."""
    with torch.device("cpu"):
        S = drawn(4, 6, "csr").detach().cpu().requires_grad_()
        assert torch.autograd.gradcheck(lambda S: S.to_dense().exp(), S)


class Wrong(torch.autograd.Function):
    """Twice the values, with a gradient that is three times."""

    @staticmethod
    def forward(ctx, values):
        return values * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


@pytest.mark.parametrize("check", [gradcheck, torch.autograd.gradcheck])
@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_wrong_gradient_is_found(check, fast_mode):
    S = drawn(4, 6, "csr")
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        check(lambda S: Wrong.apply(S.values()), (S,), fast_mode=fast_mode)


def test_a_change_in_place_before_the_gradient_is_told_as_it_is():
    S = drawn(4, 6, "csr")
    T = S * 1
    product = T.values().square()
    with torch.no_grad():
        T.values().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(product.sum(), S)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    S, x = drawn(4, 6, "csr"), dense(6, 2)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.relu(S) @ x)

    layer(x).sum().backward()
    wanted, dx = S.grad, x.grad
    S.grad = x.grad = None
    checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(S.grad.values(), wanted.values())
    torch.testing.assert_close(x.grad, dx)


def test_autocast():
    S, x = drawn(4, 6, "csr").detach().float().requires_grad_(), dense(6, 2).detach().float().requires_grad_()
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        products = [S @ x, F.linear(x.t(), S), torch.einsum("ij,jk->ik", S, x)]
        assert (drawn(4, 6, "csr") @ dense(6, 2)).dtype == torch.float64
    assert all(product.dtype == torch.bfloat16 for product in products)
    torch.testing.assert_close(products[0].float(), S.to_dense() @ x, rtol=0.05, atol=0.05)
    products[0].sum().backward()
    assert S.grad.dtype == x.grad.dtype == torch.float32


def test_gradients_of_constructors():
    values = torch.randn(3, dtype=torch.float64, requires_grad=True)
    made = {
        "coo": lambda v: scorch.sparse_coo_tensor([[2, 0, 2], [1, 1, 1]], v, (3, 3)),
        "csr": lambda v: scorch.sparse_csr_tensor([0, 2, 3], [1, 0, 2], v, (2, 3)),
        "csc": lambda v: scorch.sparse_csc_tensor([0, 1, 3], [0, 1, 0], v, (2, 2), format="coo"),
        "edges": lambda v: scorch.from_edge_index(torch.tensor([[0, 1, 1], [1, 0, 0]]), v),
    }
    for make in made.values():
        assert torch.autograd.gradcheck(lambda v, make=make: make(v).to_dense(), values)
    dense_matrix = torch.tensor([[0.0, 2.0], [3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (scorch.from_torch(dense_matrix, format="csr") * 5).sum().backward()
    assert dense_matrix.grad.tolist() == [[0.0, 5.0], [5.0, 0.0]], "of what was taken"


def test_the_power_zero_has_a_gradient_of_zeros():
    for form in ("csr", "coo", "bsr(2,2)"):
        S = drawn(6, 6, form)
        unit = torch.matrix_power(S, 0)
        torch.testing.assert_close(unit.detach().to_dense(), torch.eye(6, dtype=torch.float64))
        (found,) = torch.autograd.grad(unit.sum(), S)
        assert found.nnz == S.nnz and not bool(found.values().any())
        assert torch.autograd.gradcheck(lambda S: torch.matrix_power(S, 0) @ S, (S,))


def test_row_sparse_gradients():
    S, x = drawn(4, 6, "csr").detach(), dense(6, 2)
    scorch.einsum("ij,jk->ik", S[:1], x, sparse_grad=True).sum().backward()
    touched = x.grad
    assert isinstance(touched, SparseTensor) and touched.nnz == 2 * S[0].nnz
    other = x.detach().clone().requires_grad_()
    (S[:1] @ other).sum().backward()
    torch.testing.assert_close(touched.to_dense(), other.grad)


def test_row_sparse_gradients_of_both_factors_of_a_sampled_product():
    mask = torch.zeros(8, 10, dtype=torch.float64)
    mask[1, 2], mask[1, 4], mask[5, 0] = 1, 2, 3
    for form in ("csr", "csc", "coo", "dcsr", "bsr(2,2)"):
        factors = dense(8, 3), dense(10, 3)
        sampled = scorch.einsum("ij,ik,jk->ij", scorch.from_torch(mask, form), *factors, sparse_grad=True)
        sampled.sum().backward()
        found = [factor.grad for factor in factors]
        assert all(isinstance(gradient, SparseTensor) for gradient in found), form
        expected = torch.autograd.grad(torch.einsum("ij,ik,jk->ij", mask, *factors).sum(), factors)
        for gradient, other in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient.to_dense(), other)
            assert gradient.nnz < gradient.numel(), "only rows that the mask reaches"


def test_hooks_and_retained_gradients():
    S, seen = drawn(4, 6, "csr"), []
    S.register_hook(lambda g: seen.append(g.nnz))
    S.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.nnz))
    T = S * 2
    T.retain_grad()
    (T @ dense(6, 2)).sum().backward()
    assert seen == [S.nnz, S.nnz] and T.grad.storage.pattern is S.storage.pattern and not T.is_leaf
    torch.testing.assert_close(S.grad.values(), 2 * T.grad.values())


def test_memory_of_a_large_product(little_memory):
    """The gradient of a product takes the memory of its operands, not the 3.6 GB of a dense matrix."""
    S = scorch.rand(30_000, 30_000, density=1e-4, format="csr").requires_grad_()
    x = torch.rand(30_000, 16, requires_grad=True)
    with scorch.settings(dense_budget=10_000_000):
        spellings = [
            lambda: S @ x,
            lambda: torch.matmul(S, x),
            lambda: torch.mm(S, x),
            lambda: torch.einsum("ij,jk->ik", S, x),
            lambda: F.linear(S, x.t()),
            lambda: F.linear(x.t(), S),
            lambda: torch.addmm(torch.zeros(16), S, x),
        ]
        found = []
        for spelling in spellings:
            S.grad = None
            spelling().sum().backward()
            found.append(S.grad.values())
        torch.testing.assert_close(found[0], found[1])
        torch.testing.assert_close(found[0], found[4])
