"""Print a kernel without vector types, for compilers that fail at them.

    acc in 2 registers of 4 lanes, k in 0..8         acc in 8 numbers, k in 0..8

Loops over lanes become as many statements on numbers, which any C compiler takes; what it makes of them is
slower. Compilers are also asked to look for no vectors by themselves.
"""

from __future__ import annotations

from typing import TypeVar

from scorch._src.backends.print.c import print_kernel
from scorch._src.dataclass import replace
from scorch._src.loops.analysis import Node, with_children
from scorch._src.loops.nodes import For, Kernel, Lanes, Tile, Total

SameNode = TypeVar("SameNode", bound=Node)

_HEAD = """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-vectorize")
#endif
"""


def print_scalar(kernel: Kernel) -> str:
    """The C source of ``kernel`` in scalar form, intrinsics included."""
    return _HEAD + print_kernel(without_vectors(kernel)).replace("#pragma omp simd\n", "")


def without_vectors(node: SameNode) -> SameNode:
    """``node`` with one lane in every register, and sums added in order."""
    node = with_children(node, without_vectors)
    if isinstance(node, Lanes | Tile | Total):
        return replace(node, lanes=1)
    return replace(node, sums=1, gathered=0) if isinstance(node, For) else node
