"""Reductions over any dimensions, with the meaning they have on the dense tensor.

Each is written once, as a function of the groups of entries that it reduces and of their values
(``groups.py``). Values are connected to their tensor, so the same function serves autograd and
``torch.func``, operators of ATen, and ``masked=True`` (``masked.py``). Implicit zeros count: the maximum of
negative entries is 0, and a mean divides by all elements.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from scorch._src.backends.by_torch.rows import take_rows
from scorch._src.grad_state import has_tangents, is_differentiable, is_plain_inference, is_transformed
from scorch._src.ops.fallback import run_densely
from scorch._src.ops.reduction.groups import Dims, Groups
from scorch._src.ops.reduction.reduction import (
    Function,
    Reduced,
    Reduction,
    as_operator,
    direct,
    has_all_counts,
    reduction,
    run_on_sample,
    stored_in_each,
    sum_by_kernel,
)
from scorch._src.statements.call_cache import repeat_call
from scorch._src.storage.budget import is_within_budget
from scorch._src.tensor.autograd import apply
from scorch._src.tensor.registry import implements
from scorch._src.tensor.saved_versions import differentiate
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


def _forms(name: str, *overloads: str) -> list[Function]:
    """Return a PyTorch function, the method, and the operators of ATen of that name."""
    packet = getattr(aten, name)
    operators = (getattr(packet, overload) for overload in overloads or ("default",))
    return [getattr(torch, name), getattr(torch.Tensor, name), *operators]


@reduction(aten.sum.default, aten.sum.dim_IntList, of_sum=lambda total, _: total)
def sum(groups: Groups, values: torch.Tensor) -> Reduced:
    return groups.sum(values), 0.0


@implements(torch.sum, torch.Tensor.sum, differentiable=True)
def sum_by_fast_path(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Sum over some dimensions by a kernel, without torch's dispatcher; everything else as torch does."""
    dim = args[0] if args else kwargs.get("dim")
    is_plain = type(input) is SparseTensor and len(args) + len(kwargs) == (bool(args) or "dim" in kwargs)
    if is_plain and (dim is None or type(dim) in (int, tuple)):
        is_known = dim is not None and is_plain_inference(input)
        total = repeat_call((("sum", dim), None), (input,)) if is_known else None
        if total is None and 0 not in input.storage.pattern.shape:
            total = sum_by_kernel(input, dim, False, None)
        if total is not None:
            return total
    return differentiate(torch.sum, (input, *args), kwargs)


@reduction(*_forms("mean", "default", "dim"), differentiable=True, of_sum=lambda total, count: total / count)
def mean(groups: Groups, values: torch.Tensor) -> Reduced:
    return groups.sum(values) / groups.elements, 0.0


def _without_nan(values: torch.Tensor, _: int = 1) -> torch.Tensor:
    return torch.where(values.isnan(), 0, values)


def _sum_of_numbers(input: SparseTensor, _: int, dim: Dims, keepdim: bool) -> torch.Tensor | None:
    """Sum all values; None where that has a NaN, if only of two infinities."""
    total = sum_by_kernel(input, dim, keepdim, None)
    return None if total is None or bool(total.isnan().any()) else total


@reduction(
    *_forms("nansum"),
    differentiable=True,
    of_sum=lambda total, _: total,
    summand=_without_nan,
    sum_at_once=_sum_of_numbers,
)
def nansum(groups: Groups, values: torch.Tensor) -> Reduced:
    return groups.sum(_without_nan(values)), 0.0


def _counted(values: torch.Tensor, _: int) -> torch.Tensor | None:
    """Return 1 for each value that is not zero, where the dtype has all numbers up to how many there are."""
    return (values != 0).to(values.dtype) if has_all_counts(values.dtype, values.numel()) else None


def _count_at_once(input: SparseTensor, _: int, dim: Dims, keepdim: bool) -> torch.Tensor | None:
    return stored_in_each(input, dim, keepdim)


@reduction(
    aten.count_nonzero.default,
    aten.count_nonzero.dim_IntList,
    takes="dim",
    of_sum=lambda count, _: count,
    summand=_counted,
    sum_at_once=_count_at_once,
)
def count_nonzero(groups: Groups, values: torch.Tensor) -> Reduced:
    return groups.sum((values != 0).to(torch.int64)), 0.0


