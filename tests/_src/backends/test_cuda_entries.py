"""Entries are sorted and added up by the text of kernels for CUDA devices, run on the host."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from grid_emulator import EmulatedRoutines
from scorch._src.backends.cuda import entries as cuda_entries
from scorch._src.backends.routines import Routines, Sorted

ROUTINES = EmulatedRoutines()


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_entries, "FEW", 16)
    monkeypatch.setattr(cuda_entries, "FEW_TERMS", 4)
    monkeypatch.setattr(cuda_entries, "MAX_LARGEST", 128)


def skewed(count: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Draw coordinates of which one is much more frequent than others."""
    drawn = torch.randint(size, (count,), generator=generator)
    return torch.where(torch.rand(count, generator=generator) < 0.4, size // 2, drawn)


@given(st.data())
def test_sorted_as_by_torch(data):
    sizes = data.draw(st.sampled_from([(5, 7), (40, 3), (1, 90), (6, 4, 5), (2, 3, 4, 5), (9,), (2**40, 3)]))
    count, index = data.draw(st.integers(0, 300)), data.draw(st.sampled_from([torch.int32, torch.int64]))
    if max(sizes) > 2**31:
        index = torch.int64
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    columns = [skewed(count, size, generator).to(index) for size in sizes]
    if data.draw(st.booleans()):
        keys = torch.stack(columns).unique(dim=1) if count else torch.stack(columns)
        columns = list(keys[:, torch.randperm(keys.shape[1], generator=generator)].contiguous())
        if data.draw(st.booleans()):
            columns = list(keys.contiguous())
    values = torch.randn(columns[0].numel(), *data.draw(st.sampled_from([(), (2,)])), generator=generator)
    values = values.to(data.draw(st.sampled_from([torch.float32, torch.float64, torch.float16])))
    found, wanted = ROUTINES.sort_entries(columns, sizes), Routines().sort_entries(columns, sizes)
    if not isinstance(wanted, Sorted):
        assert found == wanted
        return
    assert isinstance(found, Sorted)
    assert torch.equal(found.order.long(), wanted.order)
    for one, other in zip(found.columns, wanted.columns, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(ROUTINES.sum_entries(found, values), Routines().sum_entries(wanted, values))


@given(st.data())
def test_transposed_as_by_torch(data):
    rows, columns = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
    index = data.draw(st.sampled_from([torch.int32, torch.int64]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    kept = torch.rand(rows, columns, generator=generator) < data.draw(st.sampled_from([0.0, 0.1, 0.6, 1.0]))
    kept &= torch.rand(rows, 1, generator=generator) < 0.8
    pos = torch.cat([torch.zeros(1, dtype=torch.int64), kept.sum(1).cumsum(0)]).to(index)
    crd = kept.nonzero()[:, 1].to(index)
    found = ROUTINES.transpose_rows(pos, crd, columns)
    for one, other in zip(found, Routines().transpose_rows(pos, crd, columns), strict=True):
        assert torch.equal(one.long(), other.long())
    assert found[0].dtype == found[1].dtype == index


def test_kernels_are_taken(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("torch sorts")

    monkeypatch.setattr(torch, "sort", refuse)
    places = torch.randint(30, (2, 200))
    values = torch.rand(200)
    with scorch.settings(backend="emulated"):
        S = scorch.sparse_coo_tensor(places, values, (30, 30))
        moved = S.to_format("csr").to_format("csc")
    monkeypatch.undo()
    wanted = torch.zeros(30, 30).index_put((places[0], places[1]), values, accumulate=True)
    torch.testing.assert_close(moved.to_dense(), wanted)
