from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from fork_server import run_python
from scorch._src.backends import cache
from scorch._src.backends.cpu import jit, toolchain
from scorch._src.backends.cpu.toolchain import Toolchain, find_toolchain
from scorch.errors import ArgumentError, CompilerNotFoundError

pytestmark = pytest.mark.usefixtures("kernels")

needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="the ziglang package is not installed"
)


@pytest.fixture(autouse=True)
def unknown_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCORCH_CC", raising=False)
    toolchain.forget()


def write_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def hide_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ziglang" else real(name, *rest)
    )


def test_found_compiler_makes_kernels() -> None:
    found = find_toolchain()
    assert found.kind in ("gcc", "clang", "zig")
    assert found.version
    assert jit.load("long long f(long long *a) { return a[0]; }").address("f")


def test_compiler_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_toolchain()
    monkeypatch.setattr(toolchain, "_search", lambda: pytest.fail("looked again"))
    assert find_toolchain() is found


def test_another_process_does_not_try_compilers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_toolchain()
    toolchain.forget()
    monkeypatch.setattr(toolchain, "run_compiler", lambda *_: pytest.fail("ran a compiler"))
    assert find_toolchain() == found


@pytest.mark.parametrize("damage", [b"", b"nothing", b'{"command": 3}'])
def test_damaged_note_is_ignored(damage: bytes, kernels: Path) -> None:
    found = find_toolchain()
    for note in kernels.glob("*.note"):
        cache.write_note(note.stem, damage)
    toolchain.forget()
    assert find_toolchain() == found


def test_changed_compiler_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_toolchain().command
    program = write_program(tmp_path / "cc", f'#!/bin/sh\nexec {shlex.join(real)} "$@"\n')
    monkeypatch.setenv("SCORCH_CC", str(program))
    toolchain.forget()
    assert find_toolchain().command[0] == str(program)
    write_program(program, "#!/bin/sh\nexit 1 # broken by an update\n")
    toolchain.forget()
    with pytest.raises(CompilerNotFoundError):
        find_toolchain()


def test_results_do_not_depend_on_fast_math() -> None:
    flags = find_toolchain().flags
    assert "-O3" in flags
    assert "-fwrapv" in flags
    assert not any("fast" in flag for flag in flags)


def test_the_environment_says_how_hard_the_compiler_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = find_toolchain()
    monkeypatch.setenv("SCORCH_OPTIMIZE", "1")
    toolchain.forget()
    assert "-O1" in find_toolchain().flags and find_toolchain().identity != usual.identity
    monkeypatch.setenv("SCORCH_OPTIMIZE", "fast")
    toolchain.forget()
    with pytest.raises(ArgumentError, match="but got 'fast'"):
        find_toolchain()


def test_no_compiler_is_said_in_plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    hide_zig(monkeypatch)
    with pytest.raises(CompilerNotFoundError) as caught:
        find_toolchain()
    message = str(caught.value)
    for word in ("clang on PATH: not found", "gcc on PATH: not found", "cc on PATH", "ziglang"):
        assert word in message
    for cure in ("apt install gcc", "pip install ziglang", "SCORCH_CC"):
        assert cure in message


def test_compiler_installed_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        hide_zig(without)
        with pytest.raises(CompilerNotFoundError):
            find_toolchain()
    assert isinstance(find_toolchain(), Toolchain)


