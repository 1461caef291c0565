"""Which cases of parametrised tests a usual run leaves out.

Many tests are tables of functions times formats times dtypes: thousands of cases of which a few find what all
would. Of a family, the cases of one test function, a usual run keeps

- all, if there are at most ``SMALL`` of them, or if the test is marked ``whole``;
- otherwise so many that every row of every ``parametrize`` (each function, each format, each dtype, each line
  of a table of examples) is in one of them at least, and at least ``SMALL`` and one in ``ONE_IN``.

So only products of several tables are thinned, and tests marked ``sampled(n)``: of what is left of their
cases one in ``n`` is kept. Those are tables of functions that other tests call as well.

A hash of their names chooses, so every run and every process keeps the same. ``--long`` and ``--every-case``
keep all, and so does naming tests with ``::``. Cases are left out before pytest makes tests of them, which
takes longer than what is decided here.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

SMALL = 4
ONE_IN = 12


class Case(Protocol):
    """A test of pytest, here by its name alone."""

    nodeid: str


AnyCase = TypeVar("AnyCase", bound=Case)


@dataclass(frozen=True)
class Planned:
    """A case of which pytest has not made a test yet: the test function and the values of its parameters."""

    definition: Any
    callspec: Any

    @property
    def nodeid(self) -> str:
        """The name that the test will have."""
        return f"{self.definition.nodeid}[{self.callspec.id}]"

    def get_closest_marker(self, name: str) -> Any:
        """The mark of the case itself, else that of its test function."""
        own = [mark for mark in self.callspec.marks if mark.name == name]
        return own[-1] if own else self.definition.get_closest_marker(name)


def thin(family: Sequence[AnyCase]) -> list[AnyCase]:
    """The cases of one test function that run, in their order."""
    kept = {case.nodeid for case in choose(family)}
    return [case for case in family if case.nodeid in kept]


def choose(family: Sequence[AnyCase]) -> list[AnyCase]:
    """The cases of one test function that run, in the order of their hashes."""
    order = sorted(family, key=lambda case: (zlib.crc32(case.nodeid.encode()), case.nodeid))
    kept = order if len(family) <= SMALL or any(map(is_whole, family)) else _cover(order)
    return kept[: -(-len(kept) // sample_of(family[0]))]


def _cover(order: Sequence[AnyCase]) -> list[AnyCase]:
    """So many cases that every row of every table is in one of them, first those with the most new rows."""
    seen: set[tuple[int, str]] = set()
    chosen: list[AnyCase] = []
    rest = list(order)
    for wanted in range(max(len(values(case)) for case in order), 0, -1):
        left = []
        for case in rest:
            new = values(case) - seen
            if len(new) >= wanted:
                chosen.append(case)
                seen |= new
            else:
                left.append(case)
        rest = left
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
