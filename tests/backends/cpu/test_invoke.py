from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scorch._src.backends.cpu import invoke, jit, parallel
from scorch._src.backends.cpu.invoke import Caller, make_caller
from scorch._src.backends.cpu.parallel import busy_until, parallel_runtime
from scorch.errors import CompilationError, CompilerNotFoundError

KERNELS = """
long long sum(long long *args) {
    long long total = 0;
    for (long long i = 0; i < args[0]; i++) total += args[1 + i];
    return total;
}
long long double_all(long long *args) {
    for (long long i = 1; i < args[0]; i++) args[i] *= 2;
    return -1;
}
long long nothing(long long *args) { return 7; }
long long wait(long long *args) {
    volatile int *flag = (volatile int *)args[0];
    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) {}
    return 1;
}
long long add_one(long long *args) {
    float *values = (float *)args[0];
    for (long long i = 0; i < args[1]; i++) values[i] += 1;
    return 0;
}
typedef void (*body_t)(long long, long long, void *);
typedef int (*parallel_t)(long long, long long, long long, body_t, void *);
static void body(long long begin, long long end, void *context) {
    for (long long i = begin; i < end; i++) ((long long *)context)[i] = i;
}
static void count_turn(long long begin, long long end, void *context) {
    for (long long i = begin; i < end; i++) __atomic_fetch_add(&((long long *)context)[i], 1, 5);
}
long long count_turns(long long *args) {
    return ((parallel_t)args[0])(0, args[1], 1, count_turn, (void *)args[2]);
}
static void count_call(long long begin, long long end, void *context) {
    __atomic_fetch_add((long long *)context, 1, 5);
}
long long count_calls(long long *args) {
    return ((parallel_t)args[0])(0, args[1], 1, count_call, (void *)args[2]);
}
static void nested(long long begin, long long end, void *context) {
    long long *args = context;
    for (long long i = begin; i < end; i++)
        ((parallel_t)args[0])(0, args[1], 1, count_turn, (void *)args[2]);
}
long long count_nested(long long *args) { return ((parallel_t)args[0])(0, 2, 1, nested, args); }
long long time(long long *);
static void arrive(long long begin, long long end, void *context) { /* and wait for the other, a minute */
    long long until = time(0) + 60;
    __atomic_fetch_add((long long *)context, 1, 5);
    while (__atomic_load_n((long long *)context, 5) < 2 && time(0) < until) {}
}
long long meet(long long *args) {
    long long arrived = 0;
    ((parallel_t)args[0])(0, 2, 1, arrive, &arrived);
    return arrived;
}
long long fill(long long *args) {
    return ((parallel_t)args[0])(0, args[1], 1, body, (void *)args[2]);
}
"""


@pytest.fixture(autouse=True)
def new_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoke, "_caller", None)


@pytest.fixture(params=["trampoline", "ctypes"])
def caller(request: pytest.FixtureRequest) -> Caller:
    chosen = make_caller() if request.param == "trampoline" else invoke._through_ctypes()
    assert chosen.kind == request.param
    return chosen


def address(name: str) -> int:
    return jit.load(KERNELS).address(name)


def test_it_is_made_once() -> None:
    assert make_caller() is make_caller()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 500])
def test_arguments_arrive(caller: Caller, count: int) -> None:
    values = [(-1) ** i * (2**40 + i) for i in range(count)]
    assert caller.call(address("sum"), count, *values) == sum(values)


def test_no_arguments_are_fine(caller: Caller) -> None:
    assert caller.call(address("nothing")) == 7
    assert caller.call_back(address("nothing"), []) == 7


def test_extreme_integers_survive(caller: Caller) -> None:
    for value in (-1, 0, 2**63 - 1, -(2**63)):
        assert caller.call(address("sum"), 1, value) == value


@pytest.mark.parametrize("count", [1, 63, 64, 65, 500])
def test_slots_are_written_back(caller: Caller, count: int) -> None:
    args = [count, *range(-5, count - 6)]
    assert caller.call_back(address("double_all"), args) == -1
    assert args == [count, *(2 * i for i in range(-5, count - 6))]


def test_tensors_are_reached_by_address(caller: Caller) -> None:
    values = torch.arange(5.0)
    caller.call(address("add_one"), values.data_ptr(), 5)
    assert values.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("wrong", [1.5, "1", None, object()])
def test_what_is_no_integer_is_refused(caller: Caller, wrong: object) -> None:
    with pytest.raises(TypeError):
        caller.call(address("nothing"), 1, wrong)
    args = [1, wrong]
    with pytest.raises(TypeError):
        caller.call_back(address("nothing"), args)  # type: ignore[arg-type]
    assert args == [1, wrong]


