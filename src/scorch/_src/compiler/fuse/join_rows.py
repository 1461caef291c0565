"""The loops of several plans for a grid: each row is a turn, which takes one step after another.

Results that nobody outside asks for stay in registers where a row has one number of them, and are stored
whole where it has several: the threads that share a row pass them to each other in that memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorch._src.compiler.fuse.group import Group
from scorch._src.compiler.fuse.join_loops import describe, loop_of, params_of, values_of, written
from scorch._src.compiler.lower.lower import lower
from scorch._src.compiler.pipeline import Planned
from scorch._src.loops import nodes as ir
from scorch._src.loops.simplify import simplify
from scorch._src.loops.stages import Rows, in_order
from scorch._src.notation.show import show


def joined_rows(group: Group, planned: Sequence[Planned]) -> tuple[Rows, tuple[str, ...]]:
    """What is done for each row, and the results that are stored for other threads only."""
    stages = []
    for each in planned:
        _, loop = loop_of(group, lower(each.plan))
        stages.append(ir.block(ir.Comment(show(written(each.plan))), simplify(loop.body)))
    inside = [name for name in group.results if name not in group.outputs]
    arrays = [values_of(group, name) for name in inside]
    row = ir.Var(group.outermost)
    header = describe(group, planned, f"one grid over {row.name}", frozenset(inside))
    slots = (*params_of(group, planned), *arrays)
    kept = frozenset(array.name for array in arrays)
    rows = in_order(Rows(header, slots, row, ir.Var(f"{row.name}_size"), tuple(stages), kept))
    return rows, tuple(name for name in inside if f"{name}_vals" in rows.kept)
