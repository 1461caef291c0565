"""The dense level: every coordinate is there, so nothing is kept and positions are computed."""

from __future__ import annotations

from scorch._src.formats.level import Level, LevelArrays
from scorch._src.loops.nodes import Expr


class Dense(Level):
    letter, name = "d", "dense"
    is_full = True

    def count(self, parents: int, size: int, entries: int) -> int:
        return parents * size

    def locate(self, arrays: LevelArrays, parent: Expr, coordinate: Expr, start: Expr, stop: Expr) -> Expr:
        return self.insert(arrays, parent, coordinate)

    def insert(self, arrays: LevelArrays, parent: Expr, coordinate: Expr) -> Expr:
        return parent * arrays.size + coordinate
