"""Processes that start together compile each kernel once, and none waits for one that has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import scorch
from scorch._src.backends import cache
from scorch._src.backends.compile_lock import SUFFIX, one_at_a_time

KERNELS = 2
PROGRAM = """
import os, sys, time
from scorch._src.backends.cpu import jit
start = float(sys.argv[1])
time.sleep(max(0.0, start - time.time()))
sources = [f"long long number(void) {{ return {n}; }}" for n in range(int(sys.argv[2]))]
print(sum(jit.load(source).origin == "compiled" for source in sources))
"""
HOLDER = """
import sys, time
from scorch._src.backends.compile_lock import one_at_a_time
with one_at_a_time(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(600)
"""


def environment(folder) -> dict[str, str]:
    return {**os.environ, "SCORCH_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}


def compile_together(folder, count: int) -> list[int]:
    """How many kernels each of some processes compiled that started together."""
    begin = str(time.time() + 2 + count / 2)
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, begin, str(KERNELS)]
    started = [
        subprocess.Popen(words, env=environment(folder), stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    return [int(process.communicate(timeout=300)[0]) for process in started]


def test_each_kernel_is_compiled_by_one_process(tmp_path, cases):
    folder = tmp_path / "cache"
    count = 8 if cases > 50 else 3
    assert sum(compile_together(folder, count)) == KERNELS
    assert not list(folder.glob(f"*{SUFFIX}"))  # nothing is left behind


def test_nobody_waits_for_a_process_that_was_killed(tmp_path):
    words = [sys.executable, "-W", "ignore", "-c", HOLDER, "a" * 64]
    with subprocess.Popen(words, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        with scorch.settings(cache_directory=tmp_path, compiler_seconds=1):
            begin = time.monotonic()
            with one_at_a_time("a" * 64):  # held by another: a bounded wait, and then on our own
                assert time.monotonic() - begin >= 1
            assert (tmp_path / f"{'a' * 64}{SUFFIX}").exists()  # the holder's
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with scorch.settings(cache_directory=tmp_path, compiler_seconds=3600):
        with one_at_a_time("a" * 64):
            pass
        assert cache.statistics().entries == 0


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    with scorch.settings(cache_directory=file), one_at_a_time("b" * 64):
        pass
