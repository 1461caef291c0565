"""Steps whose operands are all dense are torch's, with the dtypes that sparse ones have."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.devices import META
from scorch._src.engine import dense_steps


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_narrow_integers_are_summed_over_an_index_of_one_operand(dtype: torch.dtype) -> None:
    A, b = torch.full((2, 3), 100, dtype=dtype), torch.tensor([1, 2], dtype=dtype)
    found = scorch.einsum("ij,i->", A, b)
    assert found.dtype == dtype
    assert found == torch.tensor(900).to(dtype)
    assert scorch.einsum("ij,i->", A[:, :0], b) == 0
    sparse = scorch.from_torch(A, format="csr")
    assert scorch.einsum("ij,i->", sparse, b) == found


def test_integers_are_exact_where_torch_multiplies_them_on_the_host_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    A, B = torch.tensor([[2**53 + 1, 2], [3, -5]]), torch.tensor([[1, 0, 7], [2, 2, 1]])
    wanted = (A.unsqueeze(2) * B).sum(1)
    assert torch.equal(scorch.einsum("ij,jk->ik", A, B), wanted)
    monkeypatch.setattr(dense_steps, "HOST", META)
    assert torch.equal(scorch.einsum("ij,jk->ik", A, B), wanted)
    assert torch.equal(
        scorch.einsum("ij,jk->ki", A.to(torch.uint8), B.to(torch.uint8)), wanted.T.to(torch.uint8)
    )
    assert torch.equal(scorch.einsum("ij,kl->", A, B), A.sum() * B.sum())
