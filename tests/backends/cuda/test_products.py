"""Products of sparse matrices on CUDA devices: every way to compute a row, run on the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import scorch
from grid_emulator import EmulatedProduct, noting
from scorch._src.backends.cuda.executables import product, product_turns
from scorch._src.backends.cuda.executables.product_turns import Turns, bytes_of_sums
from scorch._src.bounded import clear_plans

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128, torch.int32]


@pytest.fixture
def ran() -> Iterator[list[str]]:
    """Return the functions that are run."""
    with noting(lambda text, name: name.removeprefix("scorch_")) as found:
        yield found


@pytest.fixture
def reprinted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Use kernels with the constants of a test, and tiles of 8,192 columns."""
    monkeypatch.setattr(EmulatedProduct, "shared_memory", lambda self, device: bytes_of_sums(8192))
    clear_plans()
    with scorch.settings(backend="emulated", cache_directory=tmp_path):
        yield
    clear_plans()


def drawn(rows: int, columns: int, density: float, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randint(-3, 4, (rows, columns)) * (torch.rand(rows, columns) < density)).to(dtype)


def check(a: torch.Tensor, b: torch.Tensor) -> None:
    A, B = (scorch.from_torch(dense, format="csr") for dense in (a, b))
    found, again = A @ B, A @ B
    with scorch.settings(backend="cpu"):
        expected = A @ B
    assert torch.equal(found.crow_indices(), expected.crow_indices())
    assert torch.equal(found.col_indices(), expected.col_indices())
    torch.testing.assert_close(found.values(), expected.values())
    assert torch.equal(found.values(), again.values())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inner", "density"), [(60, 0.1), (300, 0.02), (400, 0.02)])
def test_products_are_sorted_where_there_are_many_columns(
    inner: int,
    density: float,
    dtype: torch.dtype,
    reprinted: None,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(product_turns, "MIN_COLUMNS", 1)
    a = drawn(12, inner, 0.1, dtype)
    a[0], a[1] = 1, 0
    check(a, drawn(inner, 2000, density, dtype))
    assert "count_some" in ran and "fill_some" in ran


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("cuts", "columns"), [(1, 2000), (3, 2500), (16, 5000)])
def test_blocks_share_long_rows(
    cuts: int,
    columns: int,
    dtype: torch.dtype,
    reprinted: None,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(product_turns, "CUTS", cuts)
    monkeypatch.setattr(product, "LONG_ROW", 30)
    monkeypatch.setattr(product, "LONGER_ROW", 40)
    a = drawn(10, 300, 0.05, dtype)
    a[2, :200], a[7, 100:] = 2, -1
    b = drawn(300, columns, 0.02, dtype)
    b[:, 5], b[:, 6] = 1, 2  # of which each entry of a row has a product
    check(a, b)
    assert {"count_many", "count_long", "list_long", "add_long"} <= set(ran)


@pytest.mark.parametrize("sums", [64, 32 << 10])
def test_sums_of_long_rows_are_in_either_memory(
    sums: int, reprinted: None, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_turns, "BYTES_OF_CUT", sums)
    monkeypatch.setattr(product, "LONGER_ROW", 256)
    a = drawn(5, 400, 0.01, torch.float32)
    a[3] = torch.randn(400)
    check(a, drawn(400, 3000, 0.02, torch.float32))
    assert "add_long" in ran


def test_rows_of_all_kinds(reprinted: None, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_turns, "MIN_COLUMNS", 1)
    a = torch.zeros(40, 500)
    for row in range(40):
        a[row, torch.randperm(500)[: (row * row) // 4]] = torch.randn((row * row) // 4)
    b = drawn(500, 4000, 0.005, torch.float32)
    b[::7] = 0
    check(a, b)
    assert {"fill_few", "fill_some", "list_long", "add_long"} <= set(ran)


def test_more_turns_than_a_ticket_counts(
    reprinted: None, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = product.read_text("product.cu")
    assert "== 1u << 22" in text
    monkeypatch.setattr(product, "read_text", lambda name: text.replace("== 1u << 22", "== 3"))
    a = torch.zeros(8, 600)
    a[4] = torch.randn(600)
    b = drawn(600, 1500, 0.01, torch.float32)
    b[:, 0] = 1  # every thread has a product of this column
    check(a, b)
    assert "add_long" in ran


@pytest.mark.parametrize("columns", [0, 1, 1024, 70_000, 1 << 17, 1_000_000, 5_000_000, 1 << 33])
@pytest.mark.parametrize(("value", "index", "place"), [(4, 4, 4), (16, 8, 8)])
@pytest.mark.parametrize("memory", [99 << 10, 227 << 10])
def test_blocks_have_the_memory_that_they_take(
    columns: int, value: int, index: int, place: int, memory: int
) -> None:
    turns = Turns(1000, columns, value, index, place, memory)
    assert turns.width * turns.tiles >= columns and turns.width_of_cut * turns.cuts >= columns
    rows = dict.fromkeys(product_turns.BINS, 1000)
    launched = [*turns.counting[:4], *turns.counting_long(10)]
    launched += turns.filling(rows)
    assert all(turn.launch.shared <= memory for turn in launched)
    assert all(turn.launch.blocks <= product_turns.MAX_BLOCKS for turn in launched)


def test_what_is_launched_is_explained() -> None:
    A, B = (scorch.from_torch(drawn(50, columns, 0.3, torch.float32), format="csr") for columns in (50, 3000))
    with scorch.settings(backend="emulated"):
        short, wide = (scorch.explain("ij,jk->ik", A, other, format="csr").steps[-1] for other in (A, B))
    assert "rows with up to 128 products sort them" in short.inner
    assert "each of the others; some launches" in short.threads
    assert "each of the others, 3 for a long one; some launches" in wide.threads
