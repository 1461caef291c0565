"""Entries are transposed and coalesced by the text of kernels for CUDA devices, run on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from grid_emulator import EmulatedKernel, EmulatedRoutines
from scorch._src.backends.cuda.device import kernel, streams
from scorch._src.backends.cuda.device.kernel import Launches
from scorch._src.backends.cuda.routines import coalescing
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
        places[:, count // 3 :: 2] = places[:, :1].clone()  # more than a thread adds up
    dtypes = [torch.float32, torch.float64, torch.int32, torch.int64, torch.float16, torch.complex64]
    dense = data.draw(st.sampled_from([(), (2,)]))
    values = torch.randint(-9, 9, (count, *dense), generator=generator)
    values = values.to(data.draw(st.sampled_from(dtypes)))
    check_coalesced(places.to(index), values, (*shape, *dense))


def drawn_places(kind: str, count: int, size: int) -> torch.Tensor:
    """Draw the places of entries in a square matrix."""
    keys = torch.randint(size * size, (count,))
    if kind in ("sorted", "reversed"):
        keys = keys.sort(descending=kind == "reversed").values
    if kind == "by columns":
        keys = keys.sort().values * size % (size * size)
    if kind == "many repeat":
        keys[count // 4 :] %= 5
    if kind == "one place":
        keys = torch.full((count,), size + 1)
    return torch.stack([keys // size, keys % size])


@pytest.mark.sampled(2)
@pytest.mark.whole
@pytest.mark.parametrize("kind", ["any", "sorted", "reversed", "by columns", "many repeat", "one place"])
def test_entries_of_many_buckets_are_those_of_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample is compared with itself, or sorted as entries are; not all splitters fit into a block."""
    check_coalesced(drawn_places(kind, 3000, 90), torch.rand(3000), (90, 90))
    monkeypatch.setattr(coalescing, "MAX_RANKED", 100)
    monkeypatch.setattr(coalescing, "MAX_KEPT", 3)
    check_coalesced(drawn_places(kind, 5000, 90), torch.rand(5000, dtype=torch.float64), (90, 90))
    monkeypatch.setattr(coalescing, "MAX_COUNTED", 6)  # buckets that the threads of a block count together
    check_coalesced(drawn_places(kind, 4000, 90), torch.rand(4000, dtype=torch.float64), (90, 90))


@pytest.mark.parametrize("shared, threads, launches", [(100 << 10, 1024, 5), (64 << 10, 512, 7)])
def test_larger_buckets_spare_the_sort_of_a_sample(
    shared: int, threads: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million entries; blocks of a device with less shared memory cannot sort such buckets."""
    routines, count = EmulatedRoutines(), 1_000_000
    routines.most_threads, routines.widest = 512, 1024
    monkeypatch.setattr(routines, "shared_memory", lambda device: shared)
    columns = [torch.zeros(1, dtype=torch.int64).expand(count) for _ in range(2)]
    plan = routines._plan_entries(columns, (1 << 16, 1 << 16), torch.empty(count), torch.int32, count)
    assert plan is not None and len(plan.launches.launches) == launches
    (sorting,) = [
        launch for launch, number in plan.launches.launches if launch.name == "scorch_sort" and not number
    ]
    assert sorting.threads == threads and sorting.shared <= shared


def bits_of(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int64 if values.dtype == torch.float64 else torch.int32)


@pytest.mark.parametrize("count", [70, 1023, 1024, 1025, 2600])
def test_sums_have_the_same_bits_with_and_without_kernels(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places with more entries than a thread adds up may begin in one bucket and end in another."""
    for seed in range(12):
        torch.manual_seed(seed)
        places, values = torch.randint(90, (2, count)), torch.randn(count)
        for start, length in ((0, coalescing.FEW), (200, coalescing.FEW + 1)):
            places[:, start : start + length] = torch.randint(90, (2, 1))
        order = torch.randperm(count)
        places, values = places[:, order], values[order]
        S = check_coalesced(places, values, (90, 90))
        with monkeypatch.context() as patch:
            patch.setattr(EmulatedRoutines, "coalesce", Routines.coalesce)
            other = check_coalesced(places, values, (90, 90))
        assert torch.equal(bits_of(S.values()), bits_of(other.values()))


def test_few_entries_take_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, launches in ((2, 1), (1024, 1), (1025, 4)):
        record = Launches()
        with monkeypatch.context() as patch:
            patch.setattr(kernel, "LAUNCHES", [record])
            check_coalesced(drawn_places("any", count, 90), torch.rand(count), (90, 90))
        assert len(record.launched) == 2 * launches


def test_buckets_that_overflow_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "FILLED", 1.0)
    places, values = drawn_places("any", 5000, 90), torch.rand(5000)
    assert ROUTINES.coalesce([*places], (90, 90), values, torch.int32) is None
    monkeypatch.setattr(coalescing, "MAX_RANKED", 50)  # that of the sample does
    assert ROUTINES.coalesce([*places], (90, 90), values, torch.int32) is None
    check_coalesced(places, values, (90, 90))


