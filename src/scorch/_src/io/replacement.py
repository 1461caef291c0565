"""Write a file completely before it takes the place of another.

What is written lies in a new folder beside the file, which only we may enter and whose name nobody knew
before: so nothing that somebody else has put there is written to. Whoever reads meanwhile finds the old file,
and a write that fails leaves nothing behind.
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
    """A file at ``fresh`` that is to become ``target``."""

    def __init__(self, path: Path) -> None:
        self.target = resolve_target(path)
        if not self.target.parent.is_dir():
            raise MissingFileError(f"{path} cannot be written: there is no folder {self.target.parent}")
        self._folder = tempfile.mkdtemp(prefix=".scorch-", dir=self.target.parent)
        self.fresh = Path(self._folder, self.target.name)

    def finish(self) -> None:
        """Put the complete file in its place, with the permissions of the one that it replaces."""
        if self.target.exists():
            shutil.copymode(self.target, self.fresh)
        os.replace(self.fresh, self.target)

    def discard(self) -> None:
        """Leave nothing but what is finished."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of ``path`` when the ``with`` block ends without an error."""
    target = resolve_target(path)
    if target.exists() and not target.is_file():
        yield path  # a device or a pipe
        return
    replacement = Replacement(path)
    try:
        yield replacement.fresh
        replacement.finish()
    finally:
        replacement.discard()


def resolve_target(path: Path) -> Path:
    """The file that ``path`` names, through links unless somebody else has put them there."""
    if is_link_of_others(path):
        raise FileError(
            f"{path} is a link that belongs to somebody else and may lead anywhere, so nothing is written "
            f"through it; save under another name"
        )
    return path.resolve()
