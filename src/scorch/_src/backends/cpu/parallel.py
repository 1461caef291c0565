"""The function that runs loops on several threads, and how many threads share one.

Kernels share torch's threads instead of starting their own: two pools spinning on the same cores make both
slow, and ``torch.set_num_threads`` is obeyed for free. Only next to busy processes, where torch's loops wait
for threads that get no core, ``c/pool.c`` has threads of its own.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from scorch._src.backends.cores import cores_of_host
from scorch._src.backends.cpu import invoke, jit
from scorch._src.backends.print.effort import ONCE_A_ROW, at_most
from scorch._src.bounded import BoundedCache
from scorch.settings import applied, in_block

_POOL = at_most(ONCE_A_ROW) + jit.read_source("pool.c")  # no loop in it has much to do
SOURCES = (_POOL,)

# In the order of the structure in pool.c. libgomp has these, and LLVM's libomp, which answers to its names.
# In a new thread, loops have as many threads as PyTorch's only once its function has been called.
_TEAM = "GOMP_parallel"
_MOST_THREADS = ("_ZN2at15get_num_threadsEv", "omp_get_max_threads")
_IN_TEAMS = ("omp_in_parallel", "omp_get_num_threads", "omp_get_thread_num")

USUAL_NANOSECONDS = 30_000  # of a loop that does nothing, where the least work for two threads holds as it is
TIMED_LOOPS = 40  # of which the shortest counts
MAX_NANOSECONDS = 4_000_000  # that measuring takes, as long as there are a few loops
FIRST_WAIT = 4_000_000  # nanoseconds until the next measurement, four times as many after each that agrees
MOST_AGREEING = 6  # after which they take place every 16 seconds
AGREEING = 1.25  # times the least cost
BUSY_FACTOR = 16  # times as much work where threads wait for cores
CHEAPEST, DEAREST = 0.2, 8.0  # bounds of the ratio to the usual cost


@functools.cache
def parallel_runtime() -> int:
    """Return the address of a function like ``torch_parallel_for``; 0 where kernels run on one thread."""
    loops = pool()
    return torch_loop() if loops is None else loops.address("scorch_parallel_for")


def _torch_library() -> ctypes.CDLL:
    name = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}.get(sys.platform, "libtorch_cpu.so")
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _address_of(name: str) -> int:
    """Return the address of one of PyTorch's functions; 0 without it."""
    try:
        return ctypes.cast(_torch_library()[name], ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def _torch_parallel_for() -> int:
    """Return the address of PyTorch's function; 0 before torch 2.10."""
    return _address_of("torch_parallel_for")


def torch_loop() -> int:
    """Return the address of the function that runs loops on all of PyTorch's threads; 0 without one."""
    library = _library()
    return (0 if library is None else _openmp_loop(library)) or _torch_parallel_for()


@functools.cache
def _library() -> jit.Library | None:
    return jit.find_library(_POOL, "the loops that threads share")


def _openmp_loop(library: jit.Library) -> int:
    """Return the address of the function of ``library`` that does what PyTorch's does, in less time.

    The OpenMP library that PyTorch has loaded runs its loops, by the same rules: on as many threads as
    ``torch.set_num_threads`` allows, and on one inside a parallel loop. 0 where it has other names.
    """
    most = next(filter(None, map(_address_of, _MOST_THREADS)), 0)
    functions = [_address_of(_TEAM), most, *map(_address_of, _IN_TEAMS)]
    if not all(functions):
        return 0
    set_openmp = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("scorch_set_openmp"))
    set_openmp((ctypes.c_void_p * len(functions))(*functions))
    return library.address("scorch_openmp_loop")


def pool() -> jit.Library | None:
    """Return the functions that run loops on PyTorch's threads while all these find cores."""
    return _pool(torch_loop())


