"""Sorting more keys than torch sorts at once on a GPU: in parts, which are merged."""

from __future__ import annotations

import pytest
import torch

from scorch._src.backends import sort_entries
from scorch._src.backends.sort_entries import distinct, stable_sort

SIZES = (0, 1, 4, 7, 8, 9, 30, 101)


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort_entries, "MAX_AT_ONCE", 7)
    monkeypatch.setattr(sort_entries, "PART", 3)
    monkeypatch.setattr(sort_entries, "_are_sorted_at_once", lambda keys: keys.numel() <= 7)


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_parts_are_merged_in_order(dtype: torch.dtype) -> None:
    for size in SIZES:
        keys = torch.randint(-6, 6, (size,)).to(dtype)
        found, order = stable_sort(keys)
        wanted, its_order = torch.sort(keys, stable=True)
        assert torch.equal(found, wanted) and torch.equal(order, its_order) and found.dtype == dtype


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("is_sorted", [True, False])
def test_keys_are_distinguished(is_sorted: bool) -> None:
    for size in SIZES:
        keys = torch.randint(-6, 6, (size,))
        keys = keys.sort()[0] if is_sorted else keys
        wanted = torch.unique(keys, return_inverse=True, return_counts=True)
        for one, other in zip(distinct(keys, is_sorted), wanted, strict=True):
            assert torch.equal(one, other)
