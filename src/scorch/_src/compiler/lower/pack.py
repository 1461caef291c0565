"""Packing sorted entries into the levels of any format.

Entries come sorted by the coordinates of the levels and without repeats. One pass walks them and keeps, for
each level, whether the entry begins a new node there: it does where its coordinate, or one further out,
differs from the entry before. New nodes are counted in the first pass (``count``), which gives the
lengths of all arrays, and written in the second (``fill``).
"""

from __future__ import annotations

from dataclasses import replace

from scorch._src.compiler.plan import Plan
from scorch._src.formats.scratch import ListScratch
from scorch._src.loops.nodes import (
    FALSE,
    Array,
    Assign,
    Cast,
    Const,
    Declare,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    Var,
    block,
    either,
    wide,
)
from scorch._src.loops.types import BOOL, INT64


def running_total(pos: Array, positions: Expr) -> Stmt:
    """From the number of children of each position to where they begin."""
    r = Var("r")
    total = wide(Load(pos, r + 1)) + wide(Load(pos, r))
    return For(r, Const(0), positions, Store(pos, r + 1, total))


class Packer:
    """Packs the entries of ``entries`` into the result format of ``plan``."""

    def __init__(self, plan: Plan, entries: ListScratch) -> None:
        self.form = plan.result
        self.uses = plan.result_uses
        self.entries = entries
        name = plan.step.target.tensor
        self.values = Array(f"{name}_vals", plan.element)
        self.pos = {
            level: Array(f"{name}{level + 1}_pos", INT64)
            for level in range(len(self.form))
            if self.form.starts_run(level)
        }
        self.crd = {
            level: Array(f"{name}{level + 1}_crd", plan.index)
            for level in range(len(self.form))
            if not self.form.levels[level].is_full
        }
        self.count_of = {level: Var(f"{name}{level + 1}_count") for level in self.pos}

    @property
    def counts(self) -> tuple[Var, ...]:
        """The number of nodes of each level (or run of levels) that keeps coordinates."""
        return tuple(self.count_of.values())

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the result; all ``pos`` come zeroed, and the values where levels below are dense."""
        return (*self.pos.values(), *self.crd.values(), self.values)

    def count(self) -> Stmt:
        declared = [Declare(count, Const(0)) for count in self.counts]
        return block(*declared, self._walk(self.count_of, None))

    def fill(self) -> Stmt:
        filled = {level: Var(f"filled{level + 1}") for level in self.pos}
        declared = [Declare(var, Const(0)) for var in filled.values()]
        totals = [running_total(self.pos[level], self._positions_above(level)) for level in self.pos]
        return block(*declared, self._walk(filled, self.values), *totals)

    def _walk(self, counters: dict[int, Var], values: Array | None) -> Stmt:
        """One pass over the entries; without ``values`` it only counts."""
        e, fresh = Var("e"), Var("fresh", BOOL)
        before = {level: Var(f"before{level + 1}") for level in range(len(self.form))}
        decode, coordinates = self.entries.entry(e)
        here = {level: Var(f"at{level + 1}") for level in range(len(self.form))}
        statements: list[Stmt | None] = [
            decode,
            *(Declare(here[level], coordinates[level]) for level in here),
            Declare(fresh, e.equals(0)),
        ]
        position: Expr = Const(0)
        for level, use in enumerate(self.uses):
            parent = position
            if self.form.levels[level].is_full:
                statements.append(Assign(fresh, either(fresh, here[level].differs(before[level]))))
                position = self.form.levels[level].insert(use.arrays, parent, here[level])
                continue
            if not self.form.starts_run(level):
                continue
            run = range(level, self.form.run_from(level))  # and the coordinate levels in step with it
            differs: Expr = FALSE
            for member in run:
                differs = either(differs, here[member].differs(before[member]))
            statements.append(Assign(fresh, either(fresh, differs)))
            if values is not None:
                statements.append(If(fresh, self._write(level, run, here, counters[level], parent)))
            statements.append(Assign(counters[level], counters[level] + Cast(fresh, INT64)))
            position = counters[level] - 1
        if values is not None:
            statements.append(Store(values, position, Load(self.entries.values, e)))
        statements += [Assign(before[level], here[level]) for level in before]
        starts = [Declare(before[level], Const(-1)) for level in before]
        return block(*starts, For(e, Const(0), self.entries.count, block(*statements)))

    def _write(self, level: int, run: range, here: dict[int, Var], counter: Var, parent: Expr) -> Stmt:
        pos, appended = self.pos[level], []
        for member in run:
            arrays = replace(self.uses[member].arrays, crd=self.crd[member])
            appended.append(self.form.levels[member].append(arrays, counter, here[member]))
        return block(*appended, Store(pos, parent + 1, Load(pos, parent + 1) + 1))

    def _positions_above(self, level: int) -> Expr:
        """How many positions the level above ``level`` has."""
        count: Expr = Const(1)
        for above in range(level):
            if self.form.levels[above].is_full:
                count = count * self.uses[above].arrays.size
            elif self.form.starts_run(above):
                count = self.count_of[above]
        return count
