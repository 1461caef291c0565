"""The command that checks a machine with a GPU: that it counts what is wrong, refused, raised and crashed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.gpu_check import __main__ as command
from tools.gpu_check import checks, drawn, kernels, large, layers, memory, parts, tensors
from tools.gpu_check.processes import ROOT, Counts, count, environment
from tools.what_works import workers

import grid_emulator  # noqa: F401  (registers the backend that emulates grids)
import scorch
from fork_server import run_python
from scorch._src.backends.cuda.device.streams import Told
from scorch._src.backends.cuda.routines import attention_blocks, coalescing
from scorch.errors import UnsupportedError


def wrong() -> None:
    torch.testing.assert_close(torch.ones(2), torch.zeros(2))


def refused() -> None:
    raise UnsupportedError("not there")


def raised() -> None:
    raise KeyError("i")


def broken_inside() -> None:
    exec(compile("assert False, 'what never happens'", scorch.__file__, "exec"))


@pytest.mark.parametrize(
    ("function", "kind"),
    [(lambda: None, "passed"), (wrong, "wrong"), (refused, "refused"), (raised, "raised")],
)
def test_outcomes(function: Any, kind: str) -> None:
    found, message = drawn.outcome(lambda case, device: function(), None, "cpu")
    assert found == kind and (message == "") == (kind == "passed")


def test_a_broken_promise_of_our_own_is_no_wrong_result() -> None:
    assert drawn.outcome(lambda case, device: broken_inside(), None, "cpu")[0] == "raised"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", drawn.KINDS)
def test_drawn_cases_are_told(kind: str) -> None:
    words = ["-m", "tools.gpu_check.drawn", kind, "cpu", "0", "3"]
    done = run_python(words, cwd=parts.ROOT, env=environment(), check=True)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [message["end"] for message in said if "end" in message] == ["passed"] * 3
    assert said[-1] == {"done": True}


def test_results_elsewhere_are_wrong() -> None:
    drawn.must_be_on(torch.ones(1), "cpu")
    with pytest.raises(AssertionError, match="the result is on cpu, not on cuda"):
        drawn.must_be_on(torch.ones(1), "cuda")


# processes -------------------------------------------------------------------------------------------

TRIES = """
import json, os, sys, time
say = lambda **words: print(json.dumps(words), flush=True)
for number in range(int(sys.argv[1]), 6):
    say(begin=f"case {number}")
    if number == 2: os.abort()
    if number == 3: time.sleep(60)
    say(end="wrong" if number == 4 else "passed", message="far off")
