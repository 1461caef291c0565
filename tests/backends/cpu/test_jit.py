from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fork_server import CAN_FORK, run_python
from scorch._src.backends import cache
from scorch._src.backends.cpu import jit, toolchain
from scorch._src.backends.cpu.jit import Library
from scorch.errors import CompilationError, ScorchWarning
from scorch.settings import settings

pytestmark = pytest.mark.usefixtures("kernels")

ROOT = str(Path(jit.__file__).parents[4])
CHILD = """
import sys
from scorch._src.backends.cpu import jit
library = jit.load(sys.argv[1])
print(library.origin, library.seconds_to_build > 0, library.path)
"""


TWICE = f"""
import os
children = []
while len(children) < 2 and (child := os.fork()):
    children.append(child)
if len(children) == 2:
    raise SystemExit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
{CHILD}
"""


def constant(value: int) -> str:
    return f"long long kernel(long long *args) {{ return {value}; }}\n"


def result_of(library: Library) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_void_p)(library.address("kernel"))(None))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that reach the compiler, as they do."""
    seen: list[str] = []
    real = jit._compile

    def compile_and_note(tools: toolchain.Toolchain, source: str, key: str, label: str) -> bytes:
        seen.append(source)
        return real(tools, source, key, label)

    monkeypatch.setattr(jit, "_compile", compile_and_note)
    return seen


def test_source_becomes_a_function(kernels: Path) -> None:
    library = jit.load(constant(17))
    assert result_of(library) == 17
    assert library.origin == "compiled"
    assert library.seconds_to_build > 0
    assert library.path.parent == kernels


def test_functions_of_libc_and_atomics_need_no_library() -> None:
    source = """
    void *malloc(unsigned long); void free(void *); void *memcpy(void *, const void *, unsigned long);
    double exp(double); double sqrt(double); float powf(float, float);
    long long kernel(long long *args) {
        long long local[2] = {0, 5}, *copy = malloc(16), seen;
        memcpy(copy, local, 16);
        __atomic_fetch_add(&copy[0], 3, __ATOMIC_RELAXED);
        long long wanted = 3;
        __atomic_compare_exchange_n(&copy[0], &wanted, 4, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
        seen = copy[0] * 10 + copy[1] + (long long)exp(args ? 1.0 : 0.0) + (long long)powf(2.0f, copy[1]);
        free(copy);
        return seen;
    }
    """
    assert result_of(jit.load(source)) == 40 + 5 + 1 + 32


def test_memory_answers_before_disk(compilations: list[str]) -> None:
    library = jit.load(constant(1))
    assert jit.load(constant(1)) is library
    assert len(compilations) == 1


def test_disk_answers_before_the_compiler(compilations: list[str]) -> None:
    first = jit.load(constant(1))
    jit.forget()
    second = jit.load(constant(1))
    assert (second.origin, second.seconds_to_build, second.path) == ("disk", 0.0, first.path)
    assert result_of(second) == 1
    assert len(compilations) == 1


def test_another_process_finds_it_on_disk() -> None:
    path = jit.load(constant(2)).path
    child = run_python(["-c", CHILD, constant(2)])
    assert child.stdout.split() == ["disk", "False", str(path)]
    assert child.returncode == 0


@pytest.mark.skipif(not CAN_FORK, reason="both are forks of one process")
def test_two_processes_at_once_agree(kernels: Path) -> None:
    done = run_python(["-c", TWICE, constant(3)])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and len({line.split()[-1] for line in lines}) == 1
    assert cache.statistics().entries == 1
    assert jit.load(constant(3)).origin == "disk"


def test_eight_threads_compile_one_source_once(compilations: list[str]) -> None:
    barrier = threading.Barrier(8)

    def load() -> Library:
        barrier.wait()
        return jit.load(constant(4))

    with ThreadPoolExecutor(8) as pool:
        libraries = [job.result() for job in [pool.submit(load) for _ in range(8)]]
    assert all(library is libraries[0] for library in libraries)
    assert compilations == [constant(4)]
    assert not jit._building


@pytest.fixture
def in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers start two at a time."""
    both = threading.Barrier(2)
    real = jit.run_compiler

    def meet_and_run(command: list[str], folder: str) -> tuple[int, str]:
        both.wait(timeout=60)  # breaks if the second waits for the first to end
        return real(command, folder)

    monkeypatch.setattr(jit, "run_compiler", meet_and_run)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def test_different_sources_compile_at_the_same_time(in_pairs: None) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert sorted(map(result_of, pool.map(jit.load, [constant(5), constant(6)]))) == [5, 6]


def test_many_sources_are_built_side_by_side(tmp_path: Path, in_pairs: None, compilations: list[str]) -> None:
    values = [9, 8, 7, 9, 6]
    with settings(cache_directory=tmp_path / "chosen"):
        assert jit.build(map(constant, values)) == 4
        libraries = [jit.load(constant(value)) for value in values]
    assert [result_of(library) for library in libraries] == values
    assert len(compilations) == 4
    assert {library.path.parent for library in libraries} == {tmp_path / "chosen"}
    assert jit.build([]) == 0


def test_source_among_many_that_fails_is_reported_when_it_is_loaded() -> None:
    assert jit.build([constant(1), "nonsense", constant(2)]) == 2
    with pytest.raises(CompilationError, match="nonsense"):
        jit.load("nonsense")
    assert result_of(jit.load(constant(2))) == 2


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\0" * 70_000], ids=len)
def test_damaged_entry_is_never_loaded_but_rebuilt(damage: bytes, compilations: list[str]) -> None:
    path = jit.load(constant(10)).path
    jit.forget()
    path.unlink()  # this process has it mapped; other bytes under the same name are another file
    path.write_bytes(damage)
    library = jit.load(constant(10))
    assert library.origin == "compiled"
    assert result_of(library) == 10
    assert len(compilations) == 2
    jit.forget()
    assert jit.load(constant(10)).origin == "disk"


def test_sound_entry_that_cannot_be_loaded_is_rebuilt_once(compilations: list[str]) -> None:
    key = cache.make_key(constant(11), *toolchain.find_toolchain().identity)
    cache.store(key, b"not a library, yet with the right checksum", constant(11))
    library = jit.load(constant(11))
    assert (library.origin, result_of(library)) == ("compiled", 11)
    assert len(compilations) == 1


def test_refused_source_shows_expression_command_words_and_place(kernels: Path) -> None:
    source = "long long kernel(long long *args) { return undeclared_name; }"
    with pytest.raises(CompilationError) as caught:
        jit.load(source, "C[i,j] = A[i,k] * B[k,j]")
    message = str(caught.value)
    assert "C[i,j] = A[i,k] * B[k,j]" in message
    assert "undeclared_name" in message
    assert "-O3" in message
    kept = [path for path in kernels.glob("*.c") if str(path) in message]
    assert [path.read_text() for path in kept] == [source]
    assert cache.statistics().entries == 0


def test_long_complaints_are_trimmed() -> None:
    source = "".join(f"long long f{i}(void) {{ return undeclared{i}; }}\n" for i in range(100))
    with pytest.raises(CompilationError, match="more lines") as caught:
        jit.load(source)
    assert len(str(caught.value).splitlines()) < 60


def test_unresolved_function_is_an_error_not_a_crash() -> None:
    source = "long long scorch_nowhere(void); long long kernel(long long *a) { return scorch_nowhere(); }"
    with pytest.raises(CompilationError, match="scorch_nowhere"):
        jit.load(source)
    assert cache.statistics().entries == 0


def test_absent_function_is_named() -> None:
    with pytest.raises(CompilationError, match="'absent'"):
        jit.load(constant(1)).address("absent")


def test_compiler_that_vanished_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = toolchain.Toolchain(("/no/such/compiler",), "gcc", "1.0", ())
    monkeypatch.setattr(toolchain, "_toolchain", gone)
    assert result_of(jit.load(constant(1))) == 1
    assert toolchain.find_toolchain().command != gone.command


def test_failure_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(jit, "run_compiler", lambda command, folder: (1, "disk is full"))
        with pytest.raises(CompilationError, match="disk is full"):
            jit.load(constant(12))
    assert result_of(jit.load(constant(12))) == 12


def test_unusable_cache_warns_and_kernels_still_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with settings(cache_directory=tmp_path / "file" / "kernels"):
        with pytest.warns(ScorchWarning):
            assert result_of(jit.load(constant(13))) == 13
        jit.forget()
        assert jit.load(constant(13)).origin == "disk"  # from the temporary directory of this process


def test_file_system_that_runs_nothing_is_avoided(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ctypes.CDLL

    def refuse(path: str) -> ctypes.CDLL:
        if Path(path).parent == kernels:
            raise OSError(f"{path}: failed to map segment from shared object")
        return real(path)

    monkeypatch.setattr(jit.ctypes, "CDLL", refuse)
    with pytest.warns(ScorchWarning, match="failed to map segment"):
        library = jit.load(constant(14))
    assert library.path.parent != kernels
    assert result_of(library) == 14


def test_compilation_killed_midway_leaves_no_entry(tmp_path: Path, kernels: Path) -> None:
    started = tmp_path / "started"
    slow = tmp_path / "slow-cc"
    slow.write_text(f"""#!/bin/sh
case "$*" in *kernel.c*) touch "{started}"; sleep 60;; esac
exec {shlex.join(toolchain.find_toolchain().command)} "$@"
""")
    slow.chmod(0o700)
    environment = {**os.environ, "PYTHONPATH": ROOT, "SCORCH_CC": str(slow)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, constant(15)], env=environment, start_new_session=True
    )
    try:
        while not started.exists():
            assert child.poll() is None
            time.sleep(0.01)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert cache.statistics().entries == 0
    assert jit.load(constant(15)).origin == "compiled"
