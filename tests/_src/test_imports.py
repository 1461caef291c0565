"""Imports stand at the top of a file, where import-linter and readers see them; others have a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scorch._src import torch_internals
from scorch._src.tensor.hooks import Hooks, hooks

SOURCE = Path(__file__).resolve().parents[2] / "src" / "scorch"
MOST_FILES = 24  # in a folder


def deferred(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of Scorch, and names of them, that functions of a file import when they are called."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"[^\n](import|from)\s+scorch", text):  # where none is indented, no function has one
        return
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from ((name.name, "") for name in node.names if name.name.startswith("scorch"))
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scorch"):
                    yield from ((node.module or "", name.name) for name in node.names)


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_functions_import_only_what_is_slow_to_import(path):
    """Names of torch whose modules take long, or that some versions lack: ``torch_internals`` lists them."""
    slow = {*torch_internals.LAZY, *torch_internals.OPTIONAL}
    found = [(module, name) for module, name in deferred(path) if name not in slow]
    assert found == []


def test_every_call_that_points_up_is_put_in():
    assert sorted(vars(hooks)) == sorted(Hooks.__annotations__)


def test_folders_are_small():
    folders = {path.parent for path in FILES}
    large = {str(folder.relative_to(SOURCE)): len([*folder.glob("*.py")]) for folder in folders}
    assert {name: count for name, count in large.items() if count > MOST_FILES} == {}