@reduction(torch.prod, torch.Tensor.prod, aten.prod.default, aten.prod.dim_int, differentiable=True)
def prod(groups: Groups, values: torch.Tensor) -> Reduced | None:
    fixed = values.detach()
    if groups.is_masked or not is_differentiable(values):
        product = groups.reduce(values, "prod")
    elif is_transformed() or has_tangents(values) or not bool((fixed != 0).all()):
        return None
    else:
        product = apply(_Product, values, groups)
    if not fixed.is_floating_point() and not fixed.is_complex():
        return product.masked_fill(groups.has_zeros, 0), 0.0
    with_zeros = groups.sum(fixed * 0) + 0  # infinity times zero is not a number; a large one is 0
    return torch.where(groups.has_zeros, with_zeros, product), 0.0


class _Product(torch.autograd.Function):
    """The product of each group of values that are not zero."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, groups: Groups) -> torch.Tensor:
        ctx.save_for_backward(values)
        ctx.groups = groups
        return groups.reduce(values.detach(), "prod")

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (values,) = ctx.saved_tensors
        product = gradient * apply(_Product, values, ctx.groups).conj()
        return ctx.groups.spread(product) / values.conj(), None


@reduction(
    *_forms("any", "default", "dim", "dims"),
    takes="dim keepdim",
    of_sum=lambda count, _: count > 0,
    summand=_counted,
    sum_at_once=_count_at_once,
)
def any(groups: Groups, values: torch.Tensor) -> Reduced:
    return groups.reduce((values != 0).to(torch.uint8), "amax"), 0.0


@reduction(
    *_forms("all", "default", "dim", "dims"),
    takes="dim keepdim",
    of_sum=lambda count, length: count == length,
    summand=_counted,
    sum_at_once=_count_at_once,
)
def all(groups: Groups, values: torch.Tensor) -> Reduced:
    return groups.reduce((values != 0).to(torch.uint8), "amin").masked_fill(groups.has_zeros, 0), 0.0


_VARIANCE_OPTIONS = "dim unbiased keepdim correction"


@reduction(*_forms("var", "correction"), takes=_VARIANCE_OPTIONS, differentiable=True)
def var(
    groups: Groups, values: torch.Tensor, unbiased: bool | None = None, correction: float | None = None
) -> Reduced | None:
    """Compute the mean squared distance from the mean, of all elements."""
    subtracted = (0.0 if unbiased is False else 1.0) if correction is None else float(correction)
    is_defined = groups.length > subtracted
    if not is_defined and not groups.is_masked and is_differentiable(values):
        return None
    fill = 0.0 if is_defined else math.nan
    if not values.is_complex():
        return _variance(groups, values, subtracted), fill
    real, imag = (_variance(groups, part, subtracted).to(part.dtype) for part in (values.real, values.imag))
    return real + imag, fill


def _variance(groups: Groups, values: torch.Tensor, subtracted: float) -> torch.Tensor:
    """Compute the variance of real values in float64, in which torch computes it too."""
    wide = values.double()
    center = groups.sum(wide) / groups.elements
    squares = groups.sum((wide - groups.spread(center)) ** 2) + groups.sum_of_zeros(center**2)
    freedom = (
        torch.as_tensor(groups.elements, dtype=torch.float64, device=values.device) - subtracted
    ).clamp(min=0)
    if not groups.is_masked:
        return squares / freedom
    undefined = squares.detach() / freedom  # infinity or NaN, without a gradient
    return torch.where(freedom > 0, squares / torch.where(freedom > 0, freedom, 1), undefined)


@reduction(*_forms("std", "correction"), takes=_VARIANCE_OPTIONS, differentiable=True)
def std(groups: Groups, values: torch.Tensor, **options: Any) -> Reduced | None:
    reduced = var.body(groups, values, **options)
    return None if reduced is None else (_power(reduced[0], 0.5), reduced[1])


def _power(base: torch.Tensor, exponent: float) -> torch.Tensor:
    """Raise nonnegative numbers to a power; 0 has the gradient 0, as in torch's norms and deviations."""
    if not is_differentiable(base):
        return base**exponent
    is_zero = base == 0
    return torch.where(is_zero, 0, torch.where(is_zero, 1, base) ** exponent)


def _square(values: torch.Tensor) -> torch.Tensor:
    """Square magnitudes without ``abs``, which has no second derivative at 0."""
    return values.real**2 + values.imag**2 if values.is_complex() else values**2


