"""Processes that start together compile each kernel once, and none waits for one that has died."""

from __future__ import annotations

import os
import sys
import threading

import pytest

import scorch
from fork_server import CAN_FORK, run_python
from scorch._src.backends import compile_lock
from scorch._src.backends.compile_lock import SUFFIX, one_at_a_time

pytestmark = pytest.mark.usefixtures("kernels")

KERNELS = 2

# Children that begin together exit with the number of kernels that they have compiled.
TOGETHER = """
import os, sys
from scorch._src.backends.cpu import jit, toolchain
toolchain.find_toolchain()
sources = [f"long long number(void) {{ return {n}; }}" for n in range(int(sys.argv[2]))]
reader, writer = os.pipe()
children = []
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(sum(jit.load(source).origin == "compiled" for source in sources))
    children.append(child)
os.close(writer)
print(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""

# A child takes the lock; the parent waits a second for it, and then not at all when it is killed.
KILLED = """
import os, signal, time
import scorch
from scorch._src.backends.compile_lock import one_at_a_time
reader, writer = os.pipe()
child = os.fork()
if not child:
    with one_at_a_time("a" * 64):
        os.write(writer, b"!")
        time.sleep(600)
os.read(reader, 1)
begin = time.monotonic()
with scorch.settings(compiler_seconds=1), one_at_a_time("a" * 64):
    waited = time.monotonic() - begin
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
with one_at_a_time("a" * 64):
    print(waited >= 1)
"""

# A child that is forked while a thread compiles has the kernel to itself, once the file is free.
FORKED = """
import os, threading
import scorch
from scorch._src.backends.compile_lock import _at_work, one_at_a_time
may_end, has_begun = threading.Event(), threading.Event()
def work():
    with one_at_a_time("a" * 64):
        has_begun.set()
        may_end.wait(60)
thread = threading.Thread(target=work)
thread.start()
has_begun.wait(60)
child = os.fork()
if not child:
    os._exit(len(_at_work))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
may_end.set()
thread.join()
"""

# A child that is forked while the file is locked has it open for as long as it lives.
OUTLIVED = """
import os
from scorch._src.backends import cache, compile_lock
reader, writer = os.pipe()
with compile_lock.one_at_a_time("a" * 64):
    waiting = os.open(cache.directory() / f"{'a' * 64}.lock", os.O_RDWR)
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    is_locked = not compile_lock._try_to_lock(waiting)
print(is_locked and compile_lock._try_to_lock(waiting))
os.close(writer)
os.waitpid(child, 0)
"""


def run(program: str, folder, *words: str) -> str:
    environment = {**os.environ, "SCORCH_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-c", program, *words], env=environment)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


@pytest.mark.skipif(not CAN_FORK, reason="processes are forked")
def test_each_kernel_is_compiled_by_one_process(tmp_path, cases):
    folder = tmp_path / "cache"
    processes = 8 if cases > 50 else 3
    assert run(TOGETHER, folder, str(processes), str(KERNELS)) == str(KERNELS)
    assert not list(folder.glob(f"*{SUFFIX}"))  # nothing is left behind


@pytest.mark.skipif(not CAN_FORK, reason="processes are forked")
def test_nobody_waits_for_a_process_that_was_killed(tmp_path):
    assert run(KILLED, tmp_path) == "True"
    assert not list(tmp_path.glob(f"*{SUFFIX}"))


@pytest.mark.skipif(not CAN_FORK, reason="processes are forked")
def test_nobody_waits_for_a_process_that_was_forked_meanwhile(tmp_path):
    assert run(OUTLIVED, tmp_path) == "True"


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    with scorch.settings(cache_directory=file), one_at_a_time("b" * 64):
        pass


def test_threads_of_a_process_wait_without_looking(tmp_path, monkeypatch):
    """Who looks again and again goes on too late."""
    has_begun, ended = threading.Event(), []
    monkeypatch.setattr(compile_lock.time, "sleep", lambda seconds: pytest.fail("a thread looks again"))

    def compile_second():
        has_begun.set()
        with scorch.settings(cache_directory=tmp_path), one_at_a_time("c" * 64):
            ended.append("second")

    second = threading.Thread(target=compile_second)
    with scorch.settings(cache_directory=tmp_path):
        with one_at_a_time("c" * 64):
            second.start()
            assert has_begun.wait(60)
            second.join(0.2)
            ended.append("first")
        second.join(60)
    assert ended == ["first", "second"]


@pytest.mark.skipif(not CAN_FORK, reason="processes are forked")
def test_a_forked_process_waits_for_no_thread_that_it_does_not_have(tmp_path):
    assert run(FORKED, tmp_path) == "0"
