"""Lists of entries joined on the indices that they share, by torch's sort and search.

    A[i,j]   i 0 0 2        B[j,k]   j 1 3        A and B   i 0 2
             j 1 2 1                 k 5 7                  j 1 1
                                                            k 5 5

A *relation* has a column of coordinates for each index. The entry that each came from is stored next to them,
so that values are gathered without a search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from scorch._src.backends.sort_entries import distinct, stable_sort
from scorch._src.dataclass import dataclass
from scorch._src.storage.coordinates import joined_ranges

Columns = Mapping[str, torch.Tensor]
Sizes = Mapping[str, int]

_MAX_KEYS = 2**62  # that an int64 distinguishes


@dataclass(frozen=True, eq=False)
class Relation:
    """Points, one in each row: a coordinate for each index, and ``origins``, the entry of each access."""

    columns: Columns
    origins: Mapping[object, torch.Tensor]
    count: int
    device: torch.device

    @staticmethod
    def of(
        access: object, indices: Sequence[str], coordinates: Sequence[torch.Tensor], entries: torch.Tensor
    ) -> Relation:
        """Return the numbered entries of one access; where an index appears twice, those on the diagonal."""
        columns: dict[str, torch.Tensor] = {}
        on_diagonal: torch.Tensor | None = None
        for index, column in zip(indices, coordinates, strict=True):
            if index in columns:
                same = columns[index] == column
                on_diagonal = same if on_diagonal is None else on_diagonal & same
            else:
                columns[index] = column
        relation = Relation(columns, {access: entries}, entries.numel(), entries.device)
        return relation if on_diagonal is None else relation.rows(on_diagonal.nonzero().squeeze(1))

    def rows(self, picked: torch.Tensor) -> Relation:
        """Return the rows with these numbers."""
        columns = {index: column[picked] for index, column in self.columns.items()}
        origins = {access: entries[picked] for access, entries in self.origins.items()}
        return Relation(columns, origins, picked.numel(), self.device)

    def crossed(self, index: str, size: int) -> Relation:
        """Pair every row with every coordinate of an index that it does not have."""
        repeated = self.rows(torch.arange(self.count, device=self.device).repeat_interleave(size))
        column = torch.arange(size, device=self.device).repeat(self.count)
        return Relation({**repeated.columns, index: column}, repeated.origins, repeated.count, self.device)


def keys(sets: Sequence[Columns], indices: Sequence[str], sizes: Sizes) -> list[torch.Tensor]:
    """Number the rows of several sets of columns: equal and ordered as their coordinates are."""
    firsts = [columns[indices[0]] for columns in sets]
    lengths = [column.numel() for column in firsts]
    key = torch.zeros(sum(lengths), dtype=torch.int64, device=firsts[0].device)
    bound = 1
    for index in indices:
        column = torch.cat([columns[index].to(torch.int64) for columns in sets])
        size = max(sizes[index], 1)
        if bound * size >= _MAX_KEYS:  # ranks instead, of which there are as many as rows
            once, key, _ = distinct(key)
            bound = max(once.numel(), 1)
        if bound * size >= _MAX_KEYS:
            once, column, _ = distinct(column)
            size = max(once.numel(), 1)
        key = key * size + column
        bound *= size
    return list(key.split(lengths))


def join(left: Relation, right: Relation, sizes: Sizes) -> Relation:
    """Return all pairs of rows that agree in the indices of both."""
    shared = [index for index in right.columns if index in left.columns]
    if not shared:
        rows = torch.arange(left.count, device=left.device).repeat_interleave(right.count)
        others = torch.arange(right.count, device=left.device).repeat(left.count)
    else:
        wanted, offered = keys([left.columns, right.columns], shared, sizes)
        ordered, order = stable_sort(offered)
        first = torch.searchsorted(ordered, wanted)
        many = torch.searchsorted(ordered, wanted, right=True) - first
        rows = torch.arange(left.count, device=left.device).repeat_interleave(many)
        others = order[joined_ranges(first, many)]
    a, b = left.rows(rows), right.rows(others)
    return Relation({**b.columns, **a.columns}, {**a.origins, **b.origins}, rows.numel(), left.device)


def join_all(relations: Sequence[Relation], sizes: Sizes, device: torch.device) -> Relation:
    """Join several relations; small ones first, then those that share an index with them."""
    left = sorted(relations, key=lambda relation: relation.count)
    joined = unit = Relation({}, {}, 1, device)
    while left:
        following = next((other for other in left if other.columns.keys() & joined.columns.keys()), left[0])
        left.remove(following)
        joined = following if joined is unit else join(joined, following, sizes)
    return joined


def find(points: Columns, count: int, relation: Relation, sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Find for each point its row in ``relation``, whose rows are distinct, and whether there is one."""
    indices = list(relation.columns)
    if not relation.count:
        none = torch.zeros(count, dtype=torch.bool, device=relation.device)
        return none.to(torch.int64), none
    if not indices:
        every = torch.ones(count, dtype=torch.bool, device=relation.device)
        return torch.zeros_like(every, dtype=torch.int64), every
    wanted, offered = keys([points, relation.columns], indices, sizes)
    ordered, order = stable_sort(offered)
    place = torch.searchsorted(ordered, wanted).clamp_(max=relation.count - 1)
    return order[place], ordered[place] == wanted


def union(relations: Sequence[Relation], indices: Sequence[str], sizes: Sizes) -> Relation:
    """Return the points of several relations that have all of ``indices``, each once."""
    if not indices:
        return Relation({}, {}, int(any(r.count for r in relations)), relations[0].device)
    together = torch.cat(keys([relation.columns for relation in relations], indices, sizes))
    _, inverse, _ = distinct(together)
    count = int(inverse.max()) + 1 if inverse.numel() else 0
    first = torch.zeros(count, dtype=torch.int64, device=inverse.device)
    first[inverse] = torch.arange(inverse.numel(), device=inverse.device)  # any of those that are alike
    columns = {
        index: torch.cat([r.columns[index].to(torch.int64) for r in relations])[first] for index in indices
    }
    return Relation(columns, {}, count, inverse.device)
