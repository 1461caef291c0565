"""One thread of one process compiles a kernel, and others that need it wait for its entry in the cache.

A lock of the operating system on a file next to the entry says who compiles: it ends with the process, so
that one that is killed holds nobody up. Whoever waits longer than a compiler may take compiles itself, as
does everybody where files cannot be locked: the lock saves work, and results do not depend on it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from scorch._src.backends import cache
from scorch._src.backends.private_files import make_private
from scorch._src.bounded import BoundedCache
from scorch.settings import current

SUFFIX = ".lock"
_PAUSES = 0.005, 0.02  # seconds between looks, from the first to the longest

MAX_AT_WORK = 4096
_at_work: BoundedCache[str, threading.Lock] = BoundedCache(MAX_AT_WORK)  # threads of this process
_lock = threading.Lock()

if sys.platform == "win32":
    import msvcrt

    def _try_to_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_to_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def one_at_a_time(key: str) -> Iterator[None]:
    """Wait until nobody else compiles the kernel of ``key``, but not longer than a compiler may take."""
    with _lock:
        own = _at_work.setdefault(key, threading.Lock())
    is_own = own.acquire(timeout=current().compiler_seconds)  # is told at once, while processes look
    try:
        with _one_process(key):
            yield
    finally:
        if is_own:
            own.release()


@contextlib.contextmanager
def _one_process(key: str) -> Iterator[None]:
    path = cache.directory() / f"{key}{SUFFIX}"
    descriptor = _open(path)
    is_locked = descriptor is not None and _wait_for(descriptor, current().compiler_seconds)
    try:
        yield
    finally:
        if descriptor is not None and is_locked:
            # By us: whoever waits for the file that goes away has the entry to look up. A process that was
            # forked meanwhile has the file open, too, so that closing it unlocks nothing.
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):
                _unlock(descriptor)
        if descriptor is not None:
            os.close(descriptor)


def _open(path: Path) -> int | None:
    try:
        make_private(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError:  # a cache that is read only
        return None


def _wait_for(descriptor: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    pause, longest = _PAUSES
    try:
        while not _try_to_lock(descriptor):
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, longest)
    except OSError:  # a file system without locks
        return False
    return True


def _forget() -> None:
    """Clear locks of threads that a forked process does not have."""
    global _lock
    _lock = threading.Lock()
    _at_work.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
