"""Reductions of runs, beside ``scatter_reduce``."""

from __future__ import annotations

import functools

import pytest
import torch

import scorch
from scorch._src.backends.base import backend_for
from scorch._src.backends.cpu.routines import extremes, take

SIZES = ((0, 3), (1, 1), (7, 3), (1000, 17), (40_000, 3000), (40_000, 1))


def runs(count: int, groups: int) -> torch.Tensor:
    """Where groups begin, some of which are empty, and the end."""
    cuts = torch.randint(0, count + 1, (groups - 1,)).sort()[0]
    return torch.cat([torch.tensor([0]), cuts, torch.tensor([count])])


@pytest.mark.parametrize("how", (*take.TOTALS, *take.PLACES))
@pytest.mark.parametrize("dtype", take.RUN_DTYPES)
def test_runs_are_reduced_as_by_scatter_reduce(dtype: torch.dtype, how: str) -> None:
    if dtype == torch.bool and how in take.ADDING:
        pytest.skip("PyTorch adds and multiplies in other dtypes")
    for count, groups in SIZES:
        begins = runs(count, groups)
        values = torch.randint(-100, 100, (count,)).to(dtype)
        if dtype.is_floating_point:
            values = values if how == "sum" else values / 50
            values[::97], values[5:6] = torch.nan, torch.inf
        order = torch.randperm(count)
        group = torch.arange(groups).repeat_interleave(begins.diff())
        for moved in (None, order):
            ordered = values if moved is None else values[moved]
            found = {}
            for threads in (1, 2):
                with scorch.settings(threads=threads):
                    found[threads] = backend_for().routines.reduce_runs(values, begins, how, moved)
            assert found[1] is not None and found[2] is not None
            torch.testing.assert_close(found[1], found[2], rtol=0, atol=0, equal_nan=True)
            if how in take.PLACES:
                place = first_extreme(ordered, group, groups, how)
                wanted = place if moved is None or not count else moved[place]
                has_some = begins.diff() > 0
                assert torch.equal(found[1][has_some], wanted[has_some])
                continue
            name = {"sum": "sum", "prod": "prod"}.get(how, how)
            wide = ordered.to(torch.uint8) if dtype == torch.bool else ordered
            wanted = wide.new_zeros(groups).scatter_reduce(0, group, wide, reduce=name, include_self=False)
            torch.testing.assert_close(found[1], wanted.to(dtype), equal_nan=True)


def first_extreme(values: torch.Tensor, group: torch.Tensor, groups: int, how: str) -> torch.Tensor:
    """Where the first extreme of each group is, NaN being more than any other."""
    wide = torch.where(values.isnan(), torch.inf, values.double() * (1 if how == "argmax" else -1))
    wide = torch.where(wide.isinf() & (wide > 0) & ~values.isnan(), 1e300, wide)
    best = wide.new_zeros(groups).scatter_reduce(0, group, wide, "amax", include_self=False)[group]
    numbers = torch.arange(values.numel()).masked_fill(wide != best, values.numel())
    return numbers.new_zeros(groups).scatter_reduce(0, group, numbers, "amin", include_self=False)


def test_what_cannot_be_read_is_left_to_torch() -> None:
    begins = torch.tensor([0, 2, 4])
    for values in (torch.ones(4, dtype=torch.bfloat16), torch.ones(8)[::2], torch._efficientzerotensor(4)):
        assert take.reduced_runs(values, begins, "amax") is None
    assert take.reduced_runs(torch.ones(4), begins, "mean") is None


