"""Every run draws the same random numbers and cases, unless ``--long`` asks for new ones."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import settings

from fork_server import run_python

TESTS = Path(__file__).parent

DRAWS = """
import random, numpy, torch, pytest
from hypothesis import given, strategies as st

AT_IMPORT = torch.rand(1).item()

@pytest.fixture(scope="module")
def shared():
    return numpy.random.rand()

@pytest.mark.parametrize("place", range(2))
def test_draws(place, shared):
    seen = []
    @given(st.integers(0, 10**9))
    def drawn(number):
        seen.append(number)
    drawn()
    own = torch.rand(1).item(), random.random(), numpy.random.rand()
    print("DRAWN", place, AT_IMPORT, shared, *own, sum(seen))
"""


def drawn(folder: Path, *options: str) -> list[str]:
    """What two tests draw in a process of their own, under the options and fixtures of this suite."""
    for name in ("conftest.py", "on_device.py", "thinning.py"):
        (folder / name).write_text((TESTS / name).read_text())
    (folder / "test_drawn.py").write_text(DRAWS)
    words = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *options, str(folder)]
    found = run_python(words, cwd=folder, check=True)
    return sorted(line[line.index("DRAWN") :] for line in found.stdout.splitlines() if "DRAWN" in line)


@pytest.mark.long
def test_runs_draw_the_same_unless_they_are_long(tmp_path):
    plain = drawn(tmp_path)
    assert len(plain) == 2 and plain == drawn(tmp_path)
    assert plain[1:] == drawn(tmp_path, "-k", "1"), "what a test draws depends on those before it"
    long = drawn(tmp_path, "--long", "--cases", "20")
    assert not set(long) & set(plain) and long != drawn(tmp_path, "--long", "--cases", "20")


def test_this_run(request):
    if request.config.getoption("long"):
        pytest.skip("a long run draws anew")
    assert settings.default.derandomize and settings.default.database is None
    assert request.config.option.seed == 0


MAKERS = ("Random", "default_rng", "RandomState", "SeedSequence")  # of generators that a number seeds
SOURCES = ("urandom", "SystemRandom", "token_bytes", "uuid4")  # which nothing seeds


def unseeded(tree: ast.AST) -> list[str]:
    """Calls that draw, or make what draws, from what the seeds above do not reach."""
    seeded = {
        id(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "manual_seed"
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        makes = name in MAKERS and not node.args
        makes |= name == "Generator" and id(node) not in seeded
        if makes or name in SOURCES:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_generators_are_seeded():
    found = {str(path.relative_to(TESTS)): unseeded_in(path) for path in sorted(TESTS.rglob("*.py"))}
    assert {path: calls for path, calls in found.items() if calls} == {}


def unseeded_in(path):
    text = path.read_text()
    if not any(name in text for name in (*MAKERS, "Generator", *SOURCES)):
        return []
    tree = ast.parse(text)
    assigned = {
        ast.unparse(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "manual_seed"
    }
    found = unseeded(tree)
    if "generator" in assigned:  # made in one line and seeded in the next
        found = [call for call in found if "torch.Generator()" not in call]
    return found
