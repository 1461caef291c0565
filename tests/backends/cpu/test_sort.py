"""Entries are sorted by their coordinates, of any number and size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.routines import parse_table
from scorch._src.backends.cpu.routines.sort import sort_entries
from scorch._src.backends.routines import Routines
from scorch.errors import CompilerNotFoundError


@given(st.data())
def test_any_entries(data):
    dims = data.draw(st.integers(1, 4))
    sizes = [data.draw(st.sampled_from([1, 2, 5, 300, 70_000, 2**20, 2**40])) for _ in range(dims)]
    count = data.draw(st.integers(1, 60))
    dtype = torch.int64 if max(sizes) > 2**31 else torch.int32
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    columns = [torch.randint(0, size, (count,), generator=generator).to(dtype) for size in sizes]
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    found = sort_entries(columns, sizes)
    if len(set(rows)) < count:
        assert found is False
    elif rows == sorted(rows):
        assert found is True
    else:
        order, moved, _ = found
        assert [rows[n] for n in order.tolist()] == sorted(rows)
        assert list(zip(*(column.tolist() for column in moved), strict=True)) == sorted(rows)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_columns_in_order_become_rows(dtype):
    columns = [torch.tensor([2, 0, 1, 0], dtype=dtype), torch.tensor([0, 1, 1, 2], dtype=dtype)]
    order, moved, _ = sort_entries(columns, (3, 3))
    assert order.tolist() == [1, 3, 2, 0]
    assert [column.tolist() for column in moved] == [[0, 0, 1, 2], [1, 2, 1, 0]]


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.complex128, torch.int8, torch.int64, torch.bool]


@given(st.data())
def test_entries_that_repeat_are_added_up(data):
    sizes = data.draw(st.sampled_from([(3,), (4, 5), (2, 3, 2), (2**40, 2**40)]))
    count, below = data.draw(st.integers(0, 40)), data.draw(st.sampled_from([(), (2,), (2, 3)]))
    dtype = data.draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    columns = [torch.randint(0, min(size, 5), (count,), generator=generator) for size in sizes]
    values = torch.randint(-3, 4, (count, *below), generator=generator).to(dtype)
    found = Routines().sort_entries(columns, sizes)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    wanted = {row: torch.zeros(below, dtype=dtype) for row in sorted(rows)}
    for row, value in zip(rows, values, strict=True):
        wanted[row] = wanted[row] + value
    if found is True:
        assert list(wanted) == rows
        return
    assert list(zip(*(column.tolist() for column in found.columns), strict=True)) == list(wanted)
    torch.testing.assert_close(Routines().sum_entries(found, values), torch.stack(list(wanted.values())))


def test_no_entries_are_in_order():
    assert sort_entries([torch.zeros(0, dtype=torch.int32)], (5,)) is True


def test_without_a_compiler_others_do_it(monkeypatch):
    def none(*_: object) -> None:
        raise CompilerNotFoundError("no compiler")

    monkeypatch.setattr(jit, "load", none)
    jit._function_address.cache_clear()
    try:
        assert sort_entries([torch.tensor([1, 0], dtype=torch.int32)], (5,)) is None
        assert parse_table.parse_table(b"1 1\n", 0, (5,), 1, False) is None
    finally:
        jit._function_address.cache_clear()
