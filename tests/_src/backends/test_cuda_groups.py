"""Groups of calls on CUDA devices, where there is none: the tests of ``scorch.compile``, emulated, and more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import grid_emulator  # noqa: F401
import scorch
from ops.test_compile import *  # noqa: F403


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    """Run the kernels of CUDA devices on the host."""
    with scorch.settings(backend="emulated"):
        yield
