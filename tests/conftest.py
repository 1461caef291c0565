"""Options and fixtures that all tests share.

A usual run takes minutes: it leaves out tests that are marked ``long``, most cases of large parametrised
families (``thinning.py`` says which, and the end of the run how many), and draws few cases of each property.
``--every-case`` thins nothing. ``--long`` runs everything, also what takes minutes to hours, and draws 20,000
cases of each property; ``--cases N`` sets that number directly.

All random numbers are the same at every run: hypothesis draws the same cases, and torch, NumPy and ``random``
are seeded before each test, each fixture and each module by their names. With ``--long`` everything is drawn
anew; ``--seed N``, which the header of such a run names, repeats it.
"""

from __future__ import annotations

import gc
import os
import random
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, settings

from on_device import skip_on_device, use_device
from thinning import Planned, thin

ROOT = Path(__file__).resolve().parent.parent

# For each kind of device that is not there, torch.manual_seed keeps the stack of who has called it: three of
# them take a millisecond at each call.
for devices in (torch.cuda, torch.xpu, torch.mtia):
    if not devices.is_available():
        devices.manual_seed_all = lambda seed: None

CI_CASES = 6
LONG_CASES = 20_000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scorch")
    group.addoption("--long", action="store_true", help="also run the long tests, with many more cases")
    group.addoption("--every-case", action="store_true", help="thin no family of parametrised tests")
    group.addoption("--cases", type=int, metavar="N", help="how many cases each property test draws")
    group.addoption(
        "--seed", type=int, metavar="N", help="what all random numbers depend on; 0 unless --long"
    )

    group.addoption("--device", metavar="NAME", help="where new tensors of the tests are, such as cuda")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("device"):
        use_device(config.getoption("device"))
    is_long = config.getoption("long")
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(2**31) if is_long else 0
    # Kernels are compiled between draws, so neither a deadline nor a limit on drawing time makes sense.
    common = settings(
        settings.get_profile("default"),
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=not is_long,  # the same cases at every run
        database=settings.get_profile("default").database if is_long else None,
    )
    settings.register_profile("ci", common, max_examples=CI_CASES)
    settings.register_profile("long", common, max_examples=LONG_CASES)
    profile = "long" if is_long else "ci"
    if config.getoption("cases") is not None:
        settings.register_profile("cases", common, max_examples=config.getoption("cases"))
        profile = "cases"
    settings.load_profile(profile)
    seed_all(config, "")
    config.stash[EFFORT] = is_long or "SCORCH_OPTIMIZE" in os.environ


class LastFirst(pytest.Dir):
    """A folder whose files are imported from the last to the first."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        return reversed(list(super().collect()))


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """Let every second process begin at the other end: each finds what the other has compiled by then.

    The first run in a clone compiles all files, whose assertions pytest rewrites. The tests are sorted later.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return LastFirst.from_parent(parent, path=path) if number % 2 and is_one_path(parent.config) else None


def is_one_path(config: pytest.Config) -> bool:
    """Whether pytest was given one file or folder, whose tests are in the order of their paths."""
    return len(config.args) == 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Keep the garbage collector away from what lives as long as the process: modules and tests.

    Later it runs seldom. As often as by default, it takes 3 percent of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    return f"random numbers: --seed {config.option.seed}"


