"""Extremes of groups whose values lie anywhere, beside those that are gathered first."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.backends.cpu.routines import extremes, take
from scorch._src.events import LISTENERS, Event
from torch_has import needs_builtins

pytestmark = needs_builtins


@pytest.mark.parametrize("how", extremes.KINDS)
@pytest.mark.parametrize("dtype", take.RUN_DTYPES)
def test_extremes_are_those_of_gathered_groups(dtype: torch.dtype, how: str) -> None:
    draw = torch.Generator().manual_seed(0)
    group = torch.randint(0, 3000, (40_000,), generator=draw)
    group[group == 7] = 8
    values = torch.randint(-100, 100, (40_000,), generator=draw).to(dtype)
    if dtype.is_floating_point:
        values[::97], values[5], values[100:200] = torch.nan, torch.inf, -torch.inf
        values[group == 9] = -torch.inf
    order = torch.sort(group, stable=True)[1]
    begins = torch.nn.functional.pad(torch.bincount(group, minlength=3000).cumsum(0), (1, 0))
    wanted = take.reduced_runs(values, begins, how, order)
    assert wanted is not None
    has_some = begins.diff() > 0
    for threads in (1, 2):
        with scorch.settings(threads=threads):
            found = extremes.scattered_extremes(values, group, begins, how)
        assert found is not None and found[7] == 0
        torch.testing.assert_close(found[has_some], wanted[has_some], rtol=0, atol=0, equal_nan=True)


def test_more_copies_of_groups_than_values_are_not_made() -> None:
    values, group = torch.ones(100), torch.arange(100) * 10
    begins = torch.nn.functional.pad(torch.bincount(group, minlength=1000).cumsum(0), (1, 0))
    assert extremes.scattered_extremes(values, group, begins, "amax") is None


@pytest.mark.whole
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr(2,5)"])
def test_the_first_extreme_of_columns_is_found_in_all_formats(form: str) -> None:
    dense = torch.randint(-3, 4, (60, 50), generator=torch.Generator().manual_seed(0)).float()
    S, heard = scorch.from_torch(dense, format=form), list[Event]()
    LISTENERS.append(heard.append)
    try:
        for dim in (0, 1):
            assert torch.equal(torch.argmax(S, dim), dense.argmax(dim))
            assert torch.equal(torch.argmin(S, dim), dense.argmin(dim))
            assert torch.equal(torch.amax(S, dim), dense.amax(dim))
    finally:
        LISTENERS.remove(heard.append)
    assert "extremes of groups" in {event.subject for event in heard}
