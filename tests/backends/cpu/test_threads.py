"""Loops that threads share: on torch's while all of them run, on our own while some get no core."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import scorch
from machine_load import pool, set_running
from scorch._src.backends.cores import cores_of_host
from scorch._src.backends.cpu import executable, jit, parallel
from scorch._src.backends.cpu.executable import SERIAL_WORK, Compiled, CpuExecutable
from scorch._src.backends.cpu.invoke import make_caller

LOOPS = """
typedef long long i64;
typedef void (*body_t)(i64, i64, void *);
typedef int (*loop_t)(i64, i64, i64, body_t, void *);
int usleep(unsigned);
static void count(i64 begin, i64 end, void *context) {
    for (i64 part = begin; part < end; part++) __atomic_fetch_add((i64 *)context + part, 1, 5);
}
static void linger(i64 begin, i64 end, void *context) {
    count(begin, end, context);
    if (begin) usleep(5000);
}
int wait_in_between(i64 begin, i64 end, i64 grain, body_t body, void *context) {
    for (i64 part = begin; part < end; part += grain) {
        if (part > begin) usleep(3000);
        body(part, part + grain, context);
    }
    return 0;
}
i64 count_parts(i64 *args) { return ((loop_t)args[0])(0, args[1], 1, count, (void *)args[2]); }
i64 wait_for_one(i64 *args) { return ((loop_t)args[0])(0, args[1], 1, linger, (void *)args[2]); }
"""


@pytest.fixture(autouse=True)
def load(quiet: Path) -> Path:
    """The file that says how many threads want a core."""
    return quiet


def counted(name: str, parts: int = 2) -> list[int]:
    """How often each part of a loop was run."""
    times = torch.zeros(parts, dtype=torch.int64)
    make_caller().call(jit.load(LOOPS).address(name), parallel.parallel_runtime(), parts, times.data_ptr())
    return times.tolist()


def be_busy() -> None:
    parallel.busy_until().value = time.monotonic_ns() + 10**12


def test_a_thread_that_is_late_again_and_again_makes_the_machine_busy() -> None:
    start, loops = time.monotonic_ns(), 0
    while parallel.busy_until().value < start and loops < 100:  # the caller itself may be without a core
        assert counted("wait_for_one") == [1, 1]
        loops += 1
    assert parallel.busy_until().value > start
    assert loops > 1


def is_late() -> Any:
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_longlong] * 5)
    return kind(pool().address("scorch_is_late"))


def test_a_thread_that_has_more_to_do_is_not_late() -> None:
    """One that clears new pages takes longer than others, though it has a core all the time."""
    started, done, ended = 0, 100_000, 1_000_000
    assert is_late()(started, done, ended, -1, 0)  # nobody has measured for how long threads had no core
    assert is_late()(started, done, ended, 800_000, 0)
    assert not is_late()(started, done, ended, 20_000, 0)


@pytest.mark.parametrize("waited", [-1, 4_000_000])
def test_threads_that_wake_up_are_not_late(waited: int) -> None:
    """The system may put them on a core that is taken, and look for a free one a tick later."""
    assert is_late()(0, 100_000, 4_100_000, waited, 0)
    assert not is_late()(0, 100_000, 4_100_000, waited, 1)
    assert is_late()(0, 100_000, 40_100_000, 10 * waited, 1)


@pytest.mark.parametrize("pause", [0.0, 0.003])
def test_only_loops_after_others_tell_that_threads_wait_for_cores(pause: float) -> None:
    """After a pause, a loop waits for threads to wake up."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_longlong] * 2)
    set_loop, cores = kind(pool().address("scorch_set_torch_loop")), (cores_of_host(), os.cpu_count() or 1)
    try:
        for _ in range(40):  # this thread itself may be without a core
            set_loop(jit.load(LOOPS).address("wait_in_between"), *cores)
            for _ in range(4):
                assert counted("count_parts") == [1, 1]
                time.sleep(pause)
            if (parallel.busy_until().value == 0) == (pause > 0):
                return
        pytest.fail("loops after pauses count" if pause else "loops after others do not count")
    finally:
        set_loop(parallel.torch_loop(), *cores)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how many threads want a core")
