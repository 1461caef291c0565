"""Options and fixtures that all tests share.

``--long`` runs what takes minutes to hours, and 20,000 cases of each property instead of a few hundred;
``--cases N`` sets that number directly.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

CI_CASES = 200
LONG_CASES = 20_000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scorch")
    group.addoption("--long", action="store_true", help="also run the long tests, with many more cases")
    group.addoption("--cases", type=int, metavar="N", help="how many cases each property test draws")


def pytest_configure(config: pytest.Config) -> None:
    # Kernels are compiled between draws, so neither a deadline nor a limit on drawing time makes sense.
    common = settings(
        settings.get_profile("default"),  # draws anew at every run, where CI is set too
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile("ci", common, max_examples=CI_CASES)
    settings.register_profile("long", common, max_examples=LONG_CASES)
    profile = "long" if config.getoption("long") else "ci"
    if config.getoption("cases") is not None:
        settings.register_profile("cases", common, max_examples=config.getoption("cases"))
        profile = "cases"
    settings.load_profile(profile)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("long"):
        return
    skip = pytest.mark.skip(reason="takes long; runs with --long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)


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
    with open("/proc/self/statm") as facts:
        now = int(facts.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 2 * 10**9, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
