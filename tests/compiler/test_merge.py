"""Sums and products of two sparse tensors go on side by side while their rows are alike."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.explain.explain_statement import explain


def random(m: int, n: int, density: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 9, (m, n), generator=generator).float()
    return values * (torch.rand(m, n, generator=generator) < density)


def source(text: str, *tensors: torch.Tensor) -> str:
    A, B = (scorch.from_torch(tensor, format="csr") for tensor in tensors)
    return explain(text, A=A, B=B, format="csr").report(source=True)


def test_coordinates_are_compared_several_at_a_time_where_rows_are_long() -> None:
    long, short = random(30, 40, 0.3, 0), random(30, 40, 0.05, 0)
    for op in "+*":
        statement = f"C[i,j] = A[i,j] {op} B[i,j]"
        assert "j_alike" in source(statement, long, long * 2)
        assert "j_alike" not in source(statement, short, long)
    assert "j_alike" not in source("C[i,k] = sum(j, A[i,j] * B[k,j])", long, long)


@pytest.mark.whole
@pytest.mark.parametrize("size", [3, 4, 5, 11])
def test_rows_that_begin_alike_are_merged(size: int) -> None:
    """Coordinates are compared several at a time: rows that end before, with, or after the last few."""
    a = random(9, 40, 0.7, size)
    b = a * 3
    b[1, size:], b[2, size:], b[3, :size] = 0, random(1, 40, 0.5, 7)[0, size:], 1
    a[4], b[5] = 0, 0
    A, B = (scorch.from_torch(matrix, format="csr") for matrix in (a, b))
    with scorch.settings(debug=True):
        assert torch.equal((A + B).to_dense(), a + b)
        assert torch.equal((B - A).to_dense(), b - a)
        assert torch.equal((A * B).to_dense(), a * b)
        assert torch.equal(
            scorch.evaluate("C[i,j] = maximum(A[i,j], B[i,j])", A=A, B=B).to_dense(), torch.maximum(a, b)
        )