say(done=True)
"""


@pytest.mark.long
def test_a_process_that_dies_or_hangs_costs_one_case() -> None:
    def words(start: int, found: Counts) -> list[str]:
        return [sys.executable, "-c", TRIES, str(sum(found.counts.values()))]

    found = count(words, os.environ, silence=3.0, end=time.monotonic() + 60)
    assert found.counts == {"passed": 3, "crashed": 2, "wrong": 1}
    assert [example["what"] for example in found.examples] == ["case 2", "case 3", "case 4"]
    assert "said nothing for 3 seconds" in found.examples[1]["message"]
    assert found.examples[2]["message"] == "far off"


def test_a_process_that_never_begins_is_tried_twice() -> None:
    started = []

    def words(start: int, found: Counts) -> list[str]:
        started.append(start)
        return [sys.executable, "-c", "raise SystemExit('no such module')"]

    found = count(words, os.environ, silence=20.0, end=time.monotonic() + 60)
    assert started == [0, 1] and found.counts == {"crashed": 1}
    assert found.examples[0]["message"] == "no such module"


@pytest.mark.long
def test_what_is_out_of_time_is_cut_short() -> None:
    def words(start: int, found: Counts) -> list[str]:
        return [sys.executable, "-c", TRIES, "3"]

    found = count(words, os.environ, silence=20.0, end=time.monotonic() + 0.5)
    assert found.cut_short and found.counts == {}


TESTS = """
import os, pytest
def test_good(): print("{noise")
def test_bad(): assert 1 == 2
def test_dies(): os._exit(5)
@pytest.mark.skip(reason="not now")
def test_skipped(): pass
@pytest.fixture
def torn(): raise ValueError("in a fixture")
def test_torn(torn): pass
"""


def test_tests_are_counted_and_go_on_after_one_that_dies(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    env = environment(GPU_CHECK_DONE=str(tmp_path / "done"), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    words = ["-m", "pytest", "-q", "-p", "tools.gpu_check.watch", "-p", "no:cacheprovider"]
    words += ["--rootdir", str(tmp_path), str(tmp_path)]

    def said() -> list[dict[str, str]]:
        done = run_python(words, cwd=tmp_path, env=env)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]

    first, second = said(), said()
    ends = [message.get("end") for message in first + second if "begin" not in message]
    assert [message["begin"].split("::")[1] for message in first if "begin" in message] == [
        "test_good",
        "test_bad",
        "test_dies",
    ]
    assert ends == ["passed", "failed", "skipped", "failed", None]


# the whole -------------------------------------------------------------------------------------------


def test_parts_are_saved_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def fail(options: parts.Options) -> dict[str, Any]:
        raise RuntimeError("it broke")

    file = tmp_path / "result.json"
    monkeypatch.setattr(command, "PARTS", {"drawn": lambda options: {"problems": 0, "n": 1}, "tests": fail})
    common = ["--device", "cpu", "--result", str(file)]
    assert command.main([*common, "--only", "drawn"]) == 0
    assert command.main([*common, "--only", "tests"]) == 1
    found = json.loads(file.read_text())
    assert found["drawn"]["n"] == 1 and found["tests"]["failed"] == "RuntimeError: it broke"
    for part in found.values():
        assert part["environment"]["torch"] == torch.__version__ and part["environment"]["machine"]
        assert part["date"].startswith("20") and part["seconds"] >= 0
    assert "1 problems" in capsys.readouterr().out


def test_counts_of_all_shares_are_added(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    asked: list[list[str]] = []

    def counted(words: Any, *_: Any) -> Counts:
        asked.append(words(0, Counts()))
        return Counts({"passed": 4, "wrong": 1}, [{"outcome": "wrong", "what": "ij->i", "message": "by 1"}])

    monkeypatch.setattr(parts, "count", counted)
    monkeypatch.setattr(parts, "DRAWN", {"einsum": 25})
    found = parts.drawn(parts.Options("cpu", jobs=8, limit=60, silence=10, seed=7))
    assert found["einsum"]["counts"] == {"passed": 8, "wrong": 2} and found["problems"] == 2
    assert sorted(words[-2:] for words in asked) == [["1007", "12"], ["7", "13"]]
    assert "einsum: 8 passed, 2 wrong" in capsys.readouterr().out


def test_errors_of_the_sanitizer_are_read() -> None:
    assert parts.sanitizer_errors("========= ERROR SUMMARY: 3 errors\nexit code 9") == 3
    assert (
        parts.sanitizer_errors("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)") == 0
    )
    assert parts.sanitizer_errors("Device not supported") is None


def test_output_of_a_command_is_shown_and_cut(capsys: Any) -> None:
    text = parts.run([sys.executable, "-c", "import time; print('begun'); time.sleep(60)"], 1.0)
    assert text == "begun\nout of time\nexit code -9"
    assert capsys.readouterr().out == "begun\n"


def is_running(process: int) -> bool:
    """Whether a process runs, as Linux says; one that has ended may wait for somebody to ask how."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux lists processes there")
def test_a_command_that_is_cut_takes_along_what_it_started() -> None:
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {child!r}])"
    text = parts.run([sys.executable, "-c", parent], 3.0)
    assert parts.OUT_OF_TIME in text
    for _ in range(100):
        if not is_running(int(text.split()[0])):
            return
        time.sleep(0.1)
    raise AssertionError("it still runs")


