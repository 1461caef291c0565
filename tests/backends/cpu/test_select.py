"""Values of given ranks, beside ``sort``."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.backends.base import backend_for
from scorch._src.backends.cpu.routines import select
from scorch._src.events import LISTENERS, Event
from torch_has import needs_builtins

pytestmark = needs_builtins
RANKS = [0, 1, 77, 15_000, 28_999, 29_999]


def draw(dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(30_000, generator=torch.Generator().manual_seed(0)) * 50
    values = (values.abs() if dtype == torch.uint8 else values).to(dtype)
    values[::9] = 0
    if dtype.is_floating_point:
        values[::97], values[5], values[6], values[7] = torch.nan, torch.inf, -torch.inf, -0.0
    return values


@pytest.mark.parametrize("dtype", select.SELECTED_DTYPES)
def test_values_of_ranks_are_those_of_the_sorted(dtype: torch.dtype) -> None:
    values = draw(dtype)
    for threads in (1, 2):
        with scorch.settings(threads=threads):
            found = select.selected(values, RANKS)
            counted = select.signs_counted(values)
        assert found is not None and found.dtype == dtype
        torch.testing.assert_close(found, torch.sort(values)[0][RANKS], rtol=0, atol=0, equal_nan=True)
        assert counted == (int((values < 0).sum()), int((values != 0).sum()), int(values.isnan().sum()))


def test_few_values_many_ranks_and_other_layouts_are_left_to_torch() -> None:
    values = draw(torch.float32)
    assert select.selected(values[:100], [3]) is None
    assert select.selected(values, list(range(100))) is None
    assert select.selected(values[::2], [3]) is None
    routines = backend_for().routines
    assert torch.equal(routines.select(values[::2], [3, 5000]), torch.sort(values[::2])[0][[3, 5000]])


def test_a_median_of_all_elements_sorts_nothing() -> None:
    dense = draw(torch.float32).nan_to_num_().view(150, 200)
    dense[dense.abs() < 10] = 0
    S = scorch.from_torch(dense, format="csr")
    quantiles, heard = torch.tensor([0.0, 0.1, 0.5, 0.93, 1.0]), list[Event]()
    LISTENERS.append(heard.append)
    try:
        median, found = torch.median(S), torch.quantile(S, quantiles)
    finally:
        LISTENERS.remove(heard.append)
    assert torch.equal(median, dense.median())
    torch.testing.assert_close(found.to_dense(), torch.quantile(dense, quantiles))
    assert {event.subject for event in heard} == {"values of given ranks"}
