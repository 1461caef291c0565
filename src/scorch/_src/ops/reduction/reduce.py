"""Reductions over any dimensions, with the meaning they have on the dense tensor.

Entries with the same coordinates in the dimensions that are kept are a *group*. A group that stores fewer
entries than the reduced dimensions have places holds zeros too, and those count: the maximum of negative
entries is 0, and a mean divides by all places.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.ops.fallback import densely
from scorch._src.statements.einsum import einsum
from scorch._src.storage.budget import check_budget, is_within_budget
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.entries import Entries, entries_of, format_for
from scorch._src.tensor.entries_autograd import from_learned_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.saved_versions import differentiate
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten
LETTERS = "abcdefghijklmnop"
FEW_DIMS = 10  # of which a tensor with two places in each is still small
Dims = Sequence[int] | int | None
Shape = tuple[int, ...]


class Groups:
    """The entries of ``tensor`` grouped by the dimensions that are kept when ``dim`` is reduced."""

    def __init__(self, tensor: SparseTensor, dim: Dims, entries: Entries | None = None) -> None:
        self.tensor = tensor
        self.entries = _without_padding(tensor, entries_of(tensor) if entries is None else entries)
        shape = self.entries.shape
        given = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
        reduced = sorted({d % len(shape) for d in given}) or list(range(len(shape)))
        self.reduced = reduced
        kept = [d for d in range(len(shape)) if d not in reduced]
        crd = self.entries.coordinates
        self.kept_shape = tuple(shape[d] for d in kept)
        self.places = math.prod(shape[d] for d in reduced)
        self.inside = keys_of([crd[d] for d in reduced], tuple(shape[d] for d in reduced))
        keys = keys_of([crd[d] for d in kept], self.kept_shape).expand(self.entries.keys.shape)
        is_sorted = kept == list(range(len(kept)))  # as entries are, if the last dimensions are reduced
        distinct: Any = torch.unique_consecutive if is_sorted else torch.unique
        self.keys, self.group, self.stored = distinct(keys, return_inverse=True, return_counts=True)
        self.count = self.keys.numel()
        self.has_zeros = self.stored < self.places

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return summed_by(self.group, values, self.count)

    def of_zeros(self, each: torch.Tensor) -> torch.Tensor:
        """What the zeros that are not stored add to a sum: ``each`` of them so much; none nothing."""
        found: torch.Tensor = (self.places - self.stored) * torch.where(self.has_zeros, each, 0)
        return found

    def reduce(self, values: torch.Tensor, how: str) -> torch.Tensor:
        """``amax``, ``amin`` or ``prod`` of the values of each group."""
        start = values.new_zeros(self.count)
        return start.scatter_reduce(0, self.group, values, reduce=how, include_self=False)

    def result(self, values: torch.Tensor, shape: Shape, dtype: Any, fill: float = 0.0) -> torch.Tensor:
        """One value for each group, ``fill`` for all others."""
        values = values.to(dtype)
        size = math.prod(shape)
        is_dense = fill != 0 or len(self.kept_shape) < 2 or size <= 2 * self.entries.keys.numel()
        if not is_dense:
            return from_learned_entries(Entries(self.keys, values, shape), format_for(self.tensor, shape))
        check_budget(size * values.element_size(), f"a reduction to shape {shape}", "reduce more dimensions")
        made = torch.full((size,), fill, dtype=dtype)
        return made.index_put((self.keys,), values).view(shape)


def summed_by(group: torch.Tensor, values: torch.Tensor, count: int) -> torch.Tensor:
    """The sum of the values of each of ``count`` groups, connected to them."""
    if values.is_complex():  # index_add multiplies by one, which makes NaN of the other part of an infinity
        parts = torch.view_as_real(values)
        return torch.view_as_complex(parts.new_zeros(count, 2).index_add(0, group, parts))
    return values.new_zeros(count).index_add(0, group, values)


def _without_padding(tensor: SparseTensor, entries: Entries) -> Entries:
    """The entries of a tensor; of one stored in blocks without the zeros that fill them."""
    if not tensor.format.is_blocked:
        return entries
    kept = entries.values != 0
    return Entries(entries.keys[kept], entries.values[kept], entries.shape)


def _on_small(func: Any, tensor: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """What torch makes of a small tensor of the same rank and dtype: the dtype of the result, or its error.

    (A shell of the same shape would do, but torch imports its compilers to look at one.)
    """
    pattern, dtype = tensor.storage.pattern, tensor.storage.values.dtype
    rank = len(pattern.shape)
    small = torch.zeros([2 if dim < FEW_DIMS else 1 for dim in range(rank)], dtype=dtype)
    if rank <= FEW_DIMS:
        return func(small, *args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the spread of one number
        return func(small, *args, **kwargs)


Body = Callable[[Groups, torch.Tensor], tuple[torch.Tensor, float]]


def _reduce(func: Any, tensor: SparseTensor, dim: Dims, args: Sequence[Any], kwargs: Any, body: Body) -> Any:
    """A reduction whose groups ``body`` reduces, given values in the dtype that they are computed in."""
    if tensor.numel() == 0:
        return densely(func, (tensor, *args), kwargs)
    like = _on_small(func, tensor, *args, **kwargs)
    groups = Groups(tensor, dim)
    values = groups.entries.values
    shape = shape_without(tensor, groups.reduced, keepdim=like.dim() == tensor.dim())
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
    computed = torch.promote_types(values.dtype, like.dtype) if like.dtype != torch.bool else values.dtype
    found, fill = body(groups, values.to(wide.get(computed, computed)))
    return groups.result(found, shape, like.dtype, fill)


@implements(aten.sum.default, aten.sum.dim_IntList)
def sum(self: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _summed(aten.sum.dim_IntList, self, dim, keepdim, dtype, lambda g, v: g.sum(v))


@implements(torch.sum, torch.Tensor.sum, differentiable=True)
def quick_sum(input: Any, *args: Any, **kwargs: Any) -> Any:
    """The sum over some dimensions by a kernel, without asking torch; everything else as torch takes it."""
    dim = args[0] if args else kwargs.get("dim")
    is_plain = type(input) is SparseTensor and len(args) + len(kwargs) == (bool(args) or "dim" in kwargs)
    is_plain = is_plain and (dim is None or type(dim) in (int, tuple))
    stored: Storage | None = input.storage if is_plain else None
    is_float = stored is not None and stored.values.dtype in (torch.float32, torch.float64)
    if stored is not None and is_float and 0 not in stored.pattern.shape:
        found = _quick_sum(input, (dim,) if type(dim) is int else dim, False)
        if found is not None:
            return found
    return differentiate(torch.sum, (input, *args), kwargs)


@implements(aten.nansum)
def nansum(self: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _summed(
        aten.nansum,
        self,
        dim,
        keepdim,
        dtype,
        lambda g, v: g.sum(torch.nan_to_num(v, posinf=math.inf, neginf=-math.inf)),
    )


@implements(aten.mean.default, aten.mean.dim)
def mean(self: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _summed(aten.mean.dim, self, dim, keepdim, dtype, lambda g, v: g.sum(v) / g.places)


def _summed(
    func: Any,
    self: SparseTensor,
    dim: Dims,
    keepdim: bool,
    dtype: Any,
    body: Callable[[Groups, torch.Tensor], torch.Tensor],
) -> Any:
    dims = [dim] if isinstance(dim, int) else dim
    values = self.storage.values
    is_plain = values.dtype in (torch.float32, torch.float64) and dtype in (None, values.dtype)
    if is_plain and func is not aten.nansum and self.numel():
        total = _quick_sum(self, dims, keepdim)
        if total is not None:
            count = self.numel() // max(total.numel(), 1)
            return total if func is aten.sum.dim_IntList else total / count
    is_whole = dtype is not None and not dtype.is_floating_point and not dtype.is_complex

    def reduced(groups: Groups, found: torch.Tensor) -> tuple[torch.Tensor, float]:
        return body(groups, found.to(dtype) if is_whole else found), 0.0  # torch converts what it adds

    return _reduce(func, self, dims, (dims, keepdim), {"dtype": dtype}, reduced)


def _quick_sum(self: SparseTensor, dims: Dims, keepdim: bool) -> torch.Tensor | None:
    """The sum by a generated kernel, where the result is dense; None where it is not or dims are wrong."""
    whole = self.storage.pattern.shape
    given = tuple(range(len(whole))) if not dims and not isinstance(dims, int) else dims
    if not isinstance(given, (list, tuple)):
        return None
    known = _sum_equation(len(whole), tuple(given))
    if known is None:
        return None
    equation, kept = known
    shape = shape_without(self, [d for d in range(len(whole)) if d not in kept], True) if keepdim else None
    if not kept:
        total = values_of(self).sum()
        return total if shape is None else total.reshape(shape)
    if len(kept) > 1:
        stored = int(torch.count_nonzero(self.storage.values)) if self.format.is_blocked else self.nnz
        if math.prod(whole[d] for d in kept) > 2 * stored:
            return None
    found = einsum(equation, self, format="dense")
    return found if shape is None else found.reshape(shape)


@functools.lru_cache(maxsize=256)
def _sum_equation(rank: int, dims: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    """The sum over ``dims`` as an einsum, and the dimensions that are left; None where dims are wrong."""
    reduced = {d % rank for d in dims if -rank <= d < rank}
    if len(reduced) != len(dims) or rank > len(LETTERS):
        return None
    kept = tuple(d for d in range(rank) if d not in reduced)
    return f"{LETTERS[:rank]}->{''.join(LETTERS[d] for d in kept)}", kept


@implements(aten.prod.default, aten.prod.dim_int)
def prod(self: SparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    func, args = (aten.prod.default, ()) if dim is None else (aten.prod.dim_int, (dim, keepdim))
    return _reduce(func, self, dim, args, {"dtype": dtype}, _product)


def _product(groups: Groups, values: torch.Tensor) -> tuple[torch.Tensor, float]:
    found = groups.reduce(values, "prod")
    is_odd = groups.reduce((~values.isfinite()).to(torch.uint8), "amax") > 0
    with_zeros = torch.where(is_odd, found * 0, 0)  # infinity times zero is not a number; a large one is 0
    return torch.where(groups.has_zeros, with_zeros, found), 0.0


def _extreme(how: str) -> Body:
    def body(groups: Groups, values: torch.Tensor) -> tuple[torch.Tensor, float]:
        found = groups.reduce(values, how)
        with_zero = found.clamp(min=0) if how == "amax" else found.clamp(max=0)
        return torch.where(groups.has_zeros, with_zero, found), 0.0

    return body


@implements(aten.amax)
def amax(self: SparseTensor, dim: Dims = (), keepdim: bool = False) -> Any:
    return _reduce(aten.amax.default, self, dim, (dim, keepdim), {}, _extreme("amax"))


@implements(aten.amin)
def amin(self: SparseTensor, dim: Dims = (), keepdim: bool = False) -> Any:
    return _reduce(aten.amin.default, self, dim, (dim, keepdim), {}, _extreme("amin"))


@implements(aten.max.default)
def max_of_all(self: SparseTensor) -> Any:
    return _reduce(aten.max.default, self, None, (), {}, _extreme("amax"))


@implements(aten.min.default)
def min_of_all(self: SparseTensor) -> Any:
    return _reduce(aten.min.default, self, None, (), {}, _extreme("amin"))


@implements(aten.max.dim)
def max_along(self: SparseTensor, dim: int, keepdim: bool = False) -> Any:
    if self.numel() == 0 or self.storage.values.isnan().any():
        return densely(aten.max.dim, (self, dim, keepdim), {})
    return torch.return_types.max((amax(self, [dim], keepdim), _places(self, dim, keepdim, "amax")))


@implements(aten.min.dim)
def min_along(self: SparseTensor, dim: int, keepdim: bool = False) -> Any:
    if self.numel() == 0 or self.storage.values.isnan().any():
        return densely(aten.min.dim, (self, dim, keepdim), {})
    return torch.return_types.min((amin(self, [dim], keepdim), _places(self, dim, keepdim, "amin")))


@implements(aten.aminmax)
def aminmax(self: SparseTensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    if self.numel() == 0:
        return densely(aten.aminmax.default, (self,), {"dim": dim, "keepdim": keepdim})
    dims = () if dim is None else [dim]
    return torch.return_types.aminmax((amin(self, dims, keepdim), amax(self, dims, keepdim)))


@implements(aten.argmax)
def argmax(self: SparseTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _place_of(aten.argmax.default, self, dim, keepdim, "amax")


@implements(aten.argmin)
def argmin(self: SparseTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _place_of(aten.argmin.default, self, dim, keepdim, "amin")


def _place_of(func: Any, self: SparseTensor, dim: int | None, keepdim: bool, how: str) -> Any:
    """The first place of the largest or smallest element: an entry, or the first zero that is not stored."""
    if self.numel() == 0 or self.storage.values.isnan().any():
        return densely(func, (self, dim, keepdim), {})
    _on_small(func, self, dim, keepdim)
    return _places(self, dim, keepdim, how)


def _places(self: SparseTensor, dim: int | None, keepdim: bool, how: str) -> torch.Tensor:
    groups = Groups(self, dim)
    values = groups.entries.values
    best = groups.reduce(values, how)
    beats = best > 0 if how == "amax" else best < 0
    is_best = values == best[groups.group]
    nowhere = groups.places
    stored = groups.reduce(torch.where(is_best, groups.inside, nowhere), "amin")
    missing = _first_missing(groups)
    ties = torch.where(best == 0, torch.minimum(stored, missing), missing)
    place = torch.where(~groups.has_zeros | beats, stored, ties)
    shape = shape_without(self, groups.reduced, keepdim)
    size = math.prod(shape)
    check_budget(8 * size, f"{how[1:]} places of shape {shape}", "reduce more dimensions")
    made = torch.zeros(shape, dtype=torch.int64)
    made.view(-1)[groups.keys] = place
    return made


def shape_without(self: SparseTensor, reduced: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    sizes = [(1 if dim in reduced else size) for dim, size in enumerate(self.shape)]
    return tuple(size for dim, size in enumerate(sizes) if keepdim or dim not in reduced)


def _first_missing(groups: Groups) -> torch.Tensor:
    """For each group the first place that is not stored."""
    order = torch.argsort(groups.group, stable=True)
    group, inside = groups.group[order], groups.inside[order]
    first = torch.cumsum(groups.stored, 0) - groups.stored
    rank = torch.arange(group.numel()) - first[group]
    gaps = torch.where(inside != rank, rank, groups.places)
    found = gaps.new_full((groups.count,), groups.places)
    found.scatter_reduce_(0, group, gaps, reduce="amin", include_self=True)
    return torch.minimum(found, groups.stored)


@implements(aten.any.default, aten.any.dim, aten.any.dims)
def any(self: SparseTensor, dim: Dims = None, keepdim: bool = False) -> Any:
    func, args = _one_or_more(aten.any, dim, keepdim)
    return _reduce(func, self, dim, args, {}, lambda g, v: (g.reduce((v != 0).to(torch.uint8), "amax"), 0.0))


@implements(aten.all.default, aten.all.dim, aten.all.dims)
def all(self: SparseTensor, dim: Dims = None, keepdim: bool = False) -> Any:
    func, args = _one_or_more(aten.all, dim, keepdim)

    def body(groups: Groups, values: torch.Tensor) -> tuple[torch.Tensor, float]:
        found = groups.reduce((values != 0).to(torch.uint8), "amin")
        return found.masked_fill(groups.has_zeros, 0), 0.0

    return _reduce(func, self, dim, args, {}, body)


def _one_or_more(packet: Any, dim: Dims, keepdim: bool) -> tuple[Any, tuple[Any, ...]]:
    if dim is None:
        return packet.default, ()
    return (packet.dim, (dim, keepdim)) if isinstance(dim, int) else (packet.dims, (dim, keepdim))


@implements(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(self: SparseTensor, dim: Dims = None) -> Any:
    dims = [dim] if isinstance(dim, int) else dim
    func, args = (
        (aten.count_nonzero.default, ()) if dims is None else (aten.count_nonzero.dim_IntList, (dims,))
    )
    return _reduce(func, self, dims, args, {}, lambda g, v: (g.sum((v != 0).to(torch.int64)), 0.0))


@implements(aten.var.correction)
def var(self: SparseTensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _spread(aten.var.correction, self, dim, correction, keepdim, lambda v: v)


@implements(aten.std.correction)
def std(self: SparseTensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _spread(aten.std.correction, self, dim, correction, keepdim, torch.sqrt)


@implements(aten.var_mean.correction)
def var_mean(self: SparseTensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _with_mean(aten.var_mean.correction, var, self, dim, correction, keepdim)


@implements(aten.std_mean.correction)
def std_mean(self: SparseTensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _with_mean(aten.std_mean.correction, std, self, dim, correction, keepdim)


def _with_mean(func: Any, spread: Any, self: SparseTensor, dim: Dims, correction: Any, keepdim: bool) -> Any:
    """The variance or deviation, and the mean, which in torch follows the order of infinities."""
    is_plain = bool(self.storage.values.isfinite().all())
    if not is_plain and is_within_budget(self.numel() * self.storage.values.element_size()):
        return densely(func, (self, dim), {"correction": correction, "keepdim": keepdim})
    return spread(self, dim, correction=correction, keepdim=keepdim), mean(self, dim, keepdim)


def _spread(func: Any, self: SparseTensor, dim: Dims, correction: Any, keepdim: bool, last: Any) -> Any:
    def body(groups: Groups, values: torch.Tensor) -> tuple[torch.Tensor, float]:
        divisor = max(0.0, groups.places - float(1 if correction is None else correction))

        def spread(part: torch.Tensor) -> torch.Tensor:
            wide = part.double()  # in which torch computes it too
            center = groups.sum(wide) / groups.places
            squares = groups.sum((wide - center[groups.group]) ** 2) + groups.of_zeros(center**2)
            return squares / divisor

        if values.is_complex():
            found = spread(values.real).to(values.real.dtype) + spread(values.imag).to(values.real.dtype)
        else:
            found = spread(values)
        return last(found), 0.0 if divisor else math.nan

    kwargs = {"correction": correction, "keepdim": keepdim}
    return _reduce(func, self, dim, (dim,), kwargs, body)


@implements(aten.linalg_vector_norm)
def vector_norm(
    self: SparseTensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    dims = [dim] if isinstance(dim, int) else dim

    def body(groups: Groups, values: torch.Tensor) -> tuple[torch.Tensor, float]:
        sizes = values.abs()
        if ord == 0:
            return groups.sum((sizes != 0).to(sizes.dtype)), 0.0
        if ord == math.inf or groups.places == 1:
            return groups.reduce(sizes, "amax"), 0.0
        if ord < 0:
            found = groups.reduce(sizes, "amin") if ord == -math.inf else groups.sum(sizes**ord) ** (1 / ord)
            return found.masked_fill(groups.has_zeros & ~found.isnan(), 0), 0.0
        return groups.sum(sizes**ord) ** (1 / ord), 0.0

    return _reduce(aten.linalg_vector_norm.default, self, dims, (ord, dims, keepdim), {"dtype": dtype}, body)


@implements(aten.logsumexp)
def logsumexp(self: SparseTensor, dim: Dims, keepdim: bool = False) -> Any:
    dims = [dim] if isinstance(dim, int) else dim
    if self.is_complex():  # which have no largest value
        return densely(aten.logsumexp.default, (self, dims, keepdim), {})

    def body(groups: Groups, values: torch.Tensor) -> tuple[torch.Tensor, float]:
        top, _ = _extreme("amax")(groups, values)
        top = torch.where(top.isinf(), 0.0, top)
        total = groups.sum(torch.exp(values - top[groups.group]))
        total = total + groups.of_zeros(torch.exp(-top))
        return torch.log(total) + top, math.log(groups.places)

    return _reduce(aten.logsumexp.default, self, dims, (dims, keepdim), {}, body)


@implements(aten.equal)
def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all elements are the same."""
    if tuple(self.shape) != tuple(other.shape):
        return False
    return not bool(torch.ne(self, other).any())


@implements(aten.trace)
def trace(self: SparseTensor) -> Any:
    like = _on_small(aten.trace.default, self)
    entries = entries_of(self)
    rows, columns = coordinates_of(entries.keys, entries.shape)
    return entries.values[rows == columns].sum(dtype=like.dtype)
