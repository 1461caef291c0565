"""A parallel loop as a grid: with a thread for every turn of as many of its outer loops as own their results.

    parallel i in 0..m: for k in 0..n: ...       ->       parallel turn in 0..m*n: i, k = turn / n, turn % n

Threads beside each other then have neighbouring ``k``, and what they load lies side by side in memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import walk

MEMORY = (ir.Allocate, ir.Resize, ir.Free, ir.PutArray, ir.SlotArray, ir.KeepArray, ir.Fail)
VECTORS = (ir.Lanes, ir.Tile, ir.Total)
WHOLE_ARRAYS = (ir.Put, ir.Fill, ir.Copy)  # what one thread does for all


def why_no_grid(kernel: ir.Kernel) -> str:
    """Why a kernel cannot run as one grid; "" if it can."""
    exported = [function for function in kernel.functions if function.exported]
    if len(exported) != 1:
        return "its result is put together in two steps"
    for node in walk(exported[0]):
        if isinstance(node, MEMORY):
            return "it keeps memory of its own"
        if isinstance(node, VECTORS):
            return "it runs in vector registers"
        if isinstance(node, WHOLE_ARRAYS):
            return "a part of it runs on one thread"
    *before, last = _statements(exported[0].body)
    if not isinstance(last, ir.Parallel) or not all(isinstance(stmt, ir.Declare) for stmt in before):
        return "no loop of it owns its part of the result"
    return "" if _is_empty(last.prologue) and _is_empty(last.epilogue) else "its workers keep memory"


def as_grid(kernel: ir.Kernel, owned: Collection[str]) -> ir.Kernel:
    """Return the kernel with the dense loops directly inside of its parallel loop spread over the grid.

    ``owned`` are the loops that own their parts of the result.
    """
    functions = [_spread(f, owned) if f.exported else f for f in kernel.functions]
    return replace(kernel, functions=tuple(functions))


def _spread(function: ir.Function, owned: Collection[str]) -> ir.Function:
    *before, parallel = _statements(function.body)
    assert isinstance(parallel, ir.Parallel)
    outside = {param.name for param in function.params} | {
        stmt.var.name for stmt in before if isinstance(stmt, ir.Declare)
    }
    count, head, inner = parallel.count, *_one_turn(parallel)
    loops: list[tuple[ir.Var, ir.Expr]] = [(parallel.var, count)]
    while (opened := _dense_loop(inner, outside)) is not None and opened[1].var.name in owned:
        declared, loop, inner = opened
        head += declared
        loops.append((loop.var, loop.stop))
    if len(loops) == 1:
        spread = _over_entries(parallel, head, inner, owned) or replace(parallel, body=ir.block(*head, inner))
        return replace(function, body=ir.block(*before, spread))
    turn = ir.Var("turn")
    total: ir.Expr = ir.Const(1)
    for _, size in loops:
        total = total * size
    coordinates: list[ir.Stmt] = []
    rest: ir.Expr = turn
    for number, (var, size) in reversed(list(enumerate(loops))):
        coordinates.append(ir.Declare(var, rest % size if number else rest))
        if number:
            left = ir.Var(f"turn_{number}")
            coordinates.append(ir.Declare(left, rest // size))
            rest = left
    body = ir.block(*coordinates, *head, inner)
    spread = replace(parallel, var=turn, count=total, body=body)
    return replace(function, body=ir.block(*before, spread))


def _over_entries(
    parallel: ir.Parallel, head: list[ir.Stmt], inner: ir.Stmt, owned: Collection[str]
) -> ir.Parallel | None:
    """Return the grid over all entries of rows, each of which owns a value; its row is searched for.

    parallel i: for p in pos[i]..pos[i+1]: ...      ->      parallel p in pos[0]..pos[m]: i = the row of p
    """
    *declared, last = _statements(inner) or [ir.Block(())]
    match last:
        case ir.For(var, ir.Cast(ir.Load(pos, ir.Var() as row), _), ir.Cast(ir.Load(end, after), _), body):
            is_row = head and isinstance(head[-1], ir.Declare) and head[-1].var == row and pos == end
            is_whole = after == row + 1 and len(head) == 3 and head[0] == ir.Declare(_START, parallel.var)
            coordinate = _statements(body)[0] if _statements(body) else None
            is_owned = isinstance(coordinate, ir.Declare) and coordinate.var.name in owned
            if not (is_row and is_whole and is_owned and all(isinstance(s, ir.Declare) for s in declared)):
                return None
            name = "upper_bound_i32" if pos.element.bytes == 4 else "upper_bound_i64"
            row_of_entry = ir.Call(name, (pos, ir.Const(0), parallel.count + 1, var)) - 1
            first, stop = (ir.wide(ir.Load(pos, at)) for at in (ir.Const(0), parallel.count))
            turn = ir.Var("turn")
            inside = ir.block(ir.Declare(var, first + turn), ir.Declare(row, row_of_entry), *declared, body)
            return replace(parallel, var=turn, count=stop - first, body=inside)
    return None


_START = ir.Var("chunk_start")


def _one_turn(parallel: ir.Parallel) -> tuple[list[ir.Stmt], ir.Stmt]:
    """Return what the turn of a chunk of one begins with, and the rest: its loop has one turn."""
    statements = _statements(parallel.body)
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


def _dense_loop(stmt: ir.Stmt, outside: set[str]) -> tuple[list[ir.Stmt], ir.For, ir.Stmt] | None:
    """Return declarations, the loop that ends ``stmt`` and its body, if that has a size known outside."""
    *declared, last = _statements(stmt) or [ir.Block(())]
    if not isinstance(last, ir.For) or last.start != ir.Const(0):
        return None
    names = {node.name for node in walk(last.stop) if isinstance(node, ir.Var | ir.Array)}
    is_known = names <= outside and not any(isinstance(node, ir.Load | ir.Call) for node in walk(last.stop))
    if not is_known or not all(isinstance(s, ir.Declare) for s in declared):
        return None
    return declared, last, last.body


def _statements(stmt: ir.Stmt) -> list[ir.Stmt]:
    return list(stmt.body) if isinstance(stmt, ir.Block) else [stmt]


def _is_empty(stmt: ir.Stmt) -> bool:
    return not _statements(stmt)
