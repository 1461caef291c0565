"""Operands that are nearly full are multiplied as dense ones, where that is faster and fits."""

import pytest
import torch

import scorch


def matrix(density: float, rows: int = 64, columns: int = 96) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    dense = torch.rand(rows, columns, generator=generator) + 0.1
    return torch.where(torch.rand(rows, columns, generator=generator) < density, dense, torch.zeros(()))


def kinds(A: torch.Tensor, B: torch.Tensor, text: str = "ij,jk->ik") -> list[str]:
    return [step.kind for step in scorch.explain(text, A, B).steps]


def test_a_nearly_full_operand_is_made_dense_and_explain_says_so():
    dense, B = matrix(0.9), torch.rand(96, 64)
    A = scorch.from_torch(dense, format="csr")
    step = scorch.explain("ij,jk->ik", A, B).steps[-1]
    assert step.kind == "torch"
    assert "full: it is converted to dense" in step.reasons[0]
    for _ in range(2):
        torch.testing.assert_close(scorch.einsum("ij,jk->ik", A, B), dense @ B)


@pytest.mark.parametrize("density", [0.02, 0.3])
def test_a_sparse_operand_is_not(density):
    assert kinds(scorch.from_torch(matrix(density), format="csr"), torch.rand(96, 64)) == ["kernel"]


def test_small_products_vectors_and_sampled_products_are_not():
    A = scorch.from_torch(matrix(1.0), format="csr")
    assert kinds(A, torch.rand(96, 4)) == ["kernel"]
    assert kinds(A, torch.rand(96), "ij,j->i") == ["kernel"]
    assert kinds(A, torch.rand(64, 96), "ij,ij->ij") == ["kernel"]


def test_nor_beyond_the_dense_budget_or_when_switched_off():
    A, B = scorch.from_torch(matrix(0.9), format="csr"), torch.rand(96, 64)
    with scorch.settings(disable="dense"):
        assert kinds(A, B) == ["kernel"]
    with scorch.settings(dense_budget=64 * 64 * 4):  # enough for the result, not for A
        assert kinds(A, B) == ["kernel"]
        torch.testing.assert_close(scorch.einsum("ij,jk->ik", A, B), A.to_torch().to_dense() @ B)


def test_a_full_tensor_times_itself_is_a_kernel():
    dense = matrix(1.0)
    A = scorch.from_torch(dense, format="csr")
    torch.testing.assert_close(scorch.einsum("ij,kj->ik", A, A, format="dense"), dense @ dense.T)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr", "sd"])
def test_a_full_operand_is_read_as_it_is(form):
    dense, B = matrix(1.0), torch.rand(96, 64)
    A = scorch.from_torch(dense, format=form)
    with scorch.settings(dense_budget=64 * 64 * 4):  # no copy is made
        for _ in range(2):
            found = scorch.einsum("ij,jk->ik", A, B, format="dense")
            torch.testing.assert_close(found, dense @ B)
    if form in ("csr", "csc"):
        assert "its values are used directly" in scorch.explain("ij,jk->ik", A, B).steps[-1].reasons[0]


def test_products_of_two_matrices_in_every_order_of_indices():
    dense, B = matrix(1.0, 50, 60), torch.rand(60, 70)
    for form in ("csr", "csc"):
        A, T = scorch.from_torch(dense, format=form), scorch.from_torch(dense.T.contiguous(), format=form)
        for _ in range(2):
            torch.testing.assert_close(scorch.einsum("ij,jk->ik", A, B), dense @ B)
            torch.testing.assert_close(scorch.einsum("ij,kj->ik", A, B.T.contiguous()), dense @ B)
            torch.testing.assert_close(scorch.einsum("ij,jk->ki", A, B), (dense @ B).T)
            torch.testing.assert_close(scorch.einsum("ji,jk->ik", T, B), dense @ B)
            torch.testing.assert_close(scorch.einsum("jk,ij->ik", B, A), dense @ B)


def test_what_ran_before_does_not_matter():
    thin, full, B = matrix(0.38), matrix(0.7), torch.rand(96, 64)
    first, second = (scorch.from_torch(m, format="csr") for m in (thin, full))
    x = B.clone()
    x[3, 5] = float("inf")  # shows which way was taken: a dense product makes it NaN where 0 is not stored
    wanted = [scorch.einsum("ij,jk->ik", A, x).isnan().sum() for A in (first, second)]
    for _ in range(2):
        for A, nans in zip((second, first), reversed(wanted), strict=True):
            assert scorch.einsum("ij,jk->ik", A, x).isnan().sum() == nans
    with scorch.settings(dense_budget=64 * 64 * 4):
        assert not scorch.einsum("ij,jk->ik", second, x).isnan().any()
    assert scorch.einsum("ij,jk->ik", second, x).isnan().sum() == wanted[1] > 0
