"""Bound the number of values that a step computes, by counting in its operands.

A value is computed where all operands of a product are stored. For two of them that number is exact: each
entry of one counts as often as the other has the coordinates they share; for sparse matrix products it is
known as the number of partial products. It bounds the entries of results whose pattern is not known yet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch

from scorch._src.compiler.plan import Plan
from scorch._src.compiler.schedule.infer_format import support_of
from scorch._src.dataclass import dataclass
from scorch._src.engine.by_torch.relations import keys
from scorch._src.engine.executable import Tensor
from scorch._src.notation.nodes import Access
from scorch._src.storage.coordinates import coordinates
from scorch._src.storage.storage import Pattern, Storage


@dataclass(frozen=True)
class ResultBound:
    """At most ``values`` are computed, ``in_row`` of them while one workspace is filled.

    ``places`` has, for every level of the result, how many different coordinates they have up to there.
    """

    values: int
    in_row: int
    places: tuple[int, ...]


def bound_result(plan: Plan, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> ResultBound:
    """Bound the values that the loops of ``plan`` compute."""
    form, target = plan.result, plan.step.target.indices
    if plan.skip_zeros:
        (access,) = plan.step.accesses
        dense = tensors[access.tensor]
        if isinstance(dense, torch.Tensor) and not dense.is_meta:
            stored = int(torch.count_nonzero(dense))
            return ResultBound(stored, stored, (stored,) * len(form))
    shape = [sizes[index] for index in target]
    values = in_row = 0
    places = [0] * len(form)
    for clause in support_of(plan.step.body, {a: plan.operand(a.tensor) for a in plan.step.accesses}):
        product = _Clause(sorted(clause, key=repr), tensors, sizes)
        left = math.prod(sizes[i] for i in dict.fromkeys(plan.step.indices) if i not in product.indices)
        most = product.points()
        values += most * left
        if plan.workspace == "list":
            in_row += left * product.max_points_with(_outer_indices(plan))
        for level in range(len(form)):
            if target[form.order[level]] not in product.indices:
                most *= form.level_size(level, shape)
            places[level] += most
    return ResultBound(values, in_row, tuple(places))


def _outer_indices(plan: Plan) -> list[str]:
    """Return the indices that are fixed while a workspace is filled."""
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
        """Bound the number of points at which all are stored, counting only the indices that they have."""
        if len(self.accesses) < 2:
            return math.prod(pattern.size for pattern in self.patterns.values())
        return min(self._points_of(*pair) for pair in itertools.combinations(self.accesses, 2))

    def _points_of(self, a: Access, b: Access) -> int:
        """Count where ``a`` and ``b`` are stored, times what others may add with indices of their own."""
        count = int(self._partners(a, b).sum())
        covered = {*a.indices, *b.indices}
        for access, pattern in self.patterns.items():
            new = [index for index in dict.fromkeys(access.indices) if index not in covered]
            if new:
                count *= min(pattern.size, self._room(new))
            covered.update(new)
        return count

    def max_points_with(self, indices: Sequence[str]) -> int:
        """Bound the number of points for any one choice of ``indices``."""
        best = self.points()
        if len(self.accesses) > 2:
            return best
        for access in self.accesses:
            own = [index for index in indices if index in access.indices]
            others = [other for other in self.accesses if other != access]
            if own and self.patterns[access].size:
                partners = self._partners(access, *others)
                _, places = torch.unique(*self._keys([access], own), return_inverse=True)
                sums = torch.zeros_like(partners).index_add_(0, places, partners)
                best = min(best, int(sums.max()))
        return best

    def _partners(self, access: Access, other: Access | None = None) -> torch.Tensor:
        """Count for each entry of ``access`` those of ``other`` that agree with it in the shared indices."""
        shared = [i for i in dict.fromkeys(access.indices) if other is not None and i in other.indices]
        if other is None or not shared:
            count = 1 if other is None else self.patterns[other].size
            return torch.full((self.patterns[access].size,), count, device=self.patterns[access].device)
        ours, theirs = self._keys([access, other], shared)
        ordered = theirs.sort().values
        return torch.searchsorted(ordered, ours, right=True) - torch.searchsorted(ordered, ours)

    def _room(self, indices: Sequence[str]) -> int:
        return math.prod(self.sizes[index] for index in indices)

    def _keys(self, accesses: Sequence[Access], indices: Sequence[str]) -> list[torch.Tensor]:
        """Number the coordinates of each value in ``indices``: equal where they are, in all accesses."""
        sets = []
        for access in accesses:
            dims = {index: access.indices.index(index) for index in indices}
            columns = coordinates(self.patterns[access], dims.values())
            # clamped, as a last block may reach beyond
            sets.append({i: columns[dim].clamp(max=self.sizes[i] - 1) for i, dim in dims.items()})
        return keys(sets, indices, self.sizes)
