"""Rows of a workspace whose entries lie close together: swept in order instead of listed and sorted.

    for j                                for j: the first and the last of row j, and how many there are
      for k in row j: insert k           close together:  for j, k: mark the byte of k; list the marked ones
    sort what was inserted         ->    not far apart:   for j, k: mark the bit of k; list the marked ones
                                         else:            as before

What is inserted comes from rows whose entries are sorted, so their first and last ones say, before anything
is multiplied, between which coordinates all of them lie. The first values of these rows are prefetched.
"""

from __future__ import annotations

from typing import TypeVar

from scorch._src.dataclass import replace
from scorch._src.formats.scratch import DenseScratch, Scratch
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import walk, with_children
from scorch._src.loops.types import INT64
from scorch.settings import enabled

Node = TypeVar("Node", bound=ir.Expr | ir.Stmt | ir.Array)

CLOSE = 4  # coordinates for each value inserted, up to which they are looked at one by one
APART = 64  # up to which they are looked at 64 at a time
LOW, HIGH, MOST = (ir.Var(f"w_{name}") for name in ("low", "high", "most"))


def swept(scratch: Scratch, inner: ir.Stmt) -> ir.Stmt | None:
    """Return ``inner``, which inserts the entries of a row, and what sorts them; None if it is otherwise."""
    if not isinstance(scratch, DenseScratch) or not scratch.bitmap:
        return None
    measured = _measured(scratch, inner)
    if measured is None:
        return None
    bytes_listed = ir.Call("list_used", (scratch.touched, scratch.used, LOW, HIGH))
    bits_listed = ir.Call("list_marked", (scratch.touched, scratch.bits, LOW, HIGH))
    by_bytes = ir.block(_marking(scratch, inner, False), ir.Assign(scratch.count, bytes_listed))
    by_bits = ir.block(_marking(scratch, inner, True), ir.Assign(scratch.count, bits_listed))
    by_list = ir.block(inner, scratch.settle())
    return ir.block(
        ir.Declare(LOW, scratch.extent),
        ir.Declare(HIGH, ir.Const(-1)),
        ir.Declare(MOST, ir.Const(0)),
        measured,
        ir.If(
            HIGH - LOW < MOST * CLOSE,
            by_bytes,
            ir.If(HIGH - LOW < MOST * APART, by_bits, by_list),
        ),
    )


def _measured(scratch: DenseScratch, stmt: ir.Stmt) -> ir.Stmt | None:
    """Return the loops around the innermost one, which finds what that would insert at most, and where."""
    match stmt:
        case ir.Block(body):
            parts = [_measured(scratch, part) for part in body]
            return None if None in parts else ir.block(*parts)
        case ir.Declare():
            return stmt
        case ir.For(body=body) if any(isinstance(node, ir.For) for node in walk(body)):
            inside = _measured(scratch, body)
            return None if inside is None else replace(stmt, body=inside)
        case ir.For():
            return _limits(scratch, stmt)
    return None


def _limits(scratch: DenseScratch, loop: ir.For) -> ir.Stmt | None:
    """Return what the first and the last entry of a row say of all; None if ``loop`` is not over a row."""
    statements = loop.body.body if isinstance(loop.body, ir.Block) else (loop.body,)
    declared = {s.var: s.value for s in statements if isinstance(s, ir.Declare)}
    inserts = [s for s in statements if isinstance(s, ir.Store) and s.array == scratch.used]
    others = [s for s in statements if not isinstance(s, ir.Declare | ir.Store | ir.Assign)]
    if len(inserts) != 1 or others:
        return None
    place: ir.Expr | None = inserts[0].index
    while isinstance(place, ir.Var):
        place = declared.get(place)
    match place:
        case ir.Cast(ir.Load(crd, position), _) | ir.Load(crd, position) if position == loop.var:
            start, stop = (ir.Var(f"{loop.var.name}_{name}") for name in ("first", "behind"))
            first, last = (ir.wide(ir.Load(crd, at)) for at in (start, stop - 1))
            loads = [node for node in walk(loop.body) if isinstance(node, ir.Load) and node.index == loop.var]
            values = dict.fromkeys(load.array for load in loads if load.array != crd)
            found = ir.block(
                *(ir.Prefetch(array, start, 1) for array in values if enabled("prefetch")),
                ir.Assign(MOST, MOST + (stop - start)),
                ir.Assign(LOW, ir.Binary("min", LOW, first, INT64)),
                ir.Assign(HIGH, ir.Binary("max", HIGH, last, INT64)),
            )
            return ir.block(
                ir.Declare(start, loop.start), ir.Declare(stop, loop.stop), ir.If(start < stop, found)
            )
    return None


def _marking(scratch: DenseScratch, node: Node, by_bits: bool) -> Node:
    """Return ``node`` with coordinates marked that were listed."""
    nothing = ir.Block(())
    match node:
        case ir.Declare(var) if var == scratch.is_used:
            return nothing  # type: ignore[return-value]
        case ir.Store(array) if array == scratch.touched:
            return nothing  # type: ignore[return-value]
        case ir.Assign(var) if var == scratch.count:
            return nothing  # type: ignore[return-value]
        case ir.Store(array, place) if array == scratch.used and by_bits:
            return ir.Perform(ir.Call("mark_place", (scratch.bits, place)))  # type: ignore[return-value]
    return with_children(node, lambda part: _marking(scratch, part, by_bits))
