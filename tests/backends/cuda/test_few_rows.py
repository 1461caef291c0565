"""Matrices with few rows, all of them long, keep a CUDA device busy: their kernels, run on the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import scorch
from grid_emulator import noting
from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.executables import product
from scorch._src.loops import grid


@pytest.fixture
def ran() -> Iterator[list[tuple[str, str]]]:
    """Return texts and functions that are run."""
    with noting(lambda text, name: (text, name)) as found:
        yield found


def drawn(rows: int, columns: int, density: float, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randint(-3, 4, (rows, columns)) * (torch.rand(rows, columns) < density)).to(dtype)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call rows long that are quickly computed."""
    monkeypatch.setattr(grid, "MIN_LONG", 32)
    monkeypatch.setattr("scorch._src.backends.cuda.routines.rows.MIN_PART", 8)


def check(width: int, dtype: torch.dtype) -> None:
    a, X = drawn(3, 600, 0.6, dtype), torch.randint(-2, 3, (600, width)).to(dtype)
    a[1] = 0
    A = scorch.from_torch(a, format="csr")
    found, again = A @ X, A @ X
    torch.testing.assert_close(found, a @ X)
    assert torch.equal(found, again)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32])
@pytest.mark.parametrize("width", [5, 32, 40, 64])
def test_warps_share_columns_and_entries_of_parts(
    width: int, dtype: torch.dtype, ran: list[tuple[str, str]], short: None
) -> None:
    with scorch.settings(backend="emulated"):
        check(width, dtype)
    text, name = ran[-1]
    threads, _ = grid.shape_of_columns(width, dtype.itemsize)
    assert name == "scorch_combine" and f"THREAD(32) / {threads}" in text


def test_the_interpreter_finds_nothing_wrong(short: None) -> None:
    with scorch.settings(backend="interpreted grid"):
        check(40, torch.float32)


PRODUCTS = [(3, 400, 3, 0.5), (2, 500, 40, 0.2), (4, 300, 200, 0.3), (2, 300, 3000, 0.02), (1, 200, 1, 1.0)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64]
)
@pytest.mark.parametrize(("rows", "inner", "columns", "density"), PRODUCTS)
def test_products_are_cut(
    rows: int,
    inner: int,
    columns: int,
    density: float,
    dtype: torch.dtype,
    ran: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(product, "MIN_LONG_ROW", 1)
    monkeypatch.setattr(product, "MIN_PART", 16)
    a, b = drawn(rows, inner, 0.7, dtype), drawn(inner, columns, density, dtype)
    a[-1, 5:] = 0
    A, B = (scorch.from_torch(dense, format="csr") for dense in (a, b))
    with scorch.settings(backend="emulated"):
        found, again = A @ B, A @ B
    is_small = product.ROWS_OF_BLOCK * columns * found.dtype.itemsize < driver.USUAL_SHARED_MEMORY
    assert ran[-1][1] == ("scorch_fill_parts" if is_small else "scorch_add_many")
    expected = A @ B
    assert torch.equal(found.crow_indices(), expected.crow_indices())
    assert torch.equal(found.col_indices(), expected.col_indices())
    torch.testing.assert_close(found.values(), expected.values())
    assert torch.equal(found.values(), again.values())


def test_what_is_cut_is_explained() -> None:
    A = scorch.from_torch(drawn(2, 3000, 0.5, torch.float32), format="csr")
    with scorch.settings(backend="emulated"):
        step = scorch.explain("ij,jk->ik", A, A.T.to_format("csr"), format="csr").steps[-1]
    assert "few and long" in step.inner and "for each part" in step.threads
