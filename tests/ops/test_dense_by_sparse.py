"""A dense matrix times a sparse one, which is computed by columns once there is much to do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.ops.products.matmul import prefers_transpose
from scorch._src.storage.storage import Storage
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError

FORMATS = ["csr", "csc", "coo", "bsr(4,4)"]


def sparse(rows: int, columns: int, format: str) -> SparseTensor:
    return scorch.rand(rows, columns, density=0.2, format=format, dtype=torch.float64)


def stored(S: SparseTensor) -> torch.Tensor:
    return SparseTensor(Storage(S.storage.pattern, S.storage.pattern.present)).to_dense()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("turn", [False, True])
def test_products_and_gradients(format: str, turn: bool) -> None:
    S = sparse(60, 50, format).requires_grad_()
    other = S.t() if turn else S
    x = torch.randn(40, other.shape[0], dtype=torch.float64, requires_grad=True)
    assert prefers_transpose(x, other)
    found = x @ other
    assert found.is_contiguous()
    D, y = S.detach().to_dense().requires_grad_(), x.detach().clone().requires_grad_()
    expected = y @ (D.t() if turn else D)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert S.grad is not None and D.grad is not None
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(S.grad.to_dense(), D.grad * stored(S))


@pytest.mark.parametrize("lead", [(40,), (4, 10), (2, 2, 10)])
def test_linear_with_a_sparse_weight(lead: tuple[int, ...]) -> None:
    weight = sparse(60, 50, "csr")
    x = torch.randn(*lead, 50, dtype=torch.float64)
    found = F.linear(x, weight)
    assert found.is_contiguous()
    torch.testing.assert_close(found, F.linear(x, weight.to_dense()))
    torch.testing.assert_close(F.linear(x.mT.contiguous().mT, weight), found)


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError):
        torch.randn(40, 51, dtype=torch.float64) @ sparse(60, 50, "csr")


def test_transposes_of_one_tensor_share_what_is_known_of_it() -> None:
    S = sparse(60, 50, "csr")
    assert S.t().storage.pattern is S.t().storage.pattern
