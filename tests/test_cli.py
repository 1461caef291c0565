"""``python -m scorch``: every command works, and wrong input gets one plain line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest
import torch

import scorch
from fork_server import run_python
from scorch._src.cli import bench
from scorch._src.cli import main as cli


def run_forked(*arguments: str, has: str = "scorch", **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m scorch``, for what does not depend on how Python begins and ends.

    The first use of a command imports what it needs of Scorch itself: ``has="torch"``.
    """
    return run_python(["-m", "scorch", *arguments], env={**os.environ, **environment}, has=has)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err


# as a program ----------------------------------------------------------------------------------------


def test_alone_prints_help() -> None:
    done = run_forked(has="torch")
    assert done.returncode == 0
    assert "usage: python -m scorch" in done.stdout
    for command in ("env", "cache", "explain", "demo", "bench"):
        assert command in done.stdout


def test_unknown_command_names_the_known_ones() -> None:
    done = run_forked("build")
    assert done.returncode == 2
    assert "usage:" in done.stderr and "'explain'" in done.stderr
    assert "Traceback" not in done.stderr


def test_explain_from_a_shell(tmp_path: Path) -> None:
    place = str(tmp_path)
    done = run_forked("explain", "ij,jk->ik", "csr", "dense", has="torch", SCORCH_CACHE_DIR=place)
    assert done.returncode == 0, done.stderr
    assert "loops     i, j, k" in done.stdout
    assert "A: csr, 1000 x 1000" in done.stdout
    assert "typedef" not in done.stdout


def test_cache_is_shown_and_cleared(tmp_path: Path) -> None:
    place = str(tmp_path / "kernels")
    assert run_forked("explain", "ij->i", "csr", SCORCH_CACHE_DIR=place).returncode == 0
    facts = json.loads(run_forked("cache", "--json", SCORCH_CACHE_DIR=place).stdout)
    assert facts["directory"] == place
    assert facts["entries"] > 0 and facts["bytes"] > 0
    cleared = run_forked("cache", "--clear", has="torch", SCORCH_CACHE_DIR=place)
    assert cleared.returncode == 0
    assert f"removed    {facts['entries']}" in cleared.stdout
    assert json.loads(run_forked("cache", "--json", SCORCH_CACHE_DIR=place).stdout)["entries"] == 0


def test_missing_compiler_is_one_plain_message(tmp_path: Path) -> None:
    wrong = {"SCORCH_CC": "no-such-compiler", "SCORCH_CACHE_DIR": str(tmp_path)}
    done = run_forked("explain", "ij->i", "csr", **wrong)
    assert done.returncode == 2
    assert done.stderr.startswith("CompilerNotFoundError: SCORCH_CC is set to 'no-such-compiler'")
    assert "Traceback" not in done.stderr
    shown = run_forked("env", has="torch", **wrong)
    assert shown.returncode == 0
    assert "none: SCORCH_CC" in shown.stdout


def test_closed_pipe_is_no_error() -> None:
    script = f'"{sys.executable}" -m scorch explain "ij,jk->ik" csr csr --source | head -n 1'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout == "source of step 1\n"
    assert done.stderr == ""


# in this process -------------------------------------------------------------------------------------


def test_environment_names_compiler_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "env", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["scorch"] == scorch.__version__
    assert {"compiler", "compiler version", "compiler flags", "cpu", "torch", "python"} <= set(facts)
    code, out, _ = call(capsys, "env")
    assert code == 0 and max(map(len, out.splitlines())) <= 100


