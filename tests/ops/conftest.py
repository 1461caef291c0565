"""A huge matrix with few entries."""

from __future__ import annotations

import pytest
import torch

import scorch

N = 200_000


@pytest.fixture(scope="session")
def huge() -> scorch.SparseTensor:
    """A matrix that would be 160 GB dense, with 2,000 entries."""
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(0, N, (2, 2_000), generator=generator)
    return scorch.sparse_coo_tensor(places, torch.randn(2_000, generator=generator), (N, N), format="csr")
