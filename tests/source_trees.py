"""The syntax trees of source files, which several tests read: each is parsed and walked once in a process."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "scorch"


@functools.lru_cache(maxsize=1024)
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=1024)
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a tree, as ``ast.walk`` finds them."""
    return tuple(ast.walk(tree))