def test_explain_takes_an_expression(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "explain", "y[i] = A[i,j]*x[j]", "A=csr", "x=dense", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["loop_order"] == ["i", "j"]
    assert [operand["name"] for operand in found["steps"][0]["operands"]] == ["A", "x"]


def test_explain_takes_sizes_density_result_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--sizes", "i=1e6,j=1e6,k=1e6", "--density", "1e-9", "--result", "coo", "--source"]
    code, out, _ = call(capsys, "explain", "ij,jk->ik", "csr", "csr", *options)
    assert code == 0
    assert "1000000 x 1000000, 1,000 stored" in out
    assert "R: coo" in out and "requested" in out
    assert "scorch_compute" in out


@pytest.mark.parametrize(
    "words",
    [
        ["ijk,kl->ijl", "csf", "dense"],
        ["ijkl->il", "coo"],
        ["ij,jk->ik", "bsr(4,4)", "csc"],
        ["...ij,jk", "csr", "dense"],
        ["ii->i", "dcsr"],
        ["i,i->", "s", "dense"],
        ["m[i] = max(j, A[i,j])", "A=csc"],
        ["s = x[i] * y[i]", "x=s", "y=dense"],
    ],
)
def test_explain_takes_any_formats(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "explain", *words)
    assert code == 0, err
    assert out.startswith(words[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ij,jk->ik", "csr"], "NotationError: 'ij,jk->ik' has 2 operands, but 1 format is given"),
        (["ij->i", "cssr"], "FormatError: unknown format 'cssr'; did you mean 'csr'?"),
        (["ij,j?->i", "csr", "dense"], "NotationError: operand 1 ('j?')"),
        (["y[i] = A[i,j]*x[j]", "A=csr"], "NotationError: no format is given for x; add for example x=csr"),
        (["y[i] = A[i,j]", "csr"], "FormatError: name the tensor of format 'csr', as in A=csr"),
        (["y[i] = A[i,j]", "A=csr", "B=csr"], "NotationError: 'B' is given but not used"),
        (["y[i] = A[i,j", "A=csr"], "NotationError: expected ',' or ']'"),
        (["ij->i", "csr", "--sizes", "q=3"], "ArgumentError: --sizes names 'q', but the indices are i, j"),
        (
            ["ij->i", "csr", "--sizes", "i=x"],
            "ArgumentError: --sizes must have the form i=100,j=200, but got 'i=x'",
        ),
        (
            ["ij->i", "csr", "--sizes", "i=-2"],
            "ArgumentError: --sizes must have the form i=100,j=200, but got 'i=-2'",
        ),
        (["ij->i", "csr", "--density", "2"], "ArgumentError: --density must be between 0 and 1"),
        (["ij->i", "dense", "--sizes", "i=1e6,j=1e6"], "ShapeError: operand 0 would have"),
        (["ij->i", "csr", "--result", "csr(3)"], "FormatError: unknown format 'csr(3)'"),
        (["ijk->i", "dcsr", "--result", "ds"], "FormatError: format 'ds' stores 2-D tensors, but"),
    ],
)
def test_wrong_input_is_said_plainly(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "explain", *words)
    assert code == 2
    assert out == ""
    assert err.startswith(message)
    assert "Traceback" not in err


# benchmarks ------------------------------------------------------------------------------------------


def test_suites_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "bench")
    assert code == 0 and "figure5" in out and "kernels" in out
    code, out, _ = call(capsys, "bench", "--json")
    assert code == 0 and set(json.loads(out)) == set(bench.SUITES)


@pytest.mark.parametrize("name", bench.SUITES)
def test_every_suite_has_its_module(name: str) -> None:
    parts = bench.SUITES[name].module.split(".")
    place = bench.find_folder() / "benchmarks"
    assert (
        place.joinpath(*parts).with_suffix(".py").is_file()
        or (place.joinpath(*parts) / "__main__.py").is_file()
    )


@pytest.mark.long
def test_a_suite_prints_json_alone() -> None:
    done = run_forked("bench", "threads", "--quick", "--json", has="torch")
    assert done.returncode == 0, done.stderr
    assert "SpMM k=32" in json.loads(done.stdout)["milliseconds"]


