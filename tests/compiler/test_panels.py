"""Products that use the rows of a large dense operand panel by panel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import scorch
from scorch._src.compiler.target import Target
from scorch._src.engine import schedules

ROWS, COLUMNS = 60, 400


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A core whose cache does not hold the dense operands below."""
    machine = Target("", 64, 32, 4, 1 << 14, 32 << 20)
    for module in ("vectorize", "panels"):
        monkeypatch.setattr(f"scorch._src.compiler.vector.{module}.target", lambda: machine)
    schedules.forget()
    yield
    schedules.forget()


def matrix(dtype: torch.dtype = torch.float32, rows: int = ROWS, full: float = 0.4) -> torch.Tensor:
    """A matrix with an empty row and one that ends in the first panel."""
    kept = torch.rand(rows, COLUMNS) < full
    kept[rows // 2] = False
    kept[rows // 3, 4:] = False
    return torch.where(kept, torch.randint(1, 9, kept.shape), 0).to(dtype)


def inner(S: torch.Tensor, X: torch.Tensor) -> str:
    return scorch.explain("ij,jk->ik", S, X).steps[-1].inner


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [16, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
def test_products_in_panels_are_those_of_dense_tensors(dtype, columns, threads):
    torch.manual_seed(0)
    A, X = matrix(dtype), torch.randint(-9, 9, (COLUMNS, columns)).to(dtype)
    S = scorch.from_torch(A, format="csr")
    assert " panels, each of which stays in the cache" in inner(S, X)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = (A.double() @ X.double()).to(dtype)
        torch.testing.assert_close(scorch.einsum("ij,jk->ik", S, X), expected)
        torch.testing.assert_close(scorch.einsum("ij,jk->ik", S * 0.5, X.double()), expected.double() / 2)
    finally:
        torch.set_num_threads(before)


def test_loops_in_panels_stay_within_arrays():
    torch.manual_seed(0)
    A, X = matrix(rows=15), torch.randn(COLUMNS, 16)
    S = scorch.from_torch(A, format="csr")
    assert " panels, each of which stays in the cache" in inner(S, X)
    with scorch.settings(debug=True):
        torch.testing.assert_close(scorch.einsum("ij,jk->ik", S, X), A @ X, rtol=1e-4, atol=1e-4)


def test_factors_outside_the_sum_count_once_for_each_entry():
    torch.manual_seed(0)
    A, X, v = matrix(), torch.randn(COLUMNS, 32), torch.randn(ROWS)
    S = scorch.from_torch(A, format="csr")
    found = scorch.evaluate("C[i,k] = v[i] * A[i,j] * X[j,k]", A=S, X=X, v=v)
    torch.testing.assert_close(found, v[:, None] * (A @ X), rtol=1e-4, atol=1e-4)
    assert "panel_stop" in scorch.explain("C[i,k] = v[i] * A[i,j] * X[j,k]", A=S, X=X, v=v).source


def test_a_chain_of_operations_on_products_in_panels_is_right():
    torch.manual_seed(0)
    A, X, bias = matrix(), torch.randn(COLUMNS, 32), torch.randn(32)
    S = scorch.from_torch(A, format="csr")

    def layer(S: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        return torch.relu(S @ X + bias)

    torch.testing.assert_close(scorch.compile(layer)(S, X), torch.relu(A @ X + bias), rtol=1e-4, atol=1e-4)


def test_panels_take_rows_with_many_entries_that_use_the_cache_often():
    torch.manual_seed(0)
    S, X = scorch.from_torch(matrix(), format="csr"), torch.randn(COLUMNS, 16)
    assert "j in 3 panels" in inner(S, X)
    assert "panels" not in inner(S, torch.randn(COLUMNS, 17)), "registers that overlap"
    assert "panels" not in inner(S, X[:, :8].contiguous()), "it fits the cache"
    assert "panels" not in inner(scorch.from_torch(matrix(full=0.1), format="csr"), X), "short rows"
    assert "panels" not in inner(scorch.from_torch(matrix(rows=4), format="csr"), X), "few rows"
    with scorch.settings(disable="tiles"):
        assert "panels" not in inner(S, X)


def test_threads_that_use_panels_too_seldom_use_all_rows_at_once():
    S, X = scorch.from_torch(matrix(), format="csr"), torch.randn(COLUMNS, 16)
    source = scorch.explain("ij,jk->ik", S, X).source
    assert "threads * 4 * j_size <=" in source
