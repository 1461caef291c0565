"""Rows are picked by the text of kernels for CUDA devices, run on the host."""

from __future__ import annotations

import itertools

import pytest
import torch

import scorch
from grid_emulator import EmulatedKernel, EmulatedRoutines
from scorch._src.backends.by_torch import index_arrays
from scorch._src.backends.cuda.device import kernel
from scorch._src.backends.cuda.device.kernel import Launches
from scorch._src.backends.cuda.routines import picking, rows
from scorch._src.backends.routines import Routines
from scorch._src.ops.movement import index
from scorch.errors import IndexRangeError

ROUTINES = EmulatedRoutines()
PLAIN = Routines()
# Dtypes of indices, of the numbers of rows, and of values, which differ in size.
DTYPES = [
    (torch.int32, torch.int64, (torch.float32, torch.int32)),
    (torch.int64, torch.int32, (torch.float16, torch.bfloat16)),
    (torch.int32, torch.int32, (torch.float64, torch.int64, torch.complex64)),
    (torch.int64, torch.int64, (torch.bool, torch.int8)),
    (torch.int32, torch.int64, (torch.complex128,)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "number", "kinds"), DTYPES)
def test_rows_are_those_of_torch(
    dtype: torch.dtype, number: torch.dtype, kinds: tuple[torch.dtype, ...]
) -> None:
    torch.manual_seed(0)
    for lengths in ([4], [0, 0, 3], [5, 0, 600, 1], torch.randint(9, (40,)).tolist()):
        pos = torch.tensor([0, *lengths]).cumsum(0).to(dtype)
        crd = torch.randint(1000, (sum(lengths),)).to(dtype)
        for kind, count, from_end in itertools.product(kinds, (0, 1, 7), (False, True)):
            values = torch.randint(2, crd.shape).to(kind)
            picked = torch.randint(-len(lengths) if from_end else 0, len(lengths), (count,)).to(number)
            given = pos, crd, values, picked, from_end
            found, wanted = ROUTINES.pick_rows(*given), PLAIN.pick_rows(*given)
            assert found is not None and wanted is not None
            for mine, theirs in zip(found, wanted, strict=True):
                assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
            assert rows.longest_row(found[0]) == int(wanted[0].diff().max() if count else 0)


def test_more_rows_than_a_block_counts_at_once() -> None:
    pos, crd = torch.tensor([0, 3, 3, 4, 9]), torch.arange(9)
    picked = torch.randint(-4, 4, (2 * picking.TILE + 5,))
    given = pos, crd, torch.rand(9), picked
    found, wanted = ROUTINES.pick_rows(*given), PLAIN.pick_rows(*given)
    assert found is not None and wanted is not None
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))


def test_rows_without_entries_are_skipped() -> None:
    """A block copies entries of more rows than it keeps the ends of."""
    pos = torch.tensor([0, 0, 0, 2, 2], dtype=torch.int32)
    crd, picked = torch.tensor([3, 5], dtype=torch.int32), torch.arange(4).repeat_interleave(picking.KEPT)
    for numbers in (picked, picked.flip(0), picked[picking.KEPT - 3 :]):
        found = ROUTINES.pick_rows(pos, crd, crd.float(), numbers)
        wanted = PLAIN.pick_rows(pos, crd, crd.float(), numbers)
        assert found is not None and wanted is not None
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))
    sparse = picked[torch.randperm(len(picked))][: picking.KEPT + 300]
    pos = torch.tensor([0, 0, 0, 1, 1], dtype=torch.int32)
    sparse[sparse == 2] = 1
    sparse[[0, 900, 1200]] = 2
    found = ROUTINES.pick_rows(pos, crd[:1], crd[:1], sparse)
    assert (
        found is not None and found[0].tolist() == PLAIN.pick_rows(pos, crd[:1], crd[:1], sparse)[0].tolist()
    )
    assert found[1].tolist() == [3, 3, 3]


@pytest.mark.parametrize(("numbers", "from_end"), [([0, 3], True), ([-4], True), ([1, -1], False)])
def test_rows_out_of_range_are_none(numbers: list[int], from_end: bool) -> None:
    pos, crd, values = torch.tensor([0, 1, 1, 3]), torch.tensor([0, 1, 2]), torch.ones(3)
    for routines in (ROUTINES, PLAIN):
        assert routines.pick_rows(pos, crd, values, torch.tensor(numbers * 300), from_end) is None
    found = ROUTINES.pick_rows(pos, crd, values, torch.tensor([2]))  # nothing is left of calls before
    assert found is not None and found[1].tolist() == [1, 2]


def test_threads_that_search_for_infinity_do_not_meet_those_that_pick_rows() -> None:
    found = ROUTINES.zero_on(torch.device("cpu"), "finite")
    found.fill_(1)  # as between a launch of another thread and its end
    picked = ROUTINES.pick_rows(
        torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), torch.ones(3), torch.tensor([1])
    )
    found.fill_(0)
    assert picked is not None and picked[1].tolist() == [1, 2]


