"""Several steps for each row of a grid, one stage after another, by the threads of a unit.

    parallel i:  m = max(p in row: S[p]);  meet;  for p in row: E[p] = exp(S[p] - m);  meet;  ...

The threads of a unit share the entries of the row, the terms of a sum or the columns of a dense row, whatever
loop a stage has. They meet before a stage that reads what others of them have stored. What a row has once,
such as its maximum, stays in a register, and loops over the same entries become one.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorch._src.dataclass import dataclass, replace
from scorch._src.loops import nodes as ir
from scorch._src.loops import units
from scorch._src.loops.analysis import walk, with_children
from scorch._src.loops.grid import (
    MIN_TERMS_EACH,
    TERMS_OF_RUN,
    Facts,
    Grid,
    power_of_two,
    shape_of_columns,
)
from scorch._src.loops.jam import renamed
from scorch._src.loops.runs import Runs
from scorch._src.loops.turns import dense_loop, split_by
from scorch._src.loops.units import statements_of


@dataclass(frozen=True)
class Rows:
    """What is done for each ``row``, stage by stage; ``kept`` are arrays that nobody outside reads."""

    header: str
    slots: tuple[ir.Var | ir.Array, ...]
    row: ir.Var
    count: ir.Expr
    stages: tuple[ir.Block, ...]
    kept: frozenset[str] = frozenset()

    def kernel(self, stages: Sequence[ir.Stmt] | None = None) -> ir.Kernel:
        """Return the kernel with a turn for every row."""
        body = ir.block(*(self.stages if stages is None else stages))
        nothing = ir.Block(())
        loop = ir.Parallel(self.row, self.count, ir.Var("threads"), nothing, body, nothing)
        compute = ir.Function("scorch_compute", self.slots, loop, exported=True)
        return ir.Kernel(self.header, self.slots, (compute,))


def in_order(rows: Rows) -> Rows:
    """Return rows whose stages have names of their own, numbers of a row in registers, and joined loops."""
    stages = [_with_own_names(stage, number) for number, stage in enumerate(rows.stages)]
    for name in [slot.name for slot in rows.slots if isinstance(slot, ir.Array)]:
        stages = _in_register(rows, stages, name)
    stages = _joined(stages)
    read = {node.array.name for stage in stages for node in walk(stage) if isinstance(node, ir.Load)}
    unread = rows.kept - read
    stages = [ir.block(_without_stores(stage, unread)) for stage in stages]
    slots = tuple(slot for slot in rows.slots if slot.name not in unread)
    return replace(rows, slots=slots, stages=tuple(stages), kept=rows.kept & read)


def as_units(rows: Rows, facts: Facts) -> tuple[ir.Kernel, Grid]:
    """Return the kernel of rows that are ``in_order`` with a unit of threads for each row."""
    threads = _threads(rows, facts)
    if threads == 1:
        return rows.kernel(), Grid()
    unit = _Unit(threads, facts, {slot.name for slot in rows.slots} | {rows.row.name})
    stages: list[ir.Stmt] = []
    stored: set[str] = set()
    for stage in rows.stages:
        nodes = walk(stage)
        if stored & {node.array.name for node in nodes if isinstance(node, ir.Load)}:
            stages.append(ir.Meet(threads))
            stored = set()
        stored |= {node.array.name for node in nodes if isinstance(node, ir.Store)}
        stages.append(unit.share(stage))
    return rows.kernel(stages), Grid(threads, aligned=tuple(unit.aligned))


# stages with each other ------------------------------------------------------------------------------


def _with_own_names(stage: ir.Block, number: int) -> ir.Block:
    """Return a stage with names of variables that no other declares."""
    declared = [stmt.var.name for stmt in stage.body if isinstance(stmt, ir.Declare)]
    return renamed(stage, {name: f"{name}_{number}" for name in declared}) if number else stage


def _in_register(rows: Rows, stages: list[ir.Block], name: str) -> list[ir.Block]:
    """Return stages in which a number that each row has once is read from a register."""
    stores = [
        (number, stmt) for number, stage in enumerate(stages) for stmt in stage.body if _fills(stmt, name)
    ]
    nodes = [node for stage in stages for node in walk(stage)]
    found = sum(isinstance(node, ir.Store) and node.array.name == name for node in nodes)
    loads = [node for node in nodes if isinstance(node, ir.Load) and node.array.name == name]
    if len(stores) != 1 or found != 1:
        return stages
    number, store = stores[0]
    assert isinstance(store, ir.Store)
    if store.index != rows.row or any(load.index != rows.row for load in loads) or not loads:
        return stages
    var = ir.Var(f"{name}_of_row", store.array.element.computes_in)
    place = stages[number].body.index(store)
    before, after = stages[number].body[:place], stages[number].body[place + 1 :]
    kept = () if name in rows.kept else (replace(store, value=var),)
    changed = ir.Block((*before, ir.Declare(var, store.value), *kept, *after))
    load = ir.Load(store.array, rows.row)
    later = [_replaced(stage, load, var) for stage in stages[number + 1 :]]
    return [*stages[:number], changed, *later]


def _fills(stmt: ir.Stmt, name: str) -> bool:
    return isinstance(stmt, ir.Store) and stmt.array.name == name


def _replaced(node: ir.Stmt, old: ir.Expr, new: ir.Expr) -> ir.Block:
    def change(part: ir.Expr | ir.Stmt | ir.Array) -> ir.Expr | ir.Stmt | ir.Array:
        return new if part == old else with_children(part, change)

    return ir.block(with_children(node, change))


def _without_stores(stmt: ir.Stmt, names: frozenset[str]) -> ir.Stmt:
    def change(part: ir.Expr | ir.Stmt | ir.Array) -> ir.Expr | ir.Stmt | ir.Array:
        if isinstance(part, ir.Store) and part.array.name in names:
            return ir.Block(())
        return with_children(part, change) if isinstance(part, ir.Stmt) else part

    return with_children(stmt, change) if names else stmt


@dataclass(frozen=True)
class _Entries:
    """A stage with one loop over the entries of its row."""

    before: tuple[ir.Stmt, ...]
    loop: ir.For
    after: tuple[ir.Stmt, ...]

    @property
    def stage(self) -> ir.Block:
        return ir.block(*self.before, self.loop, *self.after)


def _joined(stages: Sequence[ir.Block]) -> list[ir.Block]:
    """Return stages with adjacent loops over the same entries in one, where nothing is in the way."""
    left: list[ir.Block] = []
    for stage in stages:
        last = _entries_of(left[-1]) if left else None
        mine = _entries_of(stage)
        together = _together(last, mine) if last is not None and mine is not None else None
        if together is None:
            left.append(stage)
        else:
            left[-1] = together.stage
    return left


def _entries_of(stage: ir.Block) -> _Entries | None:
    """Return a stage whose only loop is one over entries, each of which stores at its own place."""
    loops = [number for number, stmt in enumerate(stage.body) if isinstance(stmt, ir.For)]
    if len(loops) != 1:
        return None
    before, loop, after = stage.body[: loops[0]], stage.body[loops[0]], stage.body[loops[0] + 1 :]
    assert isinstance(loop, ir.For)
    if not all(isinstance(stmt, ir.Declare | ir.Comment) for stmt in before):
        return None
    if not all(isinstance(stmt, ir.Declare | ir.Assign | ir.Store | ir.Comment) for stmt in after):
        return None
    return _Entries(before, loop, after) if is_independent(loop) else None


def is_independent(loop: ir.For) -> bool:
    """Check whether the turns of a loop store and read back their own elements only, and otherwise add up."""
    nodes = walk(loop.body)
    stores = [node for node in nodes if isinstance(node, ir.Store)]
    stored = {node.array.name for node in stores}
    own = all(
        node.index == loop.var
        for node in nodes
        if isinstance(node, ir.Store | ir.Load) and node.array.name in stored
    )
    sums = units.accumulators(loop.body, may_store=True)
    return own and sums is not None and not any(isinstance(node, ir.While) for node in nodes)


def _together(first: _Entries, second: _Entries) -> _Entries | None:
    """Return two stages in one loop; None where the second needs what the first has in the end."""
    one, two = first.loop, second.loop
    if (one.var, one.start, one.stop) != (two.var, two.start, two.stop):
        return None
    stored = {node.array.name: node for node in walk(one) if isinstance(node, ir.Store)}
    made = {node.var.name for stmt in first.stage.body for node in walk(stmt) if isinstance(node, ir.Assign)}
    made |= {stmt.var.name for stmt in first.after if isinstance(stmt, ir.Declare)}
    late = {node.array.name for stmt in first.after for node in walk(stmt) if isinstance(node, ir.Store)}
    for node in walk(ir.block(*second.before, two)):
        if isinstance(node, ir.Load) and (
            node.array.name in late or (node.array.name in stored and node.index != one.var)
        ):
            return None
        if isinstance(node, ir.Var) and node.name in made:
            return None
    if any(isinstance(n, ir.Load) and n.array.name in stored for s in second.before for n in walk(s)):
        return None
    body = _forwarded(one, two)
    return _Entries((*first.before, *second.before), replace(one, body=body), (*first.after, *second.after))


def _forwarded(one: ir.For, two: ir.For) -> ir.Block:
    """Return the bodies of two loops, one after the other: what the first stores the second has already."""
    first, second = statements_of(one.body), statements_of(two.body)
    taken = {node.name for node in walk(one.body) if isinstance(node, ir.Var)}
    names: dict[str, str] = {}
    kept: list[ir.Stmt] = []
    for stmt in second:
        if isinstance(stmt, ir.Declare) and stmt in first:
            continue
        kept.append(stmt)
    for node in walk(ir.block(*kept)):
        if isinstance(node, ir.Declare | ir.For) and node.var.name in taken:
            names[node.var.name] = units.fresh(f"{node.var.name}_", taken)
            taken.add(names[node.var.name])
    rest = renamed(ir.block(*kept), names)
    begun: list[ir.Stmt] = []
    for stmt in first:
        if isinstance(stmt, ir.Store) and not isinstance(stmt.value, ir.Var | ir.Const):
            var = ir.Var(units.fresh(f"{stmt.array.name}_here", taken), stmt.value.type)
            taken.add(var.name)
            begun += [ir.Declare(var, stmt.value), replace(stmt, value=var)]
            rest = _replaced(rest, ir.Load(stmt.array, one.var), var)
        elif isinstance(stmt, ir.Store):
            begun.append(stmt)
            rest = _replaced(rest, ir.Load(stmt.array, one.var), stmt.value)
        else:
            begun.append(stmt)
    return ir.block(*begun, rest)


# the threads of a unit -------------------------------------------------------------------------------


def _threads(rows: Rows, facts: Facts) -> int:
    """Return how many threads share a row: as many as it has entries, or as share its columns."""
    threads = 1
    for loop in (stmt for stage in rows.stages for stmt in stage.body if isinstance(stmt, ir.For)):
        pos = next((node.array.name for node in walk(loop.start) if isinstance(node, ir.Load)), "")
        if pos:
            threads = max(threads, power_of_two(facts.length(pos), up=True))
        else:
            threads = max(threads, shape_of_columns(facts.extent(loop.var.name), facts.bytes)[0])
    return threads


class _Unit:
    """The threads that share the stages of a row."""

    def __init__(self, threads: int, facts: Facts, outside: set[str]) -> None:
        self.threads, self.facts, self.outside = threads, facts, outside
        self.aligned: dict[str, None] = {}  # arrays of which runs are loaded or stored

    def share(self, stage: ir.Block) -> ir.Block:
        """Return a stage whose loop the threads share; one that cannot be shared, all do alike."""
        entries = _entries_of(stage)
        if entries is not None:
            return replace(entries, loop=self._share_entries(entries.loop)).stage
        comments = [stmt for stmt in stage.body if isinstance(stmt, ir.Comment)]
        plain = ir.block(*(stmt for stmt in stage.body if not isinstance(stmt, ir.Comment)))
        opened = dense_loop(plain, self.outside)
        split = None if opened is None else units.split_stores(statements_of(opened[2]))
        if opened is None or split is None:
            return stage
        declared, loop, _ = opened
        fixed, varying = split_by(loop.var, declared)
        return ir.block(*comments, *fixed, self._share_columns(loop, [*varying, *split[0]], split[1]))

    def _share_entries(self, loop: ir.For) -> ir.For:
        """Return a loop over entries, each of which some lanes share if it has a sum over a dense index."""
        statements = statements_of(loop.body)
        sums = [stmt.var.name for stmt in statements if isinstance(stmt, ir.For)]
        if len(sums) != 1:
            return replace(loop, threads=self.threads)
        lanes = min(self.threads, power_of_two(self.facts.extent(sums[0]) // MIN_TERMS_EACH))
        shared, runs = units.share(statements, lanes), None
        if self.facts.is_multiple(sums[0], TERMS_OF_RUN):
            shared, runs = units.share_in_runs(statements, lanes, TERMS_OF_RUN) or (shared, None)
        if shared is None:
            return replace(loop, threads=self.threads)
        self.aligned |= {} if runs is None else runs.arrays
        return replace(loop, body=ir.block(*shared), threads=self.threads, lanes=lanes)

    def _share_columns(self, loop: ir.For, computed: list[ir.Stmt], stored: list[ir.Stmt]) -> ir.Stmt:
        """Return a loop over columns, of which each thread has several, tile by tile.

        If there are fewer columns than threads, these share the terms of sums over entries as well.
        """
        column, facts = loop.var.name, self.facts
        lanes, each = shape_of_columns(facts.extent(column), facts.bytes)
        lanes = min(lanes, self.threads)
        if lanes < self.threads:
            computed = [self._share_terms(stmt, lanes) for stmt in computed]
            if not any(isinstance(stmt, ir.For) and stmt.threads > 1 for stmt in computed):
                lanes = self.threads
        is_run = each > 1 and facts.is_multiple(column, each)
        runs = Runs(loop.var, loop.stop)
        taken = {n.name for stmt in (*computed, *stored) for n in walk(stmt) if isinstance(n, ir.Var)}

        def variable(name: str) -> ir.Var:
            return ir.Var(units.fresh(name, taken))

        width = lanes * each
        tile: ir.Expr = variable(f"{column}_tile") if facts.extent(column) > width else ir.Const(0)
        shared = units.in_columns(runs, tile, computed, stored, lanes, each, is_run, variable)
        self.aligned |= runs.arrays
        if isinstance(tile, ir.Var):
            return ir.For(tile, ir.Const(0), (loop.stop + (width - 1)) // width, shared)
        return shared

    def _share_terms(self, stmt: ir.Stmt, lanes: int) -> ir.Stmt:
        if not isinstance(stmt, ir.For) or units.accumulators(stmt.body) is None:
            return stmt
        return replace(stmt, threads=self.threads, lanes=lanes)
