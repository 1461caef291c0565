"""The active recorder of ``scorch.compile``, which receives statements before they run."""

from __future__ import annotations

import threading
from typing import Any


class _Active(threading.local):
    recorder: Any = None


active = _Active()


def recorder() -> Any:
    """Return the recorder that is active in this thread, if any."""
    return active.recorder
