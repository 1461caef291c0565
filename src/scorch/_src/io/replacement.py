"""Write a file completely before it replaces another.

The new file lies in a new folder next to the old one, which only we may enter and whose name nobody knew
before: so nothing that somebody else has put there is written to. Concurrent readers find the old file, and a
write that fails leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scorch._src.backends.private_files import is_link_of_others
from scorch.errors import FileError, MissingFileError


class Replacement:
    """A file at ``new_path`` that is to become ``target``."""

    def __init__(self, path: Path) -> None:
        self.target = resolve_target(path)
        if not self.target.parent.is_dir():
            raise MissingFileError(f"{path} cannot be written: no such directory: {self.target.parent}")
        self._folder = tempfile.mkdtemp(prefix=".scorch-", dir=self.target.parent)
        self.new_path = Path(self._folder, self.target.name)

    def finish(self) -> None:
        """Move the complete file to its target, with the permissions of the one that it replaces."""
        if self.target.exists():
            shutil.copymode(self.target, self.new_path)
        os.replace(self.new_path, self.target)

    def discard(self) -> None:
        """Remove everything that is not finished."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield where to write the file that replaces ``path`` when the ``with`` block ends without an error."""
    target = resolve_target(path)
    if target.exists() and not target.is_file():
        yield path  # a device or a pipe
        return
    replacement = Replacement(path)
    try:
        yield replacement.new_path
        replacement.finish()
    finally:
        replacement.discard()


def resolve_target(path: Path) -> Path:
    """Return the file that ``path`` names, through links unless they belong to somebody else."""
    if is_link_of_others(path):
        raise FileError(
            f"{path} is a symbolic link owned by another user and may point anywhere, so Scorch "
            f"does not write through it; save under another name"
        )
    return path.resolve()
