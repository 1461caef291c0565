"""From the text of a kernel to a loaded library: memory, then disk, then the compiler.

Threads that ask for the same text share one compilation; different texts compile at the same time, since
the compiler is another process. Everything is built in a temporary directory and only a finished library
reaches the cache, so a compilation that is killed leaves nothing that could be mistaken for a kernel.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import os
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scorch._src.bounded import BoundedCache
from scorch.errors import CompilationError
from scorch.runtime import cache
from scorch.runtime.toolchain import Toolchain, find_toolchain, run_compiler

Progress = Callable[[int, int], None]  # how many of how many

_SHOWN_LINES = 40

MOST_LIBRARIES = 4096  # which stay loaded while kernels use them
_libraries: BoundedCache[str, Library] = BoundedCache(MOST_LIBRARIES)
_building: BoundedCache[str, threading.Lock] = BoundedCache(MOST_LIBRARIES)
_lock = threading.Lock()


@dataclass(frozen=True)
class Library:
    """A kernel's machine code in this process; it stays loaded for good."""

    path: Path
    origin: Literal["compiled", "disk"]
    seconds_to_build: float  # 0.0 when it came from disk
    _handle: ctypes.CDLL = field(repr=False, compare=False)

    def address(self, name: str) -> int:
        """Where the function ``name`` begins."""
        try:
            function = getattr(self._handle, name)
        except AttributeError:
            source = self.path.with_suffix(".c")
            raise CompilationError(f"there is no function {name!r} in the kernel {source}") from None
        return ctypes.cast(function, ctypes.c_void_p).value or 0


def load(source: str, label: str = "") -> Library:
    """The library of a C source, compiled if neither this process nor the disk has it.

    ``label`` is what the user wrote, for the message of a compilation that fails.
    """
    library = _libraries.get(source)
    if library is not None:
        return library
    with _lock:
        building = _building.setdefault(source, threading.Lock())
    with building:
        library = _libraries.get(source)
        if library is None:
            library = _find_or_build(source, label)
            _libraries[source] = library
            with _lock:
                _building.pop(source, None)
    return library


@functools.lru_cache(maxsize=1024)
def function_address(source: str, label: str, name: str) -> int:
    """Where the function ``name`` of ``source`` is; 0 if this compiler cannot make it."""
    try:
        return load(source, label).address(name)
    except CompilationError:
        return 0


def build(sources: Iterable[str], progress: Progress | None = None) -> int:
    """Compile what neither this process nor the disk has, on all cores; how many that were.

    A source that does not compile is left for ``load`` to report. ``progress`` is told, after each, how many
    of all are there.
    """
    wanted = list(dict.fromkeys(sources))
    missing = [source for source in wanted if source not in _libraries and not _is_on_disk(source)]
    done = len(wanted) - len(missing)
    built = 0
    if missing:
        with ThreadPoolExecutor(max_workers=min(len(missing), os.cpu_count() or 1)) as pool:
            # Settings live in a context variable, which new threads do not inherit.
            jobs = [pool.submit(contextvars.copy_context().run, load, source) for source in missing]
            for job in as_completed(jobs):
                built += job.exception() is None
                if progress is not None:
                    progress(done + built, len(wanted))
    return built


def _is_on_disk(source: str) -> bool:
    return cache.find(cache.make_key(source, *find_toolchain().identity)) is not None


def is_loaded(source: str) -> bool:
    """Whether this process has the library of ``source``."""
    return source in _libraries


def forget() -> None:
    """Ask the disk again for every kernel; those in use stay loaded."""
    with _lock:
        _libraries.clear()
        _building.clear()


def _find_or_build(source: str, label: str) -> Library:
    tools = find_toolchain()
    key = cache.make_key(source, *tools.identity)
    path = cache.find(key)
    if path is not None:
        try:
            return Library(path, "disk", 0.0, ctypes.CDLL(str(path)))
        except OSError:  # sound by its checksum, yet the system will not load it, or it has just gone
            cache.remove(key)
    begin = time.perf_counter()
    library = _compile(tools, source, key, label)
    try:
        path, handle = _store_and_open(key, library, source)
    except OSError as error:
        cache.remove(key)
        raise _failure("cannot load the compiled kernel", str(error), tools, source, key, label) from error
    return Library(path, "compiled", time.perf_counter() - begin, handle)


def _store_and_open(key: str, library: bytes, source: str) -> tuple[Path, ctypes.CDLL]:
    path = cache.store(key, library, source)
    try:
        return path, ctypes.CDLL(str(path))
    except OSError as error:  # the kernel's fault, unless the file system lets nothing run
        place = path.parent
        path = cache.store_aside(key, library, source)
        handle = ctypes.CDLL(str(path))
        cache.warn_unusable(place, error)
        return path, handle


def _compile(tools: Toolchain, source: str, key: str, label: str) -> bytes:
    """The shared library made from ``source``.

    The file names are always the same because compilers write them into the library.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="scorch-", ignore_cleanup_errors=True) as folder:
            Path(folder, "kernel.c").write_text(source, encoding="utf-8")
            status, said = run_compiler(tools.compile_command("kernel.c", "kernel.so"), folder)
            if status == 0:
                return Path(folder, "kernel.so").read_bytes()
    except OSError as error:
        raise _failure("cannot run the C compiler", str(error), tools, source, key, label) from error
    reason = "the C compiler refused a kernel" if status > 0 else f"signal {-status} stopped the C compiler"
    raise _failure(reason, said, tools, source, key, label)


def _failure(reason: str, said: str, tools: Toolchain, source: str, key: str, label: str) -> CompilationError:
    kept = cache.store_source(key, source)
    lines = said.splitlines()
    if len(lines) > _SHOWN_LINES:
        lines = [*lines[:_SHOWN_LINES], f"... and {len(lines) - _SHOWN_LINES} more lines"]
    return CompilationError(
        f"{reason}{f' for {label}' if label else ''}\n"
        f"command: {shlex.join(tools.compile_command(str(kept), 'kernel.so'))}\n"
        f"source:  {kept}\n"
        f"it said: " + "\n         ".join(lines or ["nothing"])
    )


os.register_at_fork(after_in_child=_building.clear)  # locks held by threads that the child does not have
