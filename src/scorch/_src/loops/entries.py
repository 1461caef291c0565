"""A grid over entries: rows below rows become one loop, in which an entry finds the rows that it lies in.

    parallel i: for p in pos[i]..pos[i+1]: ...      ->      parallel p in 0..entries: i = row[p]

Threads then have as much to do, however long rows are. Each entry owns a value, or adds atomically.
"""

from __future__ import annotations

from collections.abc import Callable

from scorch._src.dataclass import dataclass, replace
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import walk
from scorch._src.loops.turns import START
from scorch._src.loops.units import Level, fresh, range_of, statements_of


@dataclass(frozen=True)
class Entries:
    """A parallel loop over the entries of rows: what its turns begin with, and the rest.

    ``rows`` has the row of each entry, level by level from the entries up, of which the rows begin at
    ``pos``; ``count`` is the number of entries, so that threads need not wait for ``pos`` to know it.
    """

    parallel: ir.Parallel
    head: tuple[ir.Stmt, ...]
    inner: ir.Stmt
    rows: tuple[ir.Array, ...]
    pos: tuple[ir.Array, ...]
    count: ir.Var


def over_entries(
    parallel: ir.Parallel,
    head: list[ir.Stmt],
    inner: ir.Stmt,
    is_free: Callable[[str], bool],
    taken: set[str],
) -> Entries | None:
    """Return the loop over all entries of rows; None if turns of the loop inside are not free to part."""
    if len(head) != 3 or not isinstance(head[0], ir.Declare) or not isinstance(head[2], ir.Declare):
        return None
    row = head[2].var
    levels: list[Level] = []
    while (found := _level(inner, row, is_free)) is not None:
        levels.append(found[0])
        row, inner = found[0].loop.var, found[1]
    if not levels:
        return None
    turn, count, rows = ir.Var(fresh("entry", taken)), ir.Var(fresh("entries", taken)), []
    find: list[ir.Stmt] = [ir.Declare(START, turn), ir.Declare(row, START)]
    for level in reversed(levels):
        array = ir.Array(fresh("row_of_entry", taken), level.pos.element)
        taken.add(array.name)
        rows.append(array)
        find.append(ir.Declare(level.row, ir.wide(ir.Load(array, level.loop.var))))
    for level in levels:
        find += level.before
    loop = replace(parallel, var=turn, count=count)
    pos = tuple(level.pos for level in reversed(levels))
    return Entries(loop, tuple(find), inner, tuple(rows), pos, count)


def _level(stmt: ir.Stmt, row: ir.Var, is_free: Callable[[str], bool]) -> tuple[Level, ir.Stmt] | None:
    """Return the loop over the entries of ``row`` that ends ``stmt``, and its body."""
    *declared, last = statements_of(stmt) or [ir.Block(())]
    if not isinstance(last, ir.For) or not all(isinstance(s, ir.Declare) for s in declared):
        return None
    found = range_of(last)
    coordinate = next(iter(statements_of(last.body)), None)
    if found is None or found[1] != row or not isinstance(coordinate, ir.Declare):
        return None
    if not is_free(coordinate.var.name):
        return None
    return Level(tuple(declared), last, *found), last.body


def over_list(
    parallel: ir.Parallel, is_free: Callable[[str], bool]
) -> tuple[list[ir.Stmt], ir.Stmt, ir.Array] | None:
    """Return what the turn of an entry of a list begins with, the rest, and the last coordinates.

    None if turns, which look for rows, must stay so.

        while p < end: i = crd[p], q = where i ends; for p' in p..q: j = crd'[p'], ...
            ->      p = chunk_start, i = crd[p], p' = p, j = crd'[p'], ...
    """
    statements = statements_of(parallel.body)
    if not statements or not isinstance(statements[0], ir.Declare):
        return None
    entry, loop = statements[0].var, statements[-1]
    head: list[ir.Stmt] = [statements[0]]
    while isinstance(loop, ir.While):
        match statements_of(loop.body):
            case [
                ir.Declare(coordinate, value) as bind,
                ir.Declare(_, ir.Var() as place),
                ir.While(),
                *declared,
                ir.While() | ir.For() as loop,
                ir.Assign(moved),
            ] if moved == place and place in walk(value) and is_free(coordinate.name):
                if isinstance(loop, ir.While):  # of which the last two are where it begins and ends
                    declared = declared[:-2]
                if not all(isinstance(stmt, ir.Declare) for stmt in declared):
                    return None
                head += [ir.Declare(place, entry), bind, *declared]
            case _:
                return None
    match loop:
        case ir.For(var, ir.Var() as begin, ir.Var(), body) if ir.Declare(begin, entry) in head:
            match statements_of(body):
                case [
                    ir.Declare(x, ir.Load(crd, _) | ir.Cast(ir.Load(crd, _), _)) as bind,
                    *inner,
                ] if is_free(x.name):
                    return [*head, ir.Declare(var, entry), bind], ir.block(*inner), crd
    return None
