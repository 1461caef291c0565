"""Copies of index arrays, on one thread and on several."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.routines import copy_indices
from scorch._src.backends.cpu.routines.copy_indices import copied_indices

INTEGERS = (torch.int32, torch.int64)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("given", INTEGERS)
@pytest.mark.parametrize("wanted", INTEGERS)
def test_a_copy_has_the_same_numbers(
    threads: int, given: torch.dtype, wanted: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "relative_cost", lambda threads: 0.2)
    monkeypatch.setattr(copy_indices, "MIN_ENTRIES_PER_THREAD", 1)
    array = torch.randint(0, 1 << 31, (copy_indices.MIN_ENTRIES + 7,), dtype=given)
    with scorch.settings(threads=threads):
        copy = copied_indices(array, wanted)
    assert copy is not None
    assert copy.dtype == wanted
    assert torch.equal(copy, array.to(wanted))
    assert copy.data_ptr() != array.data_ptr()


def test_arrays_that_are_short_or_have_gaps_are_left_to_torch() -> None:
    long = torch.arange(4 * copy_indices.MIN_ENTRIES)
    assert copied_indices(long[:9], torch.int32) is None
    assert copied_indices(long[::2], torch.int32) is None
    assert copied_indices(long.to(torch.int16), torch.int32) is None


def test_a_matrix_does_not_change_with_the_arrays_that_it_was_made_of() -> None:
    rows = 2 * copy_indices.MIN_ENTRIES
    pointers, columns = torch.arange(rows + 1), torch.arange(rows)
    A = scorch.sparse_csr_tensor(pointers, columns, torch.ones(rows), (rows, rows))
    pointers.zero_(), columns.zero_()
    assert torch.equal(A.crow_indices().long(), torch.arange(rows + 1))
    assert torch.equal(A.col_indices().long(), torch.arange(rows))
