"""A compiler that fails at a kernel is passed over for the next one, then for the scalar form."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import scorch
from fork_server import run_python
from scorch._src.backends.cpu import jit, toolchain
from scorch._src.engine import execute, schedules
from scorch._src.statements import call_cache
from scorch.errors import CompilationError, CompilerNotFoundError, ScorchWarning
from scorch.settings import settings

pytestmark = pytest.mark.usefixtures("kernels")

REAL = shlex.join(toolchain.find_toolchain().command)

# What a compiler does with kernel.c, where $out is the library that it should make.
FAILURES = {
    "crash": "kill -SEGV $$",
    "refuse": "echo 'kernel.c:1: error: I do not like it' >&2; exit 1",
    "hang": "sleep 1000",
    "garbage": "echo 'not a library' > $out",
    "nothing": "exit 0",
    "empty": ": > $out",
    "truncated": f'{REAL} "$@" && head -c 700 $out > half && mv half $out',
    "zeros": "head -c 70000 /dev/zero > $out",
    "folder": "mkdir $out",
}


def constant(value: int) -> str:
    return f"long long kernel(long long *args) {{ return {value}; }}\n"


def result_of(library: jit.Library) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_void_p)(library.address("kernel"))(None))


def write_compiler(path: Path, failure: str, when: str = "*kernel.c*", has: str = "") -> Path:
    """A compiler that works, but for sources that contain ``has``."""
    if not failure:
        when = "nothing at all"
    test = f"grep -q {shlex.quote(has)} kernel.c && " if has else ""
    path.write_text(f"""#!/bin/sh
