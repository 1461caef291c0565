"""Print a kernel without vector types, for compilers that fail at them.

    acc in 2 registers of 4 lanes, k in 0..8         acc in 8 numbers, k in 0..8

Loops over lanes become as many statements on numbers, which any C compiler takes; what it makes of them is
slower. Compilers are also asked to look for no vectors by themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from scorch._src.backends.cpu.print.c import print_kernel
from scorch._src.loops.analysis import children_by_field
from scorch._src.loops.nodes import Array, Expr, For, Function, Kernel, Lanes, Stmt, Tile, Total

Node = TypeVar("Node", bound=Expr | Stmt | Array | Function)

_HEAD = """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-vectorize")
#endif
"""


def print_scalar(kernel: Kernel) -> str:
    """The C source of ``kernel`` in scalar form."""
    functions = tuple(without_vectors(function) for function in kernel.functions)
    return _HEAD + print_kernel(replace(kernel, functions=functions))


def without_vectors(node: Node) -> Node:
    """``node`` with one lane in every register, and sums added in order."""
    changes: dict[str, object] = {}
    if isinstance(node, Lanes | Tile | Total):
        changes["lanes"] = 1
    if isinstance(node, For):
        changes["sums"] = 1
    for field, value in children_by_field(node):
        if isinstance(value, tuple):
            changes[field] = tuple(without_vectors(part) for part in value)
        else:
            changes[field] = without_vectors(value)
    return replace(node, **changes) if changes else node  # type: ignore[type-var]
