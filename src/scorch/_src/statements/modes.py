"""Who hears of statements before they run: the recorder of ``scorch.compile``, while it records."""

from __future__ import annotations

import threading
from typing import Any


class _Active(threading.local):
    recorder: Any = None


active = _Active()


def recorder() -> Any:
    """The one that is recording in this thread, if any is."""
    return active.recorder
