"""Steps whose operands are all dense are torch's, with the dtypes that sparse ones have."""

from __future__ import annotations

import pytest
import torch

import scorch


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_narrow_integers_are_summed_over_an_index_of_one_operand(dtype: torch.dtype) -> None:
    A, b = torch.full((2, 3), 100, dtype=dtype), torch.tensor([1, 2], dtype=dtype)
    found = scorch.einsum("ij,i->", A, b)
    assert found.dtype == dtype
    assert found == torch.tensor(900).to(dtype)
    assert scorch.einsum("ij,i->", A[:, :0], b) == 0
    sparse = scorch.from_torch(A, format="csr")
    assert scorch.einsum("ij,i->", sparse, b) == found
