"""The budget of dense memory that a result may need; more is refused before it is allocated."""

from __future__ import annotations

import os

import torch

from scorch._src.backends.base import backend_for
from scorch._src.devices import HOST
from scorch.errors import DensityError
from scorch.settings import current

USUAL_MEMORY = 1 << 33  # bytes of a host
UNCHECKED_BYTES = 1 << 26  # that are allocated without a look at the free memory


def check_budget(size: int, device: torch.device, what: str, cure: str, reason: str = "") -> None:
    """Raise if ``what``, which needs ``size`` bytes of dense memory on a device, is beyond the budget.

    ``cure`` says what to do instead, as an imperative; it may be empty. ``reason`` says why, if there is more
    to say.
    """
    if not is_within_budget(size, device):
        budget = _budget(device)
        raise DensityError(
            f"{what} needs {size:,} bytes of dense memory, more than the budget of {budget:,}; "
            f"{reason}{'; ' if reason else ''}{cure}{', or ' if cure else ''}increase "
            "scorch.settings(dense_budget=...)"
        )


def is_within_budget(size: int, device: torch.device) -> bool:
    """Check whether ``size`` bytes of dense memory may be allocated on a device."""
    is_default = current().dense_budget is None
    # Of unused memory at least half is available, and it takes a hundredth of the time to ask for.
    if is_default and (size <= UNCHECKED_BYTES or (device == HOST and size <= _unused_memory() // 8)):
        return True
    return size <= _budget(device)


def _budget(device: torch.device) -> int:
    budget = current().dense_budget
    return _free_memory(device) // 4 if budget is None else budget


def _unused_memory() -> int:
    """Return the bytes of the host that hold nothing, not even cached files; 0 if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def _free_memory(device: torch.device) -> int:
    """Return the bytes that can still be allocated on a device, or of the host's memory if it shares that."""
    free = None if device == HOST else backend_for(device).routines.free_memory(device)
    if free is not None:
        return free
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return host_memory()


def host_memory() -> int:
    """Return the bytes of memory that the host has, or a guess where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return USUAL_MEMORY