def test_numbers_of_64_bits_are_sorted() -> None:
    """Both the coordinates and the entry of the last number have no bit that is zero."""
    places = torch.randint(1 << 31, (2, 4))
    places[:, 3] = (1 << 31) - 1
    check_coalesced(places, torch.rand(4), (1 << 31, 1 << 31))
    flat = torch.cat([torch.zeros(1, 4, dtype=torch.int64), places])  # a dimension without bits above them
    check_coalesced(flat, torch.rand(4), (1, 1 << 31, 1 << 31))
    places = torch.randint(1 << 31, (2, 5))
    assert ROUTINES.coalesce([*places], (1 << 31, 1 << 31), torch.rand(5), torch.int32) is None
    check_coalesced(places, torch.rand(5), (1 << 31, 1 << 31))


@pytest.mark.parametrize("count", [0, 1])
def test_few_entries_are_listed(count: int) -> None:
    check_coalesced(torch.ones(2, count, dtype=torch.int64), torch.rand(count), (3, 4))


def test_memory_is_shortened_where_many_repeat() -> None:
    for count, size in ((300, 300), (300, 9)):
        S = check_coalesced(drawn_places("any", count, size), torch.rand(count), (size, size))
        arrays = (*S.storage.pattern.arrays[1:], S.storage.values)
        assert all(array.untyped_storage().nbytes() * 3 <= array.nbytes * 4 for array in arrays)


def test_coordinates_with_gaps_between_them_are_taken() -> None:
    places = torch.randint(5, (40, 2)).T
    check_coalesced(places, torch.rand(40), (5, 5))
    check_coalesced(places, torch.rand(80)[::2], (5, 5))


def test_entries_that_are_sorted_share_their_values() -> None:
    places, values = torch.tensor([[0, 0, 2], [1, 3, 0]]), torch.tensor([1.0, 2.0, 3.0])
    S = check_coalesced(places, values, (3, 4))
    assert S.values().data_ptr() == values.data_ptr()


def test_coordinates_outside_are_refused() -> None:
    for wrong in (-1, 4):
        places = torch.tensor([[2, 0, 0], [0, wrong, 3]])
        refused = pytest.raises(IndexRangeError, match=rf"indices\[1\] has {wrong} at entry 1")
        with scorch.settings(backend="emulated"), refused:
            scorch.sparse_coo_tensor(places, torch.ones(3), (3, 4))
    check_coalesced(torch.tensor([[0, 0, 2], [1, 3, 0]]), torch.ones(3), (3, 4))
    check_coalesced(torch.tensor([[2, 0, 2], [1, 3, 1]]), torch.ones(3), (3, 4))


