"""Facts about names in loops: what is assigned, what is written through, what a worker captures."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from scorch._src.loops.nodes import (
    Allocate,
    Array,
    Assign,
    Call,
    Copy,
    Declare,
    Expr,
    Fill,
    For,
    Function,
    If,
    KeepArray,
    Lanes,
    Parallel,
    Resize,
    SlotArray,
    Stmt,
    Store,
    Tile,
    Var,
    While,
)
from scorch._src.loops.routines import ROUTINES

Node = Expr | Stmt | Array | Function


def children_by_field(node: Node) -> Iterator[tuple[str, Any]]:
    """The fields of ``node`` that hold expressions, statements and arrays, or tuples of them."""
    for name in _fields_with_nodes(type(node)):  # type: ignore[arg-type]
        yield name, getattr(node, name)


def children(node: Node) -> Iterator[Expr | Stmt | Array]:
    """The expressions, statements and arrays directly inside ``node``, in order."""
    for _, value in children_by_field(node):
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


@functools.cache
def _fields_with_nodes(kind: type) -> tuple[str, ...]:
    """The fields of a kind of node that hold nodes, by their annotations; asked at every turn of a walk."""
    return tuple(field.name for field in fields(kind) if _NODE.search(str(field.type)))


_NODE = re.compile(r"\b(Expr|Stmt|Array|Var|Call)\b")


def walk(node: Node) -> list[Node]:
    """``node`` and everything inside it, outer nodes first.

    Kernels are walked many times before they are printed: this is the hottest loop of a cold call.
    """
    found: list[Node] = []
    left: list[Node] = [node]
    while left:
        node = left.pop()
        found.append(node)
        for name in reversed(_fields_with_nodes(type(node))):  # type: ignore[arg-type]
            value = getattr(node, name)
            if isinstance(value, tuple):
                left += value[::-1]
            else:
                left.append(value)
    return found


def loop_depth(node: Node) -> int:
    """How many loops stand inside one another."""
    deepest = 0
    left: list[tuple[Node, int]] = [(node, 0)]
    while left:
        node, depth = left.pop()
        depth += isinstance(node, For | While | Tile | Parallel)
        deepest = max(deepest, depth)
        left += ((part, depth) for part in children(node) if isinstance(part, Stmt))
    return deepest


def assigned(node: Node) -> set[str]:
    """Names of variables that change after they are declared."""
    return {n.var.name for n in walk(node) if isinstance(n, Assign)}


def written(node: Node, functions: Mapping[str, Function]) -> set[str]:
    """Names of arrays whose elements or address change in ``node`` or in what it calls."""
    names = set()
    for n in walk(node):
        match n:
            case Store(array, _, _) | Resize(array, _) | Allocate(array, _, _) | Fill(array, _, _, _):
                names.add(array.name)
            case Copy(target, _, _, _, _):
                names.add(target.name)
            case KeepArray(table, _, _):
                names.add(table.name)
            case Call(function, arguments, _):
                if function in functions:
                    callee = functions[function]
                    inside = written(callee.body, {k: v for k, v in functions.items() if k != function})
                    changed = {p for p, param in enumerate(callee.params) if param.name in inside}
                else:
                    changed = set(ROUTINES[function].writes)
                names |= {a.name for p, a in enumerate(arguments) if isinstance(a, Array) and p in changed}
    return names


def captured(parallel: Parallel) -> tuple[Var | Array, ...]:
    """What the workers of ``parallel`` use from outside, in order of first use."""
    found: dict[str, Var | Array] = {}

    def visit(node: Expr | Stmt | Array, bound: set[str]) -> None:
        """Visit in order; declarations add to ``bound`` for what follows in the same scope."""
        match node:
            case Var(name, _) | Array(name, _):
                if name not in bound:
                    found.setdefault(name, node)
            case Declare(var, value):
                visit(value, bound)
                bound.add(var.name)
            case Allocate(array, count, _):
                visit(count, bound)
                bound.add(array.name)
            case SlotArray(array, table, index):
                visit(table, bound)
                visit(index, bound)
                bound.add(array.name)
            case For(var, start, stop, body):
                visit(start, bound)
                visit(stop, bound)
                visit(body, bound | {var.name})
            case Tile(array, _, _):
                bound.add(array.name)
            case Lanes(var, start, _, _, body):
                visit(start, bound)
                visit(body, bound | {var.name})
            case While(condition, body):
                visit(condition, bound)
                visit(body, set(bound))
            case If(condition, then, otherwise):
                visit(condition, bound)
                visit(then, set(bound))
                visit(otherwise, set(bound))
            case Parallel(var, count, threads, prologue, body, epilogue):
                visit(Var("parallel_for"), bound)
                visit(count, bound)
                visit(threads, bound)
                scope = set(bound)
                visit(prologue, scope)
                visit(body, scope | {var.name})
                visit(epilogue, scope)
            case _:
                for child in children(node):
                    visit(child, bound)

    scope: set[str] = set()
    visit(parallel.prologue, scope)
    visit(parallel.body, scope | {parallel.var.name})
    visit(parallel.epilogue, scope)
    return tuple(found.values())


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """``expr`` with variables replaced by name."""
    if isinstance(expr, Var):
        return values.get(expr.name, expr)
    changes = {}
    for field in fields(expr):  # type: ignore[arg-type]
        old = getattr(expr, field.name)
        if isinstance(old, Expr):
            new = substitute(old, values)
            if new is not old:
                changes[field.name] = new
    return replace(expr, **changes) if changes else expr  # type: ignore[type-var]
