"""The function that runs loops on several threads, and how many threads share one.

Kernels share torch's threads instead of starting their own: two pools spinning on the same cores make both
slow, and ``torch.set_num_threads`` is obeyed for free. Only beside busy processes, where torch's loops wait
for threads that get no core, ``c/pool.c`` has threads of its own.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from pathlib import Path

import torch

from scorch._src.backends.cpu import jit, openmp
from scorch.errors import CompilationError
from scorch.settings import applied, in_block

_POOL = jit.read_source("pool.c")
SOURCES = (_POOL,)

USUAL_NANOSECONDS = 30_000  # of a loop that does nothing, where the least work for two threads holds as it is
TIMED_LOOPS = 40  # of which the shortest counts
BUSY_FACTOR = 8  # times as much work where threads wait for cores
CHEAPEST, DEAREST = 0.2, 8.0  # bounds of the ratio to the usual cost


@functools.cache
def parallel_runtime() -> int:
    """Return the address of a function like ``torch_parallel_for``; 0 where kernels run on one thread."""
    loop = _torch_loop()
    pool = _pool(loop)
    return loop if pool is None else pool.address("scorch_parallel_for")


def _torch_loop() -> int:
    """Return the address of torch's own function, or of one that does the same for older versions."""
    name = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}.get(sys.platform, "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
        if hasattr(library, "torch_parallel_for"):  # from torch 2.10 on
            return ctypes.cast(library.torch_parallel_for, ctypes.c_void_p).value or 0
        return openmp.parallel_for(library)
    except (OSError, AttributeError, CompilationError):
        return 0


@functools.lru_cache(maxsize=4)
def _pool(loop: int) -> jit.Library | None:
    """Load the functions that run loops by the one at ``loop`` while all its threads find cores."""
    if not loop:
        return None
    try:
        library = jit.load(_POOL, "the loops that threads share")
    except CompilationError:
        return None
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("scorch_set_torch_loop"))(loop)
    forget = ctypes.CFUNCTYPE(None)(library.address("scorch_forget_threads"))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
    return library


@functools.cache
def busy_until() -> ctypes.c_longlong:
    """Return the time until which the machine is taken for busy, in nanoseconds of the monotonic clock."""
    pool = _pool(_torch_loop())
    at = None if pool is None else pool.address("scorch_busy_until")
    return ctypes.c_longlong(0) if at is None else ctypes.c_longlong.from_address(at)


@functools.lru_cache(maxsize=1024)
def relative_cost(threads: int) -> float:
    """Return what a loop on ``threads`` costs beside its work, in terms of the usual cost; measured once."""
    pool = _pool(_torch_loop())
    if pool is None:
        return 1.0
    kind = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_longlong, ctypes.c_longlong)
    took: int = kind(pool.address("scorch_time_of_loop"))(threads, TIMED_LOOPS)
    return min(max(took / USUAL_NANOSECONDS, CHEAPEST), DEAREST) if took > 0 else 1.0


def threads_for(work: float, least: float) -> int:
    """Return how many threads share ``work`` now: all from ``least`` on, if loops cost what is usual."""
    threads = (in_block() or applied[0]).threads or torch.get_num_threads()
    return threads_by_load(threads, work, least)[time.monotonic_ns() < busy_until().value]


def threads_by_load(threads: int, work: float, least: float) -> tuple[int, int]:
    """Return how many of ``threads`` share ``work`` on a quiet machine, and on a busy one."""
    if threads < 2 or not least:
        return threads, threads
    if work < least * CHEAPEST:  # whatever a loop costs, which takes time to measure
        return 1, 1
    least *= relative_cost(threads)
    return (threads if work >= least else 1), (threads if work >= BUSY_FACTOR * least else 1)


def shared_by(work: int, each: int) -> tuple[int, int]:
    """Return ``parallel_runtime``, and how many threads, at ``each`` of ``work`` or more, share it."""
    parallel = parallel_runtime()
    return parallel, threads_for(work, 2 * each) if parallel else 1