def _with_mean(spread: Function) -> Function:
    """Return ``spread``, the variance or deviation, with the mean; None where torch's depends on order."""

    def run(input: SparseTensor, **bound: Any) -> Any:
        values = input.storage.values
        is_within = is_within_budget(input.numel() * values.element_size(), values.device)
        if is_within and not bool(values.isfinite().all()):  # the mean of infinities
            return None
        result = spread(input, **bound)
        dim = None if isinstance(bound.get("dim"), bool) else bound.get("dim")
        keepdim = bound.get("keepdim", False)
        return None if result is None else (result, mean(input, dim=dim, keepdim=keepdim))

    return run


for _function, _operator, _spread in (
    (torch.var_mean, aten.var_mean.correction, var),
    (torch.std_mean, aten.std_mean.correction, std),
):
    direct(_function, takes=_VARIANCE_OPTIONS, differentiable=True)(_with_mean(_spread))
    implements(_operator)(as_operator(_operator, _with_mean(_spread), _VARIANCE_OPTIONS))


class _Change(torch.autograd.Function):
    """Zero, with the derivative of the values: ``values - values.detach()``, for infinities too."""

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
        return _Change.apply(values), in_dims[0]


def _extreme(groups: Groups, values: torch.Tensor, how: str) -> torch.Tensor:
    """Compute the extreme; its gradient is shared among all equal elements, zeros included, as in torch."""
    fixed = values.detach()
    best = groups.reduce(fixed, how)
    with_zero = best.clamp(min=0) if how == "amax" else best.clamp(max=0)
    best = torch.where(groups.has_zeros, with_zero, best)
    if not is_differentiable(values):
        return best
    is_best = (fixed == groups.spread(best)).to(values.dtype)
    count = groups.sum(is_best) + torch.where(best == 0, groups.zeros, 0)
    return best + groups.sum(_Change.apply(values) * (is_best / groups.spread(count)))


@reduction(*_forms("amax"), aten.max.default, takes="dim keepdim", differentiable=True)
def amax(groups: Groups, values: torch.Tensor) -> Reduced:
    return _extreme(groups, values, "amax"), 0.0


@reduction(*_forms("amin"), aten.min.default, takes="dim keepdim", differentiable=True)
def amin(groups: Groups, values: torch.Tensor) -> Reduced:
    return _extreme(groups, values, "amin"), 0.0


@reduction(*_forms("argmax"), takes="dim keepdim", dense=True)
def argmax(groups: Groups, values: torch.Tensor) -> Reduced:
    return _extreme_position(groups, values, "argmax"), 0


@reduction(*_forms("argmin"), takes="dim keepdim", dense=True)
def argmin(groups: Groups, values: torch.Tensor) -> Reduced:
    return _extreme_position(groups, values, "argmin"), 0


def _extreme_position(groups: Groups, values: torch.Tensor, how: str) -> torch.Tensor:
    """Return the first position of the extreme of each group: an entry, or the first implicit zero."""
    places = groups.places(values, how)
    stored, best = take_rows(groups.inside, places), take_rows(values, places)
    if groups.is_masked:
        return stored
    missing = groups.first_missing
    beats = (best > 0 if how == "argmax" else best < 0) | best.isnan()
    ties = torch.where(best == 0, torch.minimum(stored, missing), missing)
    has_all = groups.stored == groups.length
    return torch.where(has_all | (beats & (groups.stored > 0)), stored, ties)


def _define_along(name: str, *parts: Reduction) -> None:
    """Register ``max`` or ``min``: the value of ``parts``, or along a dimension that and its position."""
    operator, kind = getattr(aten, name).dim, getattr(torch.return_types, name)

    def check_part(number: int, small: torch.Tensor, **options: Any) -> Any:
        return operator(small, **options)[number]

    @implements(operator)
    def along(self: SparseTensor, dim: int, keepdim: bool = False) -> Any:
        if not self.numel():
            return kind(run_densely(operator, (self, dim, keepdim), {}))
        with torch.no_grad():
            checked = (functools.partial(check_part, number) for number in range(2))
            runs = zip(parts, checked, strict=True)
            return kind([part.run(check, self, dim=dim, keepdim=keepdim) for part, check in runs])

    @direct(getattr(torch, name), getattr(torch.Tensor, name), takes="dim keepdim")
    def run(input: SparseTensor, dim: int | None = None, **options: bool) -> Any:
        return parts[0](input, **options) if dim is None else along(input, dim, **options)


_define_along("max", amax, argmax)
_define_along("min", amin, argmin)


