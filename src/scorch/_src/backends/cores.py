"""The cores of the host."""

from __future__ import annotations

import os


def cores_of_host() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
