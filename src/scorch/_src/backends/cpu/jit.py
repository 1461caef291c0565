"""From the text of a kernel to a loaded library: memory, then disk, then the compiler.

Threads and processes that ask for the same text share one compilation; different texts compile at the same
time, since the compiler is another process. Everything is built in a temporary directory and only a finished
library reaches the cache, so a compilation that is killed leaves nothing that could be mistaken for a
kernel.

A compiler that refuses a text, crashes on it, runs out of time or makes something that cannot be loaded is
skipped for the next one, and then for the text in scalar form, with one warning. Texts that are written by
hand are loaded by ``find_library`` and ``function_address``: where none of that helps, another warning says
which routine is missing, and callers do its work in another way.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import os
import shlex
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import field
from pathlib import Path
from typing import Literal

from scorch._src.backends import cache
from scorch._src.backends.compile_lock import one_at_a_time
from scorch._src.backends.cpu import toolchain
from scorch._src.backends.cpu.run_compiler import run_compiler
from scorch._src.backends.cpu.toolchain import Toolchain, find_toolchain
from scorch._src.backends.private_files import NotPrivateError, temporary_folder
from scorch._src.bounded import BoundedCache
from scorch._src.dataclass import dataclass
from scorch.errors import CompilationError, CompilerNotFoundError, warn

Progress = Callable[[int, int], None]  # how many of how many

_SHOWN_LINES = 40
_ELF_HEADER = struct.Struct("<32x2Q6x4H2x")  # where parts and sections are described, and how many
_ELF_PART = struct.Struct("<8xQ16xQ16x")  # where a part begins in the file, and its length

MAX_LIBRARIES = 4096  # which stay loaded while kernels use them
_libraries: BoundedCache[str, Library] = BoundedCache(MAX_LIBRARIES)
_building: BoundedCache[str, threading.Lock] = BoundedCache(MAX_LIBRARIES)
_passed_over: set[tuple[str, ...]] = set()  # compilers that a warning has named
_given_up: set[str] = set()  # routines that a warning has named
_lock = threading.Lock()


@dataclass(frozen=True)
class Library:
    """A kernel's machine code in this process; it stays loaded for good."""

    path: Path
    origin: Literal["compiled", "disk"]
    seconds_to_build: float  # 0.0 when it came from disk
    _handle: ctypes.CDLL = field(repr=False, compare=False)

    def address(self, name: str) -> int:
        """Return the address of the function ``name``."""
        try:
            function = getattr(self._handle, name)
        except AttributeError:
            source = self.path.with_suffix(".c")
            raise CompilationError(f"the kernel {source} has no function {name!r}") from None
        return ctypes.cast(function, ctypes.c_void_p).value or 0


def read_source(name: str) -> str:
    """Read a file of C that is written by hand."""
    return (Path(__file__).parent / "c" / name).read_text(encoding="utf-8")


def load(source: str, label: str = "", scalar: Callable[[], str] | None = None) -> Library:
    """Load the library of a C source; compile it if neither this process nor the disk has it.

    ``label`` is what the user wrote, for the message of a compilation that fails; ``scalar`` returns another
    text that does the same, for compilers that fail at vectors.
    """
    library = _libraries.get(source)
    if library is not None:
        return library
    with _lock:
        building = _building.setdefault(source, threading.Lock())
    with building:
        library = _libraries.get(source)
        if library is None:
            library = _find_or_build(source, label, scalar)
            _libraries[source] = library
            with _lock:
                _building.pop(source, None)
    return library


@functools.lru_cache(maxsize=256)
def with_types(source: str, **types: str) -> str:
    """Return ``source`` with the names of C types that it leaves open defined before it."""
    known = {"i64": "long long", "u64": "unsigned long long", "u32": "unsigned"}
    return "".join(f"typedef {meaning} {name};\n" for name, meaning in (known | types).items()) + source


def function_address(source: str, label: str, name: str) -> int:
    """Return the address of the function ``name`` of ``source``; 0 if no compiler can build it."""
    try:
        return _function_address(source, label, name)
    except CompilerNotFoundError:
        toolchain.has_compiler()  # raises where somebody has named one that does not work
        return 0


@functools.lru_cache(maxsize=1024)
def _function_address(source: str, label: str, name: str) -> int:
    library = find_library(source, label)
    return 0 if library is None else library.address(name)


def find_library(source: str, label: str) -> Library | None:
    """Return the library of a routine that has a slower substitute; None, which a warning says, without it.

    ``label`` names the routine. Callers keep what this returns: each call compiles anew what has failed.
    """
    try:
        return load(source, label)
    except CompilationError as error:
        with _lock:
            is_known = label in _given_up
            _given_up.add(label)
        if not is_known:
            reason = str(error)
            if isinstance(error, _FailedError):
                reason = f"{error.reason}; its output is in {error.log}"
            warn(f"no C compiler could compile the routine {label!r}; a slower one takes its place: {reason}")
        return None


