"""Products with a sparse weight in vectors of all widths, which compilers emulate where a CPU lacks them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.backends.cpu.routines import by_rows, linear
from scorch._src.compiler.target import host_target, using_target


@pytest.fixture(autouse=True)
def other_cpus() -> Iterator[None]:
    """Forget what holds for one CPU only."""
    linear._plan.cache_clear()
    by_rows.text_of.cache_clear()
    yield
    linear._plan.cache_clear()
    by_rows.text_of.cache_clear()


@pytest.mark.whole
@pytest.mark.cpu("routines in C")
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@torch.no_grad()
def test_products_in_vectors_of_any_width(vector_bytes: int) -> None:
    torch.manual_seed(0)
    target, threads = dataclasses.replace(host_target(), vector_bytes=vector_bytes), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with using_target(target):
            for (outputs, features), batch in itertools.product(
                ((33, 37), (48, 160)), (2, 8, 16, 21, 48, 70)
            ):
                weight, bias = torch.randn(outputs, features).relu(), torch.randn(outputs)
                sparse = scorch.from_torch(weight, format="csr").storage
                x, residual = torch.randn(batch, features), torch.randn(batch, outputs)
                crd = sparse.pattern.crd[1].to(torch.int16)
                matrix = (sparse.pattern.pos[1], crd, sparse.values)
                wanted = F.linear(x, weight, bias)
                for added in (None, residual):
                    found = linear.multiply_batch(matrix, bias, x, None, "relu", added)
                    assert found is not None
                    want = wanted.relu() if added is None else wanted.relu() + added
                    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-4)
    finally:
        torch.set_num_threads(threads)
