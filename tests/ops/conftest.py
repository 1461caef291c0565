"""A huge matrix with few entries, and little memory to compute with it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

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


@pytest.fixture
def little_memory() -> Iterator[None]:
    """At most 2 GB more than there is now."""
    with open("/proc/self/statm") as facts:
        now = int(facts.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 2 * 10**9, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
