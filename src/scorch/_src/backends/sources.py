"""The version of the sources that make plans and kernels: what is cached on disk for others is not read."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Collection, Iterator
from pathlib import Path

# Packages that stand on the engine, so that no plan depends on them.
ABOVE = ("cli", "compile", "distributed", "explain", "io", "nn", "ops", "statements", "tensor")


@functools.cache
def version() -> str:
    """Hash the sources that plans depend on by their times and sizes: others may plan otherwise."""
    return version_of(Path(__file__).parents[1])


def version_of(root: Path) -> str:
    """Hash all files below ``root`` but those of packages ``ABOVE``, and the version of Python.

    Files are hashed by paths, times and sizes; some are texts of kernels, which are part of a schedule.
    """
    digest = hashlib.sha256(platform.python_version().encode())
    for place, status in _files(os.fspath(root), "", ABOVE):
        digest.update(f"{place} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _files(folder: str, place: str, without: Collection[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files in a folder and those below it, in order, with their paths behind ``place``."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if not entry.is_dir():
            yield f"{place}{entry.name}", entry.stat()
        elif entry.name not in without and entry.name != "__pycache__":
            yield from _files(entry.path, f"{place}{entry.name}/", ())
