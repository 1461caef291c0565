"""The largest and smallest values of runs, beside ``scatter_reduce``."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.backends.base import backend_for
from scorch._src.backends.cpu.routines import take

SIZES = ((0, 3), (1, 1), (7, 3), (1000, 17), (40_000, 3000), (40_000, 1))


def runs(count: int, groups: int) -> torch.Tensor:
    """Where groups begin, some of which are empty, and the end."""
    cuts = torch.randint(0, count + 1, (groups - 1,)).sort()[0]
    return torch.cat([torch.tensor([0]), cuts, torch.tensor([count])])


@pytest.mark.parametrize("how", ["amax", "amin"])
@pytest.mark.parametrize("dtype", take.RUN_DTYPES)
def test_extremes_are_those_of_scatter_reduce(dtype: torch.dtype, how: str) -> None:
    for count, groups in SIZES:
        begins = runs(count, groups)
        values = torch.randint(-100, 100, (count,)).to(dtype)
        if dtype.is_floating_point:
            values[::97], values[5:6] = torch.nan, torch.inf
        wide = values.to(torch.uint8) if dtype == torch.bool else values
        group = torch.arange(groups).repeat_interleave(begins.diff())
        wanted = wide.new_zeros(groups).scatter_reduce(0, group, wide, reduce=how, include_self=False)
        for threads in (1, 2):
            with scorch.settings(threads=threads):
                found = backend_for().routines.reduce_runs(values, begins, how)
            assert found is not None and found.dtype == dtype
            torch.testing.assert_close(found, wanted.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_what_cannot_be_read_is_left_to_torch() -> None:
    begins = torch.tensor([0, 2, 4])
    for values in (torch.ones(4, dtype=torch.bfloat16), torch.ones(8)[::2], torch._efficientzerotensor(4)):
        assert take.extremes_of(values, begins, "amax") is None
    assert take.extremes_of(torch.ones(4), begins, "prod") is None


@pytest.mark.parametrize("dim", [0, 1])
def test_reductions_take_the_same_value_from_runs(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = torch.randn(40, 30) * (torch.rand(40, 30) < 0.2)
    S = scorch.from_torch(dense, format="csr")
    calls = []
    original = take.extremes_of
    monkeypatch.setattr(
        type(backend_for().routines), "reduce_runs", lambda self, *given: calls.append(1) or original(*given)
    )
    for name in ("amax", "amin", "argmax", "argmin"):
        assert torch.equal(getattr(torch, name)(S, dim).to_dense(), getattr(torch, name)(dense, dim)), name
    assert calls
