"""Say how much effort a compiler spends on the functions of a long kernel.

A kernel that collects the rows of its result has the longest text of all, most of it outside the loops:
memory is allocated, work is shared out, parts are joined. Compiling that as hard as the loops takes a third
of the time and gains nothing, so gcc optimizes less there:

    #pragma GCC push_options
    #pragma GCC optimize("O0")
    ...
    #pragma GCC pop_options

Loops that only scatter and follow lists have nothing that could be vectorized, and are optimized less as
well. Functions of different levels are not inlined into one another. Other compilers ignore these lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import Node, walk

MUCH, ONCE_A_ROW, ONCE_A_CHUNK = "O3", "O1", "O0"
_EFFORTS = {
    "allocate": ONCE_A_ROW,
    "allocate_zero": ONCE_A_ROW,
    "resize": ONCE_A_ROW,
    "sort_places": ONCE_A_ROW,
    "list_used": ONCE_A_ROW,
    "list_marked": ONCE_A_ROW,
    "take_turn": ONCE_A_CHUNK,
    "has_turns": ONCE_A_CHUNK,
    "balance_i32": ONCE_A_CHUNK,
    "balance_i64": ONCE_A_CHUNK,
}


def is_long(kernel: ir.Kernel) -> bool:
    """Whether a kernel is compiled with less effort outside its loops: it collects rows in a workspace."""
    nodes = (node for function in kernel.functions for node in walk(function))
    return any(isinstance(node, ir.Call) and node.function == "sort_places" for node in nodes)


def usual_effort(kernel: ir.Kernel) -> str:
    """Return the effort for loops: less in a long kernel if none of them can be vectorized."""
    if not is_long(kernel):
        return MUCH
    nodes = [node for function in kernel.functions for node in walk(function)]
    return MUCH if any(map(_has_vectors, nodes)) else ONCE_A_ROW


def _has_vectors(node: Node) -> bool:
    """Whether ``node`` is done in vectors, or is a loop in which a compiler may find some."""
    if not isinstance(node, ir.For):
        return isinstance(node, ir.Lanes | ir.Tile | ir.StoreRun)
    inside = walk(node.body)
    stores = [inner for inner in inside if isinstance(inner, ir.Store)]
    if not stores:
        return node.sums > 1 or node.gathered > 0
    if any(isinstance(inner, ir.For | ir.Call) for inner in inside):
        return False
    loads = [inner for inner in inside if isinstance(inner, ir.Load)]
    is_apart = all(node.var in walk(store.index) for store in stores)
    return is_apart and all(l.index == s.index for s in stores for l in loads if l.array == s.array)


def pragma(level: str) -> str:
    """Return the line that sets the effort for what follows."""
    return f'#pragma GCC optimize("{level}")'


def with_effort(level: str, text: str, usual: str) -> str:
    """Return the text of functions with the effort that compilers spend on them, if it is not the usual."""
    if level == usual:
        return text
    return f"#pragma GCC push_options\n{pragma(level)}\n\n{text}\n\n#pragma GCC pop_options"


def helpers_with_effort(helpers: Mapping[str, str], usual: str) -> list[str]:
    """Return the texts of helpers, by their names, in their order."""
    levels = groupby(helpers.items(), key=lambda helper: _EFFORTS.get(helper[0], usual))
    return [
        with_effort(level, "\n\n".join(text for _, text in together), usual) for level, together in levels
    ]


def effort_of(function: ir.Function, usual: str) -> str:
    """Return the effort for what is left of an exported function, without its parallel loops."""
    kinds = set(map(type, walk(function)))
    if ir.Parallel in kinds:
        return ONCE_A_CHUNK if only_moves(function) else ONCE_A_ROW
    return usual if ir.Store in kinds or ir.StoreRun in kinds else ONCE_A_CHUNK


def only_moves(function: ir.Function) -> bool:
    """Whether all that the parallel loops of ``function`` do is to copy arrays as a whole."""
    shared = [node for node in walk(function) if isinstance(node, ir.Parallel)]
    kinds = {type(node) for loop in shared for node in walk(loop)}
    return ir.Copy in kinds and not kinds & {ir.Store, ir.StoreRun, ir.Call}
