"""Sums of matrices with unrelated patterns are merged without branches, others with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

import scorch
from scorch._src.compiler.lower.merge_ahead import TURNS
from scorch._src.compiler.target import host_target
from scorch._src.engine import schedules
from scorch._src.loops.intrinsics import is_erratic

ROWS, COLUMNS = 160, 400


def scattered(seed: int, dtype: torch.dtype = torch.float32, rows: int = ROWS) -> torch.Tensor:
    """Rows of none to a few hundred entries in any columns."""
    generator = torch.Generator().manual_seed(seed)
    share = 0.1 + 0.5 * torch.rand(rows, 1, generator=generator)
    share[::7] = 0
    stored = torch.rand(rows, COLUMNS, generator=generator) < share
    return (torch.randint(-9, 9, (rows, COLUMNS), generator=generator) * stored).to(dtype)


def csr(dense: torch.Tensor, index: torch.dtype = torch.int32) -> scorch.SparseTensor:
    rows = dense.to_sparse_csr()
    parts = rows.crow_indices().to(index), rows.col_indices().to(index), rows.values()
    return scorch.from_torch(torch.sparse_csr_tensor(*parts, dense.shape))


def sample(a: torch.Tensor, b: torch.Tensor, share: int = TURNS) -> int:
    parts = [
        part.tolist()
        for m in (a, b)
        for part in (m.to_sparse_csr().crow_indices(), m.to_sparse_csr().col_indices())
    ]
    return is_erratic(*parts, len(a), share)


@pytest.fixture(params=[64, 0], ids=["blocks", "turns"])
def gather_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Kernels for CPUs that merge several entries at a time, and for others."""
    machine = dataclasses.replace(host_target(), gather_bytes=request.param)
    monkeypatch.setattr("scorch._src.compiler.vector.vectorize.target", lambda: machine)
    schedules.forget()
    yield request.param
    schedules.forget()


@pytest.mark.whole
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("text", ["A[i,j] + B[i,j]", "A[i,j] - 3 * B[i,j]"])
def test_unrelated_rows_are_merged_without_branches(
    text: str, dtype: torch.dtype, index: torch.dtype, gather_bytes: int
) -> None:
    a, b = scattered(0, dtype), scattered(1, dtype)
    assert sample(a, b)
    A, B = csr(a, index), csr(b)
    statement = f"C[i,j] = {text}"
    source = scorch.explain(statement, A=A, B=B, format="csr").source
    assert "is_erratic_" in source and ("union_block_" if gather_bytes == 64 else "kept_") in source
    expected = a + b if "+" in text else a - 3 * b
    for threads in (1, 3):
        with scorch.settings(threads=threads):
            found = scorch.evaluate(statement, A=A, B=B, format="csr")
            torch.testing.assert_close(found.to_dense(), expected)


@pytest.mark.whole
@pytest.mark.parametrize(
    "text",
    [
        "maximum(A[i,j], 2 * B[i,j])",
        "where(A[i,j] > B[i,j], A[i,j], B[i,j])",
        "A[i,j] * x[j] - y[i] * B[i,j]",
        "abs(A[i,j]) + square(B[i,j])",
    ],
)
def test_what_is_computed_of_rows_that_are_merged_in_blocks(text: str) -> None:
    a, b = scattered(10, torch.float64), scattered(11, torch.float64)
    x, y = torch.rand(COLUMNS, dtype=torch.float64), torch.rand(ROWS, dtype=torch.float64)
    statement = f"C[i,j] = {text}"
    names = {name: value for name, value in (("x", x), ("y", y)) if f"{name}[" in text}
    sparse = {"A": csr(a), "B": csr(b)}
    source = scorch.explain(statement, format="csr", **sparse, **names).source
    assert "union_block_" in source or host_target().gather_bytes < 64
    found = scorch.evaluate(statement, format="csr", **sparse, **names)
    dense = scorch.evaluate(statement, A=a, B=b, **names)
    torch.testing.assert_close(found.to_dense(), dense)
    with scorch.settings(disable="blocks"):
        torch.testing.assert_close(
            scorch.evaluate(statement, format="csr", **sparse, **names).values(),
            found.values(),
            rtol=0,
            atol=0,
        )


def test_the_interpreter_agrees() -> None:
    a, b = scattered(2, rows=90), scattered(3, rows=90)
    statement = "C[i,j] = A[i,j] + B[i,j]"
    assert a.count_nonzero() + b.count_nonzero() >= 1 << 14 and sample(a, b)
    with scorch.settings(debug=True, threads=1):
        found = scorch.evaluate(statement, A=csr(a), B=csr(b), format="csr")
    torch.testing.assert_close(found.to_dense(), a + b)


def test_values_that_are_no_numbers_stay_where_they_are() -> None:
    a, b = scattered(4), scattered(5)
    a[a == 3], a[a == 4], b[b == 5] = torch.nan, torch.inf, -torch.inf
    found = scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=csr(a), B=csr(b), format="csr")
    torch.testing.assert_close(found.to_dense(), a + b, equal_nan=True)


def test_patterns_that_repeat_are_merged_by_branches() -> None:
    """What the turns of a mesh will be is known after a few rows."""
    mesh = torch.zeros(300, 300)
    for offset in (-18, -17, -1, 0, 1, 17, 18):
        mesh += torch.diag(torch.ones(300 - abs(offset)), offset)
    assert not sample(mesh, mesh.roll(1, 0))
    assert not sample(mesh, mesh)
    assert not sample(torch.zeros(5, 5), mesh[:5])


def test_small_matrices_are_merged_without_a_sample() -> None:
    a, b = scattered(6, rows=40), scattered(7, rows=40)
    assert "is_erratic" not in scorch.explain("C[i,j] = A[i,j] + B[i,j]", A=csr(a), B=csr(b)).source


def test_products_that_nobody_reads_are_zero() -> None:
    """Those of entries that do not meet may be too small for normal numbers, which takes long."""
    a, b = scattered(8), scattered(9)
    text, tiny = "C[i,j] = A[i,j] * B[i,j]", 1e-30
    assert "kept_f32" in scorch.explain(text, A=csr(a), B=csr(b), format="csr").source
    large = torch.where(b == 0, 0, b * torch.inf)
    found = scorch.evaluate(text, A=csr(a * tiny), B=csr(large), format="csr")
    expected = torch.where((a != 0) & (b != 0), a * tiny * large, 0)
    torch.testing.assert_close(found.to_dense(), expected)