class Sanitized:
    """Stands for ``run``: what commands were given, and how long each may take."""

    def __init__(self, said: dict[str, str]) -> None:
        self.said, self.commands, self.limits = said, [], []  # type: ignore[var-annotated]

    def __call__(self, command: list[str], limit: float, **env: str) -> str:
        self.commands.append(command)
        self.limits.append(limit)
        return self.said[command[command.index("--tool") + 1]]


def sanitize(
    monkeypatch: pytest.MonkeyPatch, run: Sanitized, jobs: int = 1, **options: Any
) -> dict[str, Any]:
    monkeypatch.setattr(parts, "sanitizer_program", lambda: "compute-sanitizer")
    monkeypatch.setattr(parts, "run", run)
    return parts.sanitize(parts.Options("cuda", jobs=jobs, limit=600, silence=9, **options))


def launched(*left_out: str) -> str:
    return f"launched: {', '.join(sorted(kernels.names_of_kernels() - {*left_out}))}\n"


def test_no_tool_of_the_sanitizer_takes_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    all_launched = launched()
    run = Sanitized(
        {"memcheck": f"{all_launched}ERROR SUMMARY: 0 errors", "racecheck": f"begun\n{parts.OUT_OF_TIME}"}
    )
    found = sanitize(monkeypatch, run)
    assert run.limits == pytest.approx([300] * 3 + [600] * 3, rel=0.01)
    assert found["memcheck einsum"] == {"errors": 0, "cut_short": False, "failed": False, "tail": ""}
    assert found["racecheck kernels 1"]["cut_short"] and found["problems"] == 0
    tools = [command[command.index("--tool") + 1] for command in run.commands]
    assert tools == ["memcheck"] * 3 + ["racecheck"] * 3
    drawn = [command for command in run.commands if "tools.gpu_check.drawn" in command]
    assert int(drawn[0][-1]) == int(drawn[1][-1]) > int(drawn[2][-1]) == int(drawn[3][-1])
    assert ["kns=scorch" in command for command in run.commands] == [False] * 3 + [True] * 3
    within = "tools.gpu_check.halves_in_float32"
    assert [within in command for command in run.commands] == [False] * 3 + [True] * 3


def test_groups_of_kernels_are_shared_out_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Sanitized(dict.fromkeys(("memcheck", "racecheck"), f"{launched()}ERROR SUMMARY: 0 errors"))
    found = sanitize(monkeypatch, run, jobs=7)
    watched = [command for command in run.commands if "tools.gpu_check.kernels" in command]
    groups = [command[command.index("cuda") + 1 :] for command in watched]
    assert len(groups) == 10 and sorted(chain(*groups[:5])) == sorted(kernels.GROUPS)
    assert found["memcheck kernels 5"]["errors"] == 0


def test_kernels_that_the_sanitizer_did_not_see_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = f"{launched('scorch_rank')}ERROR SUMMARY: 0 errors"
    found = sanitize(monkeypatch, Sanitized({"memcheck": summary, "racecheck": summary}), jobs=4)
    assert found["racecheck never launched"] == ["scorch_rank"] and found["problems"] == 2


def test_modules_run_while_products_of_halves_are_computed_in_float32(tmp_path: Path) -> None:
    """Also backward; the module is told its own words."""
    module = """
        import sys
        import torch
        x = torch.randn(40, 300).bfloat16().requires_grad_()
        w = torch.randn(300, 20).bfloat16()
        products = [x @ w, torch.addmm(torch.ones(20).bfloat16(), x, w), (x[None] @ w[None])[0]]
        wide = x.detach().float() @ w.float()
        assert all(each.dtype == torch.bfloat16 for each in products)
        assert torch.equal(products[0], wide.bfloat16())
        assert torch.equal(products[1], (1 + wide).bfloat16()) and torch.equal(products[2], wide.bfloat16())
        (grad,) = torch.autograd.grad(products[0].sum(), [x])
        assert torch.equal(grad, (torch.ones(40, 20) @ w.float().T).bfloat16())
        print(sys.argv[1:], __name__)
    """
    (tmp_path / "watched.py").write_text(textwrap.dedent(module))
    program = "from tools.gpu_check import halves_in_float32 as it; it.run('CPU', ['watched', 'cuda', '3'])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "['cuda', '3'] __main__"