@pytest.mark.parametrize("waiting", [True, False])
def test_a_machine_is_busy_while_more_threads_than_it_has_cores_want_one(waiting: bool, load: Path) -> None:
    set_running(load, (os.cpu_count() or 1) * (2 if waiting else 1))
    now = time.monotonic_ns()
    parallel.busy_until().value = now - 1
    assert parallel.is_busy() == waiting
    assert (parallel.busy_until().value > now) == waiting
    set_running(load, 1)
    parallel.busy_until().value = now - 1
    assert not parallel.is_busy()
    assert parallel.busy_until().value == 0


def test_a_system_that_does_not_say_how_many_threads_wait_is_taken_for_quiet(load: Path) -> None:
    load.unlink()
    parallel.busy_until().value = 1
    assert not parallel.is_busy()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how many threads want a core")
def test_loops_on_a_crowded_machine_keep_off_the_threads_of_torch(load: Path) -> None:
    set_running(load, 100_000)
    start = time.monotonic_ns()
    assert counted("count_parts") == [1, 1]
    assert parallel.busy_until().value > start


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how many threads want a core")
def test_costs_are_not_measured_on_a_busy_machine(load: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where loops may take a hundred times as long as usual."""
    monkeypatch.setattr(parallel, "_costs", {})
    monkeypatch.setattr(parallel, "FIRST_WAIT", 0)
    set_running(load, 100_000)
    assert parallel.relative_cost(2) == 1
    assert parallel.revisit_at(2, 1000.0, 1000.0)
    assert not parallel._costs[2, 2].measurements
    set_running(load, 1)
    parallel.busy_until().value = 0
    parallel.relative_cost(2)
    assert parallel._costs[2, 2].measurements == 1


def test_threads_of_this_process_that_wait_in_vain_are_no_other_processes() -> None:
    cores = cores_of_host()
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    has_all_cores = kind(pool().address("scorch_has_all_cores"))
    assert has_all_cores(cores * 1_000_000, 1_000_000)
    assert not has_all_cores((2 * cores - 1) * 500_000, 1_000_000)  # half of one core is somebody else's


@pytest.mark.parametrize("parts", [1, 2, 7, 300])
def test_every_part_runs_once_on_own_threads(parts: int) -> None:
    be_busy()
    for _ in range(50):
        assert counted("count_parts", parts) == [1] * parts


def test_own_threads_that_are_late_are_asked_no_more() -> None:
    be_busy()
    for _ in range(4):
        assert counted("wait_for_one", 8) == [1] * 8
    assert counted("count_parts", 8) == [1] * 8


def test_kernels_agree_on_a_busy_machine() -> None:
    A = scorch.from_torch(torch.rand(400, 300).masked_fill(torch.rand(400, 300) < 0.8, 0.0), format="csr")
    X = torch.rand(300, 40)
    with scorch.settings(threads=2):
        quiet = A @ X
        be_busy()
        assert torch.equal(A @ X, quiet)
        assert torch.equal((A @ A.T).to_dense(), (A @ A.T).to_dense())


@pytest.mark.parametrize("cost", [parallel.CHEAPEST, 1.0, 3.0])  # of a loop, measured while it was quiet
def test_little_work_stays_on_one_thread_of_a_busy_machine(
    cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "relative_cost", lambda threads: cost)
    least = 1000.0
    enough = least * cost
    assert parallel.threads_for(0.9 * enough, least) == 1
    assert parallel.threads_for(enough, least) == 2
    be_busy()
    assert parallel.threads_for(enough, least) == 1
    assert parallel.threads_for(0.9 * parallel.BUSY_FACTOR * max(least, enough), least) == 1
    assert parallel.threads_for(parallel.BUSY_FACTOR * max(least, enough), least) == 2


class Clock:
    """A monotonic clock and loops that take as long as told, relative to usual ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cost, self.measured = 10**9, 1.0, 0
        monkeypatch.setattr(parallel, "_costs", {})
        monkeypatch.setattr(parallel, "_time_of_loop", self.time_of_loop)
        monkeypatch.setattr(parallel.time, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr(executable, "monotonic_ns", lambda: self.now)

    def time_of_loop(self, threads: int) -> int:
        self.measured += 1
        return int(self.cost * parallel.USUAL_NANOSECONDS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_one_thread_is_no_choice_for_ever(clock: Clock) -> None:
    """Threads of another library that spin through all the first calls do not keep later ones on one."""
    work, least = 150_000.0, 100_000.0
    clock.cost = 100
    while clock.now < 3_600_000_000_000:  # an hour
        assert parallel.threads_for(work, least) == 1
        revisit = parallel.revisit_at(2, work, least)
        assert clock.now < revisit <= clock.now + (parallel.FIRST_WAIT << 12)
        clock.now = revisit
    assert clock.measured < 300
    clock.cost = 1
    assert parallel.threads_for(work, least) == 2
    assert not parallel.revisit_at(2, work, least)  # loops do not become dearer


def test_costs_are_measured_less_often_the_longer_they_agree(clock: Clock) -> None:
    least, waits = 100_000.0, []
    for cost in (1, 1.1, 1, 0.95, 1, 0.5, 0.5, 0.21, 0.21, 0.2):
        clock.cost = cost
        found = parallel.relative_cost(2)
        revisit = parallel.revisit_at(2, least * max(found * 0.9, parallel.CHEAPEST), least)
        waits.append((revisit - clock.now) // parallel.FIRST_WAIT)
        clock.now = revisit
    assert waits[:9] == [1, 4, 16, 64, 256, 1, 4, 1, 4]
    assert not revisit  # loops are as cheap as counts
    assert clock.measured == 10


def test_loops_on_fewer_threads_say_nothing_about_those_on_more(clock: Clock) -> None:
    clock.cost = 0.1
    torch.set_num_threads(1)
    assert parallel.relative_cost(2) == 1
    assert not clock.measured
    torch.set_num_threads(2)
    clock.cost = 3
    assert parallel.relative_cost(2) == 3


def with_rows_of(length: int) -> scorch.SparseTensor:
    pointers = torch.arange(1001) * length
    indices = torch.arange(length).repeat(1000)
    return scorch.sparse_csr_tensor(pointers, indices, torch.ones(1000 * length), (1000, length))


def test_repeated_calls_have_as_many_threads_as_are_allowed(clock: Clock) -> None:
    clock.cost = parallel.CHEAPEST
    S, x = with_rows_of(61), torch.ones(61)
    allowed, headers, asked = [], [], []
    original, is_busy = CpuExecutable.packed_headers, parallel.is_busy

    def packed_headers(self: CpuExecutable, threads: int) -> tuple[bytes, bytes, int]:
        allowed.append(threads)
        headers.append(original(self, threads))
        return headers[-1]

    def call() -> None:
        for _ in range(4):
            assert torch.equal(S @ x, torch.full((1000,), 61.0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuExecutable, "packed_headers", packed_headers)
        patch.setattr(parallel, "is_busy", lambda: asked.append(1) or is_busy())
        call()
        torch.set_num_threads(1)
        call()
        torch.set_num_threads(2)
        call()
        with scorch.settings(threads=3):
            call()
        before = len(asked)
        be_busy()
        call()
    assert allowed == [2, 1, 3]
    assert [threads_of(quiet) for quiet, _, _ in headers] == allowed
    assert len(asked) == before + 4


def test_calls_find_out_that_threads_pay_off(clock: Clock) -> None:
    """Though what they take is kept until then."""
    lengths, S = torch.full((1000,), 60), with_rows_of(60)
    x, clock.cost = torch.ones(60), 8
    loops = []
    original = CpuExecutable.packed_headers

    def packed_headers(self: CpuExecutable, allowed: int) -> tuple[bytes, bytes, int]:
        loops.append(original(self, allowed))
        return loops[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuExecutable, "packed_headers", packed_headers)
        for _ in range(5):
            assert torch.equal(S @ x, lengths.float())
        assert len(loops) == 1
        clock.now, clock.cost = loops[0][2], parallel.CHEAPEST
        for _ in range(5):
            assert torch.equal(S @ x, lengths.float())
    assert [threads_of(quiet) for quiet, _, _ in loops] == [1, 2]
    assert [until > 0 for _, _, until in loops] == [True, False]


def test_many_threads_share_less_of_what_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads save half of the time at most, many nearly all of it."""
    monkeypatch.setattr(parallel, "relative_cost", lambda threads: parallel.CHEAPEST)
    executable = object.__new__(CpuExecutable)
    executable.least_work = SERIAL_WORK
    for gathered, wanted in (
        (8, {2: 20_000, 4: 13_334, 16: 10_667}),
        (0, {2: 20_000, 4: 20_000, 16: 20_000}),
    ):
        executable.plan = SimpleNamespace(gathered=gathered)
        for threads, least in wanted.items():
            given = executable._least_work_of(threads)
            found = [parallel.threads_by_load(threads, work, given)[0] for work in (least - 1, least)]
            assert found == [1, threads]
            Compiled.__init__(executable, [], least, SERIAL_WORK)
            assert not executable.is_serial


def threads_of(header: bytes) -> int:
    return struct.unpack_from("2q", header)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_own_threads_after_a_fork() -> None:
    be_busy()
    assert counted("count_parts", 4) == [1] * 4
    child = os.fork()
    if child == 0:
        os._exit(0 if counted("count_parts", 4) == [1] * 4 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert counted("count_parts", 4) == [1] * 4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_add_to_copies_of_a_result(threads: int) -> None:
    """Each chunk of rows adds to a copy of the result, and the copies are added in order."""
    dense = torch.randn(900, 40, dtype=torch.float64) * (torch.rand(900, 40) < 0.3)
    A, X = scorch.from_torch(dense, format="csr"), torch.randn(900, 9, dtype=torch.float64)
    T = torch.randn(60, 9, 11, dtype=torch.float64) * (torch.rand(60, 9, 11) < 0.5)
    with scorch.settings(threads=threads):
        assert "copies" in scorch.explain("ij,ik->jk", A, X, format="dense").source
        products = scorch.einsum("ij,ik->jk", A, X, format="dense")
        factors = scorch.einsum("ijk,ir->kr", scorch.from_torch(T, format="csf"), X[:60], format="dense")
        assert torch.equal(products, scorch.einsum("ij,ik->jk", A, X, format="dense"))
    torch.testing.assert_close(products, dense.T @ X)
    torch.testing.assert_close(factors, torch.einsum("ijk,ir->kr", T, X[:60]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entries", [20, 250, 700])
def test_threads_add_few_entries_to_many_columns(entries: int) -> None:
    """One thread adds fewer than there are columns; all of them have copies from little more on."""
    generator = torch.Generator().manual_seed(entries)
    places = torch.randint(0, 300, (2, entries), generator=generator)
    A = scorch.sparse_coo_tensor(places, torch.ones(entries), (300, 300), format="csr")
    with scorch.settings(threads=4):
        assert torch.equal(
            scorch.einsum("ij->j", A, format="dense"), places[1].bincount(minlength=300).float()
        )


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_leave_no_gaps_between_their_rows(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are as long as the result, whether that is as long as it may get or shorter."""
    monkeypatch.setattr(parallel, "relative_cost", lambda threads: 0.1)
    a, b = (torch.rand(400, 400, dtype=torch.float64) * (torch.rand(400, 400) < 0.3) for _ in range(2))
    A, B = scorch.from_torch(a, format="csr"), scorch.from_torch(b, format="csr")
    same, apart = A.clone(), torch.where(a == 0, b, 0.0)
    with scorch.settings(threads=threads):
        for other in (B, same, scorch.from_torch(apart, format="csr")):
            total = scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=other)
            assert torch.equal(total.to_dense(), a + other.to_dense())
            assert total.col_indices().numel() == total.nnz == int(((a + other.to_dense()) != 0).sum())
            assert "scorch_finish" in scorch.explain("C[i,j] = A[i,j] + B[i,j]", A=A, B=other).source


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("threads", [2, 16])
def test_entries_of_threads_are_copied_to_arrays_of_the_right_length(
    threads: int, pool: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where these are large enough to lie in pages of their own."""
    monkeypatch.setattr(parallel, "relative_cost", lambda threads: 0.1)
    generator = torch.Generator().manual_seed(0)
    at = [torch.randint(0, 3000, (2, 350_000), generator=generator) for _ in range(2)]
    A, B = (scorch.sparse_coo_tensor(a, torch.ones(350_000), (3000, 3000), format="csr") for a in at)
    turned_off = () if pool else ("pool",)
    with scorch.settings(threads=1):
        alone = [A + B, A * B]
    with scorch.settings(threads=threads, disable=turned_off):
        for one, shared in zip(alone, (A + B, A * B), strict=True):
            assert torch.equal(one.crow_indices(), shared.crow_indices())
            assert torch.equal(one.col_indices(), shared.col_indices())
            assert torch.equal(one.values(), shared.values())
            assert shared.values().untyped_storage().nbytes() < 2 * 4 * shared.nnz + 2**21


@pytest.mark.whole
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how many threads want a core")
@pytest.mark.parametrize(
    "function",
    [
        torch.sin,
        torch.neg,
        lambda S: S * 2,
        lambda S: S + S,
        lambda S: S * S,
        lambda S: S > 0.5,
        lambda S: S.clamp(max=0.5),
        torch.isnan,
        torch.clone,
        torch.Tensor.float,
    ],
)
def test_loops_of_torch_leave_cores_to_other_processes(
    function: Any, load: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    S, small = (scorch.from_torch(torch.rand(n, n, dtype=torch.float64), format="csr") for n in (300, 10))
    expected, leave_cores, threads = function(S).to_dense(), parallel.leave_cores, []

    def watch() -> Any:
        end = leave_cores()
        threads.append(torch.get_num_threads())
        return end

    monkeypatch.setattr(parallel, "leave_cores", watch)
    set_running(load, 100_000)
    parallel.busy_until().value = 1  # which asks the system
    assert torch.equal(function(S).to_dense(), expected)
    assert set(threads) == {1}
    assert torch.get_num_threads() == 2
    threads.clear()
    set_running(load, 1)
    parallel.busy_until().value = 1
    assert torch.equal(function(S).to_dense(), expected)
    assert set(threads) == {2}
    threads.clear()
    function(small)
    assert not threads


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how many threads want a core")
def test_loops_of_torch_have_all_threads_again_after_an_error(load: Path) -> None:
    S = scorch.from_torch(torch.rand(300, 300), format="csr")
    set_running(load, 100_000)
    with pytest.raises((TypeError, RuntimeError)):
        torch.clamp(S, torch.rand(2, 3))
    assert torch.get_num_threads() == 2
    assert not parallel.restricted_loops


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how many threads want a core")
def test_kernels_have_as_many_threads_as_before_while_loops_of_torch_have_fewer(load: Path) -> None:
    set_running(load, 100_000)
    end = parallel.leave_cores()
    assert end is not None
    try:
        assert torch.get_num_threads() == 1
        assert parallel.allowed_threads() == 2
        assert parallel.leave_cores() is None  # inside another call
        with scorch.settings(threads=5):
            assert parallel.allowed_threads() == 5
    finally:
        end()
    assert torch.get_num_threads() == parallel.allowed_threads() == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how many threads want a core")
def test_loops_of_torch_have_the_cores_that_others_leave(load: Path) -> None:
    """From when there are too few cores until all threads fit beside the others."""
    describe = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong)
    set_loop = describe(pool().address("scorch_set_torch_loop"))
    left_cores = functools.partial(make_caller().call, pool().address("scorch_left_cores"))

    def left(running: int, threads: int = 16) -> int:
        set_running(load, running)
        parallel.busy_until().value = 1  # which asks the system
        return left_cores(threads)

    set_loop(parallel.torch_loop(), 16, 16)
    try:
        assert left(17) == 0  # one too many is no crowd
        assert left(40) == 1
        assert left(6) == 11
        assert left(6, threads=4) == 0
        assert left(3) == 0
        assert left(6) == 11
        assert left(1) == 0
        assert left(6) == 0
    finally:
        set_loop(parallel.torch_loop(), cores_of_host(), os.cpu_count() or 1)


def test_threads_of_this_process_are_no_others() -> None:
    kind = ctypes.CFUNCTYPE(ctypes.c_longlong, *[ctypes.c_longlong] * 3)
    count_others = kind(pool().address("scorch_count_others"))
    assert count_others(19, 12_500_000, 1_000_000) == 6
    assert count_others(19, 0, 0) == 18  # this thread runs
    assert count_others(3, 16_000_000, 1_000_000) == 0


def test_sums_of_copies_repeat_bit_for_bit_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calling thread takes all their parts if there is too little work to wake up others."""
    monkeypatch.setattr(parallel, "relative_cost", lambda threads: parallel.CHEAPEST)
    shared, original = [], CpuExecutable._shared_by

    def recorded(self: CpuExecutable, allowed: int) -> list[tuple[int, int]]:
        shared.append(original(self, allowed))
        return shared[-1]

    monkeypatch.setattr(CpuExecutable, "_shared_by", recorded)
    dense = torch.randn(3000, 60) * (torch.rand(3000, 60) < 0.3)
    A, x = scorch.from_torch(dense, format="csr"), torch.randn(3000)
    with scorch.settings(threads=4):
        quiet = scorch.einsum("ij,i->j", A, x, format="dense")
        be_busy()
        assert torch.equal(scorch.einsum("ij,i->j", A, x, format="dense"), quiet)
    assert [(parallel.parallel_runtime(), 4), (0, 4)] in shared, shared


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(900, 40), (40, 900), (1, 50), (50, 1), (0, 3)])
def test_threads_count_and_place_entries_of_other_rows(threads: int, shape: tuple[int, int]) -> None:
    dense = torch.randn(shape) * (torch.rand(shape) < 0.3)
    A = scorch.from_torch(dense, format="csr")
    with scorch.settings(threads=threads):
        columns = A.to_format("csc")
    assert torch.equal(columns.to_dense(), dense)
    assert torch.equal(columns.row_indices().long(), dense.T.nonzero()[:, 1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [2, 7, 16])
@pytest.mark.parametrize("entries", [40_000, 300_000])
def test_entries_are_sorted_alike_on_any_number_of_threads(
    threads: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a thread has few entries of a bucket, and where it fetches lines before it writes them."""
    monkeypatch.setattr(parallel, "relative_cost", lambda threads: 0.1)
    generator = torch.Generator().manual_seed(entries)
    at = torch.randint(0, 3000, (2, entries), generator=generator)
    values = torch.randn(entries, generator=generator)

    def columns_and_values(threads: int) -> list[torch.Tensor]:
        with scorch.settings(threads=threads):
            A = scorch.sparse_coo_tensor(at, values, (3000, 3000), format="csr")
            B = A.to_format("csc")
        arrays = (A.crow_indices(), A.col_indices(), A.values(), B.ccol_indices(), B.row_indices())
        return [*arrays, B.values()]

    for alone, shared in zip(columns_and_values(1), columns_and_values(threads), strict=True):
        assert torch.equal(alone, shared)


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("debug", [False, True])  # which fills new results with other numbers
def test_sums_over_columns_begin_at_zero_whatever_was_in_their_memory(threads: int, debug: bool) -> None:
    shape = (30, 400) if debug else (300, 400)  # the interpreter takes its time
    dense = torch.rand(shape, dtype=torch.float64) * (torch.rand(shape) < 0.5)
    S = scorch.from_torch(dense, format="csr")
    with scorch.settings(threads=threads, debug=debug):
        for _ in range(3):
            found = S.sum(0)
            torch.testing.assert_close(found, dense.sum(0))
            found.fill_(float("nan"))
            del found


RECORDED = """
static i64 recorded;
static int record(i64 begin, i64 end, i64 grain, void (*body)(i64, i64, void *), void *context) {
  recorded = ((struct closure_1 *)context)->closure_turns.count;
  for (i64 share = begin; share < end; share += grain) body(share, share + grain, context);
  return 0;
}
long long count_turns(long long *args) {
  args[0] = (i64)record;
  return scorch_compute(args) ? -1 : recorded;
}
"""


def test_threads_have_equally_many_turns() -> None:
    """So that none waits while others take one more."""
    lengths = torch.arange(1, 2001, dtype=torch.int32) % 60
    pointers = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    columns, values = torch.zeros(int(pointers[-1]), dtype=torch.int32), torch.ones(int(pointers[-1]))
    S, x, sums = (
        scorch.sparse_csr_tensor(pointers, columns, values, (2000, 70)),
        torch.ones(70),
        torch.empty(2000),
    )
    source = scorch.explain("ij,j->i", S, x).source
    address = jit.load(source + RECORDED).address("count_turns")
    addresses = [array.data_ptr() for array in (pointers, columns, values, x, sums)]
    for threads in (2, 3, 5, 7, 11, 13, 16, 40):
        turns = make_caller().call(address, 0, threads, 2000, 70, *addresses)
        assert turns > 0
        assert turns % threads == 0, (threads, turns)
        assert torch.equal(sums, lengths.float())