out=kernel.so
case "$*" in {when.replace(" ", "_")}) {test}{{ {failure or ":"}; exit $?; }};; esac
exec {REAL} "$@"
""")
    path.chmod(0o700)
    return path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of all compilers there are; first comes clang, then gcc."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.delenv("SCORCH_CC", raising=False)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    real = toolchain.shutil.which
    own = lambda name: str(place / name) if (place / name).exists() else None  # noqa: E731
    monkeypatch.setattr(
        toolchain.shutil, "which", lambda name: own(name) if name in ("clang", "gcc", "cc") else real(name)
    )
    monkeypatch.setattr(toolchain, "_zig_command", list)
    monkeypatch.setattr(jit, "_passed_over", set())
    toolchain.forget()
    yield place
    toolchain.forget()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("failure", FAILURES)
def test_next_compiler_serves_with_one_warning(failure: str, programs: Path, kernels: Path) -> None:
    bad = write_compiler(programs / "clang", FAILURES[failure])
    good = write_compiler(programs / "gcc", "")
    assert toolchain.find_toolchain().command == (str(bad),)
    start = time.monotonic()
    with settings(compiler_seconds=2), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [result_of(jit.load(constant(value))) for value in (1, 2, 3)] == [1, 2, 3]
    assert time.monotonic() - start < 60
    (message,) = [str(w.message) for w in caught if issubclass(w.category, ScorchWarning)]
    assert str(bad) in message and str(good) in message
    (log,) = [path for path in kernels.glob("*.log") if str(path) in message]
    assert str(bad) in log.read_text()


def test_compiler_that_hung_is_asked_once(programs: Path) -> None:
    write_compiler(programs / "clang", "echo again >> $0.calls; sleep 1000")
    write_compiler(programs / "gcc", "")
    with settings(compiler_seconds=1), pytest.warns(ScorchWarning, match="timed out"):
        jit.load(constant(1))
        jit.load(constant(2))
    assert (programs / "clang.calls").read_text().split() == ["again"]


def test_nothing_that_a_hanging_compiler_started_is_left(programs: Path) -> None:
    write_compiler(programs / "clang", "(sleep 3; touch $0.alive) & sleep 1000")
    with (
        settings(compiler_seconds=1),
        pytest.raises(CompilationError, match="did not finish within 1 second"),
    ):
        jit.load(constant(1))
    time.sleep(3)
    assert not (programs / "clang.alive").exists()


def test_error_of_the_first_compiler_is_the_one_that_is_told(programs: Path) -> None:
    write_compiler(programs / "clang", "echo first failure >&2; exit 1")
    write_compiler(programs / "gcc", "echo second failure >&2; exit 1")
    with pytest.raises(CompilationError, match="first failure"):
        jit.load(constant(1), "a label")


def test_links_to_one_compiler_are_one_compiler(programs: Path) -> None:
    write_compiler(programs / "gcc", "echo again >> $0.calls; exit 1")
    (programs / "cc").symlink_to(programs / "gcc")
    with pytest.raises(CompilationError):
        jit.load(constant(1))
    assert len((programs / "gcc.calls").read_text().split()) == 1


@pytest.mark.parametrize("failure", ["crash", "refuse", "garbage", "truncated", "zeros", "folder"])
def test_candidate_whose_library_cannot_be_called_is_no_compiler(failure: str, programs: Path) -> None:
    bad = FAILURES[failure].replace("kernel", "probe").replace("$out", "probe.so")
    write_compiler(programs / "clang", bad, when="*probe.c*")
    good = write_compiler(programs / "gcc", "")
    assert toolchain.find_toolchain().command == (str(good),)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("body", ["return 42;", "__builtin_trap();", "for (;;);"])
def test_candidate_that_makes_something_else_is_no_compiler(
    body: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "_PROBE_SECONDS", 3)
    wrong = f"echo 'long long probe(long long *a) {{ {body} }}' > probe.c; exec {REAL} \"$@\""
    write_compiler(programs / "gcc", wrong, when="*probe.c*")
    with pytest.raises(CompilerNotFoundError):
        toolchain.find_toolchain()


def test_compiler_that_is_removed_is_looked_for_again(programs: Path) -> None:
    first = write_compiler(programs / "clang", "")
    assert result_of(jit.load(constant(1))) == 1
    first.unlink()
    second = write_compiler(programs / "gcc", "")
    assert result_of(jit.load(constant(2))) == 2
    assert toolchain.find_toolchain().command == (str(second),)


def test_note_names_no_program_but_a_candidate(programs: Path, tmp_path: Path, kernels: Path) -> None:
    from scorch._src.backends import cache

    good = write_compiler(programs / "gcc", "")
    toolchain.find_toolchain()
    evil = write_compiler(tmp_path / "evil", "", when="*")
    effort = f"-O{os.environ.get('SCORCH_OPTIMIZE', '3')}"
    for note in kernels.glob("*.note"):
        text = cache.read_note(note.stem)
        assert text is not None and str(good).encode() in text
        for planted in (
            text.replace(str(good).encode(), str(evil).encode()),
            text.replace(effort.encode(), b"-fplugin=evil.so"),
            text.replace(b'["', b'[["', 1),
            b"[" * 100_000,
            b"{}",
            b"null",
        ):
            assert planted != text
            cache.write_note(note.stem, planted)
            toolchain.forget()
            found = toolchain.find_toolchain()
            assert found.command == (str(good),) and effort in found.flags


# the scalar form ------------------------------------------------------------------------------------------


@pytest.fixture
def new_plans() -> Iterator[None]:
    def forget() -> None:
        schedules.forget()
        for kept in (
            execute._plans,
            execute._contractions,
            execute._conversions,
            call_cache._known,
            call_cache._recent,
        ):
            kept.clear()

    forget()
    yield
    forget()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    dense = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.where(dense < 0.7, 0.0, dense)


STATEMENTS = {
    "R[i,k] = sum(j, A[i,j] * X[j,k])": 100,
    "R[i,k] = sum(j, A[i,j] * relu(X[j,k]))": 67,
    "R[i,j] = sum(k, A[i,j] * Y[i,k] * X[j,k])": 33,
    "R[i] = sum(j, A[i,j] * X[j,0])": 1,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", STATEMENTS)
def test_scalar_form_serves_where_vectors_fail(text: str, programs: Path, new_plans: None) -> None:
    width = STATEMENTS[text]
    A, X, Y = drawn(30, 40), drawn(40, width, seed=1) - 0.4, drawn(30, width, seed=2)
    text = text.replace("X[j,0]", "x[j]")
    given = {name: value for name, value in (("X", X), ("Y", Y), ("x", X[:, 0])) if f"{name}[" in text}
    bad = write_compiler(programs / "gcc", FAILURES["crash"], has="vector_size")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        S = scorch.from_torch(A, format="csr")
        found = scorch.evaluate(text, A=S, **given)
    if isinstance(found, scorch.SparseTensor):
        found = found.to_dense()
    dense = {
        "R[i,k] = sum(j, A[i,j] * X[j,k])": lambda: A @ X,
        "R[i,k] = sum(j, A[i,j] * relu(X[j,k]))": lambda: A @ X.relu(),
        "R[i,j] = sum(k, A[i,j] * Y[i,k] * X[j,k])": lambda: A * (Y @ X.T),
        "R[i] = sum(j, A[i,j] * x[j])": lambda: A @ X[:, 0],
    }[text]()
    torch.testing.assert_close(found, dense)
    messages = [str(w.message) for w in caught if "scalar form" in str(w.message)]
    has_vectors = "vector_size" in scorch.explain(text, A=S, **given).source
    assert has_vectors or "relu" in text or width == 1
    assert len(messages) == int(has_vectors) and all(str(bad) in message for message in messages)


def test_torch_serves_where_every_compiler_fails(
    programs: Path, new_plans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that nothing can compile are run by torch; one warning names the compiler that fails."""
    monkeypatch.setattr("scorch._src.backends.cpu.executable._has_warned", False)
    bad = write_compiler(programs / "gcc", FAILURES["refuse"], has="scorch_compute")
    A, B = drawn(6, 7), drawn(7, 5, seed=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        S = scorch.from_torch(A, format="csr")
        for _ in range(2):
            torch.testing.assert_close((S @ B), A @ B)
        torch.testing.assert_close((S + S).to_dense(), A + A)
    (message,) = [str(w.message) for w in caught if "fall back to PyTorch operators" in str(w.message)]
    assert str(bad) in message and "I do not like it" in message


WITHOUT_ROUTINES = """
import sys, warnings
import torch, scorch
from scorch._src.backends.cpu import toolchain

toolchain._zig_command = list
dense = torch.where(torch.rand(300, 400) < 0.7, 0.0, torch.rand(300, 400))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        S = scorch.from_torch(dense, format="csr")
        torch.testing.assert_close(S @ torch.ones(400, 3), dense @ torch.ones(400, 3))
        torch.testing.assert_close(S.to_format("csc").to_dense(), dense)
        scorch.save(sys.argv[1], S)
        torch.testing.assert_close(scorch.load(sys.argv[1]).to_dense(), dense)
for warning in caught:
    print(warning.message)
"""


def test_a_slower_way_takes_the_place_of_each_routine_that_does_not_compile(
    programs: Path, tmp_path: Path
) -> None:
    grep = "/usr/bin/env PATH=/usr/bin:/bin grep"
    bad = write_compiler(programs / "gcc", FAILURES["refuse"], has="scorch_[abd-z]")  # not scorch_compute
    bad.write_text(bad.read_text().replace("grep", grep).replace("exec", "PATH=/usr/bin:/bin exec"))
    environment = {**os.environ, "PATH": str(programs), "SCORCH_CACHE_DIR": str(tmp_path / "new")}
    environment.pop("SCORCH_CC", None)
    words = ["-c", WITHOUT_ROUTINES, tmp_path / "matrix.mtx"]
    done = run_python(words, env=environment, check=True)
    named = re.findall("could compile the routine '(.*)'; a slower one takes its place: .*log", done.stdout)
    assert {"rows to columns", "the reader of tables in text"} <= set(named)
    assert len(named) == len(set(named))
