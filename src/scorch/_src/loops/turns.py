"""The turns of a parallel loop: what they begin with, which loops stand in them, how they are numbered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import substitute, walk, with_children
from scorch._src.loops.units import Row, statements_of

START, STOP = ir.Var("chunk_start"), ir.Var("chunk_stop")


def coordinates_of(turn: ir.Var, loops: list[tuple[ir.Var, ir.Expr]]) -> tuple[ir.Expr, list[ir.Stmt]]:
    """Return the number of turns of nested loops, and what their variables are at one of them."""
    total: ir.Expr = ir.Const(1)
    for _, size in loops:
        total = total * size
    coordinates: list[ir.Stmt] = []
    rest: ir.Expr = turn
    for number, (var, size) in reversed(list(enumerate(loops))):
        coordinates.append(ir.Declare(var, rest % size if number else rest))
        if number:
            left = ir.Var(f"{turn.name}_{number}")
            coordinates.append(ir.Declare(left, rest // size))
            rest = left
    return total, coordinates


def head_of_part(
    parallel: ir.Parallel, head: Sequence[ir.Stmt], rest: Sequence[ir.Stmt], row: Row | None
) -> Callable[[ir.Expr], list[ir.Stmt]] | None:
    """Return what makes the head of a turn for any position of a row; None if more than that is counted."""
    if row is None:
        return None
    counted = {parallel.var.name, START.name, STOP.name}
    kept: list[ir.Stmt] = []
    is_found = False
    for stmt in head:
        assert isinstance(stmt, ir.Declare)
        if stmt.var == row.position:
            is_found = isinstance(stmt.value, ir.Var) and stmt.value.name in counted
        elif stmt.var.name in counted:
            continue
        kept.append(stmt)
    used = [node for stmt in (*kept, *rest) for node in walk(stmt) if isinstance(node, ir.Var)]
    beyond = sum(node.name in counted for node in used)
    if not is_found or beyond != 1:  # the position itself
        return None
    return lambda place: [
        ir.Declare(row.position, place) if isinstance(s, ir.Declare) and s.var == row.position else s
        for s in kept
    ]


def split_by(var: ir.Var, declared: Sequence[ir.Stmt]) -> tuple[list[ir.Stmt], list[ir.Stmt]]:
    """Return the declarations that do not depend on ``var``, and those that do."""
    names = {var.name}
    fixed: list[ir.Stmt] = []
    varying: list[ir.Stmt] = []
    for stmt in declared:
        assert isinstance(stmt, ir.Declare)
        depends = any(isinstance(node, ir.Var) and node.name in names for node in walk(stmt.value))
        (varying if depends else fixed).append(stmt)
        if depends:
            names.add(stmt.var.name)
    return fixed, varying


def with_number(statements: Sequence[ir.Stmt], size: ir.Var, number: int) -> list[ir.Stmt]:
    """Return statements in which a size is a number."""
    known = {size.name: ir.Const(number, size.type)}
    return [with_children(stmt, lambda part: substitute(part, known)) for stmt in statements]


def one_turn(parallel: ir.Parallel) -> tuple[list[ir.Stmt], ir.Stmt]:
    """Return what the turn of a chunk of one begins with, and the rest: its loop has one turn."""
    statements = statements_of(parallel.body)
    match statements:
        case (
            ir.Declare(start, first),
            ir.Declare(stop, ir.Binary("+", ir.Var() as same, ir.Const(1), _)),
            *between,
            ir.For(var, ir.Var() as begin, ir.Var() as end, body),
        ) if same == start == begin and end == stop and all(isinstance(s, ir.Declare) for s in between):
            return [
                ir.Declare(start, first),
                ir.Declare(stop, start + 1),
                *between,
                ir.Declare(var, start),
            ], body
    return [], parallel.body


def dense_loop(stmt: ir.Stmt, outside: set[str]) -> tuple[list[ir.Stmt], ir.For, ir.Stmt] | None:
    """Return declarations, the loop that ends ``stmt`` and its body, if that has a size known outside."""
    *declared, last = statements_of(stmt) or [ir.Block(())]
    if not isinstance(last, ir.For) or last.start != ir.Const(0):
        return None
    names = {node.name for node in walk(last.stop) if isinstance(node, ir.Var | ir.Array)}
    is_known = names <= outside and not any(isinstance(node, ir.Load | ir.Call) for node in walk(last.stop))
    if not is_known or not all(isinstance(s, ir.Declare) for s in declared):
        return None
    return declared, last, last.body