@pytest.mark.parametrize("dim", [0, 1])
def test_reductions_take_the_same_value_from_runs(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = torch.randn(40, 30) * (torch.rand(40, 30) < 0.2)
    S = scorch.from_torch(dense, format="csr")
    calls = []
    for name, original in (
        ("reduce_runs", take.reduced_runs),
        ("scattered_extremes", extremes.scattered_extremes),
    ):
        counted = functools.partial(lambda run, *given: calls.append(1) or run(*given), original)
        monkeypatch.setattr(type(backend_for().routines), name, staticmethod(counted))
    for name in ("amax", "amin", "argmax", "argmin", "prod", "cumsum", "cumprod"):
        calls.clear()
        torch.testing.assert_close(getattr(torch, name)(S, dim).to_dense(), getattr(torch, name)(dense, dim))
        assert calls, name


@pytest.mark.whole
def test_what_is_a_sum_is_computed_by_the_kernel_of_sums() -> None:
    dense = torch.randn(40, 30) * (torch.rand(40, 30) < 0.2)
    dense[3], dense[4, 5] = 1.5, torch.nan
    S = scorch.from_torch(dense, format="csr")
    calls = [getattr(torch, name) for name in ("nansum", "count_nonzero", "any", "all")]
    calls += [functools.partial(torch.linalg.vector_norm, ord=ord) for ord in (0, 0.5, 1, 2, 3)]
    for call in calls:
        for dim in (0, 1, -1):
            torch.testing.assert_close(call(S, dim=dim), call(dense, dim=dim), equal_nan=True)
    assert not len(S.storage.pattern.groups)


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_numbers_are_summed_by_the_kernel_of_sums(dtype: torch.dtype) -> None:
    dense = (torch.randint(-3, 4, (40, 30)) * (torch.rand(40, 30) < 0.2)).to(dtype)
    S = scorch.from_torch(dense, format="csr")
    for call in (torch.sum, torch.count_nonzero, torch.any, torch.all):
        for dim in (0, 1):
            found, wanted = call(S, dim=dim), call(dense, dim=dim)
            assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    assert not len(S.storage.pattern.groups)


def test_counts_that_are_kept_with_a_pattern_say_nothing_of_other_values() -> None:
    dense = torch.randn(40, 30) * (torch.rand(40, 30) < 0.2)
    S = scorch.from_torch(dense, format="csr")
    for dim in (0, 1):
        counts = torch.linalg.vector_norm(S, ord=0, dim=dim)
        assert torch.equal(counts, (dense != 0).sum(dim).float())
        counts += 1  # is the caller's
        assert torch.equal(torch.count_nonzero(S, dim), (dense != 0).sum(dim))
    with_zeros = S * (S.detach().to_dense() > 0)
    assert torch.equal(torch.count_nonzero(with_zeros, 0), (dense > 0).sum(0))
    S.values().clamp_(min=0)
    assert torch.equal(S.any(0), (dense > 0).any(0))
    assert torch.equal(torch.count_nonzero(S, 1), (dense > 0).sum(1))


def test_a_sum_that_is_no_number_of_infinities_is_none_of_numbers() -> None:
    dense = torch.zeros(3, 4)
    dense[0, 1], dense[2, 1], dense[1, 2], dense[2, 2] = torch.inf, -torch.inf, torch.nan, 2
    S = scorch.from_torch(dense, format="csr")
    for dim in (0, 1):
        torch.testing.assert_close(torch.nansum(S, dim), torch.nansum(dense, dim), equal_nan=True)


@pytest.mark.parametrize("how", take.SORTED)
@pytest.mark.parametrize("dtype", take.RUN_DTYPES)
def test_runs_are_sorted_as_by_torch(dtype: torch.dtype, how: str) -> None:
    for count, groups in SIZES:
        begins, order = runs(count, groups), torch.randperm(count)
        values = torch.randint(-20, 20, (count,)).to(dtype)
        if dtype.is_floating_point:
            values[::7], values[5:6], values[8:9] = torch.nan, torch.inf, -0.0
        group = torch.arange(groups).repeat_interleave(begins.diff())
        for moved in (None, order):
            ordered = values if moved is None else values[moved]
            by_value = torch.sort(ordered, stable=True, descending=how == "descending")[1]
            wanted = by_value[torch.sort(group[by_value], stable=True)[1]]
            for threads in (1, 2):
                with scorch.settings(threads=threads):
                    found = backend_for().routines.reduce_runs(values, begins, how, moved)
                assert found is not None
                assert torch.equal(found, wanted if moved is None else moved[wanted])


@pytest.mark.parametrize("how", take.SCANNED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_runs_are_scanned_as_by_torch(dtype: torch.dtype, how: str) -> None:
    for count, groups in SIZES:
        begins, order = runs(count, groups), torch.randperm(count)
        values = (torch.randint(-9, 9, (count,)) / 4).to(dtype)
        for moved in (None, order):
            ordered = values if moved is None else values[moved]
            parts = ordered.split(begins.diff().tolist())
            wanted = torch.cat([getattr(torch, how)(part, 0, dtype=dtype) for part in parts])
            for threads in (1, 2):
                with scorch.settings(threads=threads):
                    found = backend_for().routines.reduce_runs(values, begins, how, moved)
                assert found is not None
                assert torch.equal(found if moved is None else found[moved], wanted)


@pytest.mark.whole
def test_other_devices_get_the_same_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = torch.randint(-3, 4, (12, 9)).double() * (torch.rand(12, 9) < 0.7)
    dense[2:4], dense[5] = 0, 1.5
    for form in ("csr", "csc", "coo"):
        results = []
        for dtypes in (take.RUN_DTYPES, ()):
            monkeypatch.setattr(type(backend_for().routines), "run_dtypes", dtypes)
            S = scorch.from_torch(dense, format=form)
            for dim in (0, 1):
                found = [getattr(torch, name)(S, dim) for name in ("sum", "prod", "amax", "argmax", "argmin")]
                found += [torch.cumsum(S, dim), torch.cumprod(S, dim), *torch.median(S, dim)]
                found += [torch.logsumexp(S, dim), torch.sparse.softmax(S, dim), *torch.mode(S, dim)]
                results.append([array.to_dense() for array in found])
        torch.testing.assert_close(results[:2], results[2:])
        torch.testing.assert_close(results[0][3], dense.argmax(0))
