"""Compiled kernels on disk, so that each is compiled once per machine and not once per process.

An entry is three files in one flat directory: ``<key>.so`` is the library, ``<key>.c`` its source for
people to read, ``<key>.json`` the manifest with the library's checksum. The key already says everything
the machine code depends on, so entries are never updated. The manifest is written last and every file
appears by a rename, so another process sees a whole entry or none; a library that does not match its
manifest counts as absent and is rebuilt. A directory that cannot be written costs speed, not results.

Next to them lie *notes*, ``<key>.note``: results that can be recomputed, such as which compiler works or the
finished plan of a step. Each begins with its own checksum.

Libraries are code that runs as us, so a directory that others may write to, or could replace by another one,
is refused with a warning, and a private one is used in its place; a file in it that is not ours counts as
absent (``private_files``).
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import platformdirs

from scorch._src.backends import private_files
from scorch.errors import warn
from scorch.settings import as_folder, current, read_environment

LAYOUT = "1"  # part of every key: raise it when the files or the way of calling kernels change

_SUFFIXES = (".json", ".so", ".c", ".log", ".note", ".lock")  # manifest first: half a removal leaves no entry
_CHECKSUM = hashlib.sha256().digest_size  # bytes at the beginning of a note
_TEMPORARY = ".writing-"
_ABANDONED_SECONDS = 3600.0
_PRUNED_SHARE = 0.75  # of the limit: room for more than one kernel, so that not every write prunes

_lock = threading.Lock()
_known_bytes: dict[Path, int] = {}
_warned: set[Path] = set()
_spare: Path | None = None


class Statistics(NamedTuple):
    """The number and size of the entries on disk."""

    directory: Path
    entries: int
    bytes: int


@dataclass
class _Entry:
    """The files of one key, whole or not."""

    size: int = 0
    used: float = 0.0
    whole: bool = False


def directory() -> Path:
    """Return where kernels are cached: the setting, else ``SCORCH_CACHE_DIR``, else the user's cache.

    One that is not private is refused, with a warning, for one of this process alone.
    """
    place = _chosen_directory()
    try:
        return private_files.resolve_private(place)
    except private_files.NotPrivateError as error:
        _warn_once(
            place,
            f"compiled kernels in {place} are not used, because they are code and {error}. This process "
            "caches kernels in a private temporary directory, and the next one compiles them again. Set "
            "SCORCH_CACHE_DIR to a directory of your own that nobody else can write to or replace.",
        )
        return _spare_directory()
    except OSError:  # a write there raises a better error
        return place


def _chosen_directory() -> Path:
    chosen = current().cache_directory
    if chosen is not None:
        return chosen
    variable = read_environment("SCORCH_CACHE_DIR")
    if variable.value:
        return as_folder(variable.value, f"the environment variable {variable.name}")
    return Path(platformdirs.user_cache_dir("scorch"))


def make_key(*parts: str) -> str:
    """Hash the texts that determine a library (source, flags, compiler, CPU)."""
    digest = hashlib.sha256()
    for part in (LAYOUT, *parts):
        encoded = part.encode(errors="surrogateescape")  # paths of compilers may be any bytes
        digest.update(b"%d:" % len(encoded))  # the length keeps ("ab", "c") and ("a", "bc") apart
        digest.update(encoded)
    return digest.hexdigest()


def find(key: str) -> Path | None:
    """Look up the library stored under ``key``; None where there is none or it is damaged."""
    found = _find(key)
    return None if found is None else found[0]


def read(key: str) -> bytes | None:
    """Read the library stored under ``key``, in the same way."""
    found = _find(key)
    return None if found is None else found[1]


def _find(key: str) -> tuple[Path, bytes] | None:
    for place in (directory(), _spare):
        content = None if place is None else _read_sound(place, key)
        if place is not None and content is not None:
            library = place / f"{key}.so"
            with contextlib.suppress(OSError):  # a read-only cache still serves, in no order of use
                os.utime(library)
            return library, content
    return None


def store(key: str, library: bytes, source: str) -> Path:
    """Store a compiled library and return its path, elsewhere than planned if the disk refuses."""
    place = directory()
    try:
        added = _write_entry(place, key, library, source)
    except OSError as error:
        warn_unusable(place, error)
        return store_aside(key, library, source)
    _prune_if_full(place, key, added)
    return place / f"{key}.so"


def store_aside(key: str, library: bytes, source: str) -> Path:
    """Store a compiled library for this process alone."""
    place = _spare_directory()
    _write_entry(place, key, library, source)
    return place / f"{key}.so"


def store_text(key: str, suffix: str, text: str) -> Path:
    """Store a source that did not compile, or what the compiler said of it, for messages to point at."""
    place = directory()
    try:
        return _write_file(place, key + suffix, text.encode())
    except OSError as error:
        warn_unusable(place, error)
        return _write_file(_spare_directory(), key + suffix, text.encode())


def read_note(key: str) -> bytes | None:
    """Read the note stored under ``key``; None where there is none or it is damaged."""
    try:
        content = private_files.read_private(directory() / f"{key}.note")
    except OSError:
        return None
    checksum, note = content[:_CHECKSUM], content[_CHECKSUM:]
    return note if hashlib.sha256(key.encode() + note).digest() == checksum else None


def write_note(key: str, note: bytes) -> None:
    """Store a note, if the disk allows it: readers can do without."""
    place = directory()
    content = hashlib.sha256(key.encode() + note).digest() + note
    try:
        _write_file(place, f"{key}.note", content)
    except OSError:
        return
    _prune_if_full(place, key, len(content))


def remove(key: str) -> None:
    """Remove one entry, if there is one."""
    for place in (directory(), _spare):
        if place is not None:
            _remove_entry(place, key)


def warn_unusable(place: Path, error: OSError) -> None:
    """Warn, once for each directory, that kernels cannot be stored or run there."""
    _warn_once(
        place,
        f"compiled kernels cannot be cached in {place} ({error.strerror or error}); this process caches "
        "them in a temporary directory, and the next one compiles them again. Set SCORCH_CACHE_DIR to a "
        "writable directory.",
    )


def _warn_once(place: Path, message: str) -> None:
    with _lock:
        if place in _warned:
            return
        _warned.add(place)
    warn(message)


def statistics() -> Statistics:
    """Return the directory in use, how many kernels it holds and how many bytes they take."""
    place = directory()
    entries = _scan(place)
    return Statistics(place, sum(e.whole for e in entries.values()), sum(e.size for e in entries.values()))


def clear() -> int:
    """Remove all kernels from the directory in use and return how many there were."""
    place = directory()
    entries = _scan(place)
    for key in entries:
        _remove_entry(place, key)
    _remove_abandoned(place, older_than=0.0)
    shutil.rmtree(place / "zig", ignore_errors=True)
    with _lock:
        _known_bytes.pop(place, None)
    return sum(entry.whole for entry in entries.values())


def _read_sound(place: Path, key: str) -> bytes | None:
    """Read a library, unless it does not match its manifest."""
    try:
        manifest = json.loads(private_files.read_private(place / f"{key}.json"))
        library = private_files.read_private(place / f"{key}.so")
    except (OSError, ValueError):
        return None
    return library if manifest == _manifest(key, library) else None


def _manifest(key: str, library: bytes) -> dict[str, str | int]:
    return {"key": key, "sha256": hashlib.sha256(library).hexdigest(), "bytes": len(library)}


def _write_entry(place: Path, key: str, library: bytes, source: str) -> int:
    """Write the three files, the manifest last, and return their size."""
    text, manifest = source.encode(), json.dumps(_manifest(key, library)).encode()
    for suffix, content in ((".c", text), (".so", library), (".json", manifest)):
        _write_file(place, key + suffix, content)
    return len(text) + len(library) + len(manifest)


def _write_file(place: Path, name: str, content: bytes) -> Path:
    place = private_files.make_private(place)
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=place)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o600 | place.stat().st_mode & 0o044)  # who may list the folder may read the file
        os.replace(temporary, place / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return place / name


def _spare_directory() -> Path:
    """Return a directory of this process alone, removed when it ends."""
    global _spare
    with _lock:
        if _spare is None or not _spare.is_dir():
            _spare = private_files.make_temporary()
            atexit.register(_remove_spare, _spare, os.getpid())
        return _spare


def _remove_spare(place: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a forked child, whose parent still needs it
        shutil.rmtree(place, ignore_errors=True)


def _prune_if_full(place: Path, newest: str, added: int) -> None:
    """Remove the least recently used entries once the directory has outgrown its bound.

    The directory is read at the first write and when the bound seems reached; between, sizes are added up.
    """
    limit = current().cache_bytes
    with _lock:
        if place in _known_bytes:
            _known_bytes[place] += added
            if _known_bytes[place] <= limit:
                return
    entries = _scan(place)
    total = sum(entry.size for entry in entries.values())
    if total > limit:
        _remove_abandoned(place, older_than=_ABANDONED_SECONDS)
        for key in sorted(entries, key=lambda key: entries[key].used):
            if total <= limit * _PRUNED_SHARE:
                break
            if key != newest:
                _remove_entry(place, key)
                total -= entries[key].size
    with _lock:
        _known_bytes[place] = total


def _scan(place: Path) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    for name, status in _files(place):
        stem, suffix = os.path.splitext(name)
        if suffix in _SUFFIXES and len(stem) == 64:
            entry = entries.setdefault(stem, _Entry())
            entry.size += status.st_size
            entry.used = max(entry.used, status.st_mtime)
            entry.whole = entry.whole or suffix == ".json"
    return entries


def _files(place: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield names and stats of the files there, without those that another process removes meanwhile."""
    try:
        items = list(os.scandir(place))
    except OSError:
        return
    for item in items:
        with contextlib.suppress(OSError):
            yield item.name, item.stat(follow_symlinks=False)


def _remove_entry(place: Path, key: str) -> None:
    for suffix in _SUFFIXES:
        with contextlib.suppress(OSError):
            os.unlink(place / f"{key}{suffix}")


def _remove_abandoned(place: Path, older_than: float) -> None:
    """Remove what a killed process left half written."""
    for name, status in _files(place):
        if name.startswith(_TEMPORARY) and time.time() - status.st_mtime >= older_than:
            with contextlib.suppress(OSError):
                os.unlink(place / name)
