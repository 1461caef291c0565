"""Gradients through torch's functions on sparse tensors equal the dense ones at the stored places."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import scorch
from ops.calls_of_torch import ELEMENTWISE, INDEXING, REDUCTIONS, SHAPES, WITH_DENSE, Call
from scorch import SparseTensor

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning"),
    pytest.mark.filterwarnings("ignore:The use of `x.T`:UserWarning"),
]


def matrix(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(shape, generator=generator)
    return values * (torch.rand(shape, generator=generator) < 0.4)


def loss(found: Any) -> torch.Tensor | None:
    """A number that depends on every element; None if nothing there can be learned."""
    parts = found if isinstance(found, tuple | list) else [found]
    total = None
    for number, part in enumerate(parts):
        if isinstance(part, torch.Tensor) and part.requires_grad:
            generator = torch.Generator().manual_seed(number)
            weights = torch.randn(tuple(part.shape), generator=generator).to(part.dtype)
            own = (part * weights).sum()
            total = own if total is None else total + own
    return total


def check(call: Call, dense: torch.Tensor, form: str) -> None:
    S = scorch.from_torch(dense, format=form).requires_grad_()
    D = dense.clone().requires_grad_()
    try:
        truth = loss(call(D))
    except (RuntimeError, TypeError, IndexError):
        return
    found = loss(call(S))
    if truth is None:
        assert found is None
        return
    assert found is not None, "the result is not connected"
    try:
        truth.backward()
    except RuntimeError as error:  # such as floor division, which has no derivative
        with pytest.raises(RuntimeError, match=str(error)[:30]):
            found.backward()
        return
    found.backward()
    if D.grad is None:
        assert S.grad is None
        return
    assert isinstance(S.grad, SparseTensor) and S.grad.storage.pattern is S.storage.pattern
    stored = SparseTensor(type(S.storage)(S.storage.pattern, torch.ones(S.nnz))).to_dense() != 0
    wanted = torch.where(stored, D.grad, torch.zeros(()))
    torch.testing.assert_close(S.grad.to_dense(), wanted, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["csr", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("name", [*ELEMENTWISE, *REDUCTIONS, *SHAPES, *INDEXING, *WITH_DENSE])
def test_matrices(name, form):
    if form == "bsr(2,2)" and name in ("topk", "sort"):
        pytest.skip("which of several zeros is taken is not said, and blocks store some of them")
    call = {**ELEMENTWISE, **REDUCTIONS, **SHAPES, **INDEXING, **WITH_DENSE}[name]
    check(call, matrix(4, 6), form)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["csf", "coo"])
@pytest.mark.parametrize("name", [*ELEMENTWISE, *REDUCTIONS, *SHAPES, *INDEXING])
def test_tensors_of_order_three(name, form):
    call = {**ELEMENTWISE, **REDUCTIONS, **SHAPES, **INDEXING}[name]
    check(call, matrix(3, 4, 5), form)


OTHERS: dict[str, Call] = {
    "qr": lambda x: torch.linalg.qr(x.t()),
    "max_unpool1d": lambda x: torch.nn.functional.max_unpool1d(
        x.unsqueeze(0), torch.arange(0, 12, 2).expand(1, 4, 6).contiguous(), 2
    ),
    "sgn": torch.sgn,
    "stft": lambda x: torch.view_as_real(
        torch.stft(x, 4, window=torch.ones(4), center=False, return_complex=True)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_results_whose_zeros_depend_on_values(name):
    dense = matrix(4, 6) + 2 * torch.eye(4, 6)
    dense[:, 5] = 0
    check(OTHERS[name], dense, "csr")


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_products_over_stored_entries(reduce):
    S = scorch.from_torch(matrix(4, 6), format="csr").requires_grad_()
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found = torch.sparse.mm(S, x, reduce)
    D = S.detach().to_dense().requires_grad_()
    y = x.detach().clone().requires_grad_()
    products = D.unsqueeze(2) * y
    stored = (D.detach() != 0).unsqueeze(2)
    many = stored.sum(1).clamp(min=1)
    truth = {
        "sum": lambda: products.sum(1),
        "mean": lambda: products.sum(1) / many,
        "amax": lambda: torch.where(stored, products, -torch.inf).amax(1),
        "amin": lambda: torch.where(stored, products, torch.inf).amin(1),
    }[reduce]()
    truth = torch.where(stored.any(1), truth, torch.zeros(()))
    torch.testing.assert_close(found, truth)
    found.square().sum().backward()
    truth.square().sum().backward()
    torch.testing.assert_close(S.grad.to_dense(), torch.where(D.detach() != 0, D.grad, 0))
    torch.testing.assert_close(x.grad, y.grad)


NORMS: dict[str, Call] = {
    "2-norm": lambda x: torch.linalg.vector_norm(x, 2, dim=1),
    "2-norm of all": lambda x: x.norm(),
    "3-norm": lambda x: torch.linalg.vector_norm(x, 3, dim=0),
    "1-norm": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "infinite norm": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1),
    "Frobenius": lambda x: torch.linalg.matrix_norm(x),
    "normalize": lambda x: torch.nn.functional.normalize(x, dim=1),
    "cosine_similarity": lambda x: torch.cosine_similarity(x, torch.ones_like(x), dim=1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", NORMS)
def test_second_derivatives_of_norms_at_explicit_zeros(name: str, dtype: torch.dtype) -> None:
    if dtype.is_complex and name == "cosine_similarity":
        pytest.skip("torch has none of complex numbers")
    rows, columns = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 3, 0, 1]])
    values = torch.tensor([1.0, 0.0, 0.0, -2.0, 3.0, 0.0], dtype=dtype, requires_grad=True)
    S = scorch.sparse_coo_tensor(torch.stack([rows, columns]), values, (3, 4)).to_format("csr")
    D = torch.zeros(3, 4, dtype=dtype).index_put((rows, columns), values)
    found, expected = [], []
    for x, parts in ((S, found), (D, expected)):
        total = loss(NORMS[name](x))
        assert total is not None
        (first,) = torch.autograd.grad(total.abs(), values, create_graph=True)
        weights = torch.linspace(-1, 2, 6)
        parts += [first, *torch.autograd.grad((first * weights).sum().abs(), values)]
    torch.testing.assert_close(found, expected)


def test_where_with_a_number_is_sparse_with_gradients_too() -> None:
    """A scalar that nothing differentiates is no operand that may become nonzero."""
    places = torch.tensor([[0, 5, 10**6 - 1], [3, 10**6 - 1, 7]])
    A = scorch.sparse_coo_tensor(places, torch.tensor([1.0, 0.25, 2.0]), (10**6, 10**6)).to_format("csr")
    A.requires_grad_()
    for zero in (0.0, torch.tensor(0.0)):
        found = torch.where(A > 0.5, A, zero)
        assert isinstance(found, SparseTensor) and found.values().tolist() == [1.0, 0.0, 2.0]
        (gradient,) = torch.autograd.grad(found.sum(), A)
        assert gradient.values().tolist() == [1.0, 0.0, 1.0]
    number = torch.tensor(0.0, requires_grad=True)
    small = scorch.tensor([[0.0, 2.0], [0.25, 0.0]], format="csr", requires_grad=True)
    torch.where(small > 0.5, small, number).sum().backward()
    assert number.grad == 3
