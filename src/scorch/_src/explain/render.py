"""What reports are written with: labelled lines, and plain values for JSON."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import fields, is_dataclass
from typing import Any

from scorch._src.formats import Format

WIDTH = 110
HIDDEN = {"hidden": True}  # metadata of fields that are left out of JSON


def print_unless(quiet: bool | None, report: object) -> None:
    """Print a report unless ``quiet``, or in a notebook if that is None: it shows what a cell returns."""
    if not (is_notebook() if quiet is None else quiet):
        print(report)


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and getattr(get_shell(), "kernel", None) is not None


def wrap_lines(text: object, begin: str = "") -> list[str]:
    """Put ``text`` behind ``begin``, wrapped and indented where it is too long."""
    wrapper = textwrap.TextWrapper(WIDTH, begin, " " * len(begin), break_long_words=False)
    wrapper.break_on_hyphens = False
    return wrapper.wrap(str(text)) or [begin]


def to_plain(value: Any) -> Any:
    """Convert a value to dictionaries, lists, numbers and strings."""
    if isinstance(value, Format):
        return str(value)
    if is_dataclass(value):
        shown = [field.name for field in fields(value) if "hidden" not in field.metadata]
        return {name: to_plain(getattr(value, name)) for name in shown}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value