@functools.lru_cache(maxsize=4)
def _pool(loop: int) -> jit.Library | None:
    library = _library()
    if library is None or not loop:
        return None
    set_loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong)
    set_loop(library.address("scorch_set_torch_loop"))(loop, cores_of_host(), os.cpu_count() or 1)
    forget = ctypes.CFUNCTYPE(None)(library.address("scorch_forget_threads"))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
    return library


@functools.cache
def busy_until() -> ctypes.c_longlong:
    """Return until when the machine is busy, in nanoseconds of the monotonic clock; 0 while it is quiet."""
    loops = pool()
    at = None if loops is None else loops.address("scorch_busy_until")
    return ctypes.c_longlong(0) if at is None else ctypes.c_longlong.from_address(at)


def pack_addresses() -> bytes:
    """Pack where it says whether the machine is busy, and what counts PyTorch's threads; empty if unknown."""
    at, most = ctypes.addressof(busy_until()), _address_of(_MOST_THREADS[0])
    return struct.pack("2q", at, most) if most else b""


@functools.cache
def _still_busy() -> Callable[[int], int]:
    loops = pool()
    assert loops is not None  # which have said that it was busy
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_longlong)
    return kind(loops.address("scorch_is_busy"))


def is_busy() -> bool:
    """Check whether threads wait for cores: ask the system again, now and then, where they did."""
    until = busy_until().value
    return until > 0 and (time.monotonic_ns() < until or bool(_still_busy()(time.monotonic_ns())))


restricted_loops: dict[int, int] = {}  # how many threads PyTorch has otherwise, by the thread that runs them


@functools.cache
def _count_left_cores() -> Callable[[int], int]:
    """Return a function of how many threads want a core: how many there are for them, 0 if enough."""
    loops = pool()
    address = 0 if loops is None else loops.address("scorch_left_cores")
    return functools.partial(invoke.make_caller().call, address) if address else lambda threads: 0


