"""How many values a step can find at most, counted in the operands at hand.

A value is found where all operands of a product are stored. For two of them that number is exact: each entry
of one counts as often as the other has the coordinates they share; for sparse matrix products it is known
as the number of partial products. It bounds the entries of results whose pattern nobody knows beforehand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from scorch._src.compiler.plan import Plan
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.engine.executable import Tensor
from scorch._src.notation.nodes import Access
from scorch._src.storage.coordinates import coordinates
from scorch._src.storage.storage import Pattern, Storage

FEW_KEYS = 1 << 20  # up to this many, or a few for each entry, are counted in an array
MOST_KEYS = 2**62


@dataclass(frozen=True)
class Points:
    """``values`` are found at most, ``in_row`` of them while one workspace is filled.

    ``places`` has, for every level of the result, how many different coordinates they have up to there.
    """

    values: int
    in_row: int
    places: tuple[int, ...]


def most_points(plan: Plan, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Points:
    """What the loops of ``plan`` find at most."""
    form, target = plan.result, plan.step.target.indices
    if plan.skip_zeros:
        (access,) = plan.step.accesses
        dense = tensors[access.tensor]
        if isinstance(dense, torch.Tensor) and not dense.is_meta:
            stored = int(torch.count_nonzero(dense))
            return Points(stored, stored, (stored,) * len(form))
    shape = [sizes[index] for index in target]
    values = in_row = 0
    places = [0] * len(form)
    for clause in support_of(plan.step, {a: plan.operand(a.tensor) for a in plan.step.accesses}):
        found = _Clause(sorted(clause, key=repr), tensors, sizes)
        left = math.prod(sizes[i] for i in dict.fromkeys(plan.step.indices) if i not in found.indices)
        most = found.points()
        values += most * left
        if plan.workspace == "list":
            in_row += left * found.most_with(_outer_indices(plan))
        for level in range(len(form)):
            if target[form.order[level]] not in found.indices:
                most *= form.level_size(level, shape)
            places[level] += most
    return Points(values, in_row, tuple(places))


def _outer_indices(plan: Plan) -> list[str]:
    """The indices that are fixed while a workspace is filled."""
    loops = plan.order[: plan.prefix]
    return [index for index, part in map(plan.splits.origin, loops) if part == "whole"]


class _Clause:
    """Operands that must all be stored."""

    def __init__(
        self, accesses: Sequence[Access], tensors: Mapping[str, Tensor], sizes: Mapping[str, int]
    ) -> None:
        self.accesses = accesses
        self.sizes = sizes
        self.indices = {index for access in accesses for index in access.indices}
        self.patterns: dict[Access, Pattern] = {}
        for access in accesses:
            tensor = tensors[access.tensor]
            assert isinstance(tensor, Storage)
            self.patterns[access] = tensor.pattern

    def points(self) -> int:
        """At how many points all are stored at most, counting only the indices that they have."""
        if len(self.accesses) < 2:
            return math.prod(pattern.size for pattern in self.patterns.values())
        return min(self._points_of(*pair) for pair in itertools.combinations(self.accesses, 2))

    def _points_of(self, a: Access, b: Access) -> int:
        """Where ``a`` and ``b`` are stored, times what others may add with indices of their own."""
        found = int(self._partners(a, b).sum())
        covered = {*a.indices, *b.indices}
        for access, pattern in self.patterns.items():
            new = [index for index in dict.fromkeys(access.indices) if index not in covered]
            if new:
                found *= min(pattern.size, self._room(new))
            covered.update(new)
        return found

    def most_with(self, indices: Sequence[str]) -> int:
        """The same for any one choice of ``indices``."""
        best = self.points()
        if len(self.accesses) > 2:
            return best
        for access in self.accesses:
            own = [index for index in indices if index in access.indices]
            others = [other for other in self.accesses if other != access]
            if own and self._room(own) <= MOST_KEYS and self.patterns[access].size:
                found = self._partners(access, *others)
                _, places = torch.unique(self._keys(access, own), return_inverse=True)
                sums = torch.zeros_like(found).index_add_(0, places, found)
                best = min(best, int(sums.max()))
        return best

    def _partners(self, access: Access, other: Access | None = None) -> torch.Tensor:
        """For each entry of ``access``, how many of ``other`` agree with it in the indices they share."""
        entries = self.patterns[access].size
        count = 1 if other is None else self.patterns[other].size
        shared = [i for i in dict.fromkeys(access.indices) if other is not None and i in other.indices]
        room = self._room(shared)
        if other is None or not shared or not count or room > MOST_KEYS:
            return torch.full((entries,), count, device=self.patterns[access].device)
        ours, theirs = self._keys(access, shared), self._keys(other, shared)
        if room <= max(FEW_KEYS, 4 * (entries + count)):
            return torch.bincount(theirs, minlength=room)[ours]
        keys, counts = torch.unique(theirs, return_counts=True)
        at = torch.searchsorted(keys, ours).clamp_(max=keys.numel() - 1)
        return torch.where(keys[at] == ours, counts[at], 0)

    def _room(self, indices: Sequence[str]) -> int:
        return math.prod(self.sizes[index] for index in indices)

    def _keys(self, access: Access, indices: Sequence[str]) -> torch.Tensor:
        """The coordinates of each value in ``indices``, joined into a number."""
        pattern = self.patterns[access]
        keys = torch.zeros(pattern.size, dtype=torch.int64, device=pattern.device)
        dims = [access.indices.index(index) for index in indices]
        found = coordinates(pattern, dims)
        for index, dim in zip(indices, dims, strict=True):
            size = self.sizes[index]  # which a last block may reach beyond
            keys = keys * size + found[dim].clamp(max=size - 1)
        return keys
