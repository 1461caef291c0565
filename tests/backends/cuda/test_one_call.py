"""Warm calls as one builtin of C, with a driver that is made up: it notes what is launched."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import scorch
from grid_emulator import EmulatedBackend, EmulatedExecutable, EmulatedRoutines, run_grid
from scorch._src.backends.cpu import invoke, jit, launch, toolchain
from scorch._src.backends.cuda.device import builtins, driver, streams
from scorch._src.backends.cuda.device.kernel import LAUNCHES, CudaKernel, Launches
from scorch._src.backends.cuda.executables import one_call
from scorch._src.backends.cuda.routines import coalescing, entries
from scorch._src.bounded import clear_plans
from scorch._src.loops.grid import FUNCTIONS

DRIVER = """\
typedef struct { unsigned blocks[3], threads[3], shared; void *stream, *attributes; unsigned n; } shape_t;
long long launched, status, current, slots[128], kernels, launches, listed[16][64];
void *functions[8], *stream;
int cuLaunchKernelEx(const shape_t *shape, void *given, void **arguments, void **extra) {
    functions[kernels++ % 8] = given, stream = shape->stream, launched += shape->blocks[0];
    for (int i = 0; i < 128; i++) slots[i] = ((long long *)arguments[0])[i];
    long long *each = listed[launches++ % 16];
    each[0] = (long long)given, each[1] = shape->blocks[0];
    each[2] = shape->threads[0], each[3] = shape->shared;
    for (int i = 0; i < 60; i++) each[4 + i] = slots[i];
    return (int)status;
}
int cuFuncSetAttribute(void *given, int attribute, int value) { return 0; }
int cuCtxGetDevice(int *device) { return *device = (int)current, 0; }
int stream_of(int kind, int device, void **found) { return *found = (void *)71, kind != 1 && kind != 2; }
"""

FUNCTION = {name: ctypes.c_void_p(5 + number) for number, name in enumerate(FUNCTIONS)}

pytestmark = pytest.mark.skipif(
    not toolchain.has_compiler() or launch.exchange_table() is None, reason="no compiler, or an older torch"
)


class Driver:
    """The driver's functions, and what they note."""

    def __init__(self) -> None:
        self.library = ctypes.PyDLL(str(jit.load(DRIVER).path))
        self.cuLaunchKernelEx, self.cuCtxGetDevice = (
            self.library.cuLaunchKernelEx,
            self.library.cuCtxGetDevice,
        )
        self.cuFuncSetAttribute = self.library.cuFuncSetAttribute
        for name in ("launched", "status", "current", "kernels", "launches"):
            self.number(name).value = 0

    def taken(self) -> list[list[int]]:
        """Return the function, the grid and the slots of each launch since the last call."""
        listed = ((ctypes.c_longlong * 64) * 16).in_dll(self.library, "listed")
        found = [list(listed[number]) for number in range(self.number("launches").value)]
        self.number("launches").value = 0
        return found

    def number(self, name: str) -> ctypes.c_longlong:
        return ctypes.c_longlong.in_dll(self.library, name)

    def slots(self) -> list[int]:
        return list((ctypes.c_longlong * 128).in_dll(self.library, "slots"))

    def functions(self) -> list[str]:
        """Return the names of the functions that were launched, and forget them."""
        count = self.number("kernels")
        numbers = list((ctypes.c_void_p * 8).in_dll(self.library, "functions"))[: count.value]
        count.value = 0
        return [FUNCTIONS[number - 5] for number in numbers]

    def table(self) -> Any:
        """Return torch's table of functions, with a stream that is made up."""
        address = launch.exchange_table()
        assert address is not None
        table = (ctypes.c_void_p * 7)(*(ctypes.c_void_p * 7).from_address(address))
        table[builtins.STREAM_OF] = ctypes.cast(self.library.stream_of, ctypes.c_void_p).value
        return table


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Have the second call of a kernel prepare the builtin."""
    found, builtin = Driver(), builtins.make_builtin()
    assert builtin is not None
    table, library = found.table(), jit.load(*builtins.SOURCES)
    set_table = invoke.builtin(b"set_exchange", library.address("scorch_set_exchange"))
    set_table(ctypes.addressof(table), None)
    monkeypatch.setattr(driver, "driver", lambda: found)
    monkeypatch.setattr(one_call, "CALLS", 2)
    monkeypatch.setattr(EmulatedExecutable, "find_builtin", staticmethod(lambda device: builtin.launch))
    monkeypatch.setattr(EmulatedExecutable, "function_on", lambda self, device, name: FUNCTION[name])
    monkeypatch.setattr(EmulatedExecutable, "place_of", lambda self, device: (1, 0))
    clear_plans()
    with scorch.settings(backend="emulated"):
        yield found
    clear_plans()  # which launch by this driver
    set_table(launch.exchange_table(), None)


def matrix(rows: int = 20, columns: int = 30) -> torch.Tensor:
    return torch.randint(1, 5, (rows, columns)) * (torch.rand(rows, columns) < 0.2).float()


CALLS: dict[str, Callable[..., Any]] = {
    "times a vector": lambda A, X, x: A @ x,
    "times a matrix": lambda A, X, x: A @ X,
    "sums": lambda A, X, x: A.sum(1),
    "sampled product": lambda A, X, x: scorch.einsum("ij,ik,jk->ij", A, X[:20], X),
    "each entry times": lambda A, X, x: scorch.einsum("ij,j->ij", A, x),
    "three operands": lambda A, X, x: scorch.einsum("ij,jk,j->ik", A, X, x),
}


@pytest.mark.whole
@pytest.mark.parametrize(("name", "form"), [*((name, "csr") for name in CALLS), ("sampled product", "coo")])
def test_the_builtin_launches_what_the_long_way_does(name: str, form: str, made_up: Driver) -> None:
    A, X = scorch.from_torch(matrix(), format=form), torch.randint(-3, 4, (30, 32)).float()
    x, record = torch.rand(30), Launches()
    LAUNCHES.append(record)
    wanted = CALLS[name](A, X, x)
    LAUNCHES.remove(record)
    for _ in range(3):
        CALLS[name](A, X, x)
    before, _ = made_up.number("launched").value, made_up.functions()
    found = CALLS[name](A, X, x)
    assert made_up.number("launched").value > before
    assert ctypes.c_void_p.in_dll(made_up.library, "stream").value == 71
    assert made_up.functions() == [FUNCTIONS[0]]
    ((kernel, *_),) = record.launched
    run_grid(kernel.source, FUNCTIONS[0], made_up.slots(), 128 * 8)  # which fills the result
    torch.testing.assert_close(found.to_dense(), wanted.to_dense())


def test_patterns_take_turns(made_up: Driver) -> None:
    """Each has its own numbers of rows among the slots; those of a pattern that is gone are not taken."""
    P, Q = torch.rand(20, 4), torch.rand(30, 4)
    dense = [torch.eye(20, 30).roll(shift, 1) for shift in range(3)]
    patterns = [scorch.from_torch(a, format="csr") for a in dense]

    def sampled(number: int) -> Any:
        return scorch.einsum("ij,ik,jk->ij", patterns[number], P, Q)

    LAUNCHES.append(record := Launches())
    sampled(0)
    LAUNCHES.clear()
    ((kernel, *_),) = record.launched
    for _ in range(4):
        sampled(0), sampled(1)
    patterns[0] = patterns.pop()
    for number in (0, 1, 0, 1):
        before, found = made_up.number("launched").value, sampled(number)
        assert made_up.number("launched").value > before
        run_grid(kernel.source, FUNCTIONS[0], made_up.slots(), 128 * 8)
        torch.testing.assert_close(found.to_dense(), patterns[number].to_dense() * (P @ Q.T))


def test_rows_that_are_cut_are_two_launches(made_up: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorch._src.backends.cuda.routines.rows.MIN_PART", 4)
    a, b, x = matrix(20, 100), matrix(20, 100), torch.randint(-3, 4, (100, 32)).float()
    b[3] = 1
    A, B = (scorch.from_torch(dense, format="csr") for dense in (a, b))
    kept: list[torch.Tensor] = []  # sums of parts, whose memory is not free before kernels are emulated
    allocate = EmulatedExecutable.allocate
    monkeypatch.setattr(
        EmulatedExecutable, "allocate", lambda *given: kept.append(allocate(*given)) or kept[-1]
    )
    LAUNCHES.append(record := Launches())
    B @ x
    LAUNCHES.clear()
    assert [launch.name for _, launch, _ in record.launched] == list(FUNCTIONS[1:])
    source = record.launched[0][0].source
    for _ in range(3):
        A @ x, B @ x
    for _ in range(2):
        made_up.functions(), A @ x
        assert made_up.functions() == [FUNCTIONS[0]]
        found = B @ x
        assert made_up.functions() == list(FUNCTIONS[1:])
        for name in FUNCTIONS[1:]:
            run_grid(source, name, made_up.slots(), 128 * 8)
        torch.testing.assert_close(found, b @ x)
    made_up.number("status").value = 700
    torch.testing.assert_close(B @ x, b @ x)  # the first launch fails, and the long way takes both
    assert made_up.functions() == [FUNCTIONS[1]]


def launches(made_up: Driver, call: Callable[[], torch.Tensor], expected: torch.Tensor) -> bool:
    """Return whether a call took the builtin; if it did not, its result is the expected one."""
    before = made_up.number("launched").value
    result = call()
    is_short = made_up.number("launched").value > before
    if not is_short or made_up.number("status").value:
        torch.testing.assert_close(result, expected)
    return is_short


def test_unusual_calls_take_the_long_way(made_up: Driver) -> None:
    a = matrix(20, 100)
    flat = torch.randint(-3, 4, (100 * 32 + 1,)).float()
    A = scorch.from_torch(a, format="csr")
    x, elsewhere = flat[:-1].view(100, 32), flat[1:].view(100, 32)  # where runs of four cannot be loaded
    for _ in range(3):
        A @ x
    assert launches(made_up, lambda: A @ x, a @ x)
    assert not launches(made_up, lambda: A @ elsewhere, a @ elsewhere)
    assert not launches(made_up, lambda: A @ x.double().float().T.contiguous().T, a @ x)
    LAUNCHES.append(Launches())
    assert not launches(made_up, lambda: A @ x, a @ x)
    LAUNCHES.clear()
    made_up.number("current").value = 1  # another device
    assert not launches(made_up, lambda: A @ x, a @ x)
    made_up.number("current").value = 0
    made_up.number("status").value = 700  # the launch fails, and the long way reports it
    assert launches(made_up, lambda: A @ x, a @ x)
    made_up.number("status").value = 0
    assert launches(made_up, lambda: A @ x, a @ x)


def test_widths_take_turns(made_up: Driver) -> None:
    a = matrix()
    A, wide, narrow = scorch.from_torch(a, format="csr"), torch.rand(30, 32), torch.rand(30, 4)
    for _ in range(4):
        A @ wide, A @ narrow
    for x in (wide, narrow, wide, narrow):
        assert launches(made_up, lambda x=x: A @ x, a @ x)


# the builtin itself -----------------------------------------------------------------------------------


def test_a_thread_compiles_the_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    made = builtins.Builtin()
    found = made.find() or (made._thread and made._thread.join()) or made.find()
    assert found is not None and callable(found.launch)
    failing = builtins.Builtin()
    monkeypatch.setattr(toolchain, "has_compiler", lambda: 1 / 0)
    assert failing.find() is None
    assert failing._thread is not None
    failing._thread.join()
    assert failing.find() is None


def test_streams_of_torchs_table_are_checked(made_up: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made_up.table()
    monkeypatch.setattr(launch, "exchange_table", lambda: ctypes.addressof(table))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    for told, is_right in ((71, True), (72, False)):
        builtins._knows_streams.cache_clear()
        monkeypatch.setattr(builtins, "cuda_stream_of", lambda device, told=told: told)
        assert builtins._knows_streams(0) is is_right
    builtins._knows_streams.cache_clear()


# several launches -------------------------------------------------------------------------------------


@pytest.fixture
def listed(made_up: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Have the builtin launch what coalesces; the emulator runs it before the host waits."""
    names = [
        f"scorch_{name}" for name in ("sample", "rank", "spread", "sort", "place", "few", "find_infinite")
    ]
    runs: list[list[str]] = []
    builtin = builtins.make_builtin()
    table, wait = made_up.table(), streams.Told.wait
    assert builtin is not None
    set_table = invoke.builtin(b"set_exchange", jit.load(*builtins.SOURCES).address("scorch_set_exchange"))
    set_table(ctypes.addressof(table), None)
    routines = EmulatedRoutines()

    def run(told: streams.Told) -> list[int]:
        launches = made_up.taken()
        runs.append([names[function - 1] for function, *_ in launches])
        (kernel,) = (*routines._coalesces.values(), *routines._finite.values())
        for function, blocks, threads, shared, *slots in launches:
            assert shared <= 65_536 and threads % 32 == 0
            run_grid(kernel.source, names[function - 1], slots, blocks * threads)
        return wait(told)

    monkeypatch.setattr(streams.Told, "wait", run)
    monkeypatch.setattr(entries, "CALLS", 2)
    monkeypatch.setattr(
        CudaKernel, "function", lambda kernel, name, device: ctypes.c_void_p(1 + names.index(name))
    )
    monkeypatch.setattr(EmulatedRoutines, "find_builtin", staticmethod(lambda device: builtin.launch_all))
    monkeypatch.setattr(EmulatedRoutines, "place_of", lambda self, device: (1, 0))
    monkeypatch.setattr(EmulatedBackend, "routines", routines)
    yield runs


