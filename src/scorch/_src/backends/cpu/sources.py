"""The C that is written by hand: files beside this one."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "c"


def read_source(name: str) -> str:
    """Read a file of C."""
    return (_FOLDER / name).read_text(encoding="utf-8")
