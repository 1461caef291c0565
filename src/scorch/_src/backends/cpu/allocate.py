"""Memory of results: the C functions that allocate tensors, shrink them and keep large blocks for reuse.

Results are tensors of our own making, handed to torch with a function that frees them. A small one is one
block of memory with its description in front. A large one lies in pages of its own, aligned for huge pages;
fresh pages cost more than most kernels, so blocks that were freed last stay in a pool, up to a limit, and
serve the next result of about their size. An array that turns out shorter than it might have been is cut
in place: what it does not use is returned if that is much.
"""

from __future__ import annotations

import os

from scorch._src.backends.cpu.sources import read_source
from scorch._src.compiler.bounds import HUGE_PAGE

MAX_POOLED_BYTES = 1 << 29

SOURCE = f"#define LARGE {HUGE_PAGE}ul /* from here on pages of its own, and the size of a huge page */\n"
SOURCE += read_source("allocate.c")


def max_pooled_bytes() -> int:
    """Return the limit of the pool of freed results: a sixteenth of the memory, up to 512 MiB."""
    try:
        return min(MAX_POOLED_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16)
    except (ValueError, OSError, AttributeError):
        return MAX_POOLED_BYTES // 4
