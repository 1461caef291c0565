"""Routines that sort, transpose and pick entries agree with torch's operations, on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import scorch
from scorch._src.backends.base import backend_for
from scorch._src.backends.cpu.routines import coalesce, pick_rows, take, transpose_rows
from scorch._src.backends.routines import Routines

THREADS = [1, 2, 7]
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.int8, torch.int64, torch.bool, torch.bfloat16]


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let routines take what they would leave to others because it is little."""
    for name in (
        "MIN_ENTRIES",
        "MIN_VALUES",
        "MIN_ENTRIES_PER_THREAD",
        "MIN_VALUES_PER_THREAD",
        "MIN_ELEMENTS_PER_THREAD",
    ):
        for module in (coalesce, transpose_rows, pick_rows, take):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(
    sizes: tuple[int, ...], entries: int, dtype: torch.dtype
) -> tuple[list[torch.Tensor], torch.Tensor]:
    columns = [torch.randint(size, (entries,)) for size in sizes]
    return columns, torch.randint(-3, 4, (entries,)).to(dtype)


def check_coalesced(columns: list[torch.Tensor], sizes: tuple[int, ...], values: torch.Tensor) -> None:
    found = backend_for().routines.coalesce(columns, sizes, values, torch.int32)
    plain = Routines()
    wanted = plain.sort_entries(columns, sizes)
    if wanted is True:
        expected = columns, values
    else:
        assert not isinstance(wanted, bool)
        expected = wanted.columns, plain.sum_entries(wanted, values)
    if found is None:  # numbers of this dtype are only moved
        assert values.dtype in (torch.bool, torch.bfloat16) and expected[1].shape != values.shape
        return
    assert [column.tolist() for column in found[0]] == [column.tolist() for column in expected[0]]
    assert all(column.dtype == torch.int32 for column in found[0])
    torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("sizes", [(5000,), (30, 40), (3000, 70_000), (1, 900), (20, 1, 30), (9, 9, 9, 9)])
