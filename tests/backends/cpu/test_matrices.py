"""Matrices put together in one call, and rows and pointers from each other, against plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

import scorch
from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.routines import join_matrices, row_pointers
from torch_has import needs_builtins

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int16, torch.bool, torch.complex64]


def random_matrix(rows: int, columns: int, density: float, dtype: torch.dtype, seed: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 9, (rows, columns), generator=drawn)
    return (values * (torch.rand(rows, columns, generator=drawn) < density)).to(dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_matrices_of_any_dtype_are_joined(dtype: torch.dtype, form: str, dim: int) -> None:
    dense = [random_matrix(9, 9, density, dtype, n) for n, density in enumerate((0.5, 0.0, 0.1, 1.0))]
    for count in (1, 2, 4):
        parts = [scorch.from_torch(part, format=form) for part in dense[:count]]
        found = torch.cat(parts, dim)
        assert found.format == parts[0].format and found.dtype == dtype
        assert torch.equal(found.to_dense(), torch.cat(dense[:count], dim))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dim", [0, 1])
def test_threads_share_what_is_joined(threads: int, dim: int) -> None:
    """Rows of any length, some of them empty, also at the borders between threads."""
    lengths = torch.tensor([0, 3, 0, 0, 90_000, 1, 0, 70_000, 2, 0])
    rows = torch.repeat_interleave(torch.arange(10), lengths)
    columns = torch.cat([torch.arange(n) for n in lengths.tolist()])
    A = scorch.from_coordinates([rows, columns], torch.rand(len(rows)), (10, 90_000), format="csr")
    B = scorch.from_coordinates([9 - rows, columns], torch.rand(len(rows)), (10, 90_000), format="csr")
    with scorch.settings(threads=threads):
        found = torch.cat([A, B, A], dim)
    wanted = [part.to_scipy() for part in (A, B, A)]
    whole = (scipy.sparse.vstack if dim == 0 else scipy.sparse.hstack)(wanted, format="csr")
    mine = found.to_scipy()
    assert np.array_equal(mine.indptr, whole.indptr) and np.array_equal(mine.indices, whole.indices)
    assert np.array_equal(mine.data, whole.data)


def test_many_matrices_and_sizes_of_nothing() -> None:
    many = [random_matrix(3, 4, 0.4, torch.float32, n) for n in range(60)]
    parts = [scorch.from_torch(part, format="csr") for part in many]
    assert torch.equal(torch.cat(parts).to_dense(), torch.cat(many))
    assert torch.equal(torch.cat(parts, 1).to_dense(), torch.cat(many, 1))
    for shape in ((0, 4), (3, 0), (0, 0)):
        empty = scorch.zeros(*shape, format="csr")
        for dim in (0, 1):
            assert tuple(torch.cat([empty, empty], dim).shape) == tuple(
                torch.cat([torch.zeros(shape)] * 2, dim).shape
            )


@needs_builtins
def test_wide_indices_are_joined_as_they_are() -> None:
    pos, crd = torch.tensor([0, 2, 2, 3]), torch.tensor([1, 4, 0])
    part = (pos, crd, torch.tensor([1.0, 2.0, 3.0]))
    found = join_matrices.beside([part, part], [5, 5], 3, 6)
    assert found is not None
    assert [array.tolist() for array in found[:2]] == [[0, 4, 4, 6], [1, 4, 6, 9, 0, 5]]
    found = join_matrices.below([part, part], [3, 3], 6)
    assert found is not None and found[0].dtype == torch.int64
    assert found[0].tolist() == [0, 2, 2, 3, 5, 5, 6]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_rows_and_pointers(dtype: torch.dtype, threads: int) -> None:
    lengths = torch.tensor([0, 0, 40_000, 3, 0, 0, 50_000, 1, 60_000, 0])
    rows = torch.repeat_interleave(torch.arange(10), lengths).to(dtype)
    wanted = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(dtype)
    with scorch.settings(threads=threads):
        pos = row_pointers.pointers_of(rows, 10)
        ends, found = row_pointers.rows_of(pos, rows)
    assert pos.dtype == dtype and torch.equal(pos, wanted)
    assert torch.equal(found, rows) and ends.tolist() == [0, len(rows)]
    nothing = row_pointers.pointers_of(rows[:0], 4)
    assert nothing.tolist() == [0] * 5
    ends, found = row_pointers.rows_of(nothing, rows[:0])
    assert ends.tolist() == [0, 0] and found.numel() == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("rows, entries", [(1, 0), (7, 90_000), (100_000, 3_000), (30_000, 90_000)])
def test_pointers_of_many_rows_without_entries(
    threads: int, rows: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread finds out where the entries before its rows end."""
    monkeypatch.setattr(parallel, "relative_cost", lambda threads: parallel.CHEAPEST)
    at = torch.randint(0, rows, (entries,), generator=torch.Generator().manual_seed(rows)) // 3 * 3
    wanted = torch.cat([torch.zeros(1, dtype=torch.int64), at.bincount(minlength=rows).cumsum(0)])
    with scorch.settings(threads=threads):
        assert torch.equal(row_pointers.pointers_of(at.sort().values, rows), wanted)


def test_without_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be compiled for it, torch does it."""
    for module in (join_matrices, row_pointers):
        monkeypatch.setattr(module, "builtins", lambda: None)
    dense = random_matrix(5, 6, 0.5, torch.float64, 0)
    A = scorch.from_torch(dense, format="csr")
    assert torch.equal(torch.cat([A, A]).to_dense(), torch.cat([dense, dense]))
    assert torch.equal(torch.cat([A, A], 1).to_dense(), torch.cat([dense, dense], 1))
    there = A.to_format("coo")
    assert torch.equal(there.to_dense(), dense) and torch.equal(there.to_format("csr").to_dense(), dense)
