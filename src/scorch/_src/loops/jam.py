"""Several turns of a loop side by side.

    for i in 0..n:                          for i_turn in 0..n/2:
      acc = 0                                 i_0 = 2 * i_turn, i_1 = 2 * i_turn + 1
      for k in 0..m:                          acc_0 = 0, acc_1 = 0
        acc += A[i,k] * B[k]                  for k in 0..m:
      C[i] = acc                                acc_0 += A[i_0,k] * B[k]
                                                acc_1 += A[i_1,k] * B[k]
                                              C[i_0] = acc_0, C[i_1] = acc_1

What does not depend on the turn, the loop over k and B[k], is done once for both: with sums in registers this
is how a product with a dense block is fast. Turns may add to one variable, which they do in order; they must
not depend on each other otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from scorch._src.dataclass import replace
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import assigned, walk, with_children

Node = TypeVar("Node", bound=ir.Expr | ir.Stmt | ir.Array)


def jammed(loop: ir.For, turns: int, sums: Sequence[str] = ()) -> ir.Stmt:
    """``loop`` with ``turns`` of its turns side by side, and one by one what is left at its end.

    ``sums``: what each turn calls the tile that it adds to, if not all add to one.
    A loop with a ``while`` inside stays as it is: what that moves along, every turn would have to itself.
    """
    if any(isinstance(node, ir.While) for node in walk(loop.body)):
        return loop
    names, own = _varying(loop)
    number = ir.Var(f"{loop.var.name}_turn")
    copies = [{name: f"{name}_t{turn}" for name in names} for turn in range(turns)]
    for copy, name in zip(copies, sums, strict=False):
        copy[sums[0]] = name
    begins = [
        ir.Declare(replace(loop.var, name=copy[loop.var.name]), loop.start + number * turns + turn)
        for turn, copy in enumerate(copies)
    ]
    count = loop.stop - loop.start
    together = ir.For(
        number, ir.Const(0), count // turns, ir.block(*begins, _together(loop.body, copies, own))
    )
    return ir.block(together, replace(loop, start=loop.stop - count % turns))


def side_by_side(
    var: ir.Var, values: Sequence[ir.Expr], body: ir.Stmt
) -> tuple[ir.Block, list[dict[str, str]]]:
    """``body`` for several values of ``var`` at once, and what each calls the names that depend on it."""
    names, own = _varying(ir.For(var, ir.Const(0), ir.Const(0), body))
    copies = [{name: f"{name}_t{turn}" for name in names} for turn in range(len(values))]
    begins = [
        ir.Declare(replace(var, name=copy[var.name]), value)
        for copy, value in zip(copies, values, strict=True)
    ]
    return ir.block(*begins, _together(body, copies, own)), copies


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """``node`` with variables and arrays called otherwise."""
    if isinstance(node, ir.Var | ir.Array):
        return replace(node, name=names.get(node.name, node.name))
    return with_children(node, lambda part: renamed(part, names))


def _varying(loop: ir.For) -> tuple[set[str], set[str]]:
    """The names declared inside ``loop`` that stand for something else at every turn, and all it declares."""
    names = {loop.var.name}
    nodes = walk(loop.body)
    own = {node.array.name for node in nodes if isinstance(node, ir.Tile)}
    own |= {node.var.name for node in nodes if isinstance(node, ir.Declare)}
    while True:
        more = set(names)
        for node in nodes:
            match node:
                case ir.Declare(var, value) | ir.Assign(var, value) if _mentions(value, names):
                    more.add(var.name)
                case ir.Store(array, index, value) if _mentions(index, names) or _mentions(value, names):
                    more.add(array.name)
                case ir.If(condition) | ir.While(condition) if _mentions(condition, names):
                    more |= _changed(node)
                case ir.For(_, start, stop) if _mentions(start, names) or _mentions(stop, names):
                    more |= _changed(node)
        more &= {*own, loop.var.name}
        if more == names:
            return names, own
        names = more


def _changed(node: ir.Stmt) -> set[str]:
    """The variables and arrays that ``node`` writes."""
    nodes = walk(node)
    return assigned(nodes) | {part.array.name for part in nodes if isinstance(part, ir.Store)}


def _mentions(node: ir.Expr | ir.Stmt, names: set[str]) -> bool:
    return any(isinstance(part, ir.Var | ir.Array) and part.name in names for part in walk(node))


def _together(stmt: ir.Stmt, copies: list[dict[str, str]], own: set[str]) -> ir.Stmt:
    names = set(copies[0])
    match stmt:
        case ir.Block(body):
            return ir.block(*(_together(part, copies, own) for part in body))
        case ir.For(_, start, stop, body) if not _mentions(start, names) and not _mentions(stop, names):
            return replace(stmt, body=_together(body, copies, own))
        case ir.If(condition, then, otherwise) if not _mentions(condition, names):
            return ir.If(condition, _together(then, copies, own), _together(otherwise, copies, own))
        case ir.Declare() | ir.Tile() | ir.Prefetch() | ir.Comment() if not _mentions(stmt, names):
            return stmt
        case ir.Assign(var) if var.name in own and not _mentions(stmt, names):
            return stmt
        case ir.Lanes() if _changed(stmt) <= own and not _mentions(stmt, names):
            return stmt
        case ir.Lanes(_, start, body=body) if not _mentions(start, names):
            return replace(stmt, body=_together(body, copies, own))
    return ir.block(*(renamed(stmt, copy) for copy in copies))  # whatever it does is done by every turn
