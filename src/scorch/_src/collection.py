"""Import many modules without searching for cycles in between.

Python searches all objects for unreachable cycles after so many allocations. An import makes objects that
stay, next to the hundreds of thousands of torch, so it finds none, and takes a quarter of the time.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the search inside this context; what was made there counts as old afterwards."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # nobody has frozen objects, which would have to stay so
            gc.freeze()  # else the next allocations would search through all of them, and torch's
            gc.unfreeze()
        gc.enable()
