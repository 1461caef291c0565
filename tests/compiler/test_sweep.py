"""Rows of products are swept where their entries lie close together, and listed where they do not."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.explain.explain_statement import explain

PRODUCT = "C[i,k] = sum(j, A[i,j] * B[j,k])"


def random(m: int, n: int, density: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 9, (m, n), generator=generator).float()
    return values * (torch.rand(m, n, generator=generator) < density)


def source(A: torch.Tensor, B: torch.Tensor) -> str:
    A, B = (scorch.from_torch(matrix, format="csr") for matrix in (A, B))
    return explain(PRODUCT, A=A, B=B, format="csr").report(source=True)


def test_rows_are_swept_where_many_values_are_inserted() -> None:
    A, B = random(30, 40, 0.5, 0), random(40, 50, 0.5, 1)
    assert "list_used" in source(A, B) and "list_marked" in source(A, B)
    assert "__builtin_prefetch(B_vals_ahead)" in source(A, B)
    with scorch.settings(disable="prefetch"):
        assert "__builtin_prefetch" not in source(A, B)
    with scorch.settings(disable="bitmap"):
        assert "list_used" not in source(A, B)
    assert "list_used" not in source(random(30, 40, 0.05, 0), random(40, 50, 0.05, 1))


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 2])
def test_products_are_sorted_whatever_their_rows_are_like(threads: int) -> None:
    """One matrix with rows that are swept by bytes, by bits, and not at all, and with empty ones."""
    a, b = random(12, 30, 0.9, 0), torch.zeros(30, 9000)
    a[1], a[2, 2:], a[3, :27], a[4] = 0, 0, 0, 0
    a[4, 10] = 3.0  # the only entry, of an empty row
    b[:2, ::4500], b[10] = 1.0, 0
    b[2:27, 700:800] = random(25, 100, 0.6, 1)
    b[27:, ::30] = 2.0
    b[10] = 0
    A, B = (scorch.from_torch(matrix, format="csr") for matrix in (a, b))
    with scorch.settings(threads=threads, debug=True):
        C = scorch.einsum("ij,jk->ik", A, B, format="csr")
    assert "list_marked" in source(a, b)
    assert torch.equal(C.to_dense(), a @ b) and C.nnz == torch.count_nonzero(a @ b)
    columns = C.col_indices()
    for first, last in zip(C.crow_indices()[:-1].tolist(), C.crow_indices()[1:].tolist(), strict=True):
        assert bool((columns[first:last].diff() > 0).all())
