"""Autocast of products that torch does not see, optimizers that keep one state for all parameters."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import scorch


def test_autocast_of_einsum_and_sparse_attention():
    q, mask = torch.randn(2, 3, 16, 8), scorch._src.nn.masks.window(16, 2)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        attended = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        product = scorch.einsum("ij,jk->ik", mask.float(), q[0, 0])
    assert attended.dtype == product.dtype == torch.bfloat16
    wanted = F.scaled_dot_product_attention(q, q, q, attn_mask=mask.to_dense())
    torch.testing.assert_close(attended.float(), wanted, rtol=0.02, atol=0.02)


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