@pytest.mark.parametrize(("count", "most"), [(300, 1 << 10), (1500, 1 << 10), (4000, 100)])
def test_the_builtin_launches_all_that_coalesces(
    count: int, most: int, listed: list[list[str]], made_up: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalescing, "MAX_RANKED", most)
    monkeypatch.setattr(coalescing, "MAX_DRAWN", most)
    places, values = torch.randint(70, (2, count)), torch.randn(count)
    wanted = torch.sparse_coo_tensor(places, values, (70, 70)).coalesce()
    for _ in range(3):
        S = scorch.sparse_coo_tensor(places, values, (70, 70))
        assert torch.equal(S.indices(), wanted.indices())
        torch.testing.assert_close(S.values(), wanted.values())
    assert not listed[0] and listed[1] == listed[2]  # the first call launches one by one
    usual = ["scorch_rank", "scorch_spread", "scorch_sort", "scorch_place"]
    sampled = ["scorch_sample", *usual[:3], *usual[1:]]
    assert listed[1] == (["scorch_few"] if count == 300 else usual if most > 100 else sampled)


def test_launches_that_fail_are_made_one_by_one(listed: list[list[str]], made_up: Driver) -> None:
    places, values = torch.randint(70, (2, 300)), torch.randn(300)
    scorch.sparse_coo_tensor(places, values, (70, 70))
    for name in ("status", "current"):  # the driver refuses; another device is current
        made_up.number(name).value = 1
        S = scorch.sparse_coo_tensor(places, values, (70, 70))
        made_up.number(name).value = 0
        made_up.taken()
        torch.testing.assert_close(S.to_dense(), torch.sparse_coo_tensor(places, values, (70, 70)).to_dense())


@pytest.mark.parametrize("shared", [False, True])
def test_the_builtin_launches_the_search_for_infinity(shared: bool, listed: list[list[str]]) -> None:
    routines, arrays = EmulatedBackend.routines, [torch.rand(300), torch.rand(40)][: 2 - shared]
    for _ in range(2):
        assert routines.are_finite(arrays)
    arrays[-1][-1] = torch.nan
    assert not routines.are_finite(arrays)
    assert listed == [[], ["scorch_find_infinite"], ["scorch_find_infinite"]]