def test_broken_candidate_is_skipped_and_its_reason_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("gcc") or shutil.which("cc")
    if real is None:
        pytest.skip("no system compiler")
    write_program(tmp_path / "clang", "#!/bin/sh\necho 'licence has expired'\nexit 3\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert Path(find_toolchain().command[0]).parent != tmp_path

    toolchain.forget()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin-that-is-not-there")
    hide_zig(monkeypatch)
    with pytest.raises(CompilerNotFoundError, match="licence has expired"):
        find_toolchain()


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("no-such-compiler -O1", "program 'no-such-compiler' not found"),
        ("'unfinished", "No closing quotation"),
        (f"{sys.executable} -c 'raise SystemExit(\"not a compiler\")'", "not a compiler"),
    ],
)
def test_broken_choice_is_refused_not_replaced(
    named: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCORCH_CC", named)
    with pytest.raises(CompilerNotFoundError, match="SCORCH_CC is set to") as caught:
        find_toolchain()
    assert reason in str(caught.value)


def test_compiler_that_makes_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_program(tmp_path / "lazy-cc", "#!/bin/sh\nexit 0\n")
    monkeypatch.setenv("SCORCH_CC", str(program))
    with pytest.raises(CompilerNotFoundError, match="no output"):
        find_toolchain()


def test_choice_may_have_arguments_and_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("gcc") or shutil.which("clang")
    if real is None:
        pytest.skip("no system compiler")
    write_program(tmp_path / "wrapped", f'#!/bin/sh\nexec {real} "$@"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCORCH_CC", "./wrapped -DSCORCH_ANSWER=42")
    assert find_toolchain().command == (str(tmp_path / "wrapped"), "-DSCORCH_ANSWER=42")
    library = jit.load("long long f(long long *a) { return SCORCH_ANSWER; }")
    assert library.address("f")


def test_flags_that_the_compiler_rejects_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("gcc") or shutil.which("clang")
    if real is None:
        pytest.skip("no system compiler")
    picky = f"""#!/bin/sh
case "$*" in *native*|*outline*) echo "unknown option" >&2; exit 1;; esac
exec {real} "$@"
"""
    monkeypatch.setenv("SCORCH_CC", str(write_program(tmp_path / "picky", picky)))
    flags = find_toolchain().flags
    assert "-O3" in flags
    assert not any("native" in flag for flag in flags)


@needs_zig
def test_zig_is_recognised_and_makes_kernels(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORCH_CC", f"{sys.executable} -m ziglang cc")
    found = find_toolchain()
    assert found.kind == "zig"
    library = jit.load("double exp(double); long long f(long long *a) { return exp(0.0) + a[0]; }")
    assert library.path.parent == kernels
    assert library.address("f")


@needs_zig
def test_zig_serves_where_there_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_toolchain().kind == "zig"


@needs_zig
def test_kernels_run_in_a_process_that_has_no_compiler(tmp_path: Path) -> None:
    """All the way from a call to a result, with nothing on PATH."""
    script = """
import torch, scorch
from scorch._src.backends.cpu import toolchain
A = scorch.tensor([[0.0, 2.0], [3.0, 0.0]], format="csr")
assert torch.equal(A @ torch.tensor([1.0, 10.0]), torch.tensor([20.0, 3.0]))
C = scorch.evaluate("C[i,j] = A[i,j] + B[j,i]", A=A, B=A)
assert torch.equal(C.to_dense(), torch.tensor([[0.0, 5.0], [5.0, 0.0]]))
print(toolchain.find_toolchain().kind)
"""
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "PATH": str(tmp_path / "bin")}
    done = run_python(["-c", script], env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "zig"), done.stderr


@needs_zig
def test_zig_is_called_without_starting_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(find_toolchain().command[0]).name == "zig"


def test_gcc_alone_gets_its_own_flag() -> None:
    special = "-fno-loop-unroll-and-jam"
    assert all(special in flags for flags in toolchain._flag_sets("gcc"))
    assert not any(special in flags for kind in ("clang", "zig") for flags in toolchain._flag_sets(kind))


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_processor_is_used_fully(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.platform, "machine", lambda: machine)
    best, *_, last = toolchain._flag_sets("clang")
    assert any(flag in best for flag in ("-march=native", "-mcpu=native"))
    assert not any("native" in flag for flag in last)


def test_processor_is_named() -> None:
    assert toolchain.platform.machine() in toolchain.processor()


def test_description_answers_a_bug_report(kernels: Path) -> None:
    facts: dict[str, Any] = toolchain.describe()
    assert facts["cache directory"] == str(kernels)
    assert facts["cache entries"] == "0"
    for name in ("compiler", "compiler flags", "cpu", "cache bytes", "torch", "threads"):
        assert facts[name]


def test_description_works_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    hide_zig(monkeypatch)
    assert "pip install ziglang" in toolchain.describe()["compiler"]


def test_identity_is_all_that_machine_code_depends_on() -> None:
    plain = Toolchain(("/usr/bin/gcc",), "gcc", "gcc 12", ("-O3",))
    moved = Toolchain(("/opt/bin/gcc",), "gcc", "gcc 12", ("-O3",))
    others = [
        Toolchain(("/usr/bin/gcc", "-DN=1"), "gcc", "gcc 12", ("-O3",)),
        Toolchain(("/usr/bin/gcc",), "gcc", "gcc 13", ("-O3",)),
        Toolchain(("/usr/bin/gcc",), "gcc", "gcc 12", ("-O2",)),
    ]
    assert moved.identity == plain.identity
    assert all(other.identity != plain.identity for other in others)