def test_address_zero_is_refused_not_followed(caller: Caller) -> None:
    with pytest.raises(ValueError, match="address"):
        caller.call(0, 1)
    with pytest.raises(ValueError, match="address"):
        caller.call_back(0, [1])


def test_trampoline_refuses_other_misuse() -> None:
    caller = make_caller()
    with pytest.raises(TypeError, match="address"):
        caller.call()
    with pytest.raises(TypeError, match="list"):
        caller.call_back(address("nothing"), (1, 2))  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        caller.call(address("nothing"), 2**64)


def test_other_threads_run_during_a_kernel(caller: Caller) -> None:
    flag = ctypes.c_int(0)
    waits = threading.Thread(target=caller.call, args=(address("wait"), ctypes.addressof(flag)))
    waits.start()
    flag.value = 1  # never reached if the kernel kept the interpreter to itself
    waits.join(timeout=60)
    assert not waits.is_alive()


def test_references_are_balanced(caller: Caller) -> None:
    value = 2**50 + 12345
    args = [2, value]
    before = sys.getrefcount(value)
    for _ in range(100):
        caller.call(address("sum"), 1, value)
        caller.call_back(address("nothing"), args)
        args[1] = value
    assert sys.getrefcount(value) - before <= 1


def test_ctypes_takes_over_when_the_trampoline_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, label: str = "") -> jit.Library:
        raise CompilationError("no")

    monkeypatch.setattr(jit, "load", refuse)
    assert make_caller().kind == "ctypes"


def test_ctypes_serves_other_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoke.sys, "abiflags", "t")
    assert make_caller().kind == "ctypes"


def test_missing_compiler_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, label: str = "") -> jit.Library:
        raise CompilerNotFoundError("none")

    monkeypatch.setattr(jit, "load", refuse)
    with pytest.raises(CompilerNotFoundError):
        make_caller()


def test_kernels_borrow_the_threads_of_torch(caller: Caller) -> None:
    assert parallel_runtime() != 0
    result = torch.zeros(1000, dtype=torch.int64)
    assert caller.call(address("fill"), parallel_runtime(), 1000, result.data_ptr()) == 0
    assert torch.equal(result, torch.arange(1000))


@pytest.fixture(params=["torch", "OpenMP", "watched", "busy"])
def runtime(request: pytest.FixtureRequest, quiet: Path) -> Iterator[int]:
    """The loops: torch's, those of OpenMP, alone and watched, and our own, for a busy machine."""
    if request.param == "busy":
        busy_until().value = time.monotonic_ns() + 10**12
        yield parallel_runtime()
        busy_until().value = 0
        return
    if request.param == "watched":
        yield parallel_runtime()
        return
    address = parallel.torch_loop() if request.param == "OpenMP" else parallel._torch_parallel_for()
    if not address:
        pytest.skip("torch has exported its thread pool since 2.10")
    yield address


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("count", [0, 1, 2, 3, 17, 1000])
def test_each_turn_is_taken_once(caller: Caller, runtime: int, count: int) -> None:
    times = torch.zeros(count, dtype=torch.int64)
    assert caller.call(address("count_turns"), runtime, count, times.data_ptr()) == 0
    assert torch.equal(times, torch.ones(count, dtype=torch.int64))


@pytest.mark.usefixtures("two_threads")
def test_two_threads_run_at_once(caller: Caller, runtime: int) -> None:
    assert caller.call(address("meet"), runtime) == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_are_as_many_as_torch_is_set_to(
    caller: Caller, runtime: int, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["runtime"] == "busy":
        pytest.skip("a loop has as many parts as threads may share it")
    calls = torch.zeros(1, dtype=torch.int64)
    torch.set_num_threads(1)
    caller.call(address("count_calls"), runtime, 100, calls.data_ptr())
    assert calls.item() == 1
    torch.set_num_threads(2)
    caller.call(address("count_calls"), runtime, 100, calls.data_ptr())
    assert calls.item() == 1 + 2


@pytest.mark.usefixtures("two_threads")
def test_loop_inside_of_a_loop_runs_on_its_thread(caller: Caller, runtime: int) -> None:
    times = torch.zeros(6, dtype=torch.int64)
    assert caller.call(address("count_nested"), runtime, 6, times.data_ptr()) == 0
    assert torch.equal(times, torch.full((6,), 2))  # once from each of two outer turns


def test_torch_without_the_runtime_means_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", "/no/such/place/__init__.py")
    parallel_runtime.cache_clear()
    assert parallel_runtime() == 0
    parallel_runtime.cache_clear()
