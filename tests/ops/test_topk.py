"""``topk_sparse``: the largest elements of each row as a sparse matrix."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from scorch.errors import ArgumentError, DtypeError, OperandError, ShapeError


def run_densely(h: torch.Tensor, k: int, dim: int, abs: bool = False) -> torch.Tensor:
    places = (h.abs() if abs else h).topk(k, dim).indices
    return torch.zeros_like(h).scatter(dim, places, h.gather(dim, places))


@given(
    st.sampled_from([(5, 7), (1, 1), (2, 3, 40), (9,), (0, 4), (3, 3000), (2, 2049)]),
    st.integers(0, 4),
    st.booleans(),
    st.data(),
)
def test_values_and_gradients(shape: tuple[int, ...], k: int, abs: bool, data: st.DataObject) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = min(k, shape[dim])
    h = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found = scorch.topk_sparse(h, k, dim, abs=abs)
    other = h.detach().clone().requires_grad_()
    expected = run_densely(other, k, dim, abs)
    assert torch.equal(found.detach().to_dense(), expected)
    assert found.nnz * shape[dim] == k * h.numel()
    found.to_dense().square().sum().backward()
    expected.square().sum().backward()
    assert torch.equal(h.grad, other.grad)  # type: ignore[arg-type]


def test_products_have_gradients_on_both_sides() -> None:
    h = torch.randn(6, 20, dtype=torch.float64, requires_grad=True)
    W = torch.randn(20, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h, W: scorch.topk_sparse(h, 3) @ W, (h, W))
    assert torch.autograd.gradgradcheck(lambda h, W: (scorch.topk_sparse(h, 3) @ W).square(), (h, W))


def test_rows_are_csr_with_columns_in_order() -> None:
    found = scorch.topk_sparse(torch.randn(50, 4000), 7)
    assert str(found.format) == "csr" and found.nnz == 350
    columns = found.col_indices().reshape(50, 7)
    assert bool((columns.diff() > 0).all())


def test_zeros_among_the_largest_are_kept_and_nan_is_the_largest() -> None:
    assert scorch.topk_sparse(torch.zeros(3, 8), 2).nnz == 6
    h = torch.arange(2048.0).reshape(1, -1)
    h[0, 5] = torch.nan
    assert scorch.topk_sparse(h, 2).col_indices().tolist() == [5, 2047]
    assert scorch.topk_sparse(torch.arange(8), 2).to_dense().tolist() == [0, 0, 0, 0, 0, 0, 6, 7]


def test_wrong_calls_are_named() -> None:
    h = torch.ones(3, 4)
    with pytest.raises(ArgumentError, match="between 0 and 4"):
        scorch.topk_sparse(h, 5)
    with pytest.raises(ShapeError, match="dimension 2 is out of range"):
        scorch.topk_sparse(h, 1, 2)
    with pytest.raises(ShapeError, match="at least one"):
        scorch.topk_sparse(torch.ones(()), 1)
    with pytest.raises(OperandError, match="h must be a tensor, but got a list; create one"):
        scorch.topk_sparse([1.0, 2.0], 1)
    with pytest.raises(DtypeError):
        scorch.topk_sparse(h.to(torch.complex64), 1)


@pytest.mark.parametrize("abs", [False, True])
def test_in_vmap_each_sample_keeps_its_own(abs: bool) -> None:
    h, W = torch.randn(3, 4, 10, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)

    def kept(h: torch.Tensor) -> torch.Tensor:
        return scorch.topk_sparse(h, 3, abs=abs).to_dense()

    wanted = torch.stack([kept(sample) for sample in h])
    torch.testing.assert_close(torch.vmap(kept)(h), wanted)
    torch.testing.assert_close(torch.vmap(kept, 2, 2)(h.movedim(0, 2)).movedim(2, 0), wanted)
    torch.testing.assert_close(torch.vmap(torch.vmap(kept))(h), wanted)
    products = torch.vmap(lambda h: scorch.topk_sparse(h, 3, abs=abs) @ W)(h)
    torch.testing.assert_close(products, wanted @ W)
    for gradient in (
        torch.vmap(torch.func.grad(lambda h: kept(h).square().sum()))(h),
        torch.func.grad(lambda h: torch.vmap(kept)(h).square().sum())(h),
    ):
        torch.testing.assert_close(gradient, 2 * wanted)


@pytest.mark.parametrize("shape", [(7,), (5, 9), (2, 3, 8), (0, 4)])
def test_of_a_sparse_tensor_it_is_that_of_the_dense_one(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.5)
    S = scorch.from_torch(dense)
    for dim, abs in itertools.product(range(len(shape)), (False, True)):
        for k in range(min(shape[dim], 3) + 1):
            found = scorch.topk_sparse(S, k, dim, abs=abs)
            wanted = scorch.topk_sparse(dense, k, dim, abs=abs)
            assert found.format == wanted.format and found.nnz <= wanted.nnz
            assert torch.equal(found.to_dense(), wanted.to_dense())


def test_gradients_flow_to_the_entries_that_are_kept() -> None:
    S = scorch.tensor([[0.0, 2.0, -5.0], [3.0, 1.0, 0.0]], format="csr").requires_grad_()
    scorch.topk_sparse(S, 1).square().sum().backward()
    assert S.grad is not None and S.grad.to_dense().tolist() == [[0.0, 4.0, 0.0], [6.0, 0.0, 0.0]]
