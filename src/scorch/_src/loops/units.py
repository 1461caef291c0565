"""Turns that several threads of a grid, a unit, take together.

The threads of a unit share the columns of a row, several each, or the entries of a row, or the terms of one
sum. Rows that are much longer than others are cut: their parts are added up by units of their own, and
``scorch_combine`` puts the sums together in order, so that results repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scorch._src.dataclass import dataclass, replace
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import walk
from scorch._src.loops.jam import renamed, side_by_side
from scorch._src.loops.runs import Runs
from scorch._src.loops.simplify import simplify

IDEMPOTENT = ("max", "min", "&&", "||")
STORES = (ir.Store, ir.AtomicAdd)


@dataclass(frozen=True)
class Row:
    """The sum over a row: ``before``, the loop over its entries, and ``after`` it what is done with the sum.

    ``position`` is the variable whose place in ``pos`` is where the row begins.
    """

    before: tuple[ir.Stmt, ...]
    loop: ir.For
    after: tuple[ir.Stmt, ...]
    pos: ir.Array
    position: ir.Var

    @property
    def sum(self) -> ir.Var:
        """The variable that is added to."""
        (sum_,) = accumulators(self.loop.body) or (ir.Var(""),)
        return sum_

    @property
    def below(self) -> tuple[ir.Array, ...]:
        """Where rows below rows begin, level by level, which a cut goes through: those of a nested sum."""
        return tuple(level.pos for level in nested(self.loop))

    def shared(self, threads: int) -> list[ir.Stmt]:
        """Return its statements, with the loop shared by the threads of a unit."""
        return [*self.before, replace(self.loop, threads=threads, sums=1), *self.after]


def find_row(body: ir.Stmt) -> Row | None:
    """Return ``body`` as the sum over a row, if it is one."""
    statements = statements_of(body)
    loops = [n for n, stmt in enumerate(statements) if isinstance(stmt, ir.For)]
    if len(loops) != 1:
        return None
    number = loops[0]
    before, loop, after = statements[:number], statements[number], statements[number + 1 :]
    assert isinstance(loop, ir.For)
    range_ = range_of(loop)
    if range_ is None or len(accumulators(loop.body) or ()) != 1:
        return None
    if not all(isinstance(stmt, ir.Declare) for stmt in before):
        return None
    if not all(isinstance(stmt, ir.Declare | ir.Assign | ir.Store) for stmt in after):
        return None
    return Row(tuple(before), loop, tuple(after), *range_)


def range_of(loop: ir.For) -> tuple[ir.Array, ir.Var] | None:
    """Return ``pos`` and ``row`` of a loop from ``pos[row]`` to ``pos[row + 1]``; None if it is another."""
    match loop.start, loop.stop:
        case (
            (ir.Load(pos, ir.Var() as row) | ir.Cast(ir.Load(pos, ir.Var() as row), _)),
            (ir.Load(end, beyond) | ir.Cast(ir.Load(end, beyond), _)),
        ) if pos == end and beyond == row + 1:
            return pos, row
    return None


@dataclass(frozen=True)
class Level:
    """A loop over the entries of ``row``, the last of the loop over rows, and what is declared before it."""

    before: tuple[ir.Stmt, ...]
    loop: ir.For
    pos: ir.Array
    row: ir.Var


def nested(loop: ir.For) -> list[Level]:
    """Return the loops over rows below the rows of ``loop``, from the outermost inwards."""
    levels: list[Level] = []
    while True:
        *before, last = statements_of(loop.body) or [ir.Block(())]
        if not isinstance(last, ir.For) or not all(isinstance(s, ir.Declare) for s in before):
            return levels
        found = range_of(last)
        if found is None or found[1] != loop.var:
            return levels
        levels.append(Level(tuple(before), last, *found))
        loop = last


def flattened(loop: ir.For, rows: Sequence[ir.Array]) -> ir.For:
    """Return nested loops as one over the innermost entries, whose rows ``rows`` has, level by level.

    for p in rows: j = crd[p]; for q in pos[p]..: ...      ->      for q: p = row[q]; j = crd[p]; ...
    """
    levels = nested(loop)
    if not levels:
        return loop
    pairs = zip(reversed(levels), reversed(rows), strict=True)
    found = [ir.Declare(level.row, ir.wide(ir.Load(row, level.loop.var))) for level, row in pairs]
    before = [stmt for level in levels for stmt in level.before]
    last = levels[-1].loop
    return replace(last, body=ir.block(*found, *before, last.body))


def accumulators(body: ir.Stmt, may_store: bool = False) -> dict[ir.Var, str] | None:
    """Return the variables that a body only adds to, with the operations; None if it does more.

    ``may_store``: it may also store, and need not add to anything.
    """
    nodes = walk(body)
    if any(isinstance(node, ir.Perform | ir.Parallel | ir.Return) for node in nodes):
        return None
    if not may_store and any(isinstance(node, STORES) for node in nodes):
        return None
    own = {node.var.name for node in nodes if isinstance(node, ir.Declare | ir.For)}
    found: dict[ir.Var, str] = {}
    reads = 0
    for node in nodes:
        if not isinstance(node, ir.Assign) or node.var.name in own:
            continue
        match node.value:
            case ir.Binary(op, ir.Var() as same, term, _) if same == node.var and op in (
                "+",
                "*",
                *IDEMPOTENT,
            ):
                if same in walk(term) or found.get(same, op) != op:
                    return None
                found[same] = op
                reads += 2  # its own name, on both sides
            case _:
                return None
    names = {var.name for var in found}
    if sum(isinstance(node, ir.Var) and node.name in names for node in nodes) != reads:
        return None
    return found if found or may_store else None


def share(row_or_sum: Sequence[ir.Stmt], threads: int) -> list[ir.Stmt] | None:
    """Return statements whose only loop, a sum, is shared by the threads of a unit; None if there is none."""
    loops = [stmt for stmt in row_or_sum if isinstance(stmt, ir.For)]
    others = [stmt for stmt in row_or_sum if not isinstance(stmt, ir.For)]
    if len(loops) != 1 or accumulators(loops[0].body) is None:
        return None
    if not all(isinstance(stmt, ir.Declare | ir.Assign | ir.Store) for stmt in others):
        return None
    return [replace(s, threads=threads, sums=1) if isinstance(s, ir.For) else s for s in row_or_sum]


def in_columns(
    columns: Runs,
    tile: ir.Expr,
    computed: Sequence[ir.Stmt],
    stored: Sequence[ir.Stmt],
    threads: int,
    each: int,
    is_run: bool,
    variable: Callable[[str], ir.Var],
) -> ir.Stmt:
    """Return statements for the columns of a tile, of which each thread of a unit has several.

    Adjacent threads have adjacent columns, or runs of them. One beyond the last column
    computes that once more and stores nothing.
    """
    column, size = columns.column, columns.size
    thread, first = variable("thread"), variable("first_column")
    begin = tile * (threads * each) + (thread * each if is_run else thread)
    if is_run:
        clamped = ir.Select(first < size, first, size - each, both=True)
        start = variable("start_column")
        together, stores = columns.side_by_side([start + number for number in range(each)], computed, stored)
        rest = [ir.Declare(start, clamped), together, ir.If(first < size, stores)]
    else:
        places = [first + threads * number for number in range(each)]
        clamps = [ir.Select(place < size, place, size - 1, both=True) for place in places]
        together, names = side_by_side(column, clamps, ir.block(*computed))
        rest = [together]
        for place, name in zip(places, names, strict=True):
            rest.append(ir.If(place < size, renamed(ir.block(*stored), name)))
    inside = ir.block(ir.Declare(first, begin), *rest)
    return ir.For(thread, ir.Const(0), ir.Const(threads), inside, threads=threads)


def share_in_runs(
    statements: Sequence[ir.Stmt], threads: int, each: int
) -> tuple[list[ir.Stmt], Runs] | None:
    """Return statements whose only loop is shared in runs of ``each`` turns, which divides their number."""
    if share(statements, threads) is None:
        return None
    shared: list[ir.Stmt] = []
    for stmt in statements:
        if isinstance(stmt, ir.For):
            runs = Runs(stmt.var, stmt.stop)
            turn = ir.Var(f"{stmt.var.name}_run")
            places = [turn * each + number for number in range(each)]
            body, _ = runs.side_by_side(places, statements_of(stmt.body), [])
            stmt = ir.For(turn, ir.Const(0), simplify(stmt.stop // each), body, threads=threads)
        shared.append(stmt)
    return (shared, runs) if runs.arrays else None


def split_stores(body: Sequence[ir.Stmt]) -> tuple[list[ir.Stmt], list[ir.Stmt]] | None:
    """Split statements into what computes and what stores at the end; None if they are otherwise.

    R[p] = A[p] * B[p]      ->      R_value = A[p] * B[p]; R[p] = R_value
    """
    last = len(body)
    while last and isinstance(body[last - 1], STORES):
        last -= 1
    nodes = [node for stmt in body[:last] for node in walk(stmt)]
    if last == len(body) or any(isinstance(node, (*STORES, ir.Perform, ir.While)) for node in nodes):
        return None
    computed = list(body[:last])
    stored: list[ir.Stmt] = []
    for number, store in enumerate(body[last:]):
        assert isinstance(store, STORES)
        if any(isinstance(node, ir.Load) for node in walk(store.value)):
            value = ir.Var(f"{store.array.name}_value{number or ''}", store.value.type)
            computed.append(ir.Declare(value, store.value))
            store = replace(store, value=value)
        stored.append(store)
    return computed, stored


@dataclass(frozen=True)
class Parts:
    """Arrays and numbers that describe how rows are cut, beyond the slots of a kernel.

    The parts of long rows come first, one row after the other, then all other rows whole. ``sums`` has what
    the former add up to. ``above`` has the rows that entries lie in, where rows lie below rows.
    """

    row: ir.Array
    start: ir.Array
    stop: ir.Array
    sums: ir.Array
    long_row: ir.Array
    long_first: ir.Array
    count: ir.Var
    cut: ir.Var
    long: ir.Var
    above: tuple[ir.Array, ...]

    @property
    def slots(self) -> tuple[ir.Var | ir.Array, ...]:
        return (
            *self.above, self.row, self.start, self.stop, self.sums, self.long_row, self.long_first,
            self.count, self.cut, self.long,
        )  # fmt: skip


def parts_of(row: Row, taken: set[str]) -> Parts:
    """Name what describes the parts of rows."""

    def array(name: str) -> ir.Array:
        return ir.Array(fresh(f"part_{name}", taken), row.pos.element)

    def number(name: str) -> ir.Var:
        return ir.Var(fresh(f"parts_{name}", taken))

    return Parts(
        array("row"), array("start"), array("stop"), ir.Array(fresh("part_sums", taken), row.sum.type),
        array("long_row"), array("long_first"), number("count"), number("cut"), number("long"),
        tuple(ir.Array(fresh(f"row_of_{pos.name}", taken), pos.element) for pos in row.below),
    )  # fmt: skip


def cut_row(row: Row, parts: Parts, part: ir.Var, column: ir.Expr, columns: ir.Expr) -> Row:
    """Return the sum over a part of a row: stored as that of a row if it is whole, else kept."""
    start, stop = (ir.wide(ir.Load(array, part)) for array in (parts.start, parts.stop))
    kept = ir.Store(parts.sums, part * columns + column, row.sum)
    after = ir.If(part < parts.cut, kept, ir.block(*row.after))
    loop = flattened(row.loop, parts.above)
    return replace(row, loop=replace(loop, start=start, stop=stop), after=(after,))


def combine_parts(
    row: Row, parts: Parts, number: ir.Var, column: ir.Expr, columns: ir.Expr, part: ir.Var
) -> Row:
    """Return the sum over a row that was cut, from the sums of its parts."""
    sum_ = row.sum
    op = (accumulators(row.loop.body) or {})[sum_]
    start, stop = (ir.wide(ir.Load(parts.long_first, at)) for at in (number, number + 1))
    term = ir.Binary(op, sum_, ir.Load(parts.sums, part * columns + column), sum_.type)
    return replace(row, loop=ir.For(part, start, stop, ir.block(ir.Assign(sum_, term))))


def fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def statements_of(stmt: ir.Stmt) -> list[ir.Stmt]:
    return list(stmt.body) if isinstance(stmt, ir.Block) else [stmt]
