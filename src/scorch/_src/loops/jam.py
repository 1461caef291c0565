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

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from scorch._src.loops.analysis import assigned, walk, with_children
from scorch._src.loops.nodes import (
    Array,
    Assign,
    Block,
    Comment,
    Const,
    Declare,
    Expr,
    For,
    If,
    Lanes,
    Prefetch,
    Stmt,
    Store,
    Tile,
    Var,
    While,
    block,
)

Node = TypeVar("Node", bound=Expr | Stmt | Array)


def jammed(loop: For, turns: int) -> Stmt:
    """``loop`` with ``turns`` of its turns side by side, and one by one what is left at its end.

    A loop with a ``while`` inside stays as it is: what that moves along, every turn would have to itself.
    """
    if any(isinstance(node, While) for node in walk(loop.body)):
        return loop
    names, own = _varying(loop)
    number = Var(f"{loop.var.name}_turn")
    copies = [{name: f"{name}_t{turn}" for name in names} for turn in range(turns)]
    begins = [
        Declare(replace(loop.var, name=copy[loop.var.name]), loop.start + number * turns + turn)
        for turn, copy in enumerate(copies)
    ]
    count = loop.stop - loop.start
    together = For(number, Const(0), count // turns, block(*begins, _together(loop.body, copies, own)))
    return block(together, replace(loop, start=loop.stop - count % turns))


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """``node`` with variables and arrays called otherwise."""
    if isinstance(node, Var | Array):
        return replace(node, name=names.get(node.name, node.name))
    return with_children(node, lambda part: renamed(part, names))


def _varying(loop: For) -> tuple[set[str], set[str]]:
    """The names declared inside ``loop`` that stand for something else at every turn, and all it declares."""
    names = {loop.var.name}
    nodes = walk(loop.body)
    own = {node.array.name for node in nodes if isinstance(node, Tile)}
    own |= {node.var.name for node in nodes if isinstance(node, Declare)}
    while True:
        found = set(names)
        for node in nodes:
            match node:
                case Declare(var, value) | Assign(var, value) if _mentions(value, names):
                    found.add(var.name)
                case Store(array, index, value) if _mentions(index, names) or _mentions(value, names):
                    found.add(array.name)
                case If(condition) | While(condition) if _mentions(condition, names):
                    found |= _changed(node)
                case For(_, start, stop) if _mentions(start, names) or _mentions(stop, names):
                    found |= _changed(node)
        found &= {*own, loop.var.name}
        if found == names:
            return names, own
        names = found


def _changed(node: Stmt) -> set[str]:
    """The variables and arrays that ``node`` writes."""
    return assigned(node) | {part.array.name for part in walk(node) if isinstance(part, Store)}


def _mentions(node: Expr | Stmt, names: set[str]) -> bool:
    return any(isinstance(part, Var | Array) and part.name in names for part in walk(node))


def _together(stmt: Stmt, copies: list[dict[str, str]], own: set[str]) -> Stmt:
    names = set(copies[0])
    match stmt:
        case Block(body):
            return block(*(_together(part, copies, own) for part in body))
        case For(_, start, stop, body) if not _mentions(start, names) and not _mentions(stop, names):
            return replace(stmt, body=_together(body, copies, own))
        case If(condition, then, otherwise) if not _mentions(condition, names):
            return If(condition, _together(then, copies, own), _together(otherwise, copies, own))
        case Declare() | Tile() | Prefetch() | Comment() if not _mentions(stmt, names):
            return stmt
        case Assign(var) if var.name in own and not _mentions(stmt, names):
            return stmt
        case Lanes() if _changed(stmt) <= own and not _mentions(stmt, names):
            return stmt
        case Lanes(_, start, body=body) if not _mentions(start, names):
            return replace(stmt, body=_together(body, copies, own))
    return block(*(renamed(stmt, copy) for copy in copies))  # whatever it does is done by every turn
