"""The levels of an access as loops walk them: how far it is resolved, and the level being walked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scorch._src.compiler.lattice import Support
from scorch._src.compiler.plan import LevelUse
from scorch._src.formats import Level
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import BOOL
from scorch._src.notation.nodes import Access


@dataclass(frozen=True)
class State:
    """How far an access is resolved.

    ``level`` is the next one. ``start`` is the position reached; where that is a run of entries they end
    before ``stop``. ``present`` is TRUE, FALSE or a flag.
    """

    level: int
    start: ir.Expr
    stop: ir.Expr | None
    present: ir.Expr


States = Mapping[Access, State]
Flags = Mapping[Access, ir.Expr]
Check = tuple[Support, Flags]  # a condition, and the flags it is about


@dataclass(frozen=True)
class Cursor:
    """A stored level walked below ``parent``: its position, its end, and where the run at the front ends."""

    access: Access
    use: LevelUse
    kind: Level
    parent: ir.Expr
    position: ir.Var
    end: ir.Var
    is_unique: bool

    @property
    def has_more(self) -> ir.Expr:
        return self.position < self.end

    @property
    def front(self) -> ir.Expr:
        return self.kind.coordinate(self.use.arrays, self.position, self.parent)

    @property
    def front_var(self) -> ir.Var:
        """The variable that ``front`` is read into."""
        return ir.Var(f"{self.position.name}_front")

    @property
    def run_end(self) -> ir.Var:
        return ir.Var(f"{self.position.name}_next")

    @property
    def flag(self) -> ir.Var:
        return ir.Var(f"{self.position.name}_here", BOOL)

    def find_run_end(self, x: ir.Expr) -> ir.Stmt | None:
        """Set ``run_end`` behind the entries with coordinate ``x`` at the front (levels with repeats)."""
        if self.is_unique:
            return None
        there = self.kind.coordinate(self.use.arrays, self.run_end, self.parent)
        more = ir.both(self.run_end < self.end, there.equals(x))
        return ir.block(
            ir.Declare(self.run_end, self.position),
            ir.While(more, ir.Assign(self.run_end, self.run_end + 1)),
        )

    def resolved(self, level: int, present: ir.Expr) -> State:
        return State(level + 1, self.position, None if self.is_unique else self.run_end, present)


@dataclass(frozen=True)
class Loop:
    """A loop being opened: its depth and variable, and what holds around it.

    ``known`` is what is left to say of the last check, once what it needs at any rate is known to be there.
    """

    depth: int
    x: ir.Var
    states: States
    bound: frozenset[str]
    known: Check | None
    followers: list[Cursor]


def formula(where: Support, flags: Mapping[Access, ir.Expr]) -> ir.Expr:
    """``where`` as a condition over ``flags``, in a stable order."""
    found: ir.Expr = ir.FALSE
    order = list(flags)
    for clause in sorted(where, key=lambda c: sorted(order.index(a) for a in c)):
        term: ir.Expr = ir.TRUE
        for access in sorted(clause, key=order.index):
            term = ir.both(term, flags[access])
        found = ir.either(found, term)
    return found
