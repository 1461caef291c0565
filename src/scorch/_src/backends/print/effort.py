"""Say how much effort a compiler spends on the functions of a long kernel.

A kernel that collects the rows of its result has the longest text of all, most of it outside the loops:
memory is allocated, work is shared out, parts are joined. Compiling that as hard as the loops takes a third
of the time and gains nothing, so gcc optimizes less there:

    #pragma GCC push_options
    #pragma GCC optimize("O1")
    ...
    #pragma GCC pop_options

Functions of different levels are not inlined into one another. Other compilers ignore these lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from scorch._src.loops.analysis import walk
from scorch._src.loops.nodes import Call, Function, Kernel, Parallel, Store, StoreRun

ONCE_A_ROW, ONCE_A_CHUNK = "O1", "O0"
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


def is_long(kernel: Kernel) -> bool:
    """Whether a kernel is compiled with less effort outside its loops: it collects rows in a workspace."""
    nodes = (node for function in kernel.functions for node in walk(function))
    return any(isinstance(node, Call) and node.function == "sort_places" for node in nodes)


def with_effort(level: str, text: str) -> str:
    """Return the text of functions with the effort that compilers spend on them; "" is the usual one."""
    if not level:
        return text
    return f'#pragma GCC push_options\n#pragma GCC optimize("{level}")\n\n{text}\n\n#pragma GCC pop_options'


def helpers_with_effort(helpers: Mapping[str, str]) -> list[str]:
    """Return the texts of helpers, by their names, in their order."""
    levels = groupby(helpers.items(), key=lambda helper: _EFFORTS.get(helper[0], ""))
    return [with_effort(level, "\n\n".join(text for _, text in together)) for level, together in levels]


def effort_of(function: Function) -> str:
    """Return the effort for what is left of an exported function, without its parallel loops."""
    kinds = set(map(type, walk(function)))
    if Parallel in kinds:
        return ONCE_A_ROW
    return "" if Store in kinds or StoreRun in kinds else ONCE_A_CHUNK
