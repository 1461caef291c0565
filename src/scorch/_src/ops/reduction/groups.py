"""The entries of a tensor grouped by the element of the result that they are reduced to.

Entries with the same coordinates in the kept dimensions are a *group*. A group that stores fewer entries than
the reduced dimensions have elements holds implicit zeros too. The groups depend on the pattern alone, so they
are cached with it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch

from scorch._src.backends.base import routines_for
from scorch._src.backends.by_torch.rows import sum_rows, take_rows
from scorch._src.backends.sort_entries import Sorted, distinct, stable_sort
from scorch._src.grad_state import cached_outside_modes, is_differentiable, is_transformed, untracked
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import keys_of, numbered_entries
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.entries import Entries, format_for
from scorch._src.tensor.entries_autograd import from_differentiable_entries
from scorch._src.tensor.sparse_tensor import SparseTensor

Dims = Sequence[int] | int | None
EXTREMES = ("amax", "amin", "argmax", "argmin")
MAX_SPREAD = 2  # elements of a result for each entry, up to which all elements have a group


class Groups:
    """Entries of a pattern with ``size`` values, in stored order, grouped for a reduction.

    A result that is not much larger than the entries has a group for each of its elements, else it has one
    for each element with entries. ``group`` has the number of each entry's group and ``inside`` its position
    among the ``length`` elements of the reduced dimensions. ``keys`` has the position of each group in the
    result, ``stored`` the number of its entries, ``elements`` that of its elements and ``zeros`` that of its
    implicit zeros. ``numbers`` has the value number of each entry; it is None where all values are entries.
    """

    def __init__(
        self,
        columns: Sequence[torch.Tensor],
        numbers: torch.Tensor,
        pattern: Pattern,
        reduced: tuple[int, ...],
    ) -> None:
        shape, device = pattern.shape, pattern.device
        kept_dims = [dim for dim in range(len(shape)) if dim not in reduced]
        self.reduced = reduced
        self.kept_shape = tuple(shape[dim] for dim in kept_dims)
        self.length = math.prod(shape[dim] for dim in reduced)

        def keys_in(dims: Sequence[int]) -> torch.Tensor:
            sizes = tuple(shape[dim] for dim in dims)
            return keys_of([columns[dim] for dim in dims], sizes, device).expand(numbers.numel()).contiguous()

        self.inside, keys = keys_in(reduced), keys_in(kept_dims)
        size = math.prod(self.kept_shape)
        self.order = self._order_by(keys, size)
        self.is_full = size <= MAX_SPREAD * numbers.numel()
        if self.is_full:
            self.keys, self.group = torch.arange(size, device=device), keys
            self.stored = torch.bincount(keys, minlength=size)
        else:
            ordered = keys if self.order is None else keys[self.order]
            self.keys, self.group, self.stored = distinct(ordered, is_sorted=True)
            if self.order is not None:
                self.group = torch.empty_like(self.order).scatter_(0, self.order, self.group)
        self.elements: int | torch.Tensor = self.length
        self.zeros: torch.Tensor = self.length - self.stored
        self.has_zeros = self.zeros > 0
        self.is_masked = False
        self.numbers = None if numbers.numel() == pattern.size else numbers

    def _order_by(self, keys: torch.Tensor, size: int) -> torch.Tensor | None:
        """Return the order of entries by group and position inside; None if they are in that order."""
        if not keys.numel():
            return None
        found = routines_for(keys).sort_entries((keys, self.inside), (size, self.length))
        return found.order.long() if isinstance(found, Sorted) else None

    @cached_outside_modes
    def masked(self) -> Groups:
        """The same groups without implicit zeros."""
        groups = copy.copy(self)
        groups.elements, groups.zeros, groups.is_masked = self.stored, torch.zeros_like(self.zeros), True
        groups.has_zeros = torch.zeros_like(self.has_zeros)
        return groups

    def values(self, tensor: SparseTensor) -> torch.Tensor:
        """Return the values of the entries of a tensor, connected to it."""
        values = values_of(tensor)
        return values if self.numbers is None else take_rows(values, self.numbers)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum the values of each group, connected to them."""
        total = self._by_routine(values, "sum")
        return sum_rows(self.group, values, self.keys.numel()) if total is None else total

    def sum_of_zeros(self, each: torch.Tensor) -> torch.Tensor:
        """Return what the implicit zeros add to a sum if each adds ``each``."""
        return self.zeros * torch.where(self.has_zeros, each, 0)

    def reduce(self, values: torch.Tensor, how: str) -> torch.Tensor:
        """Reduce the values of each group by ``amax``, ``amin`` or ``prod``; without any it is 0."""
        found = self._by_routine(values, how)
        if found is not None:
            return found
        start = values.new_zeros(self.keys.numel())
        return start.scatter_reduce(0, self.group, values, reduce=how, include_self=False)

    def places(self, values: torch.Tensor, how: str) -> torch.Tensor:
        """Return which of the values is the first ``argmax`` or ``argmin`` of each group, if it has one."""
        values = values.detach()
        found = self._by_routine(values, how)
        if found is not None:
            return found
        of_each = self.reduce(values, how.replace("arg", "a"))[self.group]
        is_best = (values == of_each) | (values.isnan() & of_each.isnan())
        ranks = torch.arange(values.numel(), device=values.device)
        if self.order is not None:
            ranks = torch.empty_like(ranks).scatter_(0, self.order, ranks)
        first = self.reduce(torch.where(is_best, ranks, values.numel()), "amin")
        return first if self.order is None else self.order[first]

    def sorted(self, values: torch.Tensor, descending: bool) -> torch.Tensor:
        """Return the order by group and value, NaN being the largest; equal ones are ordered by position."""
        values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values.detach()
        found = self._by_routine(values, "descending" if descending else "ascending")
        if found is not None:
            return found
        group, values = self.in_order(self.group, values)
        by_value = torch.sort(values, stable=True, descending=descending)[1]
        order = by_value[stable_sort(group[by_value])[1]]
        return order if self.order is None else self.order[order]

    def scan(self, values: torch.Tensor, how: str) -> torch.Tensor:
        """Compute ``cumsum`` or ``cumprod`` of the values of each group, by position inside, at each entry.

        Each group is scanned by itself and in its order, as torch does: one sum over all of them, or
        products of adjacent entries first, would lose what is small compared with large numbers.
        """
        found = self._by_routine(values, how)
        if found is not None:
            return found
        (values,) = self.in_order(values)
        values = _scan_segments(getattr(torch, how), values, self.stored)
        return values if self.order is None else torch.empty_like(values).index_put((self.order,), values)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Return the value of its group at each entry, connected to them."""
        return take_rows(values, self.group)

    def _by_routine(self, values: torch.Tensor, how: str) -> torch.Tensor | None:
        """Reduce values that nothing tracks by a routine; None where PyTorch has to."""
        routines = routines_for(values)
        if values.dtype not in routines.run_dtypes or is_differentiable(values) or is_transformed():
            return None
        if how in EXTREMES and self.order is not None and (how in ("amax", "amin") or self.is_in_line):
            extremes = routines.scattered_extremes(values.contiguous(), self.group, self.begins, how)
            if extremes is not None:
                return extremes
        return routines.reduce_runs(values.contiguous(), self.begins, how, self.order)

    def in_order(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return arrays of the entries in the order by group and position inside."""
        return arrays if self.order is None else tuple(take_rows(array, self.order) for array in arrays)

    @cached_outside_modes
    def begins(self) -> torch.Tensor:
        """Where each group begins in the order by groups, and the end."""
        return torch.nn.functional.pad(self.stored.cumsum(0), (1, 0))

    @cached_outside_modes
    def is_in_line(self) -> bool:
        """Whether the entries of each group are stored by their positions inside, where that can be asked."""
        if self.order is None or not routines_for(self.order).answers_at_once:
            return False
        rises = self.order[1:] > self.order[:-1]
        begins = self.begins[1:-1]
        rises[begins[(begins > 0) & (begins < self.order.numel())] - 1] = True
        return bool(rises.all())

    @cached_outside_modes
    def first_missing(self) -> torch.Tensor:
        """The first position of each group that is not stored."""
        group, inside = self.in_order(self.group, self.inside)
        rank = torch.arange(group.numel(), device=group.device) - self.begins[group]
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
        if not dense and fill == 0 and len(self.kept_shape) > 1 and not self.is_full:
            return from_differentiable_entries(Entries(self.keys, values, shape), format_for(tensor, shape))
        what = f"a reduction to shape {shape}"
        check_budget(size * values.element_size(), values.device, what, "reduce more dimensions")
        if count == size:
            values = values.masked_fill(self.stored == 0, fill) if self.is_masked else values
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
        groups = groups_of_nonzeros(tensor, dim)
    else:
        groups = groups_of_pattern(pattern, reduced)
    return groups.masked if masked else groups


