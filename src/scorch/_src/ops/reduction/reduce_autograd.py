"""Reductions of tensors that are learned, in time and memory of the entries.

torch's formulas compare or subtract everywhere, zeros included. Here a reduction is composed of sums and
maxima of the stored values of each group (the entries that are reduced to one element) and of the number of
zeros that are not stored.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.grad_state import untracked
from scorch._src.ops.reduction.reduce import Dims, shape_without, summed_by
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import coordinates, inside, keys_of
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import by_formula, sparse_of, values_at, values_of
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.entries import Entries, format_for, from_entries
from scorch._src.tensor.registry import implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import torch_sparse_sum

Function = Callable[..., Any]
COUNTING = ("kthvalue", "topk")  # how many of a line: torch's own function, which they call, compares with it


class StoredGroups:
    """The values of a pattern grouped by the dimensions that are kept when ``reduced`` are reduced.

    ``group`` has the number of each value's group, ``keys`` the place of each group in the result.
    """

    def __init__(self, pattern: Pattern, reduced: Sequence[int]) -> None:
        columns = coordinates(pattern)
        kept = [dim for dim in range(len(pattern.shape)) if dim not in reduced]
        self.shape = tuple(pattern.shape[dim] for dim in kept)
        self.places = math.prod(pattern.shape[dim] for dim in reduced)
        self.inside = inside(pattern, columns)
        keys = keys_of([columns[dim] for dim in kept], self.shape).expand(pattern.size)
        if self.inside is not None:
            keys = keys[self.inside]
        self.keys, self.group, self.stored = torch.unique(keys, return_inverse=True, return_counts=True)
        self.has_zeros = self.stored < self.places
        self.zeros = self.places - self.stored

    def values(self, tensor: SparseTensor) -> torch.Tensor:
        """The values of a tensor with this pattern, without the padding of blocks."""
        values = values_of(tensor)
        return values if self.inside is None else values[self.inside]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return summed_by(self.group, values, self.keys.numel())

    def of_zeros(self, each: torch.Tensor) -> torch.Tensor:
        """What the zeros that are not stored add to a sum: ``each`` of them so much; none nothing."""
        found: torch.Tensor = self.zeros * torch.where(self.has_zeros, each, 0)
        return found

    def extreme(self, values: torch.Tensor, how: str) -> torch.Tensor:
        """``amax`` or ``amin`` of the values of each group."""
        start = values.new_zeros(self.keys.numel())
        return start.scatter_reduce(0, self.group, values, reduce=how, include_self=False)

    def result(
        self, like: SparseTensor, values: torch.Tensor, shape: Sequence[int], fill: float = 0.0
    ) -> Any:
        """One value for each group, ``fill`` for all others, connected to the values."""
        size = math.prod(shape)
        is_dense = fill != 0 or len(self.shape) < 2 or size <= 2 * like.nnz
        if is_dense:
            check_budget(
                size * values.element_size(), f"a reduction to {tuple(shape)}", "reduce more dimensions"
            )
            made = torch.full((size,), fill, dtype=values.dtype, device="cpu")
            return made.index_put((self.keys,), values).reshape(shape)
        with untracked():
            numbers = torch.arange(self.keys.numel(), device="cpu")
            placed = from_entries(Entries(self.keys, numbers, tuple(shape)), format_for(like, tuple(shape)))
        return sparse_of(placed.storage.pattern, values[placed.storage.values])


MOST_GROUPINGS = 64  # of one pattern, by the dimensions reduced
_groups: weakref.WeakKeyDictionary[Pattern, BoundedCache[tuple[int, ...], StoredGroups]] = (
    weakref.WeakKeyDictionary()
)


def groups_of(tensor: SparseTensor, dim: Dims) -> StoredGroups:
    """The groups of a reduction over ``dim``, kept with the pattern."""
    pattern = tensor.storage.pattern
    rank = len(pattern.shape)
    given = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    reduced = tuple(sorted({d % rank for d in given})) or tuple(range(rank))
    known = _groups.get(pattern)
    if known is None:
        known = _groups.setdefault(pattern, BoundedCache(MOST_GROUPINGS))
    found = known.get(reduced)
    if found is None:
        with untracked():
            found = known[reduced] = StoredGroups(pattern, reduced)
    return found


def reduction(*functions: Function) -> Callable[[Function], Function]:
    """Register a reduction of a sparse tensor; what it has no answer for goes by torch's formula."""

    def register(body: Function) -> Function:
        for function in functions:

            def handler(input: Any, *args: Any, function: Function = function, **kwargs: Any) -> Any:
                is_served = isinstance(input, SparseTensor) and input.dim() and input.numel()
                if not is_served or not _has_no_options(kwargs):
                    return by_formula(function, (input, *args), kwargs)
                if function.__name__ not in COUNTING:
                    check_call(function, input, *args, **kwargs)
                found = body(input, *args, **kwargs)
                return by_formula(function, (input, *args), kwargs) if found is None else found

            implements_differentiable(function)(handler)
        return body

    return register


