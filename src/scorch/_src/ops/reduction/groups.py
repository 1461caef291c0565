"""The entries of a tensor grouped by the element of the result that they are reduced to.

Entries with the same coordinates in the kept dimensions are a *group*. A group that stores fewer entries than
the reduced dimensions have elements holds implicit zeros too. The groups depend on the pattern alone, so they
are cached with it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch

from scorch._src.backends.base import routines_for
from scorch._src.backends.by_torch.rows import sum_rows
from scorch._src.backends.sort_entries import distinct, stable_sort
from scorch._src.grad_state import cached_outside_modes, is_differentiable, is_transformed, untracked
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import keys_of
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.entries import Entries, format_for
from scorch._src.tensor.entries_autograd import from_differentiable_entries, numbered_entries
from scorch._src.tensor.sparse_tensor import SparseTensor

Dims = Sequence[int] | int | None


class Groups:
    """Entries of a pattern with ``size`` values, in the order of their keys, grouped for a reduction.

    ``group`` has the number of each entry's group and ``inside`` its position among the ``length`` elements
    of the reduced dimensions. ``keys`` has the position of each group in the result, ``stored`` the number of
    its entries, ``elements`` that of its elements and ``zeros`` that of its implicit zeros. ``numbers`` has
    the value number of each entry; it is None where they are in order.
    """

    def __init__(self, listed: Entries, size: int, reduced: tuple[int, ...]) -> None:
        shape, columns, count = listed.shape, listed.coordinates, listed.values.numel()
        kept_dims = [dim for dim in range(len(shape)) if dim not in reduced]
        self.reduced = reduced
        self.kept_shape = tuple(shape[dim] for dim in kept_dims)
        self.length = math.prod(shape[dim] for dim in reduced)

        def keys_in(dims: Sequence[int]) -> torch.Tensor:
            sizes = tuple(shape[dim] for dim in dims)
            return keys_of([columns[dim] for dim in dims], sizes, listed.keys.device).expand(count)

        self.inside, keys = keys_in(reduced), keys_in(kept_dims)
        # As entries are, if the last dimensions are reduced
        self.is_sorted = kept_dims == list(range(len(kept_dims)))
        self.keys, self.group, self.stored = distinct(keys, self.is_sorted)
        self.elements: int | torch.Tensor = self.length
        self.zeros: torch.Tensor = self.length - self.stored
        self.has_zeros = self.zeros > 0
        self.is_masked = False
        numbers = torch.arange(size, device=listed.values.device)
        self.numbers = None if torch.equal(listed.values, numbers) else listed.values

    def masked(self) -> Groups:
        """Return the same groups without implicit zeros."""
        groups = copy.copy(self)
        groups.elements, groups.zeros, groups.is_masked = self.stored, torch.zeros_like(self.zeros), True
        groups.has_zeros = torch.zeros_like(self.has_zeros)
        return groups

    def values(self, tensor: SparseTensor) -> torch.Tensor:
        """Return the values of a tensor in the order of the entries, connected to it."""
        values = values_of(tensor)
        return values if self.numbers is None else values[self.numbers]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum the values of each group, connected to them."""
        return sum_rows(self.group, values, self.keys.numel())

    def sum_of_zeros(self, each: torch.Tensor) -> torch.Tensor:
        """Return what the implicit zeros add to a sum if each adds ``each``."""
        return self.zeros * torch.where(self.has_zeros, each, 0)

    def reduce(self, values: torch.Tensor, how: str) -> torch.Tensor:
        """Reduce the values of each group by ``amax``, ``amin`` or ``prod``."""
        routines = routines_for(values)
        if values.dtype in routines.run_dtypes and not (is_differentiable(values) or is_transformed()):
            order, begins = self.runs
            found = routines.reduce_runs(
                values if order is None else routines.take(values, order), begins, how
            )
            if found is not None:
                return found
        start = values.new_zeros(self.keys.numel())
        return start.scatter_reduce(0, self.group, values, reduce=how, include_self=False)

    @cached_outside_modes
    def runs(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The order in which each group is a run, None where it is one, and where these begin and end."""
        begins = torch.nn.functional.pad(self.stored.cumsum(0), (1, 0))
        return None if self.is_sorted else stable_sort(self.group)[1], begins

    @cached_outside_modes
    def first_missing(self) -> torch.Tensor:
        """The first position of each group that is not stored."""
        order, begins = self.runs
        group, inside = self.group, self.inside
        if order is not None:
            group, inside = group[order], inside[order]
        rank = torch.arange(group.numel(), device=group.device) - begins[group]
        gaps = torch.where(inside != rank, rank, self.length)
        missing = gaps.new_full(self.keys.shape, self.length)
        missing.scatter_reduce_(0, group, gaps, reduce="amin", include_self=True)
        return torch.minimum(missing, self.stored)

    def shape(self, tensor: SparseTensor, keepdim: bool) -> tuple[int, ...]:
        """Return the shape of the result."""
        if not keepdim:
            return self.kept_shape
        sizes = enumerate(tensor.storage.pattern.shape)
        return tuple(1 if dim in self.reduced else size for dim, size in sizes)

    def result(
        self, tensor: SparseTensor, values: torch.Tensor, keepdim: bool, fill: float, dense: bool
    ) -> torch.Tensor:
        """Return one value for each group of ``tensor`` and ``fill`` elsewhere; sparse if that is smaller."""
        shape = self.shape(tensor, keepdim)
        size, count = math.prod(shape), self.keys.numel()
        if not dense and fill == 0 and len(self.kept_shape) > 1 and size > 2 * self.group.numel():
            return from_differentiable_entries(Entries(self.keys, values, shape), format_for(tensor, shape))
        what = f"a reduction to shape {shape}"
        check_budget(size * values.element_size(), values.device, what, "reduce more dimensions")
        if count == size:
            return values.reshape(shape)
        start = torch.full((size,), fill, dtype=values.dtype, device=values.device)
        return start.index_put((self.keys,), values).view(shape)


def groups_of(tensor: SparseTensor, dim: Dims, masked: bool = False) -> Groups:
    """Return the groups of a reduction over ``dim``; if it is ``masked`` without implicit zeros.

    The zeros that pad blocks count as implicit, unless they have gradients.
    """
    pattern = tensor.storage.pattern
    reduced = reduced_dims(len(pattern.shape), dim)
    if pattern.format.is_blocked and (masked or not is_differentiable(tensor)):
        with untracked():
            listed = numbered_entries(pattern)
            is_nonzero = tensor.storage.values.detach()[listed.values] != 0
            entries = Entries(listed.keys[is_nonzero], listed.values[is_nonzero], listed.shape)
            groups = Groups(entries, pattern.size, reduced)
    else:
        groups = groups_of_pattern(pattern, reduced)
    return groups.masked() if masked else groups


def groups_of_pattern(pattern: Pattern, reduced: tuple[int, ...]) -> Groups:
    """Return the groups of all entries of a pattern, cached with it."""
    groups: Groups | None = pattern.groups.get(reduced)
    if groups is None:
        with untracked():
            groups = pattern.groups[reduced] = Groups(numbered_entries(pattern), pattern.size, reduced)
    return groups


def reduced_dims(rank: int, dim: Dims) -> tuple[int, ...]:
    """Return the dimensions in ``dim``, all if there are none."""
    dims = () if dim is None else (dim,) if isinstance(dim, int) else dim
    return tuple(sorted({d % rank for d in dims if rank})) or tuple(range(rank))
