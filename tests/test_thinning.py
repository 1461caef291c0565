"""What a usual run leaves out: never a function, a format or a small family, and always the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fork_server import run_python
from thinning import ONE_IN, SMALL, Planned, choose, is_whole, sample_of, thin

TESTS = Path(__file__).resolve().parent


@dataclass
class Case:
    nodeid: str
    callspec: Any = field(default_factory=lambda: SimpleNamespace(_idlist=[]))
    markers: set[str] = field(default_factory=set)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


def table(*counts: int, name: str = "test_it", marker: str = "") -> list[Case]:
    """All cases of a test with so many values of each parameter."""
    found = [Case(f"t.py::{name}[", markers={marker})]
    for place, count in enumerate(counts):
        found = [
            Case(
                f"{case.nodeid}-{value}",
                SimpleNamespace(_idlist=[*case.callspec._idlist, f"{place}={value}"]),
                case.markers,
            )
            for case in found
            for value in range(count)
        ]
    return found


@pytest.mark.parametrize("counts", [(13, 5), (6, 5, 2), (40, 10), (3, 3), (2, 2, 2, 2)])
def test_every_value_of_every_parameter_stays(counts: tuple[int, ...]) -> None:
    family = table(*counts)
    kept = choose(family)
    for place, count in enumerate(counts):
        rows = {case.callspec._idlist[place] for case in kept}
        assert rows == {f"{place}={value}" for value in range(count)}
    assert len(kept) >= max(SMALL, len(family) // ONE_IN) and len(kept) < len(family)


def test_small_marked_and_plain_tests_stay() -> None:
    for family in (table(2, 2), table(30, 30, marker="whole"), [Case("t.py::test_plain")], table(50)):
        assert sorted(case.nodeid for case in choose(family)) == sorted(case.nodeid for case in family)


def test_of_sampled_tests_some_cases_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinning.sample_of", lambda case: 3)
    assert [len(choose(table(*counts))) for counts in ((30,), (4,), (2, 2), (1,))] == [10, 2, 2, 1]


def test_the_order_is_kept_and_the_choice_does_not_depend_on_it() -> None:
    family = table(10, 10)
    names = [case.nodeid for case in family]
    kept = [case.nodeid for case in thin(family)]
    assert kept == sorted(kept, key=names.index) and len(kept) < len(names)
    assert [case.nodeid for case in thin(family[::-1])] == kept[::-1]


def test_planned_cases_have_the_names_and_marks_of_tests(request: pytest.FixtureRequest) -> None:
    marks = [pytest.mark.whole.mark]
    planned = Planned(request.node, SimpleNamespace(id="a-1", _idlist=["a", "1"], marks=marks))
    assert planned.nodeid == f"{request.node.nodeid}[a-1]" and is_whole(planned) and sample_of(planned) == 1
    request.node.add_marker(pytest.mark.sampled(3))
    assert sample_of(planned) == 3


@pytest.mark.long
def test_a_run_tells_what_it_left_out(tmp_path: Path) -> None:
    for name in ("conftest.py", "on_device.py", "thinning.py", "without_compiler.py"):
        (tmp_path / name).write_text((TESTS / name).read_text())
    (tmp_path / "test_table.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize(('text', 'same'), [(text, 1) for text in 'abcdefghijkl'])\n"
        "def test_examples(text, same): pass\n"
        "@pytest.mark.parametrize('form', range(10))\n"
        "@pytest.mark.parametrize('name', range(10))\n"
        "def test_pairs(name, form): pass\n"
    )

    def run(*options: str) -> str:
        words = ["-m", "pytest", "-p", "no:cacheprovider", *options]
        return run_python(words, cwd=tmp_path, check=True).stdout

    usual = run()
    kept = int(usual.rpartition(" passed")[0].split()[-1])
    assert f"{112 - kept} of 112 tests are further cases" in usual and 22 <= kept < 42
    assert "112 passed" in run("--every-case")
    assert f"{112 - kept} of 112 tests are further cases" in run("-n", "1")