def _has_no_options(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("out") is None and kwargs.get("dtype") is None and "axis" not in kwargs


def _shape(tensor: SparseTensor, dim: Dims, keepdim: bool) -> list[int]:
    rank = tensor.dim()
    given = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    return list(shape_without(tensor, sorted({d % rank for d in given}) or list(range(rank)), keepdim))


# means -----------------------------------------------------------------------------------------------


@reduction(torch.mean, torch.Tensor.mean)
def mean(input: SparseTensor, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    dims = dim if dim is None or isinstance(dim, int) else tuple(dim)
    total = torch.sum(input) if dims is None else torch.sum(input, dims, keepdim)
    return total / (input.numel() // max(total.numel(), 1))


@reduction(torch.var, torch.Tensor.var)
def var(
    input: SparseTensor,
    dim: Any = None,
    unbiased: Any = True,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Any:
    """The mean squared distance from the mean, of all elements."""
    found = _variance(input, dim, unbiased, keepdim, correction)
    return None if found is None else found.to(input.dtype)


def _variance(input: SparseTensor, dim: Any, unbiased: Any, keepdim: bool, correction: Any) -> Any:
    """The variance in float64, as torch computes it."""
    if isinstance(dim, bool) or not isinstance(unbiased, bool) or input.is_complex():
        return None
    off = correction if correction is not None else 1 if unbiased else 0
    groups = groups_of(input, dim)
    values = groups.values(input).double()
    middle = groups.sum(values) / groups.places
    distances = groups.sum((values - middle[groups.group]).square()) + groups.of_zeros(middle.square())
    divisor = max(groups.places - off, 0)
    fill = 0.0 if divisor else math.nan
    return groups.result(input, distances / divisor, _shape(input, dim, keepdim), fill)


@reduction(torch.std, torch.Tensor.std)
def std(
    input: SparseTensor,
    dim: Any = None,
    unbiased: Any = True,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Any:
    found = _variance(input, dim, unbiased, keepdim, correction)
    return None if found is None else torch.sqrt(found).to(input.dtype)


# extremes --------------------------------------------------------------------------------------------


class _Changes(torch.autograd.Function):
    """Zero, which changes as the values do: what ``values - values.detach()`` is, for infinities too."""

    @staticmethod
    def forward(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient

    @staticmethod
    def jvp(ctx: Any, change: torch.Tensor) -> Any:
        return change.clone()

    @staticmethod
    def vmap(info: Any, in_dims: Any, values: torch.Tensor) -> Any:
        return _Changes.apply(values), in_dims[0]


def _extreme(input: SparseTensor, dim: Dims, keepdim: bool, how: str) -> Any:
    """The gradient is shared among all elements that have the extreme value, zeros included, as in torch."""
    groups = groups_of(input, dim)
    values = groups.values(input)
    fixed = values.detach()
    found = groups.extreme(fixed, how)
    clamped = found.clamp(min=0) if how == "amax" else found.clamp(max=0)
    found = torch.where(groups.has_zeros, clamped, found)
    hits = (fixed == found[groups.group]).to(values.dtype)
    count = groups.sum(hits) + torch.where((found == 0) & groups.has_zeros, groups.zeros, 0)
    shared = groups.sum(_Changes.apply(values) * (hits / count[groups.group]))
    return groups.result(input, found + shared, _shape(input, dim, keepdim))


@reduction(torch.amax, torch.Tensor.amax)
def amax(input: SparseTensor, dim: Dims = None, keepdim: bool = False) -> Any:
    return _extreme(input, dim or None if isinstance(dim, (tuple, list)) else dim, keepdim, "amax")


@reduction(torch.amin, torch.Tensor.amin)
def amin(input: SparseTensor, dim: Dims = None, keepdim: bool = False) -> Any:
    return _extreme(input, dim or None if isinstance(dim, (tuple, list)) else dim, keepdim, "amin")


def _chosen(name: str) -> Function:
    """``max``, ``median`` ... along a dimension: the gradient goes to the element whose index is given."""
    function = getattr(torch, name)

    def body(input: SparseTensor, *args: Any, **kwargs: Any) -> Any:
        is_whole = not args and "dim" not in kwargs and name in ("max", "min")
        if is_whole:
            return _extreme(input, None, False, f"a{name}")
        if not args or isinstance(args[0], torch.Tensor):
            return None
        with torch.no_grad():
            found = function(input.detach(), *args, **kwargs)  # without tangents of forward mode either
        place = 1 if name in ("topk", "kthvalue") else 0
        dim = kwargs.get("dim", args[place] if len(args) > place else -1)
        indices = found.indices
        if not isinstance(dim, int) or isinstance(dim, bool) or isinstance(indices, SparseTensor):
            return None
        is_kept = indices.dim() == input.dim()
        values = torch.gather(input, dim, indices if is_kept else indices.unsqueeze(dim))
        if found.values.layout == torch.strided and not isinstance(found.values, SparseTensor):
            values = values.to_dense() if isinstance(values, SparseTensor) else values
        return type(found)((values if is_kept else values.squeeze(dim), indices))

    return body


for _name in ("max", "min", "median", "nanmedian", "kthvalue", "topk", "sort", "mode"):
    reduction(getattr(torch, _name), getattr(torch.Tensor, _name))(_chosen(_name))


# norms and exponentials ------------------------------------------------------------------------------


@reduction(torch.linalg.vector_norm)
def vector_norm(x: SparseTensor, ord: Any = 2, dim: Dims = None, keepdim: bool = False) -> Any:
    """The root of the sum of powers; its gradient is 0 where the norm is, as in torch."""
    if not isinstance(ord, (int, float)) or ord <= 0 or x.is_complex():
        return None
    if ord == math.inf:
        return _extreme(sparse_of(x.storage.pattern, values_of(x).abs()), dim, keepdim, "amax")
    groups = groups_of(x, dim)
    sizes = groups.values(x).abs()
    if ord == 1 or groups.places == 1:
        return groups.result(x, groups.sum(sizes), _shape(x, dim, keepdim))
    total = groups.sum(sizes**ord)
    is_zero = total == 0
    root = torch.where(is_zero, 1.0, total).pow(1 / ord)
    return groups.result(x, torch.where(is_zero, total, root), _shape(x, dim, keepdim))


@reduction(torch.logsumexp, torch.Tensor.logsumexp, torch.special.logsumexp)
def logsumexp(input: SparseTensor, dim: Any, keepdim: bool = False) -> Any:
    groups = groups_of(input, dim)
    values = groups.values(input)
    sizes = values.detach().real if values.is_complex() else values.detach()  # what exp() would overflow by
    largest = groups.extreme(sizes, "amax")
    largest = torch.where(groups.has_zeros, largest.clamp(min=0), largest)
    if not bool(torch.isfinite(largest).all()):
        return None
    powers = groups.sum(torch.exp(values - largest[groups.group])) + groups.of_zeros(torch.exp(-largest))
    return groups.result(input, largest + powers.log(), _shape(input, dim, keepdim), math.log(groups.places))


# over stored entries ---------------------------------------------------------------------------------


def stored_softmax(input: SparseTensor, dim: int, is_log: bool) -> SparseTensor:
    """The softmax over stored entries, composed of functions that ``torch.func`` knows."""
    groups = groups_of(input, dim)
    values = groups.values(input)
    largest = groups.extreme(values.detach(), "amax")
    shifted = values - largest[groups.group]
    total = groups.sum(torch.exp(shifted))
    found = shifted - total.log()[groups.group] if is_log else torch.exp(shifted) / total[groups.group]
    if groups.inside is not None:
        padded = found.new_zeros(input.nnz)
        found = padded.index_put((groups.inside.nonzero().squeeze(1),), found)
    return sparse_of(input.storage.pattern, found)


@implements_differentiable(torch_sparse_sum)
def sparse_sum(input: Any, dim: Any = None, *, dtype: torch.dtype | None = None) -> Any:
    """The sum over dimensions, sparse as ``torch.sparse.sum`` gives it."""
    tensor = input if dtype is None else input.to(dtype)
    with torch.no_grad():
        like: Any = torch_sparse_sum(tensor) if dim is None else torch_sparse_sum(tensor, dim)
    dims = dim if dim is not None else tuple(range(input.dim()))
    total = torch.sum(tensor, dims if isinstance(dims, int) else tuple(dims))
    if not isinstance(like, SparseTensor):
        return total
    return sparse_of(like.storage.pattern, values_at(total, like.storage.pattern))