def seed_all(config: pytest.Config, name: str) -> None:
    """Seed every source of random numbers by what they are drawn for."""
    number = zlib.crc32(name.encode()) ^ config.option.seed
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """A module that draws when it is imported draws the same, whatever was imported before."""
    seed_all(collector.config, collector.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
    """So does a fixture that several tests share, whichever of them comes first."""
    if fixturedef.scope != "function":
        seed_all(request.config, f"{fixturedef.baseid}::{fixturedef.argname}")
    return (yield)


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Each test draws the same, alone or after others."""
    seed_all(request.config, request.node.nodeid)


# The effort of the compiler, its ``-O``, by folder or file, the file first. What is about machine code itself
# is compiled as users have it; elsewhere tests ask what kernels mean, and kernels made with little effort are
# there in half the time. With 1 the compiler optimises, in half the time of 3. ``--long`` compiles all
# as users have it.
EFFORTS = {
    **dict.fromkeys(("loops", "properties", "cpu"), "1"),
    **{f"test_{name}.py": "3" for name in ("attention_kernels", "by_rows", "vectorize", "vectors")},
    **{f"test_{name}.py": "3" for name in ("jit", "toolchain", "vectors_by_value")},
    **{f"test_{name}.py": "1" for name in ("footprint", "threads")},
    # In these folders, what is about functions of torch, or names: kernels like those of the other files.
    **{f"test_{name}.py": "0" for name in ("acceptance", "broken_compilers", "gradients", "names")},
    **{f"test_{name}.py": "0" for name in ("programs", "repeated_calls", "torch_calls")},
}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set ``SCORCH_OPTIMIZE`` for the test and all its fixtures, unless whoever started the run has."""
    if item.config.stash[EFFORT]:
        return
    path = item.path.relative_to(ROOT) if item.path.is_relative_to(ROOT) else item.path
    wanted = next((EFFORTS[part] for part in reversed(path.parts) if part in EFFORTS), "0")
    if os.environ.get("SCORCH_OPTIMIZE") == wanted:
        return
    os.environ["SCORCH_OPTIMIZE"] = wanted
    from scorch._src.backends.cpu import jit, toolchain
    from without_compiler import forget_plans

    forget_plans()
    jit.forget()
    toolchain.forget()


EFFORT = pytest.StashKey[bool]()  # whether the compiler's effort is said from outside


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """For tests that draw by generators of their own: 0, or another number with ``--long``."""
    return int(request.config.option.seed)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("device"):
        skip_on_device(items)
    if config.getoption("long"):
        return
    if is_one_path(config):
        items.sort(key=lambda item: item.path.parts)
    skip = pytest.mark.skip(reason="takes long; runs with --long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Any:
    """Leave out cases before tests are made of them."""
    found = yield
    config = metafunc.config
    named = any("::" in argument for argument in config.args)
    if not (named or config.getoption("long") or config.getoption("every_case")):
        left_out, total = config.stash.get(THINNED, (0, 0))
        cases = [Planned(metafunc.definition, call) for call in metafunc._calls]
        if cases:
            metafunc._calls = [case.callspec for case in thin(cases)]
            left_out += len(cases) - len(metafunc._calls)
        config.stash[THINNED] = (left_out, total + max(1, len(cases)))
    return found


THINNED = pytest.StashKey[tuple[int, int]]()  # how many cases were left out, and of how many


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that prints the summary, where several run the tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["thinned"] = list(session.config.stash.get(THINNED, (0, 0)))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process has thinned the same tests, so one that tells is enough."""
    left_out, total = getattr(node, "workeroutput", {}).get("thinned", (0, 0))
    if total:
        node.config.stash[THINNED] = (left_out, total)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out, total = config.stash.get(THINNED, (0, 0))
    if left_out:
        terminalreporter.write_line(
            f"{left_out:,} of {total:,} tests are further cases of others and were left out; "
            "--every-case runs them, --long draws more as well"
        )


@pytest.fixture(scope="session")
def cases() -> int:
    """How many cases a property test should draw, for tests that do their own drawing."""
    return settings().max_examples


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real matrices, tensors and graphs; tests that need them are skipped where there are none."""
    named = os.environ.get("SCORCH_DATA")
    directory = Path(named) if named else ROOT.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip("no data directory: set SCORCH_DATA to one")
    return directory


@pytest.fixture
def cases_per_worker(cases: int) -> int:
    """How many cases each of the eight parts of a property test draws."""
    return max(1, cases // 8)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """At most 2 GB more than there is now."""
    resource = pytest.importorskip("resource", reason="memory is limited on Unix only")
    with open("/proc/self/statm") as facts:
        now = int(facts.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 2 * 10**9, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