def test_the_number_of_places_is_all_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    wait = streams.Told.wait

    def refuse(*arguments: Any) -> None:
        raise AssertionError("the host waits for the device")

    def counted(told: streams.Told) -> list[int]:
        waited.append(len(told.numbers))
        return wait(told)

    places, values = torch.randint(30, (2, 200)), torch.rand(200)
    for name in ("__bool__", "item", "nonzero", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    monkeypatch.setattr(streams.Told, "wait", counted)
    with scorch.settings(backend="emulated"):
        scorch.sparse_coo_tensor(places, values, (30, 30)).coalesce()
    assert waited == [1]


def test_numbers_that_come_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told, looks = streams.told_on(torch.device("cpu"), 2), iter(range(3))

    def is_done(device: torch.device) -> bool:
        if next(looks) == 2:
            told.numbers[:] = [3, 4]
        return False

    monkeypatch.setattr(streams, "is_done", is_done)
    assert told.wait() == [3, 4] and not [*looks]
    assert streams.told_on(torch.device("cpu"), 2) is told and told.numbers[1] == -1
    assert streams.told_on(torch.device("cpu"), 2) is not told  # as long as it is in use


def test_an_error_of_the_device_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(device: torch.device) -> bool:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(streams, "is_done", query)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        streams.Told(torch.device("cpu"), 2).wait()


def test_all_is_launched_before_the_host_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Launches()
    places, values = drawn_places("any", 1500, 90), torch.rand(1500)
    launched: list[int] = []
    wait = streams.Told.wait

    def counted(told: streams.Told) -> list[int]:
        launched.append(len(record.launched))
        return wait(told)

    monkeypatch.setattr(kernel, "LAUNCHES", [record])
    monkeypatch.setattr(streams.Told, "wait", counted)
    with scorch.settings(backend="emulated"):
        scorch.sparse_coo_tensor(places, values, (90, 90))
    names = [launch.name for _, launch, _ in record.launched]
    assert names == [f"scorch_{name}" for name in ("rank", "spread", "sort", "place")]
    assert launched == [4]


@pytest.mark.parametrize("count", [100, 5_000, 200_000, 1_000_000])
def test_what_is_compiled_ahead_is_what_the_first_call_needs(count: int) -> None:
    routines = EmulatedRoutines()
    texts = routines.usual_texts(torch.float32, torch.int32)
    ahead = {(text.print_source(), part) for text in texts for part in text.parts}
    routines.most_threads, routines.widest = 512, 1024
    columns = [torch.zeros(1, dtype=torch.int64).expand(count) for _ in range(2)]
    values = torch.empty(count)
    plan = routines._plan_entries(columns, (1 << 16, 1 << 16), values, torch.int32, count)
    assert plan is not None
    assert {(plan.launches.kernel.source, name) for name in plan.functions} <= ahead


def test_torch_loads_its_sort_while_nvrtc_works(monkeypatch: pytest.MonkeyPatch) -> None:
    pos, crd = compressed(20, 30, 0.2, torch.int32)
    sizes: list[tuple[int, torch.dtype]] = []
    sort = torch.sort

    def recorded(keys: torch.Tensor, **options: bool) -> Any:
        sizes.append((keys.numel(), keys.dtype))
        return sort(keys, **options)

    monkeypatch.setattr(torch, "sort", recorded)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for is_at_work in (False, True):
        monkeypatch.setattr(EmulatedKernel, "is_at_work", is_at_work)
        EmulatedRoutines().transpose_rows(pos, crd, 30)
    assert sizes == [(crd.numel(), torch.int16)] * 3  # once more than the columns are sorted


def test_torch_does_it_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedKernel, "is_ready", lambda kernel, *_, **__: False)
    pos, crd = compressed(20, 30, 0.2, torch.int32)
    found, wanted = (routines.transpose_rows(pos, crd, 30) for routines in (EmulatedRoutines(), PLAIN))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))
    assert EmulatedRoutines().coalesce([crd, crd], (30, 30), torch.rand(crd.numel()), torch.int32) is None
    check_coalesced(torch.randint(9, (2, 50)), torch.rand(50), (9, 9))


def test_dtypes_without_a_kernel_are_refused_as_before() -> None:
    with scorch.settings(backend="emulated"), pytest.raises(DtypeError):
        scorch.sparse_coo_tensor(torch.rand(2, 3), torch.ones(3), (3, 4))
