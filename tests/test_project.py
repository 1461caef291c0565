"""The set-up script says in plain words what is missing."""

from __future__ import annotations

import ast
import errno
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scorch._src import torch_internals

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """start.py, set to work in an empty folder and forbidden to run anything."""
    spec = importlib.util.spec_from_file_location("start", ROOT / "start.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "scorch-start.json")
    monkeypatch.delenv("SCORCH_CC", raising=False)

    def run(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"would run {arguments}")

    names = ("PIPE", "STDOUT", "DEVNULL", "TimeoutExpired")
    fake = SimpleNamespace(**{name: getattr(subprocess, name) for name in names})
    fake.run = fake.call = fake.Popen = run
    monkeypatch.setattr(module, "subprocess", fake)
    return module


def fail_with(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, output: str, when: str = ""
) -> list[list[str]]:
    """Let every command succeed except those that mention ``when``; returns the list they are kept in.

    What runs beside others is not in the list.
    """
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        commands.append(command)
        failed = any(when in word for word in command)
        return SimpleNamespace(returncode=1 if failed else 0, stdout=output if failed else "[]")

    monkeypatch.setattr(start.subprocess, "run", run)
    monkeypatch.setattr(start.subprocess, "Popen", lambda *_, **__: SimpleNamespace(wait=lambda: 0))
    return commands


def test_script_can_be_read_by_an_old_python() -> None:
    source = (ROOT / "start.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    assert "from __future__" not in source


def test_script_imports_only_the_standard_library() -> None:
    tree = ast.parse((ROOT / "start.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_old_python_is_named(start: ModuleType) -> None:
    with pytest.raises(start.SetupError, match=r"needs Python 3\.10 or newer; this is Python 3\.9"):
        start.check_python((3, 9, 2), [])


def test_old_python_points_at_a_newer_one(start: ModuleType) -> None:
    with pytest.raises(start.SetupError, match=r"also has python3\.12: run it instead"):
        start.check_python((3, 9, 0), ["python3.12"])


def test_old_python_ends_the_script(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "sys", SimpleNamespace(version_info=(3, 8, 0), stderr=sys.stderr))
    assert start.main(["demo"]) == 1
    assert "needs Python 3.10" in capsys.readouterr().err


@pytest.mark.parametrize("missing", [{"venv"}, {"ensurepip", "pip"}])
def test_missing_venv_names_the_package(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, missing: set[str]
) -> None:
    monkeypatch.setattr(start, "has_module", lambda name: name not in missing)
    with pytest.raises(start.SetupError, match="sudo apt install python3-venv"):
        start.make_environment()


def test_pip_stands_in_for_missing_ensurepip(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "has_module", lambda name: name != "ensurepip")
    commands = fail_with(start, monkeypatch, "", when="never")
    monkeypatch.setattr(start, "STAMP", start.ROOT / "stamp.json")
    start.make_environment()
    assert commands[0][-1] == "--without-pip"
    assert commands[1][2:4] == ["pip", "--python"]


def test_folder_in_the_way_is_kept(start: ModuleType) -> None:
    start.VENV.mkdir()
    (start.VENV / "precious").write_text("mine")
    start.subprocess.run = lambda *_, **__: SimpleNamespace(returncode=1, stdout="")
    with pytest.raises(start.SetupError, match="in the way"):
        start.make_environment()
    assert (start.VENV / "precious").exists()


def test_moved_environment_is_made_again(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    start.VENV.mkdir()
    (start.VENV / "pyvenv.cfg").write_text("")
    start.STAMP.write_text(json.dumps({"root": "/elsewhere", "extras": ["scipy"]}))
    commands = fail_with(start, monkeypatch, "out of luck", when="venv")
    with pytest.raises(start.SetupError):
        start.make_environment()
    assert commands[0][1:3] == ["-m", "venv"]
    assert not start.VENV.exists()


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("ERROR: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError: Failed to establish a new connection: [Errno -3]", "network connection"),
        (
            "Temporary failure in name resolution\nNo matching distribution found for torch",
            "network connection",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "no version for Python"),
        ("PermissionError: [Errno 13] Permission denied", "may not be written"),
        ("something new", "could not be installed"),
    ],
)
def test_failed_installation_is_explained(start: ModuleType, output: str, words: str) -> None:
    message = start.explain_failure("torch", output)
    assert words in message.split("The installer said:")[0]
    assert output.splitlines()[-1] in message


def test_machine_without_compiler_gets_zig(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.shutil, "which", lambda name: None)
    start.VENV.mkdir()
    commands = fail_with(start, monkeypatch, "", when="never")
    start.install("demo")
    assert [command[-1] for command in commands] == [start.TORCH, ".[plots,scipy]", ".[zig]"]
    assert json.loads(start.STAMP.read_text())["extras"] == ["plots", "scipy", "zig"]


def test_no_compiler_at_all_is_explained(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.shutil, "which", lambda name: None)
    start.VENV.mkdir()
    fail_with(start, monkeypatch, "No matching distribution found for ziglang", when="[zig]")
    with pytest.raises(start.SetupError, match="C compiler") as caught:
        start.install("demo")
    assert "sudo apt install gcc" in str(caught.value)
    assert "ziglang" in str(caught.value)


def test_broken_compiler_is_passed_over(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(start, "compiles", lambda command: command == ["clang"])
    assert start.find_compiler() == "clang"


@pytest.mark.parametrize("setting", ["no-such-compiler", "cc 'unfinished"])
def test_wrong_compiler_setting_is_named(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("SCORCH_CC", setting)
    monkeypatch.setattr(start, "compiles", lambda command: False)
    with pytest.raises(start.SetupError, match=f"SCORCH_CC is set to .*{setting}"):
        start.find_compiler()


def test_nothing_is_installed_twice(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_compiler", lambda: "cc")
    start.VENV.mkdir()
    commands = fail_with(start, monkeypatch, "", when="never")
    start.install("demo")
    del commands[:]
    start.install("demo")
    assert not [command for command in commands if "install" in command]
    start.install("test")
    assert commands[-1][-1] == ".[lint,nvrtc,plots,scipy,test]"
    (start.ROOT / "pyproject.toml").write_text("[project]\n# changed\n")
    del commands[:]
    start.install("demo")
    assert [command for command in commands if "install" in command]


def test_torch_is_imported_while_the_rest_is_installed(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "find_compiler", lambda: "cc")
    start.VENV.mkdir()
    steps = fail_with(start, monkeypatch, "", when="never")

    def open_process(command: list[str], **options: Any) -> SimpleNamespace:
        steps.append(command)
        return SimpleNamespace(wait=lambda: steps.append(["wait"]))

    monkeypatch.setattr(start.subprocess, "Popen", open_process)
    start.install("test")
    assert [command[-1] for command in steps] == [
        start.TORCH,
        "import torch, torch._dynamo",
        ".[lint,nvrtc,scipy,test]",
        "wait",
    ]


def test_machine_without_a_compiler_for_gpus_skips_tests(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "find_compiler", lambda: "cc")
    start.VENV.mkdir()
    commands = fail_with(start, monkeypatch, "No matching distribution found", when="nvrtc")
    start.install("test")
    assert [command[-1] for command in commands[-2:]] == [".[lint,nvrtc,scipy,test]", ".[lint,scipy,test]"]
    assert "nvrtc could not be installed: tests that compile" in capsys.readouterr().out
    del commands[:]
    start.install("test")
    assert not [command for command in commands if "install" in command]


def test_interrupted_installation_is_begun_again(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_compiler", lambda: "cc")
    start.VENV.mkdir()
    fail_with(start, monkeypatch, "Read timed out", when=".[plots,scipy]")
    with pytest.raises(start.SetupError, match="network"):
        start.install("demo")
    commands = fail_with(start, monkeypatch, "", when="never")
    start.install("demo")
    assert start.TORCH in commands[0]


def test_full_disk_is_named(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(start, "make_environment", full)
    assert start.main(["demo"]) == 1
    assert "The disk is full" in capsys.readouterr().err


def test_unknown_command_shows_them_all(start: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert start.main(["build"]) == 2
    shown = capsys.readouterr().out
    for command in ("demo", "test", "test --torch", "smoke"):
        assert f"python3 start.py {command}" in shown


@pytest.fixture
def called(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would be run in environments that are healthy; those with 2.15 fail."""
    commands: list[list[str]] = []

    def call(command: list[str], **options: Any) -> int:
        commands.append(command)
        return int("2.15" in command[0])

    monkeypatch.setattr(start.subprocess, "call", call)
    monkeypatch.setattr(start, "find_compiler", lambda: "cc")
    monkeypatch.setattr(start, "make_environment", lambda: start.VENV.mkdir())
    return commands


def test_another_torch_has_an_environment_of_its_own(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, called: list[list[str]]
) -> None:
    installed = fail_with(start, monkeypatch, "", when="never")
    assert start.main(["test", "--torch", "2.9.1", "-x", "tests/ops"]) == 0
    assert all(start.ROOT / ".venv-torch-2.9.1" in Path(command[0]).parents for command in installed + called)
    assert next(command[-1] for command in installed if "install" in command) == "torch==2.9.1"
    assert [command[1:] for command in called] == [["-m", "pytest", *start.PROCESSES, "-x", "tests/ops"]]


@pytest.mark.parametrize("arguments", [["--torch"], ["--torch", ""], ["--torch", "../x"], ["--torch", "-x"]])
def test_version_of_torch_must_be_one(
    start: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert start.main(["test", *arguments]) == 1
    assert "--torch takes a version such as" in capsys.readouterr().err


def test_smoke_runs_with_both_and_fails_with_either(
    start: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    called: list[list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(start, monkeypatch, "", when="never")
    assert start.main(["smoke"]) == 1
    assert len(called) == 2
    assert all(name in command for command in called for name in start.SMOKE_TESTS)
    assert "Failed with torch==2.15" in capsys.readouterr().out


def test_smoke_is_of_the_oldest_and_the_newest(start: ModuleType) -> None:
    bounds = [tuple(map(int, version.split(".")[:2])) for version in start.SMOKE_TORCH]
    assert bounds == [torch_internals.OLDEST, torch_internals.NEWEST]
    usual = tuple(map(int, start.TORCH.removeprefix("torch==").split(".")[:2]))
    assert bounds[0] <= usual <= bounds[1]
    assert all((ROOT / name).is_file() for name in start.SMOKE_TESTS)


def test_pythons_are_named_alike_everywhere(start: ModuleType) -> None:
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    minors = [int(found) for found in re.findall(r'Python :: 3\.(\d+)"', metadata)]
    oldest = start.OLDEST_PYTHON[1]
    assert minors == list(range(oldest, oldest + len(minors)))
    for name in (f'requires-python = ">=3.{oldest}"', f'"py3{oldest}"', f'python_version = "3.{oldest}"'):
        assert name in metadata
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert f"(3, {oldest})" in script
    assert all(f"python3.{minor}" in script for minor in minors)


def test_kernels_are_kept_where_somebody_says(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORCH_CACHE_DIR", "elsewhere")
    assert start.test_environment()["SCORCH_CACHE_DIR"] == "elsewhere"


@pytest.mark.parametrize("failing", ["ruff", "mypy", "importlinter", "pytest"])
def test_one_failing_check_fails_the_whole(
    start: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: str,
) -> None:
    commands = []
    monkeypatch.delenv("SCORCH_CACHE_DIR", raising=False)

    def call(command: list[str], **options: Any) -> int:
        commands.append(command)
        assert options["env"]["SCORCH_CACHE_DIR"] == str(start.VENV / "scorch-cache")
        return int(any(failing in word for word in command[1:]))

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, call(command, **options), b"what it says")

    monkeypatch.setattr(start.subprocess, "call", call)
    monkeypatch.setattr(start.subprocess, "run", run)
    assert start.test(["--long"]) == 1
    assert len(commands) == 5
    assert ["pytest", *start.PROCESSES, "--long"] in [command[2:] for command in commands]
    said = capsys.readouterr().out
    assert ("what it says" in said) == (failing != "pytest")
    assert ("all checks passed" in said) == (failing == "pytest")
