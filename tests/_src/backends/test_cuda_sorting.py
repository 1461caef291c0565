"""Entries are transposed and coalesced by the text of kernels for CUDA devices, run on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from grid_emulator import EmulatedKernel, EmulatedRoutines
from scorch._src.backends.cuda import kernel, sorting
from scorch._src.backends.cuda.kernel import Launches
from scorch._src.backends.routines import Routines
from scorch.errors import DtypeError, IndexRangeError

ROUTINES = EmulatedRoutines()
PLAIN = Routines()


def compressed(
    rows: int, columns: int, share: float, index: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    S = (torch.rand(rows, columns) < share).to_sparse_csr()
    return S.crow_indices().to(index), S.col_indices().to(index)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("columns", [1, 40, 65_536, 65_537])
def test_columns_are_those_of_torch(columns: int, index: torch.dtype) -> None:
    for rows, share in ((1, 0.5), (7, 0.01), (300, 20 / columns)):
        pos, crd = compressed(rows, columns, share, index)
        found, wanted = (routines.transpose_rows(pos, crd, columns) for routines in (ROUTINES, PLAIN))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))
        assert found[0].dtype == found[1].dtype == index


def test_a_matrix_by_columns_takes_three_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = torch.rand(30, 40) * (torch.rand(30, 40) < 0.2)
    record = Launches()
    with scorch.settings(backend="emulated"):
        S = scorch.from_torch(dense.to_sparse_csr())
        monkeypatch.setattr(kernel, "LAUNCHES", [record])
        T = S.to_format("csc")
        monkeypatch.undo()
        assert torch.equal(T.to_dense(), dense)
    names = [launch.name for _, launch, _ in record.launched]
    assert names == ["scorch_list_entries", "scorch_place_entries", "scorch_compute"]


def check_coalesced(places: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> Any:
    with scorch.settings(backend="emulated"):
        S = scorch.sparse_coo_tensor(places, values, shape)
        again = scorch.sparse_coo_tensor(places, values, shape)
    wanted = torch.sparse_coo_tensor(places.long(), values, shape).coalesce()
    assert torch.equal(S.indices(), wanted.indices())
    torch.testing.assert_close(S.values(), wanted.values())
    assert torch.equal(S.values(), again.values())
    return S


@given(st.data())
def test_entries_are_those_of_torch(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(6,), (5, 7), (1, 1), (3, 4, 5), (2, 2, 2, 3), (1 << 20, 1 << 20)]))
    count = data.draw(st.sampled_from([2, 3, 50, 700]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    index = data.draw(st.sampled_from([torch.int32, torch.int64]))
    places = torch.stack([torch.randint(size, (count,), generator=generator) for size in shape])
    if data.draw(st.booleans()):
        places[:, count // 3 :: 2] = places[:, :1]  # more than a thread adds up
    dtypes = [torch.float32, torch.float64, torch.int32, torch.int64, torch.float16, torch.complex64]
    dense = data.draw(st.sampled_from([(), (2,)]))
    values = torch.randint(-9, 9, (count, *dense), generator=generator)
    values = values.to(data.draw(st.sampled_from(dtypes)))
    check_coalesced(places.to(index), values, (*shape, *dense))


def test_coordinates_with_gaps_between_them_are_taken() -> None:
    places = torch.randint(5, (40, 2)).T
    check_coalesced(places, torch.rand(40), (5, 5))
    check_coalesced(places, torch.rand(80)[::2], (5, 5))


def test_entries_that_are_sorted_share_their_values() -> None:
    places, values = torch.tensor([[0, 0, 2], [1, 3, 0]]), torch.tensor([1.0, 2.0, 3.0])
    S = check_coalesced(places, values, (3, 4))
    assert S.values().data_ptr() == values.data_ptr()


@pytest.mark.parametrize("few", [1, 1 << 20])
def test_coordinates_outside_are_refused(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "MIN_LOOKED_AT", few)
    for wrong in (-1, 4):
        places = torch.tensor([[2, 0, 0], [0, wrong, 3]])
        refused = pytest.raises(IndexRangeError, match=rf"indices\[1\] has {wrong} at entry 1")
        with scorch.settings(backend="emulated"), refused:
            scorch.sparse_coo_tensor(places, torch.ones(3), (3, 4))
    check_coalesced(torch.tensor([[0, 0, 2], [1, 3, 0]]), torch.ones(3), (3, 4))
    check_coalesced(torch.tensor([[2, 0, 2], [1, 3, 1]]), torch.ones(3), (3, 4))


def test_the_number_of_places_is_all_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    read = torch.Tensor.tolist

    def tolist(self: torch.Tensor) -> Any:
        waited.append(self.numel())
        return read(self)

    def refuse(*_: object) -> None:
        raise AssertionError("the host waits once more")

    places, values = torch.randint(30, (2, 200)), torch.rand(200)
    for name in ("__bool__", "item", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    with scorch.settings(backend="emulated"):
        scorch.sparse_coo_tensor(places, values, (30, 30)).coalesce()
    assert waited == [4]


def test_torch_does_it_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedKernel, "is_ready", lambda kernel: False)
    pos, crd = compressed(20, 30, 0.2, torch.int32)
    found, wanted = (routines.transpose_rows(pos, crd, 30) for routines in (EmulatedRoutines(), PLAIN))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))
    assert EmulatedRoutines().coalesce([crd, crd], (30, 30), torch.rand(crd.numel()), torch.int32) is None
    check_coalesced(torch.randint(9, (2, 50)), torch.rand(50), (9, 9))


def test_dtypes_without_a_kernel_are_refused_as_before() -> None:
    with scorch.settings(backend="emulated"), pytest.raises(DtypeError):
        scorch.sparse_coo_tensor(torch.rand(2, 3), torch.ones(3), (3, 4))
