"""``F.linear`` with sparse weights, for inputs of any batch, and its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import scorch


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr(2,3)", "dcsr"])
@pytest.mark.parametrize("batch", [(), (1,), (2,), (7,), (0,), (2, 3), (1, 1), (3, 0), (2, 1, 4)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_any_batch(format: str, batch: tuple[int, ...], has_bias: bool) -> None:
    torch.manual_seed(0)
    dense = torch.randn(6, 9, dtype=torch.float64) * (torch.rand(6, 9) < 0.3)
    W = scorch.from_torch(dense, format=format).requires_grad_()
    D = dense.requires_grad_()
    x = torch.randn(*batch, 9, dtype=torch.float64).requires_grad_()
    y = x.detach().clone().requires_grad_()
    bias = torch.randn(6, dtype=torch.float64) if has_bias else None
    found, expected = F.linear(x, W, bias), F.linear(y, D, bias)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(F.linear(x, W, bias), expected)
    weights = torch.randn_like(expected)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    ones = W.detach().to_format("coo")
    row, column = ones.indices()
    torch.testing.assert_close(W.grad.to_dense()[row, column], D.grad[row, column])