def test_values_may_be_conjugated_or_have_gaps() -> None:
    pos, crd = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2])
    values, picked = torch.randn(3, dtype=torch.complex64).conj(), torch.tensor([1, 9, 0, 9, -1])[::2]
    found = ROUTINES.pick_rows(pos, crd, values, picked)
    assert found is not None and torch.equal(found[2], values[[1, 2, 0, 1, 2]])


def test_more_entries_than_indices_count_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (picking, index_arrays):
        monkeypatch.setattr(module, "LAST_INT32", 5)
    pos, crd = torch.tensor([0, 3], dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    kernel = ROUTINES._pick_kernel(pos, crd, crd, torch.zeros(2, dtype=torch.int64))
    assert kernel is not None
    assert ROUTINES._pick(kernel, pos, crd, crd, torch.zeros(2, dtype=torch.int64), True) is None
    assert ROUTINES._pick(kernel, pos, crd, crd, torch.zeros(1, dtype=torch.int64), True) is not None
    found = ROUTINES.pick_rows(pos, crd, crd, torch.zeros(2, dtype=torch.int64))
    assert found is not None and found[0].dtype == found[1].dtype == torch.int64
    assert found[0].tolist() == [0, 3, 6] and found[1].tolist() == [0, 1, 2] * 2


def test_a_batch_takes_two_launches_and_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = torch.rand(30, 40) * (torch.rand(30, 40) < 0.2)
    S, picked, x = scorch.from_torch(dense, format="csr"), torch.randint(30, (50,)), torch.rand(40, 4)
    record = Launches()
    monkeypatch.setattr(kernel, "LAUNCHES", [record])
    monkeypatch.setattr(rows, "check_waiting", lambda device, what: 1 / 0)
    monkeypatch.setattr(index, "check_indices", lambda *arguments: 1 / 0)
    with scorch.settings(backend="emulated"):
        batch, product = S[picked], S[picked] @ x
        selected = S.index_select(0, picked.int())
    monkeypatch.undo()
    names = [launch.name for _, launch, _ in record.launched]
    assert names.count("scorch_count_rows") == names.count("scorch_copy_rows") == 3
    assert torch.equal(batch.to_dense(), dense[picked]) and torch.equal(selected.to_dense(), dense[picked])
    torch.testing.assert_close(product, dense[picked] @ x)


@pytest.mark.parametrize("backend", ["cpu", "emulated"])
def test_rows_of_a_list_are_selected_by_pointers(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = torch.rand(30, 40) * (torch.rand(30, 40) < 0.2)
    S, picked = scorch.from_torch(dense, format="coo"), torch.randint(-30, 30, (50,))
    monkeypatch.setattr(index, "join", lambda *arguments: 1 / 0)  # the general way
    with scorch.settings(backend=backend):
        batch = S[picked]
        assert batch.format == S.format and torch.equal(batch.to_dense(), dense[picked])
        assert torch.equal(batch.indices(), dense[picked].to_sparse().indices())
        assert torch.equal(S.index_select(0, picked.int() % 30).to_dense(), dense[picked])
        monkeypatch.undo()
        tall = scorch.sparse_coo_tensor(torch.tensor([[5, 10**9], [1, 2]]), torch.ones(2), (2 * 10**9, 3))
        assert tall[torch.tensor([10**9, 0, 5])].to_dense().tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]
        hybrid = scorch.from_torch(dense, format="od")
        assert torch.equal(hybrid[picked].to_dense(), dense[picked])


def test_index_select_refuses_what_torch_refuses() -> None:
    S = scorch.from_torch(torch.eye(5), format="csr")
    for backend in ("cpu", "emulated"):
        with scorch.settings(backend=backend):
            for number in (-1, 5):
                with pytest.raises(IndexRangeError, match=f"index {number} is out of bounds"):
                    S.index_select(0, torch.tensor([0, number]))


def test_torch_picks_rows_until_a_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    pos, crd, picked = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    monkeypatch.setattr(EmulatedKernel, "is_ready", lambda kernel, may_wait=True, needed=(): may_wait)
    monkeypatch.setattr(EmulatedKernel, "launch", lambda *arguments: 1 / 0)
    found = ROUTINES.pick_rows(pos, crd, torch.arange(3), picked)
    assert found is not None and found[2].tolist() == [1, 2, 0]


@pytest.mark.whole
@pytest.mark.parametrize("on_host", [True, False])
def test_the_longest_row_is_found_on_the_host_and_on_the_device(
    on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MANY_ROWS", 100 if on_host else 0)
    for lengths, longest in (([], 0), ([0, 0], 0), ([3, 0, 9, 1], 9)):
        assert rows.longest_row(torch.tensor([0, *lengths]).cumsum(0)) == longest
