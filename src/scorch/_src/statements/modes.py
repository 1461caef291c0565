"""The active recorder of ``scorch.compile``, which receives statements before they run."""

from __future__ import annotations

import threading
from typing import Any


class _Active(threading.local):
    recorder: Any = None  # of this thread


active = _Active()