def groups_of_nonzeros(tensor: SparseTensor, dim: Dims) -> Groups:
    """Return the groups of those entries whose values are not zero."""
    pattern, values = tensor.storage.pattern, tensor.storage.values.detach()
    reduced = reduced_dims(len(pattern.shape), dim)
    with untracked():
        if not pattern.format.is_blocked and bool(values.all()):
            return groups_of_pattern(pattern, reduced)
        columns, numbers = numbered_entries(pattern)
        is_nonzero = values[numbers] != 0
        columns = [column[is_nonzero] for column in columns]
        return Groups(columns, numbers[is_nonzero], pattern, reduced)


def groups_of_pattern(pattern: Pattern, reduced: tuple[int, ...]) -> Groups:
    """Return the groups of all entries of a pattern, cached with it."""
    groups: Groups | None = pattern.groups.get(reduced)
    if groups is None:
        with untracked():
            groups = pattern.groups[reduced] = Groups(*numbered_entries(pattern), pattern, reduced)
    return groups


def reduced_dims(rank: int, dim: Dims) -> tuple[int, ...]:
    """Return the dimensions in ``dim``, all if there are none."""
    dims = () if dim is None else (dim,) if isinstance(dim, int) else dim
    return tuple(sorted({d % rank for d in dims if rank})) or tuple(range(rank))


def _scan_segments(
    scan: Callable[..., torch.Tensor], values: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Apply ``scan`` (``torch.cumsum``, ``torch.cumprod``) to each of consecutive segments of values.

    Segments of about the same length are the rows of one matrix, padded at the end.
    """
    lengths = lengths[lengths > 0]
    first = torch.cumsum(lengths, 0) - lengths
    widths: torch.Tensor = 2 ** torch.ceil(torch.log2(lengths.double())).long()
    positions, scanned_parts = [], []
    for width in torch.unique(widths).tolist():
        is_of_width = widths == width
        number = torch.arange(width, device=lengths.device)
        is_filled = number < lengths[is_of_width].unsqueeze(1)
        position = first[is_of_width].unsqueeze(1) + torch.where(is_filled, number, 0)
        scanned_parts.append(scan(values[position], 1, dtype=values.dtype)[is_filled])
        positions.append(position[is_filled])
    if not scanned_parts:
        return values
    return torch.empty_like(values).index_put((torch.cat(positions),), torch.cat(scanned_parts))