def test_entries_are_sorted_and_added_up(sizes: tuple[int, ...], threads: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    for dtype in DTYPES:
        columns, values = drawn(sizes, 700, dtype)
        check_coalesced(columns, sizes, values)


def test_sorted_entries_stay_where_they_are() -> None:
    values = torch.rand(900)
    columns = [torch.arange(900) // 30, torch.arange(900) % 30]
    found = backend_for().routines.coalesce(columns, (30, 30), values, torch.int32)
    assert found is not None and found[1].data_ptr() == values.data_ptr()
    check_coalesced(columns, (30, 30), values)


def test_values_with_dimensions_of_their_own_are_added_up() -> None:
    torch.manual_seed(0)
    columns, _ = drawn((9, 9), 300, torch.float32)
    check_coalesced(columns, (9, 9), torch.rand(300, 2, 3, dtype=torch.complex128))


@pytest.mark.parametrize("wrong", [-1, 30, 2**40])
def test_coordinates_outside_are_left_to_the_check(wrong: int) -> None:
    columns, values = drawn((30, 30), 300, torch.float32)
    columns[1][77] = wrong
    assert backend_for().routines.coalesce(columns, (30, 30), values, torch.int32) is None
    with pytest.raises(scorch.errors.ScorchError, match=r"outside|range|size"):
        scorch.sparse_coo_tensor(torch.stack(columns), values, (30, 30))


def test_keys_that_are_too_long_are_left_to_torch() -> None:
    columns, values = drawn((2**30, 2**30), 300, torch.float32)
    assert backend_for().routines.coalesce(columns, (2**30, 2**30), values, torch.int64) is None


@pytest.mark.parametrize("spread", [1, 1 << 30])
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(40, 300), (300, 40), (1, 500), (500, 1), (2000, 3)])
def test_a_matrix_is_transposed(
    shape: tuple[int, int], index: torch.dtype, threads: int, spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transpose_rows, "MIN_SPREAD", spread)
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    mask = torch.rand(shape) < 0.3
    mask[shape[0] // 3 : shape[0] // 2] = False
    for dtype in DTYPES:
        dense = torch.where(mask, torch.randint(1, 9, shape), 0)
        csr = dense.to_sparse_csr()
        values = csr.values().to(dtype)
        given = csr.crow_indices().to(index), csr.col_indices().to(index), values
        found = backend_for().routines.transpose_matrix(given, shape[1])
        wanted = dense.T.contiguous().to_sparse_csr()
        assert found is not None
        assert found[0].tolist() == wanted.crow_indices().tolist()
        assert found[1].tolist() == wanted.col_indices().tolist()
        assert found[0].dtype == found[1].dtype == index and found[2].dtype == dtype
        torch.testing.assert_close(found[2], wanted.values().to(dtype))


@pytest.mark.parametrize("columns_come_again", [True, False])
def test_a_long_matrix_is_transposed_by_one_thread(
    columns_come_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transpose_rows, "MIN_SPREAD", 1)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = 50_000
    near = torch.arange(rows)[:, None] + torch.arange(3)
    crd = (near if columns_come_again else torch.randint(rows, (rows, 3))).sort(1).values.flatten()
    given = torch.arange(0, 3 * rows + 1, 3), crd, torch.arange(3 * rows)
    found = backend_for().routines.transpose_matrix(given, rows + 2)
    order = crd.sort(stable=True).indices
    assert found is not None
    assert torch.equal(found[0].diff(), crd.bincount(minlength=rows + 2))
    assert torch.equal(found[1], order // 3)
    assert torch.equal(found[2], order)


def matrices_near_the_diagonal() -> dict[str, tuple[torch.Tensor, torch.Tensor, int]]:
    """Rows whose entries are near each other, and some of which a thread may think so: pos, crd, columns."""
    rows = 3000
    near = (torch.arange(rows)[:, None] + torch.arange(5)).flatten()
    lengths = torch.where(torch.arange(rows) % 3 == 0, 15, 0)
    gaps = (torch.arange(rows)[:, None] + torch.arange(15))[lengths == 15].flatten()
    far = near.view(rows, 5).clone()
    far[-1, -1] = 2 * rows  # the last thread's columns are far apart
    blocks = (torch.arange(rows)[:, None] // 60 * 60 + torch.arange(60)).flatten()
    return {
        "band": (torch.arange(0, 5 * rows + 1, 5), near, rows + 4),
        "more columns": (torch.arange(0, 5 * rows + 1, 5), near, 40 * rows),
        "empty rows": (torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]), gaps, rows + 20),
        "one far": (torch.arange(0, 5 * rows + 1, 5), far.flatten(), 2 * rows + 1),
        "blocks": (torch.arange(0, 60 * rows + 1, 60), blocks, rows),
        "upside down": (torch.arange(0, 5 * rows + 1, 5), near.view(rows, 5).flip(0).flatten(), rows + 4),
    }


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("kind", list(matrices_near_the_diagonal()))
def test_threads_transpose_bands_and_meshes(kind: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transpose_rows, "MIN_SPREAD", 1)
    pos, crd, columns = matrices_near_the_diagonal()[kind]
    order = crd.sort(stable=True).indices
    row = torch.arange(pos.numel() - 1).repeat_interleave(pos.diff())
    for index, dtype in ((torch.int32, torch.int16), (torch.int64, torch.complex64)):
        values = torch.arange(crd.numel()).remainder(30_000).to(dtype)
        with scorch.settings(threads=threads):
            found = backend_for().routines.transpose_matrix((pos.to(index), crd.to(index), values), columns)
        assert found is not None
        assert torch.equal(found[0].diff().long(), crd.bincount(minlength=columns))
        assert torch.equal(found[1].long(), row[order])
        assert torch.equal(found[2], values[order])


def test_formats_that_swap_levels_are_converted_by_the_routine(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(4)
    dense = torch.rand(60, 50) * (torch.rand(60, 50) < 0.2)
    A = scorch.tensor(dense, format="csr")
    calls = []
    swap = transpose_rows._transposed
    monkeypatch.setattr(transpose_rows, "_transposed", lambda *args: calls.append(args) or swap(*args))
    columns = A.to_format("csc")
    assert torch.equal(columns.to_dense(), dense)
    assert torch.equal(columns.to_format("csr").to_dense(), dense)
    assert len(calls) == 2


@pytest.mark.parametrize("threads", THREADS)
def test_rows_are_picked(threads: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    dense = torch.rand(90, 70) * (torch.rand(90, 70) < 0.2)
    A = scorch.tensor(dense, format="csr")
    picked = torch.randint(-90, 90, (200,))
    for dtype in DTYPES:
        values = (dense * 9).to(dtype)
        S = A.with_values((A.values() * 9).to(dtype))
        assert torch.equal(S[picked].to_dense(), values[picked])
    with pytest.raises(IndexError):
        A[torch.tensor([3, 90])]


@pytest.mark.parametrize("threads", THREADS)
def test_values_are_taken_from_places(threads: int) -> None:
    torch.set_num_threads(threads)
    places = torch.randint(300, (700,))
    for dtype in (*DTYPES, torch.complex128):
        values = torch.randint(-9, 9, (300,)).to(dtype)
        taken = backend_for().routines.take(values, places)
        assert taken.dtype == dtype and torch.equal(taken, values[places])
    lazy = torch.randn(300, dtype=torch.complex64).conj()
    assert torch.equal(backend_for().routines.take(lazy, places), lazy[places])
