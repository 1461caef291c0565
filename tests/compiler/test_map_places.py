"""Entries of a product of two sparse tensors are looked up where the other one noted them."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.explain.explain_statement import explain
from scorch.settings import enabled

PRODUCT = "C[i,j] = A[i,j] * B[i,j]"
needs_places = pytest.mark.skipif(not enabled("lookup"), reason="places are switched off")


def random(m: int, n: int, density: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 9, (m, n), generator=generator).float()
    return values * (torch.rand(m, n, generator=generator) < density)


def source(text: str, **tensors: torch.Tensor) -> str:
    return explain(text, **tensors).report(source=True)


@needs_places
def test_places_are_noted_where_rows_are_not_too_empty() -> None:
    A, B = (scorch.from_torch(random(30, 40, 0.3, seed), format="csr") for seed in (0, 1))
    assert "_places" in source(PRODUCT, A=A, B=B)
    assert "_places" not in source("C[i,j] = A[i,j] + B[i,j]", A=A, B=B)
    few = scorch.from_torch(random(3, 5000, 0.01, 0), format="csr")
    assert "_places" not in source(
        PRODUCT, A=few, B=scorch.from_torch(random(3, 5000, 0.01, 1), format="csr")
    )
    with scorch.settings(disable="lookup"):
        assert "_places" not in source(PRODUCT, A=A, B=B)


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (60, 90), (300, 12)])
def test_products_meet_at_the_same_entries(shape: tuple[int, int], threads: int) -> None:
    a, b = random(*shape, 0.4, 0), random(*shape, 0.2, 1)
    b[0] = a[0]  # rows that are alike, that begin alike, and that have nothing
    b[-1, :6] = a[-1, :6]
    a[shape[0] // 2] = 0
    A, B = scorch.from_torch(a, format="csr"), scorch.from_torch(b, format="csr")
    with scorch.settings(threads=threads, debug=True):
        for product in (A * B, B * A):
            assert torch.equal(product.to_dense(), a * b)
            assert product.nnz == torch.count_nonzero(a * b)


@pytest.mark.whole
def test_the_last_entry_that_does_not_meet_has_room() -> None:
    """What is not there is written too, and written over: never behind the slots of the result."""
    a, b = torch.zeros(4, 6), torch.ones(4, 6)
    a[:, 0] = 2.0  # the first entry of each row of b meets one, the others do not
    A, B = scorch.from_torch(a, format="csr"), scorch.from_torch(b, format="csr")
    with scorch.settings(debug=True):
        assert torch.equal(scorch.evaluate(PRODUCT, A=A, B=B).to_dense(), a * b)
        assert torch.equal(scorch.evaluate(PRODUCT, A=B, B=A).to_dense(), a * b)


def test_places_are_noted_inside_loops_that_merge() -> None:
    """The loop over j merges two compressed levels, too; only the one over k has places."""
    t, u = ((torch.rand(4, 5, 6) < 0.4).double() for _ in range(2))
    T = scorch.from_torch(t, format=scorch.Format("sds", order=(1, 0, 2)))
    U = scorch.from_torch(u, format="csf")
    found = scorch.evaluate("R[i,j] = sum(k, T[i,j,k] * U[i,j,k])", T=T, U=U, format="coo")
    torch.testing.assert_close(found.to_dense(), (t * u).sum(2))


@pytest.mark.whole
def test_rows_that_are_themselves_merged_are_looked_up_too() -> None:
    a, b = random(60, 12, 0.3, 0), random(60, 12, 0.5, 1)
    a[::3] = 0
    b[1::4] = 0
    A, B = scorch.from_torch(a, format="dcsr"), scorch.from_torch(b, format="dcsr")
    with scorch.settings(debug=True):
        total = scorch.einsum("ij,ij->i", A, B, format="s")
        assert torch.equal(total.to_dense(), (a * b).sum(1))
