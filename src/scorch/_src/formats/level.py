"""What every kind of level has in common.

A tensor is stored as a tree, one level per dimension. A level takes a *position* of the level above and
gives the coordinates stored below it, each with a position of its own; the positions of the last level
number the values. What a kernel does with a level is said here as loop expressions, so that the
compiler never asks which kind a level is: it asks what the level promises and what it can do.

Kernels read a level by ``iterate`` and ``locate``. They build one by ``insert`` where it is full, else by
``append``: entries come in order, as the ``pos`` and ``crd`` of a compressed level. ``finish`` turns these
into the array that kernels read in place of ``crd``, and ``coordinates`` back again. Levels written outside
of Scorch do the same, once ``register_level`` knows them: see ``examples/new_level_format.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorch._src.dataclass import dataclass
from scorch._src.loops.nodes import Array, Call, Expr, Load, Stmt, Store, Var, both, wide
from scorch._src.loops.types import Type

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LevelArrays:
    """The arrays of one stored level as a kernel sees them; a full level keeps none.

    Attributes:
        pos: where the entries below each position of the level above begin.
        crd: the coordinate of each entry.
        size: the size of the dimension.
    """

    pos: Array
    crd: Array
    size: Expr

    @staticmethod
    def named(tensor: str, level: int, index: Type) -> LevelArrays:
        """Names come from the tensor and the level, counted from 1: ``A2_pos``, ``A2_crd``."""
        stem = f"{tensor}{level + 1}"
        return LevelArrays(Array(f"{stem}_pos", index), Array(f"{stem}_crd", index), Var(f"{stem}_size"))


class Level:
    """A kind of level. Instances carry no state: one per kind.

    Unless it says otherwise, a level is read and built as a compressed one.

    Example:

        >>> from scorch import Format
        >>> Format("csr").levels
        (dense, compressed)
    """

    letter: str
    name: str
    is_full: bool = False  # every coordinate is there, and the level keeps no arrays
    has_coordinates: bool = False  # ``crd`` has a coordinate for each entry, as it was appended
    is_iterable: bool = True  # entries can be walked; else every coordinate is visited and located
    continues_run: bool = False  # below another such level it has the entries of that one
    is_padded: bool = False  # ``complete`` may add entries

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
        return entries

    # reading -----------------------------------------------------------------------------------------

    def iterate(self, arrays: LevelArrays, parent: Expr) -> tuple[Expr, Expr]:
        """The range of entries below position ``parent``."""
        return wide(Load(arrays.pos, parent)), wide(Load(arrays.pos, parent + 1))

    def coordinate(self, arrays: LevelArrays, position: Expr, parent: Expr) -> Expr:
        """The coordinate of the entry at ``position``, which is one of those below ``parent``."""
        return wide(Load(arrays.crd, position))

    def locate(self, arrays: LevelArrays, parent: Expr, coordinate: Expr, start: Expr, stop: Expr) -> Expr:
        """The position of ``coordinate`` below ``parent``.

        Where it may not be there: the first entry in ``start..stop``, those below ``parent``, not before it.
        """
        return Call(f"lower_bound_{suffix(arrays.crd.element)}", (arrays.crd, start, stop, coordinate))

    def locate_after(self, arrays: LevelArrays, start: Expr, stop: Expr, coordinate: Expr) -> Expr:
        """The first entry in ``start..stop`` whose coordinate is above ``coordinate`` (levels of a run)."""
        return Call(f"upper_bound_{suffix(arrays.crd.element)}", (arrays.crd, start, stop, coordinate))

    def is_stored(
        self, arrays: LevelArrays, parent: Expr, coordinate: Expr, position: Expr, stop: Expr
    ) -> Expr:
        """Whether ``coordinate`` is there, at the ``position`` that ``locate`` gave."""
        return both(position < stop, self.coordinate(arrays, position, parent).equals(coordinate))

    # building ----------------------------------------------------------------------------------------

    def insert(self, arrays: LevelArrays, parent: Expr, coordinate: Expr) -> Expr:
        """Where ``coordinate`` goes below ``parent``, in any order (full levels)."""
        raise AssertionError(f"a {self.name} level is appended to")

    def append(self, arrays: LevelArrays, position: Expr, coordinate: Expr) -> Stmt:
        """Write the entry at ``position``, behind those that are there."""
        return Store(arrays.crd, position, coordinate)

    def room(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> int:
        """How many entries there are once they are complete: more than those of ``crd``, or as many."""
        return crd.numel()

    def complete(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``pos`` and ``crd`` with the entries that a padded level stores besides."""
        return pos, crd

    def length(self, parents: int, size: int, entries: int) -> int:
        """How long the array is that ``finish`` makes, below ``parents`` positions."""
        return entries

    def finish(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> torch.Tensor:
        """Return the integer array that kernels read as ``crd``, from complete entries.

        Below position p lie the coordinates ``crd[pos[p]] .. crd[pos[p + 1] - 1]``, of ``size`` there may be.
        """
        return crd

    def coordinates(self, pos: torch.Tensor, finished: torch.Tensor, size: int) -> torch.Tensor:
        """The coordinates that ``finish`` was given."""
        return finished


def suffix(index: Type) -> str:
    return {"int32": "i32", "int64": "i64"}[index.name]
