"""Packing sorted entries into the levels of any format.

Entries come sorted by the coordinates of the levels and without repeats. One pass walks them and keeps, for
each level, whether the entry begins a new node there: it does where its coordinate, or one further out,
differs from the entry before. New nodes are counted in the first pass (``count``), which gives the
lengths of all arrays, and written in the second (``fill``).
"""

from __future__ import annotations

from scorch._src.compiler.plan import Plan
from scorch._src.dataclass import replace
from scorch._src.formats.scratch import ListScratch
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import BOOL, INT64


def running_total(pos: ir.Array, positions: ir.Expr) -> ir.Stmt:
    """From the number of children of each position to where they begin."""
    r = ir.Var("r")
    total = ir.wide(ir.Load(pos, r + 1)) + ir.wide(ir.Load(pos, r))
    return ir.For(r, ir.Const(0), positions, ir.Store(pos, r + 1, total))


class Packer:
    """Packs the entries of ``entries`` into the result format of ``plan``."""

    def __init__(self, plan: Plan, entries: ListScratch) -> None:
        self.form = plan.result
        self.uses = plan.result_uses
        self.entries = entries
        name = plan.step.target.tensor
        self.values = ir.Array(f"{name}_vals", plan.element)
        self.pos = {
            level: ir.Array(f"{name}{level + 1}_pos", INT64)
            for level in range(len(self.form))
            if self.form.starts_run(level)
        }
        self.crd = {
            level: ir.Array(f"{name}{level + 1}_crd", plan.index)
            for level in range(len(self.form))
            if not self.form.levels[level].is_full
        }
        self.count_of = {level: ir.Var(f"{name}{level + 1}_count") for level in self.pos}

    @property
    def counts(self) -> tuple[ir.Var, ...]:
        """The number of nodes of each level (or run of levels) that keeps coordinates."""
        return tuple(self.count_of.values())

    @property
    def arrays(self) -> tuple[ir.Array, ...]:
        """The arrays of the result; all ``pos`` come zeroed, and the values where levels below are dense."""
        return (*self.pos.values(), *self.crd.values(), self.values)

    def count(self) -> ir.Stmt:
        declared = [ir.Declare(count, ir.Const(0)) for count in self.counts]
        return ir.block(*declared, self._walk(self.count_of, None))

    def fill(self) -> ir.Stmt:
        filled = {level: ir.Var(f"filled{level + 1}") for level in self.pos}
        declared = [ir.Declare(var, ir.Const(0)) for var in filled.values()]
        totals = [running_total(self.pos[level], self._positions_above(level)) for level in self.pos]
        return ir.block(*declared, self._walk(filled, self.values), *totals)

    def _walk(self, counters: dict[int, ir.Var], values: ir.Array | None) -> ir.Stmt:
        """One pass over the entries; without ``values`` it only counts."""
        e, fresh = ir.Var("e"), ir.Var("fresh", BOOL)
        before = {level: ir.Var(f"before{level + 1}") for level in range(len(self.form))}
        decode, coordinates = self.entries.entry(e)
        here = {level: ir.Var(f"at{level + 1}") for level in range(len(self.form))}
        statements: list[ir.Stmt | None] = [
            decode,
            *(ir.Declare(here[level], coordinates[level]) for level in here),
            ir.Declare(fresh, e.equals(0)),
        ]
        position: ir.Expr = ir.Const(0)
        for level, use in enumerate(self.uses):
            parent = position
            if self.form.levels[level].is_full:
                statements.append(ir.Assign(fresh, ir.either(fresh, here[level].differs(before[level]))))
                position = self.form.levels[level].insert(use.arrays, parent, here[level])
                continue
            if not self.form.starts_run(level):
                continue
            run = range(level, self.form.run_from(level))  # and the coordinate levels in step with it
            differs: ir.Expr = ir.FALSE
            for member in run:
                differs = ir.either(differs, here[member].differs(before[member]))
            statements.append(ir.Assign(fresh, ir.either(fresh, differs)))
            if values is not None:
                statements.append(ir.If(fresh, self._write(level, run, here, counters[level], parent)))
            statements.append(ir.Assign(counters[level], counters[level] + ir.Cast(fresh, INT64)))
            position = counters[level] - 1
        if values is not None:
            statements.append(ir.Store(values, position, ir.Load(self.entries.values, e)))
        statements += [ir.Assign(before[level], here[level]) for level in before]
        starts = [ir.Declare(before[level], ir.Const(-1)) for level in before]
        return ir.block(*starts, ir.For(e, ir.Const(0), self.entries.count, ir.block(*statements)))

    def _write(
        self, level: int, run: range, here: dict[int, ir.Var], counter: ir.Var, parent: ir.Expr
    ) -> ir.Stmt:
        pos, appended = self.pos[level], []
        for member in run:
            arrays = replace(self.uses[member].arrays, crd=self.crd[member])
            appended.append(self.form.levels[member].append(arrays, counter, here[member]))
        return ir.block(*appended, ir.Store(pos, parent + 1, ir.Load(pos, parent + 1) + 1))

    def _positions_above(self, level: int) -> ir.Expr:
        """How many positions the level above ``level`` has."""
        count: ir.Expr = ir.Const(1)
        for above in range(level):
            if self.form.levels[above].is_full:
                count = count * self.uses[above].arrays.size
            elif self.form.starts_run(above):
                count = self.count_of[above]
        return count