@implements(aten.aminmax.default)
def aminmax(self: SparseTensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    if not self.numel():
        return run_densely(aten.aminmax.default, (self,), {"dim": dim, "keepdim": keepdim})
    dims = () if dim is None else dim
    with torch.no_grad():
        both = amin(self, dim=dims, keepdim=keepdim), amax(self, dim=dims, keepdim=keepdim)
    return torch.return_types.aminmax(both)


# norms and exponentials ------------------------------------------------------------------------------


def _norm_summand(values: torch.Tensor, length: int, ord: float = 2) -> torch.Tensor | None:
    """Return the power whose sum is that of the norm; None where the norm is no such sum."""
    if ord == 0:
        return None if is_differentiable(values) else _counted(values, length)
    if ord == 1 or length == 1:
        return values.abs()
    if ord == 2:
        return _square(values)
    if ord < 0 or math.isinf(ord):
        return None
    return values.abs() ** ord if ord >= 1 else _power(values.abs(), ord)


def _sum_of_powers(
    input: SparseTensor, length: int, dim: Dims, keepdim: bool, ord: float = 2
) -> torch.Tensor | None:
    """Return the sum that ``_norm_summand`` is for, by a kernel that computes the powers, too."""
    if ord == 0:
        return stored_in_each(input, dim, keepdim)
    operator = "abs" if ord == 1 or length == 1 else "square" if ord == 2 else ""
    return sum_by_kernel(input, dim, keepdim, None, operator) if operator else None


def _root(total: torch.Tensor, length: int, ord: float = 2) -> torch.Tensor:
    """Return the norm that a sum of powers belongs to."""
    return total if ord in (0, 1) or length == 1 else _power(total, 1 / ord)


@reduction(
    torch.linalg.vector_norm,
    aten.linalg_vector_norm.default,
    takes="ord dim keepdim dtype",
    differentiable=True,
    of_sum=_root,
    summand=_norm_summand,
    sum_at_once=_sum_of_powers,
)
def vector_norm(groups: Groups, values: torch.Tensor, ord: float = 2) -> Reduced | None:
    """Compute the root of the sum of powers; its gradient is 0 where the norm is, as in torch."""
    magnitudes = values.abs()
    if ord == 0:
        return groups.sum(torch.where(magnitudes != 0, 1, magnitudes)), 0.0
    if math.isinf(ord) and groups.length > 1:
        return _extreme(groups, magnitudes, "amax" if ord > 0 else "amin"), 0.0
    summand = _norm_summand(values, groups.length, ord)
    if summand is not None:
        return _root(groups.sum(summand), groups.length, ord), 0.0
    if is_differentiable(values) and not groups.is_masked:
        return None
    norm = groups.sum(magnitudes**ord) ** (1 / ord)
    return norm.masked_fill(groups.has_zeros & ~norm.isnan(), 0), 0.0


@direct(torch.norm, torch.Tensor.norm, takes="p dim keepdim dtype", differentiable=True)
def norm(
    input: SparseTensor, p: Any = "fro", dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    """Compute the norm of all elements as a vector, as Frobenius' is too, or along dimensions."""
    is_fro = p in ("fro", None) and (dim is None or isinstance(dim, int) or len(dim) <= 2)
    if dtype is not None or not (is_fro or isinstance(p, (int, float))):
        return None
    return vector_norm(input, ord=2 if is_fro else p, dim=dim, keepdim=keepdim)


@reduction(*_forms("logsumexp"), torch.special.logsumexp, takes="dim keepdim", differentiable=True)
def logsumexp(groups: Groups, values: torch.Tensor) -> Reduced:
    fixed = values.detach()
    magnitudes = fixed.real if values.is_complex() else fixed
    maxima = _extreme(groups, magnitudes, "amax")  # what exp() would overflow by
    maxima = torch.where(maxima.isinf(), 0.0, maxima)
    total = groups.sum(torch.exp(values - groups.spread(maxima))) + groups.sum_of_zeros(torch.exp(-maxima))
    return torch.log(total) + maxima, math.log(groups.length)


@implements(aten.equal)
def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all elements are the same."""
    if tuple(self.shape) != tuple(other.shape):
        return False
    return not bool(torch.ne(self, other).any())


@implements(aten.trace)
def trace(self: SparseTensor) -> Any:
    like = run_on_sample(aten.trace.default, self)
    return torch.diagonal(self).sum(dtype=like.dtype)
