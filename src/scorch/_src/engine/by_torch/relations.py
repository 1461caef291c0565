"""Lists of entries joined on the indices that they share, by torch's sort and search.

    A[i,j]   i 0 0 2        B[j,k]   j 1 3        A and B   i 0 2
             j 1 2 1                 k 5 7                  j 1 1
                                                            k 5 5

A *relation* has a column of coordinates for each index. What came from which entry is kept beside them, so
that values are picked and never looked for again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

Columns = Mapping[str, torch.Tensor]
Sizes = Mapping[str, int]

_MOST = 2**62  # places that one number can tell apart


@dataclass(frozen=True, eq=False)
class Relation:
    """Points, one in each row: a coordinate for each index, and ``origins``, the entry of each access."""

    columns: Columns
    origins: Mapping[object, torch.Tensor]
    count: int

    @staticmethod
    def of(
        access: object, indices: Sequence[str], coordinates: Sequence[torch.Tensor], count: int
    ) -> Relation:
        """The entries of one access; with an index that stands twice, those on the diagonal."""
        columns: dict[str, torch.Tensor] = {}
        kept: torch.Tensor | None = None
        for index, column in zip(indices, coordinates, strict=True):
            if index in columns:
                same = columns[index] == column
                kept = same if kept is None else kept & same
            else:
                columns[index] = column
        entries = torch.arange(count, device="cpu")
        found = Relation(columns, {access: entries}, count)
        return found if kept is None else found.rows(entries[kept])

    def rows(self, picked: torch.Tensor) -> Relation:
        """The rows with these numbers."""
        columns = {index: column[picked] for index, column in self.columns.items()}
        origins = {access: entries[picked] for access, entries in self.origins.items()}
        return Relation(columns, origins, picked.numel())

    def crossed(self, index: str, size: int) -> Relation:
        """Every row with every coordinate of an index that it does not have."""
        found = self.rows(torch.arange(self.count, device="cpu").repeat_interleave(size))
        column = torch.arange(size, device="cpu").repeat(self.count)
        return Relation({**found.columns, index: column}, found.origins, found.count)


UNIT = Relation({}, {}, 1)


def keys(sets: Sequence[Columns], indices: Sequence[str], sizes: Sizes) -> list[torch.Tensor]:
    """A number for each row of several sets of columns: equal and ordered as its coordinates are."""
    lengths = [next((columns[index].numel() for index in indices), 0) for columns in sets]
    found = torch.zeros(sum(lengths), dtype=torch.int64, device="cpu")
    bound = 1
    for index in indices:
        column = torch.cat([columns[index].to(torch.int64) for columns in sets])
        size = max(sizes[index], 1)
        if bound * size >= _MOST:  # ranks instead, of which there are as many as rows
            distinct, found = torch.unique(found, return_inverse=True)
            bound = max(distinct.numel(), 1)
        if bound * size >= _MOST:
            distinct, column = torch.unique(column, return_inverse=True)
            size = max(distinct.numel(), 1)
        found = found * size + column
        bound *= size
    return list(found.split(lengths))


def join(left: Relation, right: Relation, sizes: Sizes) -> Relation:
    """All pairs of rows that agree in the indices of both."""
    shared = [index for index in right.columns if index in left.columns]
    if not shared:
        rows = torch.arange(left.count, device="cpu").repeat_interleave(right.count)
        others = torch.arange(right.count, device="cpu").repeat(left.count)
    else:
        wanted, offered = keys([left.columns, right.columns], shared, sizes)
        ordered, order = torch.sort(offered, stable=True)
        first = torch.searchsorted(ordered, wanted)
        many = torch.searchsorted(ordered, wanted, right=True) - first
        rows = torch.arange(left.count, device="cpu").repeat_interleave(many)
        before = torch.cumsum(many, 0) - many
        others = order[(first - before)[rows] + torch.arange(rows.numel(), device="cpu")]
    a, b = left.rows(rows), right.rows(others)
    return Relation({**b.columns, **a.columns}, {**a.origins, **b.origins}, rows.numel())


def join_all(relations: Sequence[Relation], sizes: Sizes) -> Relation:
    """All rows of several relations that agree; small ones first, and those that share an index with them."""
    left = sorted(relations, key=lambda relation: relation.count)
    found = UNIT
    while left:
        following = next((other for other in left if other.columns.keys() & found.columns.keys()), left[0])
        left.remove(following)
        found = following if found is UNIT else join(found, following, sizes)
    return found


def find(points: Columns, count: int, relation: Relation, sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """For each point the row of ``relation``, which has no two alike, and whether there is one."""
    indices = list(relation.columns)
    if not relation.count:
        return torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.bool)
    if not indices:
        return torch.zeros(count, dtype=torch.int64), torch.ones(count, dtype=torch.bool)
    wanted, offered = keys([points, relation.columns], indices, sizes)
    ordered, order = torch.sort(offered, stable=True)
    place = torch.searchsorted(ordered, wanted).clamp_(max=relation.count - 1)
    return order[place], ordered[place] == wanted


def union(relations: Sequence[Relation], indices: Sequence[str], sizes: Sizes) -> Relation:
    """The points of several relations that have all of ``indices``, each once."""
    if not indices:
        return Relation({}, {}, int(any(relation.count for relation in relations)))
    together = torch.cat(keys([relation.columns for relation in relations], indices, sizes))
    _, inverse = torch.unique(together, return_inverse=True)
    count = int(inverse.max()) + 1 if inverse.numel() else 0
    first = torch.zeros(count, dtype=torch.int64, device="cpu")
    first[inverse] = torch.arange(inverse.numel(), device="cpu")  # any of those that are alike
    columns = {
        index: torch.cat([r.columns[index].to(torch.int64) for r in relations])[first] for index in indices
    }
    return Relation(columns, {}, count)


def number_of_places(indices: Sequence[str], sizes: Sizes) -> int:
    return math.prod(sizes[index] for index in indices)
