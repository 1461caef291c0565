"""Facts about names in loops: what is assigned, what is written through, what a worker captures."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from scorch._src.dataclass import getter, replace
from scorch._src.loops import nodes as ir
from scorch._src.loops.intrinsics import INTRINSICS

Node = ir.Expr | ir.Stmt | ir.Array | ir.Function | ir.Kernel
SameNode = TypeVar("SameNode", bound=Node)


def children(node: Node) -> tuple[ir.Expr | ir.Stmt | ir.Array, ...]:
    """The expressions, statements and arrays directly inside ``node``, in order."""
    return _parts[type(node)](node)[::-1]


def with_children(node: SameNode, change: Callable[[Any], Any]) -> SameNode:
    """``node`` with ``change`` applied to each of its children; ``node`` itself if none changes."""
    changes: dict[str, Any] = {}
    for name in _fields_with_nodes(type(node)):  # type: ignore[arg-type]
        old = getattr(node, name)
        if type(old) is tuple:
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


class _Parts(dict[type[Any], Callable[[Any], tuple[Any, ...]]]):
    """Functions that return the children of a node of some kind, from the last to the first."""

    def __missing__(self, kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
        names = _fields_with_nodes(kind)[::-1]  # type: ignore[arg-type]
        tuples = {field.name for field in fields(kind) if str(field.type).startswith("tuple")}
        if not names:
            parts: Callable[[Any], tuple[Any, ...]] = lambda node: ()  # noqa: E731
        elif not tuples.intersection(names):
            parts = getter(names)
        elif len(names) == 1:
            (name,) = names
            parts = lambda node: getattr(node, name)[::-1]  # noqa: E731
        else:
            parts = lambda node: tuple(  # noqa: E731
                part
                for name in names
                for part in (getattr(node, name)[::-1] if name in tuples else (getattr(node, name),))
            )
        self[kind] = parts
        return parts


_parts = _Parts()


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
        left += _parts[type(node)](node)
    return nodes


def loop_depth(node: Node) -> int:
    """How many loops stand inside one another."""
    deepest = 0
    left: list[tuple[Node, int]] = [(node, 0)]
    while left:
        node, depth = left.pop()
        if isinstance(node, ir.For | ir.While | ir.Tile | ir.Parallel):
            depth += 1
            deepest = max(deepest, depth)
        left += [(part, depth) for part in _parts[type(node)](node) if isinstance(part, ir.Stmt)]
    return deepest


def assigned(nodes: Iterable[Node]) -> set[str]:
    """Names of variables that change after they are declared, among ``nodes`` (``walk``)."""
    return {n.var.name for n in nodes if isinstance(n, ir.Assign)}


def written(nodes: Iterable[Node], functions: Mapping[str, ir.Function]) -> set[str]:
    """Names of arrays whose elements or address change in ``nodes`` (``walk``) or in what they call."""
    names = set()
    for n in nodes:
        kind = type(n)
        if kind in _WRITTEN:
            names.add(getattr(n, _WRITTEN[kind]).name)
        elif isinstance(n, ir.Call):
            if n.function in functions:
                callee = functions[n.function]
                others = {name: function for name, function in functions.items() if name != n.function}
                inside = written(walk(callee.body), others)
                changed = {p for p, param in enumerate(callee.params) if param.name in inside}
            else:
                changed = set(INTRINSICS[n.function].writes)
            names |= {a.name for p, a in enumerate(n.arguments) if isinstance(a, ir.Array) and p in changed}
    return names


_WRITTEN: dict[type[Any], str] = {
    **dict.fromkeys((ir.Store, ir.StoreRun, ir.AtomicAdd, ir.AtomicAddRun), "array"),
    **dict.fromkeys((ir.Resize, ir.Allocate, ir.Fill), "array"),
    ir.Copy: "target",
    ir.KeepArray: "table",
}  # the fields with arrays whose elements or address statements change


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
