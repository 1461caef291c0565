"""The budget of dense memory that a result may need; more is refused before it is allocated."""

from __future__ import annotations

import os

from scorch.errors import DensityError
from scorch.settings import current

UNCHECKED_BYTES = 1 << 26  # that are allocated without a look at the free memory


def check_budget(size: int, what: str, cure: str) -> None:
    """Raise if ``what``, which needs ``size`` bytes of dense memory, is beyond the budget."""
    if not is_within_budget(size):
        raise DensityError(
            f"{what} needs {size:,} bytes of dense memory, more than the budget of {_budget():,}; {cure}, "
            "or increase scorch.settings(dense_budget=...)"
        )


def is_within_budget(size: int) -> bool:
    """Check whether ``size`` bytes of dense memory may be allocated."""
    return (size <= UNCHECKED_BYTES and current().dense_budget is None) or size <= _budget()


def _budget() -> int:
    budget = current().dense_budget
    return _free_memory() // 4 if budget is None else budget


def _free_memory() -> int:
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
