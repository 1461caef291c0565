"""Say how much effort a compiler spends on the functions of a long kernel.

A kernel that makes a new sparsity pattern has the longest text of all, most of it outside the loops that
compute: memory is allocated, work is shared out, parts are joined. Compiling that as hard as the loops takes
up to half of the time and gains nothing, so gcc optimizes less there:

    #pragma GCC push_options
    #pragma GCC optimize("O0")
    ...
    #pragma GCC pop_options

Loops that only scatter and follow lists have nothing that could be vectorized, and are optimized less as
well. Functions of different levels are not inlined into one another. Other compilers ignore these lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import Node, walk

MANY_LOOPS = 6  # of statements that share one parallel loop
MUCH, MERGES, ONCE_A_ROW, ONCE_A_CHUNK = "O3", "O2", "O1", "O0"
IN_VECTORS = "O2 tree-vectorize vect-cost-model=dynamic"  # vectors as at O3, fewer copies of loops
APART = "#pragma GCC ivdep"
_IN_ORDER = (ir.Block, ir.Comment, ir.Declare, ir.Store)  # statements that can run in vectors
_IN_REGISTERS = (ir.Tile, ir.Lanes, ir.LoadRun, ir.StoreRun, ir.AtomicAddRun)
_REPEATED = (ir.For, ir.While, ir.Fill, ir.Copy, *_IN_REGISTERS)
_EFFORTS = {
    "allocate": ONCE_A_CHUNK,
    "allocate_zero": ONCE_A_CHUNK,
    "resize": ONCE_A_CHUNK,
    "sort_places": ONCE_A_ROW,
    "list_used": ONCE_A_ROW,
    "list_marked": ONCE_A_ROW,
    "take_turn": ONCE_A_CHUNK,
    "next_turn": ONCE_A_CHUNK,
    "has_turns": ONCE_A_CHUNK,
    "is_over": ONCE_A_CHUNK,
    "balance_i32": ONCE_A_CHUNK,
    "balance_i64": ONCE_A_CHUNK,
    **{f"is_erratic_{a}_{b}": ONCE_A_CHUNK for a in ("i32", "i64") for b in ("i32", "i64")},
}


def is_long(nodes: Iterable[Node]) -> bool:
    """Whether a kernel is compiled with less effort outside its loops: it has several parallel ones, or many
    in one.
    """
    kinds = Counter(map(type, nodes))
    return kinds[ir.Parallel] > 1 or (kinds[ir.Parallel] == 1 and kinds[ir.For] >= MANY_LOOPS)


def usual_effort(nodes: Sequence[Node]) -> str:
    """Return the effort for loops: less if they collect rows in a workspace and none can be vectorized.

    Also if they merge rows, of which they copy little in vectors, and if many run one after the other without
    arrays in registers, for which O3 unrolls loops.
    """
    kinds = Counter(map(type, nodes))
    if kinds[ir.Parallel] == 1 and is_long(nodes) and not any(kinds[kind] for kind in _IN_REGISTERS):
        return IN_VECTORS
    if any(isinstance(node, ir.Call) and node.function.startswith("is_erratic") for node in nodes):
        return MERGES
    collects_rows = any(isinstance(node, ir.Call) and node.function == "sort_places" for node in nodes)
    is_less = collects_rows and is_long(nodes) and not any(map(_has_vectors, nodes))
    return ONCE_A_ROW if is_less else MUCH


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


def has_own_memory(loop: ir.For, allocated: Collection[str]) -> bool:
    """Whether a loop that can be vectorized uses arrays that its function has allocated.

    Compilers believe "restrict" of parameters only. Elsewhere they would check in every row whether arrays
    overlap, and compile the loop for both cases, unless ``APART`` rules it out.
    """
    inside = walk(loop.body)
    stores = [node for node in inside if isinstance(node, ir.Store)]
    uses = [node for node in inside if isinstance(node, ir.Store | ir.Load)]
    places = {store.array: store.index for store in stores}
    if not stores or not any(use.array.name in allocated for use in uses):
        return False
    if any(isinstance(node, ir.Stmt) and not isinstance(node, _IN_ORDER) for node in inside):
        return False
    is_run = all(_is_shifted(index, loop.var) for index in places.values())
    return is_run and all(places.get(use.array, use.index) == use.index for use in uses)


def _is_shifted(index: ir.Expr, var: ir.Var) -> bool:
    """Whether an index is a variable, plus or minus what does not depend on it."""
    match index:
        case ir.Var():
            return index == var
        case ir.Binary("+" | "-", a, b):
            return _is_shifted(a, var) and not any(isinstance(n, ir.Load) or n == var for n in walk(b))
    return False


def pragma(level: str) -> str:
    """Return the line that sets the effort for what follows: a level, and options that change it."""
    options = ", ".join(f'"{option}"' for option in level.split())
    return f"#pragma GCC optimize({options})"


def at_most(level: str) -> str:
    """Return lines that set the effort for what follows, where the compiler is asked to optimize at all."""
    return f"#ifdef __OPTIMIZE__\n{pragma(level)}\n#endif\n"


def with_effort(level: str, text: str, usual: str) -> str:
    """Return the text of functions with the effort that compilers spend on them, if it is not the usual."""
    if level == usual:
        return text
    return f"#pragma GCC push_options\n{pragma(level)}\n\n{text}\n\n#pragma GCC pop_options"


def join_by_effort(texts: Iterable[tuple[str, str]], usual: str) -> list[str]:
    """Return texts, each after its effort, in their order; neighbors of the same effort are one section."""
    levels = groupby(texts, key=lambda pair: pair[0])
    return [
        with_effort(level, "\n\n".join(text for _, text in together), usual) for level, together in levels
    ]


def helpers_with_effort(helpers: Mapping[str, str], usual: str) -> list[str]:
    """Return the texts of helpers, by their names, in their order."""
    return join_by_effort([(_EFFORTS.get(name, usual), text) for name, text in helpers.items()], usual)


def effort_of(nodes: Sequence[Node], usual: str) -> str:
    """Return the effort for what is left of an exported function, ``nodes``, without its parallel loops.

    That is the least where nothing is left but loops over the chunks that threads take.
    """
    kinds = set(map(type, nodes))
    if ir.Parallel not in kinds:
        return usual if ir.Store in kinds or ir.StoreRun in kinds else ONCE_A_CHUNK
    shared = [walk(node) for node in nodes if isinstance(node, ir.Parallel)]
    if all(worker_effort(inside, usual) == ONCE_A_CHUNK for inside in shared):
        return ONCE_A_CHUNK
    places = {id(node) for inside in shared for node in inside}
    outside = [node for node in nodes if id(node) not in places]
    if any(map(_has_vectors, outside)):
        return usual
    counts = [node.count for node in nodes if isinstance(node, ir.Parallel)]
    repeated = [node for node in outside if isinstance(node, _REPEATED)]
    is_by_chunk = all(isinstance(node, ir.For) and node.stop in counts for node in repeated)
    return ONCE_A_CHUNK if is_by_chunk else ONCE_A_ROW


def worker_effort(nodes: Iterable[Node], usual: str) -> str:
    """Return the effort for a parallel loop: less if it copies arrays as a whole and shifts positions."""
    kinds = set(map(type, nodes))
    if ir.Copy not in kinds or ir.Call in kinds or ir.StoreRun in kinds:
        return usual
    return ONCE_A_ROW if ir.Store in kinds else ONCE_A_CHUNK
