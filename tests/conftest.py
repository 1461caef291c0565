"""Options and fixtures that all tests share.

``--long`` runs what takes minutes to hours, and 20,000 cases of each property instead of a few hundred;
``--cases N`` sets that number directly.

All random numbers are the same at every run: hypothesis draws the same cases, and torch, NumPy and ``random``
are seeded before each test, each fixture and each module by their names. With ``--long`` everything is drawn
anew; ``--seed N``, which the header of such a run names, repeats it.
"""

from __future__ import annotations

import os
import random
import resource
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

CI_CASES = 200
LONG_CASES = 20_000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scorch")
    group.addoption("--long", action="store_true", help="also run the long tests, with many more cases")
    group.addoption("--cases", type=int, metavar="N", help="how many cases each property test draws")
    group.addoption(
        "--seed", type=int, metavar="N", help="what all random numbers depend on; 0 unless --long"
    )


def pytest_configure(config: pytest.Config) -> None:
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


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """For tests that draw by generators of their own: 0, or another number with ``--long``."""
    return int(request.config.option.seed)


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
