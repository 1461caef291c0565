"""The command that tries torch's operators, and the page that it wrote."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tools.what_works import __main__ as command
from tools.what_works import operators
from tools.what_works.cases import Case
from tools.what_works.check import Outcome, check
from tools.what_works.operators import DTYPES, FORMATS
from tools.what_works.page import operators_on, write_page
from tools.what_works.tally import Report, tallied
from tools.what_works.workers import Call, Task, calls, run
from torch.utils._pytree import tree_flatten

from fork_server import run_python
from scorch import SparseTensor
from scorch.errors import UnsupportedError

ROOT = Path(__file__).resolve().parent.parent


def case_of(function: Any, *args: Any) -> Case:
    leaves, spec = tree_flatten((args, {}))
    return Case(function, tuple(leaves), spec, (0,))


def outcome(function: Any) -> Outcome | None:
    """What is said of a function of a matrix with six entries, three of them negative."""
    dense = torch.zeros(4, 6)
    dense[0, :3], dense[2, 3:] = -1.0, 2.0
    return check(case_of(function, dense), "csr")


def on_sparse(otherwise: Any) -> Any:
    """The absolute value of a dense tensor, and something else of a sparse one."""
    return lambda x: otherwise(x) if isinstance(x, SparseTensor) else torch.abs(x)


def refuse(x: Any) -> Any:
    raise UnsupportedError("not so; do it otherwise")


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (torch.abs, "passed"),
        (on_sparse(torch.neg), "wrong"),
        (on_sparse(lambda x: torch.abs(x).double()), "wrong"),
        (on_sparse(lambda x: torch.abs(x)[:3]), "wrong"),
        (on_sparse(lambda x: (torch.abs(x), x)), "wrong"),
        (on_sparse(refuse), "refused"),
        (on_sparse(lambda x: x.nnz.no_such_name), "cryptic"),
    ],
)
def test_outcomes(function: Any, kind: str) -> None:
    found = outcome(function)
    assert found is not None and found.kind == kind


@pytest.mark.parametrize(
    ("places", "kind"),
    [
        ([[2, 0], [2, 4], [1, 2], [5, 1]], "passed"),
        ([[2, 0], [2, 4], [3, 4], [5, 1]], "wrong"),
        ([[1, 1]] * 4, "wrong"),
        ([[9, 1]] * 4, "wrong"),
    ],
)
def test_places_of_equal_elements_may_differ(places: list[list[int]], kind: str) -> None:
    def topk(x: Any) -> Any:
        found = torch.topk(x, 2, largest=False)
        return (found.values, torch.tensor(places)) if isinstance(x, SparseTensor) else found

    found = outcome(topk)
    assert found is not None and found.kind == kind


def test_what_should_be_sparse_and_what_need_not_be() -> None:
    kept = {name: outcome(function) for name, function in [
        ("sparse", torch.abs),
        ("dense", on_sparse(lambda x: torch.abs(x.to_dense()))),
        ("not zero for zero", torch.exp),
        ("smaller", lambda x: x.sum(0)),
    ]}  # fmt: skip
    assert {name: found.is_sparse for name, found in kept.items() if found} == {
        "sparse": True,
        "dense": False,
        "not zero for zero": None,
        "smaller": None,
    }


def test_random_results_are_not_compared() -> None:
    assert outcome(lambda x: torch.rand(4, 6)) is None


def test_devices_are_not_asked_what_the_processor_refuses() -> None:
    asked = []

    class Elsewhere(Case):
        def on(self, device: str) -> Case:
            asked.append(device)
            return replace(case_of(refuse, *self.leaves), sparse=self.sparse)

    def draw(weights: torch.Tensor) -> torch.Tensor:
        raise SystemExit("a device stops the process")

    given = case_of(draw, torch.eye(4))
    assert check(Elsewhere(draw, given.leaves, given.spec, given.sparse), "csr") is None
    assert asked == ["cpu"]


def fake(name: str, function: Any) -> Any:
    """What torch knows of an operator with one sample."""
    sample = SimpleNamespace(input=torch.eye(4), args=(), kwargs={})
    return SimpleNamespace(
        name=name,
        op=function,
        supports_dtype=lambda dtype, device: dtype == torch.float32,
        sample_inputs=lambda *_, **__: iter([sample]),
    )


def test_a_process_that_dies_costs_one_call() -> None:
    def fatal(x: Any) -> Any:
        if isinstance(x, SparseTensor) and x.format.name == "csc":
            os._exit(3)
        return torch.abs(x) if not isinstance(x, SparseTensor) else x

    infos = {"fatal": [fake("fatal", fatal)]}
    tasks = [Task("fatal", "float32", ("csr", "csc", "coo"), 1)]
    found = [event for event in run(infos, tasks, 1, 60.0) if isinstance(event, Call)]
    assert {call.format: call.outcome.kind for call in found} == {
        "csr": "passed",
        "csc": "crashed",
        "coo": "passed",
    }


def test_a_call_that_hangs_is_given_up() -> None:
    def slow(x: Any) -> Any:
        import time

        time.sleep(600 if isinstance(x, SparseTensor) else 0)
        return x

    infos = {"slow": [fake("slow", slow)]}
    found = [event for event in run(infos, [Task("slow", "float32", ("csr",), 1)], 1, 2.0)]
    assert [event.outcome.kind for event in found if isinstance(event, Call)] == ["too slow"]


def test_page_says_what_failed() -> None:
    calls = [
        Call("add", "float32", "first", "csr", Outcome("passed", is_sparse=True)),
        Call("add", "int64", "first", "csr", Outcome("wrong", "7 instead of 8")),
        Call("mul", "bool", "all", "coo", Outcome("refused", "Error: no")),
    ]
    page = write_page(
        Report({"add": "Sums", "mul": "Sums", "eye": "New"}, tallied(calls), "2.0", "this", 90.0)
    )
    assert "| `add` | f32 i64 | wrong: i64 | – | – | – | – | – | sparse |" in page
    assert "7 instead of 8" in page and "Error: no" in page
    assert operators_on(page) == {"add", "mul", "eye"}
    assert "| csr | 1 / 1 | – | – | 0 / 1 | – | 1 / 1 |" in page.replace("\N{NO-BREAK SPACE}", " ")


def test_a_later_run_replaces_its_operators() -> None:
    before = [Call(name, "bool", "first", "csr", Outcome("wrong", "no")) for name in ("add", "mul")]
    after = [Call("add", "bool", "first", "csr", Outcome("passed"))]
    report = Report({"add": "Sums", "mul": "Sums"}, tallied(before), "2.0", "this", 90.0)
    found = report.updated(Report({"add": "Sums"}, tallied(after), "2.0", "other", 1.0))
    assert {tally.operator: tally.worst for tally in found.tallies} == {"add": "passed", "mul": "wrong"}
    assert found.command == "this"


def test_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.testing._internal.common_methods_invocations", None)
    assert command.main(["--operators", "add"]) == 2
    assert "pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--formats", "cs"], "no format 'cs'; there are csr"), (["--dtypes", "int9"], "no dtype 'int9'")],
)
def test_wrong_arguments_are_named(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_what_was_tried_is_kept_where_the_time_runs_out(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("expecttest")
    file = tmp_path / "found.json"
    words = ["--operators", "^(abs|neg|sin|cos)$", "--formats", "csr", "--dtypes", "float32", "--jobs", "1"]
    command.main([*words, "--total", "0", "--json", str(file)])
    assert "out of time\n" in capsys.readouterr().out
    tallies = Report.from_dict(json.loads(file.read_text())).tallies
    assert len({tally.operator for tally in tallies}) == 1  # of four


@pytest.mark.long
def test_a_few_operators(tmp_path: Path) -> None:
    pytest.importorskip("expecttest")
    pattern = r"^(add|nn\.functional\.relu|sum|gather|bitwise_and)$"
    json_file, page_file = tmp_path / "found.json", tmp_path / "page.md"
    arguments = ["--operators", pattern, "--formats", "csr bsr(2,2) csf", "--dtypes", "float32 int64"]
    files = ["--samples", "1", "--jobs", "1", "--json", str(json_file), "--page", str(page_file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    words = ["-W", "ignore", "-m", "tools.what_works", *arguments, *files]
    done = run_python(words, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    report = Report.from_dict(json.loads(json_file.read_text()))
    assert {tally.format for tally in report.tallies} == {"csr", "bsr(2,2)", "csf"}
    assert {tally.operator for tally in report.tallies} == set(report.operators)
    assert all(set(tally.counts) == {"passed"} for tally in report.tallies)
    assert not report.select(operator="bitwise_and", dtype="float32")
    assert operators_on(page_file.read_text()) == set(report.operators)


@pytest.fixture
def page() -> str:
    """The page in the docs, if its operators can be tried here."""
    pytest.importorskip("expecttest")
    pytest.importorskip("scipy")  # without it torch has fewer operators to test
    text = command.PAGE.read_text(encoding="utf-8")
    if f"with torch {torch.__version__.split('+')[0]}" not in text:
        pytest.skip("the page was made with another version of torch")
    return text


def test_the_page_in_the_docs_is_about_what_the_command_tries(page: str) -> None:
    assert operators_on(page) == set(operators.all_operators())
    for format in FORMATS:
        assert f"\n| {format} | " in page
    assert f"| format | {' | '.join(DTYPES)} |" in page
    assert "python -m tools.what_works" in page


@pytest.mark.filterwarnings("ignore")  # what torch says of its samples
def test_a_sample_of_the_page_in_the_docs_is_what_happens_now(page: str) -> None:
    infos = operators.all_operators()
    rows = {
        cells[0].strip("`"): cells
        for line in page.splitlines()
        if len(cells := line.strip("| ").split(" | ")) >= 2 + len(FORMATS)
    }
    formats = ("csr", "bsr(2,2)")
    for name in ("sum", "masked.cumprod", "as_strided", "chalf"):  # two that pass, and two that are refused
        found: dict[str, set[str]] = {}
        for _, _, format, case in calls(Task(name, "float32", formats, 1), infos[name]):
            if (now := check(case, format)) is not None:
                found.setdefault(format, set()).add(now.kind)
        cells = {format: rows[name][2 + FORMATS.index(format)] for format in formats}
        shown = {format: re.findall(r"(\w+): [^;]*f32", cell) for format, cell in cells.items()}
        assert found == {format: set(kinds or ["passed"]) for format, kinds in shown.items()}, name