def build(sources: Iterable[str], progress: Progress | None = None) -> int:
    """Compile what neither this process nor the disk has, on all cores; return how many that were.

    A source that does not compile is left for ``load`` to report. ``progress`` is called after each one with
    the number that are ready and the number of all.
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
    """Check whether this process has the library of ``source``."""
    return source in _libraries


def forget() -> None:
    """Clear the kernels in memory, so that they are loaded from disk; those in use stay loaded."""
    with _lock:
        _libraries.clear()
        _building.clear()


def _find_or_build(source: str, label: str, scalar: Callable[[], str] | None) -> Library:
    """Return the library of the first text that some compiler compiles."""
    failures: list[_FailedError] = []
    for make_text in (lambda: source, scalar):
        if make_text is None:
            continue
        text = make_text()
        for tools in _compilers(failures):
            try:
                library = _find_or_compile(tools, text, label)
            except _FailedError as failure:
                failures.append(failure)
                continue
            if failures:
                _warn_passed_over(failures[0], tools, text != source)
            return library
    if not failures:
        find_toolchain()  # raises where there is none
        raise CompilationError("every C compiler on this machine timed out on an earlier kernel")
    raise failures[0]


def _compilers(failures: list[_FailedError]) -> Iterator[Toolchain]:
    """Yield all compilers, each once; where one has vanished meanwhile, the search is repeated."""
    tried: set[tuple[str, ...]] = set()
    while True:
        for tools in toolchain.toolchains():
            if tools.command in tried:
                continue
            tried.add(tools.command)
            yield tools
            if failures and failures[-1].tools is tools and failures[-1].vanished:
                toolchain.reset_search()
                break
        else:
            return


def _warn_passed_over(failure: _FailedError, used: Toolchain, is_scalar: bool) -> None:
    """Warn, once for each compiler, that another one or another text is used."""
    with _lock:
        if failure.tools.command in _passed_over or failure.vanished:
            return
        _passed_over.add(failure.tools.command)
    how = "in scalar form, which is slower, " if is_scalar else ""
    warn(
        f"{failure.reason} by {shlex.join(failure.tools.command)} ({failure.tools.version}); it is "
        f"compiled {how}with {shlex.join(used.command)} instead, as are others like it. The compiler's "
        f"output is in {failure.log}. Set SCORCH_CC to the compiler to use."
    )


def _find_or_compile(tools: Toolchain, source: str, label: str) -> Library:
    key = cache.make_key(source, *tools.identity)
    library = _load_from_disk(key)
    if library is not None:
        return library
    with one_at_a_time(key):  # another process may have compiled it meanwhile
        return _load_from_disk(key) or _compile_and_load(tools, source, key, label)


def _load_from_disk(key: str) -> Library | None:
    path = cache.find(key)
    if path is None:
        return None
    try:
        return Library(path, "disk", 0.0, ctypes.CDLL(str(path)))
    except OSError:  # sound by its checksum, yet the system will not load it, or it has just gone
        cache.remove(key)
        return None


def _compile_and_load(tools: Toolchain, source: str, key: str, label: str) -> Library:
    begin = time.perf_counter()
    library = _compile(tools, source, key, label)
    try:
        path, handle = _store_and_open(key, library, source)
    except OSError as error:
        cache.remove(key)
        reason = "a compiled kernel cannot be loaded"
        raise _FailedError(reason, str(error), tools, source, key, label) from error
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
    """Compile ``source`` to a shared library.

    The file names are always the same because compilers write them into the library.
    """
    try:
        with temporary_folder() as folder:
            Path(folder, "kernel.c").write_text(source, encoding="utf-8")
            status, said = run_compiler(tools.compile_command("kernel.c", "kernel.so"), folder)
            if status == 0:
                library = Path(folder, "kernel.so").read_bytes()
                if not is_cut_off(library):
                    return library
                said = f"the library of {len(library)} bytes is truncated"
    except subprocess.TimeoutExpired as error:
        toolchain.skip_compiler(tools)
        limit = f"it did not finish within {error.timeout:g} seconds"
        raise _FailedError(
            "the C compiler timed out on a kernel", limit, tools, source, key, label
        ) from error
    except NotPrivateError as error:
        raise CompilationError(f"a kernel cannot be compiled safely: {error}") from error
    except OSError as error:
        failure = _FailedError("a kernel could not be compiled", str(error), tools, source, key, label)
        failure.vanished = not os.access(tools.command[0], os.X_OK)
        raise failure from error
    reason = "a kernel was refused" if status >= 0 else f"a kernel was given up, on signal {-status},"
    raise _FailedError(reason, said, tools, source, key, label)


def is_cut_off(library: bytes) -> bool:
    """Check whether an ELF file lacks its end, where loading it would crash this process."""
    if library[:4] != b"\x7fELF" or library[4:6] != b"\x02\x01":  # of 64 bits, as all that we run on
        return False
    if len(library) < _ELF_HEADER.size:
        return True
    parts, sections, size, count, section_size, section_count = _ELF_HEADER.unpack_from(library)
    ends = [sections + section_size * section_count, parts + size * count]
    if max(ends) > len(library) or (count and size < _ELF_PART.size):
        return True
    for part in range(count):
        begin, length = _ELF_PART.unpack_from(library, parts + size * part)
        ends.append(begin + length)
    return any(end > len(library) for end in ends)


class _FailedError(CompilationError):
    """A compiler that failed at a text: how it failed, and where its log is."""

    def __init__(self, reason: str, said: str, tools: Toolchain, source: str, key: str, label: str) -> None:
        self.reason, self.tools, self.vanished = reason, tools, False
        path = cache.store_text(key, ".c", source)
        command = shlex.join(tools.compile_command(str(path), "kernel.so"))
        lines = said.splitlines()
        if len(lines) > _SHOWN_LINES:
            lines = [*lines[:_SHOWN_LINES], f"... and {len(lines) - _SHOWN_LINES} more lines"]
        self.log = cache.store_text(key, ".log", f"{command}\n{reason} by {tools.version}\n{said}\n")
        super().__init__(
            f"{reason} by the C compiler{f' for {label}' if label else ''}\n"
            f"command: {command}\n"
            f"source:  {path}\n"
            f"it said: " + "\n         ".join(lines or ["nothing"])
        )


os.register_at_fork(after_in_child=_building.clear)  # locks held by threads that the child does not have
