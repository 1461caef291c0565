"""The C that is written by hand: files beside this one."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "c"


def read_source(name: str) -> str:
    """The text of a file of C."""
    return (_FOLDER / name).read_text(encoding="utf-8")