@functools.cache
def _setters() -> tuple[Callable[[int], int], Callable[[int], int] | None] | None:
    """Return the functions that set how many threads the loops of this thread have: PyTorch's and MKL's."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
    try:
        library = _torch_library()
        of_mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)  # returns the number before
        return kind(("omp_set_num_threads", library)), of_mkl and kind(("MKL_Set_Num_Threads_Local", library))
    except (OSError, AttributeError):
        return None


def leave_cores() -> Callable[[], None] | None:
    """Have PyTorch's loops on this thread take no more cores than other processes leave.

    Those loops end when all their threads have done a part, however long one waits for a core. Kernels, whose
    loops see to it themselves, have as many threads as before. Return what ends it; None if nothing began, as
    there are cores enough.
    """
    threads, thread = torch.get_num_threads(), threading.get_ident()
    if threads < 2 or thread in restricted_loops:
        return None
    left, setters = _count_left_cores()(threads), _setters()
    if not 0 < left < threads or setters is None:
        return None
    set_threads, set_of_mkl = setters
    restricted_loops[thread] = threads
    set_threads(left)
    of_mkl = set_of_mkl(left) if set_of_mkl is not None else 0

    def end() -> None:
        del restricted_loops[thread]
        if torch.get_num_threads() == left:  # nobody has set another number meanwhile
            set_threads(threads)
            if set_of_mkl is not None:
                set_of_mkl(of_mkl)

    return end


def torch_threads() -> int:
    """Return how many threads PyTorch may use, also while its loops leave cores to others."""
    return (restricted_loops and restricted_loops.get(threading.get_ident())) or torch.get_num_threads()


@dataclass
class _Cost:
    """What loops of some number of threads cost: the least of all measurements, and when the next is due.

    Other processes, or threads of other libraries that spin while they wait, make loops dear, never cheap. So
    as long as loops are dearer than they can be, they are measured again: soon while measurements find them
    cheaper than before, more and more rarely while they agree. Nothing that was chosen when they were dear
    stays for longer (``revisit_at``).
    """

    relative: float = math.inf
    measurements: int = 0
    agreeing: int = 0  # measurements that have found no cheaper loops
    due: int = 0  # nanoseconds of the monotonic clock

    @property
    def known(self) -> float:
        """The cost to go by; before the first measurement, as on a busy machine, what is usual."""
        return self.relative if self.measurements else 1.0

    def measure(self, threads: int) -> None:
        # Where PyTorch's loops have one thread, or fewer than usual, they say nothing about those of others
        is_usual = torch.get_num_threads() > 1 and threading.get_ident() not in restricted_loops
        took = _time_of_loop(threads) if is_usual else -1
        if took < 0:
            self.due = time.monotonic_ns() + FIRST_WAIT
            return
        now = min(max(took / USUAL_NANOSECONDS, CHEAPEST), DEAREST) if took > 0 else 1.0
        self.agreeing = min(self.agreeing + 1, MOST_AGREEING) if now * AGREEING >= self.relative else 0
        self.relative = min(self.relative, now)
        self.due = time.monotonic_ns() + (FIRST_WAIT << 2 * self.agreeing)
        self.measurements += 1


_costs: BoundedCache[tuple[int, int], _Cost] = BoundedCache(1024)  # by the threads of a loop, and PyTorch's


def _cost_of(threads: int) -> _Cost:
    key = threads, torch_threads()
    cost = _costs.get(key)
    return cost if cost is not None else _costs.setdefault(key, _Cost())


def relative_cost(threads: int) -> float:
    """Return the overhead of a loop on ``threads``, relative to the usual overhead.

    A busy machine, where it cannot be measured, is taken for a usual one.
    """
    cost = _cost_of(threads)
    if cost.known > CHEAPEST and time.monotonic_ns() >= cost.due:
        cost.measure(threads)
    return cost.known


def _time_of_loop(threads: int) -> int:
    """Measure a loop that does nothing, in nanoseconds; 0 where it cannot be measured, -1 if not now."""
    loops = pool()
    if loops is None:
        return 0
    kind = ctypes.CFUNCTYPE(ctypes.c_longlong, *[ctypes.c_longlong] * 3)
    took: int = kind(loops.address("scorch_time_of_loop"))(threads, TIMED_LOOPS, MAX_NANOSECONDS)
    return took


def revisit_at(threads: int, work: float, least: float) -> int:
    """Return when to choose again how many threads share ``work``, by the monotonic clock; 0 for never.

    Loops may turn out to be cheaper than they seemed, so one thread is a choice to look at again, where
    cheaper ones would make it another; all threads stay.
    """
    if threads < 2 or not least:
        return 0
    cost = _cost_of(threads)
    if cost.known <= CHEAPEST:
        return 0
    turning_points = ((CHEAPEST, cost.relative), (BUSY_FACTOR, BUSY_FACTOR * cost.relative))
    return cost.due if any(least * low <= work < least * high for low, high in turning_points) else 0


def threads_for(work: float, least: float) -> int:
    """Return how many threads share ``work`` now: all from ``least`` on, if loops cost what is usual."""
    return threads_by_load(allowed_threads(), work, least)[is_busy()]


def threads_by_load(threads: int, work: float, least: float) -> tuple[int, int]:
    """Return how many of ``threads`` share ``work`` on a quiet machine, and on a busy one."""
    if threads < 2 or not least:
        return threads, threads
    if work < least * CHEAPEST:  # whatever a loop costs, which takes time to measure
        return 1, 1
    cost = relative_cost(threads)
    busy = BUSY_FACTOR * least * max(cost, 1.0)  # where threads wait for cores, a cheap loop says little
    return (threads if work >= least * cost else 1), (threads if work >= busy else 1)


def allowed_threads() -> int:
    """Return how many threads a kernel may use, by our settings or by torch's."""
    return (in_block() or applied[0]).threads or torch_threads()


def shared_by(work: int, each: int) -> tuple[int, int]:
    """Return ``parallel_runtime``, and how many threads, at ``each`` of ``work`` or more, share it."""
    parallel = parallel_runtime()
    return parallel, threads_for(work, 2 * each) if parallel else 1
