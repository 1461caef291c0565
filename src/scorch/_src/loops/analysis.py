"""Facts about names in loops: what is assigned, what is written through, what a worker captures."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from scorch._src.loops import nodes as ir
from scorch._src.loops.intrinsics import INTRINSICS

Node = ir.Expr | ir.Stmt | ir.Array | ir.Function | ir.Kernel
SameNode = TypeVar("SameNode", bound=Node)


def children(node: Node) -> Iterator[ir.Expr | ir.Stmt | ir.Array]:
    """The expressions, statements and arrays directly inside ``node``, in order."""
    for name in _fields_with_nodes(type(node)):  # type: ignore[arg-type]
        value = getattr(node, name)
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


def with_children(node: SameNode, change: Callable[[Any], Any]) -> SameNode:
    """``node`` with ``change`` applied to each of its children; ``node`` itself if none changes."""
    changes: dict[str, Any] = {}
    for name in _fields_with_nodes(type(node)):  # type: ignore[arg-type]
        old = getattr(node, name)
        if isinstance(old, tuple):
            new = tuple(map(change, old))
            is_same = all(map(operator.is_, old, new))
        else:
            new = change(old)
            is_same = new is old
        if not is_same:
            changes[name] = new
    return replace(node, **changes) if changes else node  # type: ignore[type-var]


@functools.cache
def _fields_with_nodes(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a kind of node that hold nodes, by their annotations; asked at every turn of a walk."""
    return tuple(field.name for field in fields(kind) if _NODE.search(str(field.type)))


_NODE = re.compile(r"\b(Expr|Stmt|Array|Var|Call|Function)\b")


def with_array(node: SameNode, old: ir.Array, new: ir.Array) -> SameNode:
    """``node`` with an array replaced."""
    if isinstance(node, ir.Array):
        return new if node == old else node  # type: ignore[return-value]
    return with_children(node, lambda part: with_array(part, old, new))


def walk(node: Node) -> list[Node]:
    """``node`` and everything inside it, outer nodes first.

    Kernels are walked many times before they are printed: this is the hottest loop of a cold call.
    """
    nodes: list[Node] = []
    left: list[Node] = [node]
    while left:
        node = left.pop()
        nodes.append(node)
        for name in reversed(_fields_with_nodes(type(node))):  # type: ignore[arg-type]
            value = getattr(node, name)
            if isinstance(value, tuple):
                left += value[::-1]
            else:
                left.append(value)
    return nodes


def loop_depth(node: Node) -> int:
    """How many loops stand inside one another."""
    deepest = 0
    left: list[tuple[Node, int]] = [(node, 0)]
    while left:
        node, depth = left.pop()
        depth += isinstance(node, ir.For | ir.While | ir.Tile | ir.Parallel)
        deepest = max(deepest, depth)
        left += ((part, depth) for part in children(node) if isinstance(part, ir.Stmt))
    return deepest


def assigned(node: Node) -> set[str]:
    """Names of variables that change after they are declared."""
    return {n.var.name for n in walk(node) if isinstance(n, ir.Assign)}


def written(node: Node, functions: Mapping[str, ir.Function]) -> set[str]:
    """Names of arrays whose elements or address change in ``node`` or in what it calls."""
    names = set()
    for n in walk(node):
        match n:
            case (
                ir.Store(array, _, _)
                | ir.StoreRun(array, _, _)
                | ir.AtomicAdd(array, _, _)
                | ir.AtomicAddRun(array, _, _)
                | ir.Resize(array, _)
                | ir.Allocate(array, _, _)
                | ir.Fill(array, _, _, _)
            ):
                names.add(array.name)
            case ir.Copy(target, _, _, _, _):
                names.add(target.name)
            case ir.KeepArray(table, _, _):
                names.add(table.name)
            case ir.Call(function, arguments, _):
                if function in functions:
                    callee = functions[function]
                    inside = written(callee.body, {k: v for k, v in functions.items() if k != function})
                    changed = {p for p, param in enumerate(callee.params) if param.name in inside}
                else:
                    changed = set(INTRINSICS[function].writes)
                names |= {a.name for p, a in enumerate(arguments) if isinstance(a, ir.Array) and p in changed}
    return names


def declared_by(node: Node) -> ir.Var | ir.Array | None:
    """The name that ``node`` adds to the scope it stands in; None if it is no declaration."""
    match node:
        case ir.Declare(var):
            return var
        case ir.Allocate(array) | ir.SlotArray(array) | ir.Tile(array):
            return array
    return None


def captured(parallel: ir.Parallel) -> tuple[ir.Var | ir.Array, ...]:
    """What the workers of ``parallel`` use from outside, in order of first use."""
    names: dict[str, ir.Var | ir.Array] = {}

    def visit_work(loop: ir.Parallel, scope: set[str]) -> None:
        visit(loop.prologue, scope)
        visit(loop.body, scope | {loop.var.name})
        visit(loop.epilogue, scope)

    def visit(node: ir.Expr | ir.Stmt | ir.Array, bound: set[str]) -> None:
        """Visit in order; declarations add to ``bound`` for what follows in the same scope."""
        if isinstance(node, ir.Var | ir.Array):
            if node.name not in bound:
                names.setdefault(node.name, node)
            return
        if isinstance(node, ir.Parallel):
            for outside in (ir.Var("parallel_for"), node.count, node.threads):
                visit(outside, bound)
            visit_work(node, set(bound))
            return
        own = node.var if isinstance(node, ir.For | ir.Lanes) else declared_by(node)
        inside = set() if own is None else {own.name}
        for child in children(node):
            if child is not own:
                opens_scope = isinstance(child, ir.Stmt) and not isinstance(node, ir.Block)
                visit(child, bound | inside if opens_scope else bound)
        if not isinstance(node, ir.For | ir.Lanes):
            bound |= inside

    visit_work(parallel, set())
    return tuple(names.values())


def substitute(expr: ir.Expr, values: Mapping[str, ir.Expr]) -> ir.Expr:
    """``expr`` with variables replaced by name."""
    if isinstance(expr, ir.Var):
        return values.get(expr.name, expr)
    return with_children(expr, lambda part: substitute(part, values))
