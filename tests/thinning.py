"""Which cases of parametrised tests a usual run leaves out.

Many tests are tables of functions times formats times dtypes: thousands of cases of which a few find what all
would. Of a family, the cases of one test function, a usual run keeps

- all, if there are at most ``SMALL`` of them, or if the test is marked ``whole``;
- otherwise so many that every row of every ``parametrize`` (each function, each format, each dtype, each line
  of a table of examples) is in one of them at least, and at least ``SMALL`` and one in ``ONE_IN``.

So only products of several tables are thinned, and tests marked ``sampled(n)``: of what is left of their
cases one in ``n`` is kept. Those are tables of functions that other tests call as well.

A hash of their names chooses, so every run and every process keeps the same. ``--long`` and ``--every-case``
keep all, and so does naming tests with ``::``.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol, TypeVar

SMALL = 4
ONE_IN = 12


class Case(Protocol):
    """A test of pytest, here by its name alone."""

    nodeid: str


AnyCase = TypeVar("AnyCase", bound=Case)


def thin(items: Sequence[AnyCase]) -> tuple[list[AnyCase], list[AnyCase]]:
    """The cases to run and those to leave out, each in their order."""
    families: dict[str, list[AnyCase]] = {}
    for item in items:
        families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item.nodeid for family in families.values() for item in choose(family)}
    return [i for i in items if i.nodeid in kept], [i for i in items if i.nodeid not in kept]


def choose(family: list[AnyCase]) -> list[AnyCase]:
    """The cases of one test function that run."""
    order = sorted(family, key=lambda case: (zlib.crc32(case.nodeid.encode()), case.nodeid))
    kept = order if len(family) <= SMALL or any(map(is_whole, family)) else _cover(order)
    return kept[: -(-len(kept) // sample_of(family[0]))]


def _cover(order: list[AnyCase]) -> list[AnyCase]:
    """So many cases that every row of every table is in one of them."""
    seen: set[tuple[int, str]] = set()
    chosen, rest = [], []
    for case in order:
        new = values(case) - seen
        (chosen if new else rest).append(case)
        seen |= new
    missing = max(SMALL, -(-len(order) // ONE_IN)) - len(chosen)
    return chosen + rest[: max(0, missing)]


def is_whole(case: Case) -> bool:
    find = getattr(case, "get_closest_marker", None)
    return find is not None and find("whole") is not None


def sample_of(case: Case) -> int:
    """Of how many cases that would be kept one is."""
    find = getattr(case, "get_closest_marker", None)
    mark = find("sampled") if find is not None else None
    return int(mark.args[0]) if mark is not None else 1


def values(case: Case) -> set[tuple[int, str]]:
    """The row of each table of parameters that a case is made of: their numbers and the names of the rows."""
    names: Sequence[str] = case.callspec._idlist if hasattr(case, "callspec") else ()
    return set(enumerate(names))