def test_errors_and_missing_summaries_of_the_sanitizer_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Sanitized({"memcheck": "ERROR SUMMARY: 2 errors", "racecheck": "Segmentation fault"})
    assert sanitize(monkeypatch, run, cases=2)["problems"] == 6
    assert all(command[-1] == "2" for command in run.commands if "tools.gpu_check.drawn" in command)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", kernels.GROUPS)
def test_kernels_that_are_sanitized_are_right(name: str, capsys: Any) -> None:
    assert kernels.main("cpu", [name]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{name}: ok"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", large.CHECKS)
def test_large_tensors(name: str) -> None:
    """With few nonzeros here; and what is wrong is found."""
    assert large.run(name, large.Sizes("cpu", is_small=True)) == "ok"


def test_wrong_results_for_large_tensors_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(large.Banded, "dense_rows", lambda self: torch.ones(1, device="cpu"))
    assert large.main(["cpu", "values", "--small"]) == 1
    assert "AssertionError: " in capsys.readouterr().out


@pytest.mark.long
def test_all_kernels_are_sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the emulator of grids, where sizes are smaller and so are some limits."""
    monkeypatch.setattr(coalescing, "MAX_RANKED", 100)
    monkeypatch.setattr(coalescing, "MAX_DRAWN", 100)
    monkeypatch.setattr(coalescing, "MAX_COUNTED", 22)  # buckets, of which 6,000 entries have 19
    monkeypatch.setattr(attention_blocks, "MIN_CUT", 2)
    monkeypatch.setattr(attention_blocks, "FEW_CUT", 1)
    assert len(kernels.names_of_kernels()) > 30
    with scorch.settings(backend="emulated"):
        assert kernels.main("cpu") == 0


def test_programs_that_fail_without_an_error_of_the_sanitizer_are_problems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Sanitized({"memcheck": "ERROR SUMMARY: 0 errors\nexit code 1", "racecheck": "exit code 0"})
    found = sanitize(monkeypatch, run)
    assert found["memcheck kernels 1"]["failed"] and "exit code 1" in found["memcheck kernels 1"]["tail"]
    assert not found["racecheck kernels 1"]["failed"] and found["problems"] == 6


def test_kernels_that_no_group_launches_are_named(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    group = {"rows": lambda device: scorch.from_torch(torch.eye(3), format="csr")[torch.tensor([1, 0])]}
    monkeypatch.setattr(kernels, "GROUPS", group)
    with scorch.settings(backend="emulated"):
        assert kernels.main("cpu") == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("never launched: ") and "scorch_rank" in said and "scorch_copy_rows" not in said


def test_as_many_are_drawn_as_is_asked_of_a_device() -> None:
    assert parts.DRAWN["einsum"] >= 3_000 and parts.DRAWN["evaluate"] >= 2_000
    assert parts.DRAWN["gradients"] >= 1_000


def test_results_name_their_machine_and_day() -> None:
    for part in json.loads(command.RESULT.read_text()).values():
        assert part["date"].startswith("20") and part["environment"].keys() >= {"device", "machine", "commit"}


def test_operators_are_tried_on_another_device() -> None:
    task = workers.Task("abs", "float32", ("csr",), 1, device="meta")
    found = list(workers.calls(task, workers.all_operators()["abs"]))
    assert found and all(case.leaves[0].device.type == "meta" for *_, case in found)


def test_unknown_parts_and_missing_gpus_are_refused(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "dawn"])
    assert "there is no part 'dawn'; there are drawn, tests" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        command.main([])
    assert "torch finds no GPU here" in capsys.readouterr().err


CHECKED = [
    *("copies and files", "default device", "construction on the device", "explanations"),
    *("warm calls wait for nothing", "results repeat", "memory of training", "hypersparse tensors"),
    *("optimizers of sparse tensors", "second gradients", "pruned models", "imports and forks"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CHECKED)
def test_layers_agree_with_themselves(name: str) -> None:
    layers.CHECKS[name]("cpu")


EMULATED = [
    *("warm calls wait for nothing", "training waits for nothing", "results repeat"),
    *("deterministic algorithms", "sums in any order", "explanations", "hypersparse tensors"),
    "kernels agree with joins",
]


@pytest.mark.long
@pytest.mark.parametrize("name", EMULATED)
def test_layers_agree_in_the_emulator_of_grids(name: str) -> None:
    with scorch.settings(backend="emulated"):
        layers.CHECKS[name]("cpu")


def test_kernels_are_compared_with_joins() -> None:
    """What no kernel computes is found where one is launched, and the other way round."""
    S = checks.matrix("cpu")
    with scorch.settings(backend="emulated"):
        with tensors.without_kernels(), tensors.recorded() as others:
            wanted = S @ torch.ones(checks.N)
        with tensors.recorded() as launched:
            found = S @ torch.ones(checks.N)
    assert not others and launched
    checks.agree(found, wanted)


def test_a_layer_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "CHECKS", {"right": lambda device: None, "wrong": lambda device: wrong()})
    found = layers.main("cpu")
    assert found["right"] == "" and found["wrong"].startswith("AssertionError")
    assert layers.main("cpu", ["right"]) == {"right": ""}


def test_layers_are_shared_out_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has not told did not end, and is a problem as what failed is."""
    asked: list[list[str]] = []

    def run(command: list[str], limit: float) -> str:
        names = command[command.index("cpu") + 1 :]
        asked.append(names)
        return "\n".join(f"{name}: {'ok' if name != 'b' else 'AssertionError'}" for name in names[:2])

    monkeypatch.setattr(parts, "CHECKS", dict.fromkeys("abcde"))
    monkeypatch.setattr(parts, "run", run)
    found = parts.layers(parts.Options("cpu", jobs=2, limit=60, silence=10))
    assert sorted(asked) == [["a", "c", "e"], ["b", "d"]]
    assert found == {
        "a": "ok",
        "b": "AssertionError",
        "c": "ok",
        "d": "ok",
        "e": "did not end",
        "problems": 2,
    }


def test_a_warm_call_that_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"waits": lambda: (Told(torch.device("cpu"), 1).wait(), torch.ones(1))[1]}
    monkeypatch.setattr(memory, "known_calls", lambda device: calls)
    monkeypatch.setattr(Told, "wait", lambda told: [0])
    with pytest.raises(AssertionError, match="waits, after 3 calls: the host waits for a number"):
        memory.warm_calls_wait_for_nothing("cpu")


def test_results_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(10))
    monkeypatch.setattr(
        memory, "_repeated", lambda device: {"a sum": lambda: [torch.ones(1) * next(numbers)]}
    )
    with pytest.raises(AssertionError, match="a sum has other bits"):
        memory.results_repeat("cpu")


def test_numbers_that_are_copied_to_the_host_are_found() -> None:
    with pytest.raises(AssertionError, match="100 numbers were copied to the host"), tensors._StaysThere():
        torch.empty(100).copy_(torch.empty(100, device="meta"))


def test_matrices_of_checks_are_the_same_everywhere() -> None:
    assert torch.equal(checks.matrix("cpu").to_dense(), checks.matrix("cpu", form="csc").to_dense())
