"""Index notation: what is computed, with no word about how.

``D[i,j] = A[i,k] * B[k,j] + C[i,j]`` is one ``Assign`` whose right side has an explicit ``Reduce`` for
every index that does not stand on the left. Accesses are compared by what they say: ``A[i,j]`` used
twice is one access, ``A[i,j]`` and ``A[j,i]`` are two.
"""

from __future__ import annotations

from scorch._src.dataclass import dataclass


class Expr:
    """The right side of an assignment, or a part of it."""


@dataclass(frozen=True)
class Access(Expr):
    """``tensor[indices]``; no indices: a scalar."""

    tensor: str
    indices: tuple[str, ...]

    def __hash__(self) -> int:
        return hash(self.tensor)  # which the string remembers; accesses are looked up all the time


@dataclass(frozen=True, eq=False)
class Literal(Expr):
    """A number; 1, 1.0 and True differ, because they promote differently."""

    value: int | float | bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


@dataclass(frozen=True)
class Op(Expr):
    """An elementwise operator of ``loops.operators`` applied to its arguments."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Reduce(Expr):
    """``op`` over all values of ``indices``: sum, max, min, prod, any."""

    op: str
    indices: tuple[str, ...]
    body: Expr


@dataclass(frozen=True)
class Assign:
    """``target = value``: every index of ``value`` is bound by the target or a ``Reduce``."""

    target: Access
    value: Expr
