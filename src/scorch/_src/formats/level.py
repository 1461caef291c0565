"""What every kind of level has in common.

A tensor is stored as a tree, one level per dimension. A level takes a *position* of the level above and
gives the coordinates stored below it, each with a position of its own; the positions of the last level
number the values. What a kernel does with a level is said here as loop expressions, so that the
compiler never asks which kind a level is: it asks what the level promises and what it can do.

Levels can be written outside of Scorch: see ``examples/new_level_format.py``. Such a level is *coded*: it has
the entries of a compressed level, and kernels read their coordinates from another array, made by ``code``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scorch._src.loops.nodes import Array, Call, Expr, Load, Var, wide
from scorch._src.loops.types import Type

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LevelArrays:
    """The arrays of one stored level as a kernel sees them; a level uses those it keeps."""

    pos: Array
    crd: Array
    size: Expr

    @staticmethod
    def named(tensor: str, level: int, index: Type) -> LevelArrays:
        """Names come from the tensor and the level, counted from 1: ``A2_pos``, ``A2_crd``."""
        stem = f"{tensor}{level + 1}"
        return LevelArrays(Array(f"{stem}_pos", index), Array(f"{stem}_crd", index), Var(f"{stem}_size"))


class Level:
    """A kind of level. Instances carry no state: one per kind."""

    letter: str
    name: str
    is_full: bool  # every coordinate is there
    keeps_crd: bool
    keeps_pos: bool  # unless it continues a run of coordinate levels: see Format.starts_run
    is_coded: bool = False  # kernels get what ``code`` makes of the coordinates

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[type[Level], tuple[()]]:
        return type(self), ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(self.letter)

    def count(self, parents: int, size: int, entries: int) -> int:
        """How many positions the level has below ``parents`` positions."""
        raise NotImplementedError

    def bounds(self, arrays: LevelArrays, parent: Expr) -> tuple[Expr, Expr]:
        """The range of entries below position ``parent`` (levels that keep coordinates)."""
        return wide(Load(arrays.pos, parent)), wide(Load(arrays.pos, parent + 1))

    def code(self, pos: torch.Tensor, crd: torch.Tensor) -> torch.Tensor:
        """What kernels get as ``crd``, from the coordinates ``crd[pos[p]] ...`` below each position p.

        A level that cannot hold them raises ``FormatError``.
        """
        return crd

    def coordinate(self, arrays: LevelArrays, position: Expr, parent: Expr) -> Expr:
        """The coordinate of the entry at ``position``, which is one of those below ``parent``."""
        return wide(Load(arrays.crd, position))

    def search(self, arrays: LevelArrays, start: Expr, stop: Expr, coordinate: Expr, parent: Expr) -> Expr:
        """The first entry in ``start..stop``, those below ``parent``, not before ``coordinate``."""
        name = f"lower_bound_{_suffix(arrays.crd.element)}"
        return Call(name, (arrays.crd, start, stop, coordinate))

    def search_after(self, arrays: LevelArrays, start: Expr, stop: Expr, coordinate: Expr) -> Expr:
        """The first entry in ``start..stop`` whose coordinate is above ``coordinate``."""
        name = f"upper_bound_{_suffix(arrays.crd.element)}"
        return Call(name, (arrays.crd, start, stop, coordinate))

    def locate(self, arrays: LevelArrays, parent: Expr, coordinate: Expr) -> Expr:
        """The position of ``coordinate`` below ``parent``, computed (full levels)."""
        raise AssertionError(f"a {self.name} level is searched, not located")


def _suffix(index: Type) -> str:
    return {"int32": "i32", "int64": "i64"}[index.name]
