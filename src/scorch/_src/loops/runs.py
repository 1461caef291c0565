"""Adjacent elements that one thread of a grid loads or stores at once.

    a_0 = A[p], a_1 = A[p + 1], ...      ->      load (a_0, a_1, ...) from A[p]

Runs begin at multiples of their length: so do rows, and the arrays that have them (``Grid.aligned``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scorch._src.dataclass import replace
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import walk, with_children
from scorch._src.loops.jam import renamed, side_by_side

Copies = Sequence[Mapping[str, str]]


class Runs:
    """Elements side by side along ``column``, an index of ``size`` values, the last of dense arrays."""

    def __init__(self, column: ir.Var, size: ir.Expr) -> None:
        self.column, self.size = column, size
        self.defined: dict[str, ir.Expr] = {}
        self.loaded: set[str] = set()  # variables that are loaded at once
        self.arrays: dict[str, None] = {}  # that runs are loaded from or stored to

    def side_by_side(
        self, values: Sequence[ir.Expr], computed: Sequence[ir.Stmt], stored: Sequence[ir.Stmt]
    ) -> tuple[ir.Block, ir.Block]:
        """Return what computes and what stores at several columns, which follow each other."""
        hoisted = ir.block(*(self._hoist(stmt) for stmt in computed))
        together, copies = side_by_side(self.column, values, hoisted)
        return self._join(together, copies), ir.block(*(self._join_stores(stmt, copies) for stmt in stored))

    def is_run(self, index: ir.Expr) -> bool:
        """Check whether ``index`` is a place in a row of ``size`` elements, along ``column``."""
        while isinstance(index, ir.Var) and index != self.column:
            if index.name not in self.defined:
                return False
            index = self.defined[index.name]
        match index:
            case ir.Var():
                return True
            case ir.Binary("+", ir.Binary("*", row, size, _), ir.Var() as last, _):
                return last == self.column and size == self.size and self.column not in walk(row)
        return False

    def _hoist(self, stmt: ir.Stmt) -> ir.Stmt:
        """Return ``stmt`` with what it loads along the column in variables that are declared before it."""
        loads: list[ir.Stmt] = []

        def visit(node: ir.Expr) -> ir.Expr:
            if isinstance(node, ir.Load) and self.is_run(node.index):
                var = ir.Var(f"{node.array.name}_at_{self.column.name}", node.type)
                if var.name not in self.loaded or ir.Declare(var, node) not in loads:
                    var = self._named(var, node, loads)
                return var
            if isinstance(node, ir.Binary | ir.Unary | ir.Cast) and getattr(node, "op", "") not in (
                "&&",
                "||",
            ):
                return with_children(node, visit)
            return node

        match stmt:
            case ir.Declare(var, value):
                stmt = ir.Declare(var, visit(value))
                self.defined[var.name] = value
            case ir.Assign(var, value):
                stmt = ir.Assign(var, visit(value))
            case ir.Block(body):
                return ir.block(*map(self._hoist, body))
            case ir.For():
                return replace(stmt, body=self._hoist(stmt.body))
        return ir.block(*loads, stmt)

    def _named(self, var: ir.Var, load: ir.Load, loads: list[ir.Stmt]) -> ir.Var:
        number, name = 0, var.name
        while name in self.loaded:
            number += 1
            name = f"{var.name}_{number}"
        var = replace(var, name=name)
        self.loaded.add(name)
        self.arrays[load.array.name] = None
        loads.append(ir.Declare(var, load))
        return var

    def _join(self, stmt: ir.Stmt, copies: Copies) -> ir.Block:
        """Return statements with loads that follow each other as one."""
        joined: list[ir.Stmt] = []
        left = list(stmt.body) if isinstance(stmt, ir.Block) else [stmt]
        while left:
            first = left[0]
            name = first.var.name.removesuffix("_t0") if isinstance(first, ir.Declare) else ""
            if name in self.loaded:
                run = [each for each in left[: len(copies)] if isinstance(each, ir.Declare)]
                assert [each.var.name for each in run] == [copy[name] for copy in copies]
                load = run[0].value
                assert isinstance(load, ir.Load)
                joined.append(ir.LoadRun(tuple(each.var for each in run), load.array, load.index))
                left = left[len(copies) :]
                continue
            if isinstance(first, ir.For):
                first = replace(first, body=self._join(first.body, copies))
            joined.append(first)
            left = left[1:]
        return ir.block(*joined)

    def _join_stores(self, stmt: ir.Stmt, copies: Copies) -> ir.Stmt:
        match stmt:
            case ir.Block(body):
                return ir.block(*(self._join_stores(part, copies) for part in body))
            case ir.If(condition, then, otherwise) if self.column not in walk(condition):
                return ir.If(condition, self._join_stores(then, copies), self._join_stores(otherwise, copies))
            case ir.Store(array, index, value) if self.is_run(index):
                self.arrays[array.name] = None
                values = tuple(renamed(value, copy) for copy in copies)
                return ir.StoreRun(array, renamed(index, copies[0]), values)
            case ir.AtomicAdd(array, index, value) if self.is_run(index):
                self.arrays[array.name] = None
                values = tuple(renamed(value, copy) for copy in copies)
                return ir.AtomicAddRun(array, renamed(index, copies[0]), values)
        return ir.block(*(renamed(stmt, copy) for copy in copies))
