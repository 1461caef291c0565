"""The scratch level: a workspace that takes entries in any order and gives them back sorted.

A workspace holds the part of a result that is produced out of order, of one or more dimensions, under
one key: the coordinates joined into a number. ``DenseScratch`` has a place for every key, a mark where it
is used and a list of those used; ``ListScratch`` keeps only what was inserted, sorts it and joins equal
keys, also halfway, so that its memory follows the entries that are left and not those inserted.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scorch._src.loops.nodes import (
    FALSE,
    TRUE,
    Allocate,
    Array,
    Assign,
    Binary,
    Call,
    Cast,
    Const,
    Copy,
    Declare,
    Expr,
    Fail,
    Fill,
    For,
    Free,
    Function,
    If,
    Load,
    Perform,
    Resize,
    Return,
    Stmt,
    Store,
    Unary,
    Var,
    block,
    both,
    wide,
)
from scorch._src.loops.types import BOOL, INT32, INT64, Type

Place = Callable[[list[Expr], Expr], Stmt]
FIRST_CAPACITY = 256


def join_key(coordinates: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """``(c1 * size2 + c2) * size3 + c3 ...``."""
    key: Expr = Const(0)
    for coordinate, size in zip(coordinates, sizes, strict=True):
        key = key * size + coordinate
    return key


def split_key(key: Var, names: Sequence[str], sizes: Sequence[Expr]) -> tuple[Stmt, list[Expr]]:
    """The inverse of ``join_key``: declares one variable per coordinate, the last first."""
    statements: list[Stmt] = []
    coordinates: list[Expr] = []
    left: Expr = key
    for name, size in zip(reversed(names[1:]), reversed(sizes[1:]), strict=True):
        var, rest = Var(name), Var(f"{name}_up")
        statements += [Declare(var, left % size), Declare(rest, left // size)]
        coordinates.insert(0, var)
        left = rest
    return block(*statements), [left, *coordinates]


def _product(sizes: Iterable[Expr]) -> Expr:
    return functools.reduce(operator.mul, sizes, Const(1))


@dataclass(eq=False)
class Scratch:
    """A workspace over levels with the given sizes; ``join`` combines two values of one key."""

    name: str
    names: Sequence[str]
    sizes: Sequence[Expr]
    element: Type
    join: str

    counts_exactly = False  # whether ``count`` is that of distinct keys before they are drained

    def __post_init__(self) -> None:
        self.values = Array(f"{self.name}_vals", self.element)
        self.count = Var(f"{self.name}_count")

    def helpers(self) -> tuple[Function, ...]:
        return ()

    def allocate(self) -> Stmt:
        """Once per worker."""
        raise NotImplementedError

    def free(self) -> Stmt:
        raise NotImplementedError

    def limits(self, entries: int, inserted: int) -> dict[str, int]:
        """How far the counters get that arrays grow with if ``inserted`` values have ``entries`` keys."""
        return {}

    def open(self) -> Stmt:
        """Before the entries of one row are inserted."""
        return Assign(self.count, Const(0))

    def insert(self, coordinates: list[Expr], value: Expr) -> Stmt:
        raise NotImplementedError

    def settle(self) -> Stmt:
        """Sort what was inserted."""
        raise NotImplementedError

    def drain(self, place: Place) -> Stmt:
        """Hand every entry, which are sorted, to ``place`` and leave the workspace empty."""
        raise NotImplementedError


@dataclass(eq=False)
class DenseScratch(Scratch):
    """An element for every key; those touched are listed and sorted, with ``bitmap`` by marking them in one.

    With a bitmap, elements hold ``identity``, which changes nothing it is joined with, until they are used.
    """

    bitmap: bool
    identity: Const

    counts_exactly = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.used, self.is_used = Array(f"{self.name}_used", BOOL), Var(f"{self.name}_is_used", BOOL)
        self.touched = Array(f"{self.name}_touched", INT32 if self.bitmap else INT64)
        self.bits, self.tops = Array(f"{self.name}_bits", INT64), Array(f"{self.name}_tops", INT64)
        self.extent, self.words = Var(f"{self.name}_extent"), Var(f"{self.name}_words")

    def allocate(self) -> Stmt:
        bitmaps = [
            Declare(self.words, (self.extent + 4095) // 4096),
            Allocate(self.bits, self.words * 64, zero=True),
            Allocate(self.tops, self.words, zero=True),
        ]
        return block(
            Declare(self.extent, _product(self.sizes)),
            *self._allocate_values(),
            Allocate(self.used, self.extent, zero=True),
            Allocate(self.touched, self.extent + 1),
            *(bitmaps if self.bitmap else ()),
            Declare(self.count, Const(0)),
        )

    def _allocate_values(self) -> tuple[Stmt, ...]:
        if not self.bitmap or self.identity.value == 0:
            return (Allocate(self.values, self.extent, zero=self.bitmap),)
        return Allocate(self.values, self.extent), Fill(self.values, Const(0), self.extent, self.identity)

    def free(self) -> Stmt:
        bitmaps = (Free(self.bits), Free(self.tops)) if self.bitmap else ()
        return block(Free(self.values), Free(self.used), Free(self.touched), *bitmaps)

    def insert(self, coordinates: list[Expr], value: Expr) -> Stmt:
        key = Var(f"{self.name}_key")
        joined = Binary(self.join, Load(self.values, key), value, self.element)
        if self.bitmap:  # without a branch: whether a place is new cannot be foretold
            return block(
                Declare(key, join_key(coordinates, self.sizes)),
                Declare(self.is_used, Load(self.used, key)),
                Store(self.values, key, joined),
                Store(self.used, key, TRUE),
                Store(self.touched, self.count, key),
                Assign(self.count, self.count + Cast(Unary("!", self.is_used, BOOL), INT64)),
            )
        return block(
            Declare(key, join_key(coordinates, self.sizes)),
            If(
                Load(self.used, key),
                Store(self.values, key, joined),
                block(
                    Store(self.used, key, TRUE),
                    Store(self.values, key, value),
                    Store(self.touched, self.count, key),
                    Assign(self.count, self.count + 1),
                ),
            ),
        )

    def settle(self) -> Stmt:
        if self.bitmap:
            return Perform(Call("sort_places", (self.touched, self.count, self.bits, self.tops, self.words)))
        return If(Call("sort_list", (self.touched, self.count, self.extent)) < 0, Fail())

    def drain(self, place: Place) -> Stmt:
        turn, key = Var(f"{self.name}_turn"), Var(f"{self.name}_key")
        decode, coordinates = split_key(key, self.names, self.sizes)
        body = block(
            Declare(key, wide(Load(self.touched, turn))),
            Store(self.used, key, FALSE),
            decode,
            place(coordinates, Load(self.values, key)),
            Store(self.values, key, self.identity) if self.bitmap else None,
        )
        return For(turn, Const(0), self.count, body)


@dataclass(eq=False)
class ListScratch(Scratch):
    """``words`` lists the levels joined in each key: one 64-bit key unless the sizes need more."""

    words: Sequence[Sequence[int]]
    distinct: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keys = [Array(f"{self.name}_key{number + 1}", INT64) for number in range(len(self.words))]
        self.capacity = Var(f"{self.name}_capacity")

    def allocate(self) -> Stmt:
        return block(
            Declare(self.capacity, Const(FIRST_CAPACITY)),
            *(Allocate(key, self.capacity) for key in self.keys),
            Allocate(self.values, self.capacity),
            Declare(self.count, Const(0)),
        )

    def free(self) -> Stmt:
        return block(*(Free(key) for key in self.keys), Free(self.values))

    def limits(self, entries: int, inserted: int) -> dict[str, int]:
        """Room doubles when it is full; unless keys are distinct, if half is once they are joined."""
        most = 2 * entries if self.distinct else min(2 * inserted, 4 * entries)
        return dict.fromkeys((self.capacity.name, self.count.name), max(FIRST_CAPACITY, most))

    def insert(self, coordinates: list[Expr], value: Expr) -> Stmt:
        words = [
            join_key([coordinates[level] for level in word], [self.sizes[level] for level in word])
            for word in self.words
        ]
        return block(
            If(self.count.equals(self.capacity), block(self._make_room())),
            *(Store(key, self.count, word) for key, word in zip(self.keys, words, strict=True)),
            Store(self.values, self.count, value),
            Assign(self.count, self.count + 1),
        )

    def _make_room(self) -> Stmt:
        grow = block(
            Assign(self.capacity, self.capacity * 2),
            *(Resize(key, self.capacity) for key in self.keys),
            Resize(self.values, self.capacity),
        )
        if self.distinct:
            return grow
        return block(self.settle(), If(self.capacity < self.count * 2, grow))

    def settle(self) -> Stmt:
        """Sort and join equal keys."""
        bounds = [
            _product(self.sizes[level] for level in word) for word in self.words
        ]  # above the largest key
        call = Call(f"{self.name}_settle", (*self.keys, self.values, self.count, *bounds))
        return block(Assign(self.count, call), If(self.count < 0, Fail()))

    def drain(self, place: Place) -> Stmt:
        turn = Var(f"{self.name}_turn")
        decode, coordinates = self.entry(turn)
        body = block(decode, place(coordinates, Load(self.values, turn)))
        return For(turn, Const(0), self.count, body)

    def entry(self, turn: Expr) -> tuple[Stmt, list[Expr]]:
        """The coordinates of the entry number ``turn``."""
        statements: list[Stmt] = []
        coordinates: list[Expr] = [Const(0)] * len(self.sizes)
        for number, (key, word) in enumerate(zip(self.keys, self.words, strict=True)):
            var = Var(f"{self.name}_at{number + 1}")
            statements.append(Declare(var, Load(key, turn)))
            names, sizes = [self.names[level] for level in word], [self.sizes[level] for level in word]
            decode, parts = split_key(var, names, sizes)
            statements.append(decode)
            for level, part in zip(word, parts, strict=True):
                coordinates[level] = part
        return block(*statements), coordinates

    def helpers(self) -> tuple[Function, ...]:
        """Sort the first ``count`` entries by key, join equal ones, return how many are left."""
        count, e, m = Var("count"), Var("e"), Var("m")
        order = Array("order", INT64)
        sorted_values = Array("sorted_vals", self.element)
        bounds = [Var(f"bound{number + 1}") for number in range(len(self.keys))]
        gathered = Load(self.values, Load(order, e))
        same = functools.reduce(both, (Load(key, e).equals(Load(key, m - 1)) for key in self.keys))
        joined = Binary(self.join, Load(self.values, m - 1), Load(sorted_values, e), self.element)
        keep = block(
            *(Store(key, m, Load(key, e)) for key in self.keys),
            Store(self.values, m, Load(sorted_values, e)),
            Assign(m, m + 1),
        )
        body = block(
            Allocate(order, count),
            For(e, Const(0), count, Store(order, e, e)),
            self._sort(order, count, bounds),
            Allocate(sorted_values, count),
            For(e, Const(0), count, Store(sorted_values, e, gathered)),
            Declare(m, Const(0)),
            For(e, Const(0), count, If(both(Const(0) < m, same), Store(self.values, m - 1, joined), keep)),
            Free(order),
            Free(sorted_values),
            Return(m),
        )
        return (Function(f"{self.name}_settle", (*self.keys, self.values, count, *bounds), body),)

    def _sort(self, order: Array, count: Var, bounds: list[Var]) -> Stmt:
        e = Var("e")
        if len(self.keys) == 1:
            call = Call("sort_keys", (self.keys[0], order, count, bounds[0]))
            return If(call < 0, Fail())
        column = Array("column", INT64)
        statements: list[Stmt] = [Allocate(column, count)]
        for key, bound in zip(reversed(self.keys), reversed(bounds), strict=True):
            call = Call("sort_keys", (column, order, count, bound))
            statements.append(For(e, Const(0), count, Store(column, e, Load(key, Load(order, e)))))
            statements.append(If(call < 0, Fail()))
        for key in self.keys:
            statements.append(For(e, Const(0), count, Store(column, e, Load(key, Load(order, e)))))
            statements.append(Copy(key, Const(0), column, Const(0), count))
        return block(*statements, Free(column))


def not_zero(value: Expr) -> Expr:
    """Whether a value differs from zero."""
    if value.type.kind == "bool":
        return value
    return Unary("!", Binary("==", value, Const(0, value.type), BOOL), BOOL)
