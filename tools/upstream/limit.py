"""A pytest plugin: a test that runs longer than ``$UPSTREAM_TIMEOUT`` seconds fails, and the others go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

SECONDS = float(os.environ.get("UPSTREAM_TIMEOUT", "0"))


def _stop(signum: int, frame: Any) -> None:
    raise TimeoutError(f"the test ran longer than {SECONDS:g} seconds")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    previous = signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