@pytest.fixture
def forked_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that a suite has of its own is forked, and imports nothing again."""

    def run(
        command: list[str], *, env: dict[str, str], stdout: TextIO | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = run_python(command[1:], env=env)
        print(done.stdout, end="", file=stdout or sys.stdout)
        print(done.stderr, end="", file=sys.stderr)
        return done

    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(run=run))


@pytest.mark.usefixtures("forked_suites")
def test_a_suite_that_writes_a_file_prints_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "bench", "beyond", "--quick", "--json", "--only", "codes")
    assert code == 0, err
    assert json.loads(out)["rows"]


@pytest.mark.usefixtures("forked_suites")
def test_help_of_a_suite_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "bench", "figure6", "--help")
    assert code == 0 and "--download" in out, err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "figure4"], "unknown suite 'figure4'"),
        (["bench", "--runs=3"], "name a suite before --runs=3"),
    ],
)
def test_wrong_suites(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    code, _, err = call(capsys, *arguments)
    assert code == 2 and said in err


def test_unknown_arguments_of_other_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["env", "--loud"])
    assert "--loud" in capsys.readouterr().err


# pages and scripts -----------------------------------------------------------------------------------


def test_explain_writes_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "product.html"
    code, out, _ = call(
        capsys, "explain", "ij,jk->ik", "csr", "csr", "--sizes", "i=40,j=40", "--html", str(place)
    )
    text = place.read_text(encoding="utf-8")
    assert code == 0 and out == f"wrote {place}\n"
    assert text.startswith("<!doctype html>") and "predicted" in text and "measured" in text
    code, _, err = call(capsys, "explain", "ij->i", "csr", "--html", str(tmp_path / "no" / "such.html"))
    assert code == 2 and err.startswith("FileError: cannot write")


SCRIPT = """
import sys
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 16)

    def forward(self, x, scale=1.0):
        return self.linear(x) * scale

model, calls = Scaled(), 0
for _ in range(3):
    calls += 1
    print("call", calls, *sys.argv[1:])
    model(torch.rand(4, 32), scale=2.0)
"""


def test_doctor_diagnoses_the_model_of_a_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    before = list(sys.argv), list(sys.path)
    code, out, err = call(capsys, "doctor", str(script), "--sparsities", "0.5", "--", "--epochs", "1")
    assert code == 0, err
    assert out.startswith("call 1 --epochs 1\nlayer") and "call 2" not in out
    assert "linear  Linear  16 x 32  4 x 32" in out and "50% pruned" in out
    code, out, _ = call(capsys, "doctor", str(script), "--finish", "--html", str(tmp_path / "found.html"))
    assert code == 0 and "call 3" in out and "<table>" in (tmp_path / "found.html").read_text()
    assert (list(sys.argv), list(sys.path)) == before


def test_doctor_takes_a_model_with_any_named_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "named.py"
    script.write_text(
        "import sys, torch\n"
        "class Model(torch.nn.Linear):\n"
        "    def forward(self, *args, **kwargs):\n"
        "        return super().forward(*args, **{'input': kwargs['input']} if not args else {})\n"
        "arguments = sys.argv[1:] and [torch.rand(4, 32)]\n"
        "Model(32, 16)(*arguments, input=torch.rand(4, 32))\n"
    )
    code, out, err = call(capsys, "doctor", str(script), "--sparsities", "0.5")
    assert code == 0 and "16 x 32" in out, err
    code, _, err = call(capsys, "doctor", str(script), "--", "unnamed")
    assert code == 2 and "cannot be passed by keyword" in err


def test_doctor_leaves_no_hooks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "model.py"
    script.write_text("import torch\ntorch.nn.Linear(8, 8)(torch.rand(2, 8))\n")
    code, _, err = call(capsys, "doctor", str(script), "--sparsities", "0.5")
    assert code == 0, err
    assert not torch.nn.modules.module._has_any_global_hook()  # of which torch.compile would warn


def test_doctor_says_what_a_script_lacks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "empty.py"
    script.write_text("print('nothing')")
    code, _, err = call(capsys, "doctor", str(script))
    assert code == 2 and "did not call a torch.nn.Module with parameters" in err
    code, _, err = call(capsys, "doctor")
    assert code == 2 and "python -m scorch env" in err
    code, _, err = call(capsys, "doctor", str(tmp_path / "missing.py"))
    assert code == 2 and err.startswith("MissingFileError: no such file")
    code, _, err = call(capsys, "doctor", str(script), "--sparsities", "many")
    assert code == 2 and "must be numbers, as in 0.8,0.9" in err


def test_a_bug_report_has_what_is_needed_and_no_home(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCORCH_CACHE_DIR", str(tmp_path / "kernels"))
    with scorch.settings(threads=1):
        code, out, _ = call(capsys, "env", "--json")
    facts = json.loads(out)
    assert code == 0 and {"platform", "cuda", "numpy", "settings", "environment"} <= set(facts)
    assert facts["settings"] == "threads=1" and str(tmp_path) not in out
    assert "SCORCH_CACHE_DIR=~" in facts["environment"]
