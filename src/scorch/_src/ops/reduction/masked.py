"""``masked=True``: reductions over stored entries only, as ``torch.masked`` with the pattern as mask.

    S.amax(1)                  the largest element of each row, zeros that are not stored included
    S.amax(1, masked=True)     the largest stored entry; minus infinity for a row without entries

What is found where nothing is stored is what ``torch.masked`` gives: 0 for sums and norms, 1 for products,
infinities for extremes, NaN for means, variances and medians. ``softmax``, ``log_softmax``, ``cumsum`` and
``cumprod`` have a value for each stored entry, so their results have the pattern of their operand. All of
them but places have gradients, at the stored entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.grad_state import is_learning
from scorch._src.ops.reduction import reduce
from scorch._src.ops.reduction.groups import Dims, Groups, groups_of
from scorch._src.ops.reduction.reduction import Body, Reduced, in_computing_dtype, on_small
from scorch._src.ops.reduction.scan import scanned
from scorch._src.ops.torch_sparse import as_sparse
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.broadcast import expanded
from scorch._src.tensor.entries import Entries, entries_of, format_for
from scorch._src.tensor.entries_autograd import from_learned_entries, learned_entries
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, OperandError, ShapeError


def _reduced(
    body: Body,
    S: SparseTensor,
    dim: Dims,
    keepdim: bool,
    like: torch.Tensor,
    identity: float,
    *,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> torch.Tensor:
    """One value for each group of entries, in the dtype of ``like``; ``identity`` where there are none."""
    groups = groups_of(S, dim, masked=True)
    values = in_computing_dtype(groups.values(S), like.dtype, dtype)
    reduced = body(groups, values, **options)
    assert reduced is not None
    is_place = body in (reduce.argmax.body, reduce.argmin.body)
    return groups.result(S, reduced[0].to(like.dtype), keepdim, identity, is_place)


# reductions ------------------------------------------------------------------------------------------


def sum(S: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    like = on_small(torch.sum, S, dim, keepdim, dtype=dtype)
    return _reduced(reduce.sum.body, S, dim, keepdim, like, 0.0, dtype=dtype)


def mean(S: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    like = on_small(torch.mean, S, dim, keepdim, dtype=dtype)
    return _reduced(reduce.mean.body, S, dim, keepdim, like, math.nan, dtype=dtype)


def prod(S: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    function: Any = torch.prod if isinstance(dim, int) else torch.sum  # which takes a list of dimensions too
    like = on_small(function, S, dim, keepdim, dtype=dtype)
    return _reduced(reduce.prod.body, S, dim, keepdim, like, 1.0, dtype=dtype)


def amax(S: SparseTensor, dim: Dims = (), keepdim: bool = False) -> torch.Tensor:
    like = on_small(torch.amax, S, dim, keepdim)
    return _reduced(reduce.amax.body, S, dim, keepdim, like, _bound(like.dtype, -1))


def amin(S: SparseTensor, dim: Dims = (), keepdim: bool = False) -> torch.Tensor:
    like = on_small(torch.amin, S, dim, keepdim)
    return _reduced(reduce.amin.body, S, dim, keepdim, like, _bound(like.dtype, 1))


def _bound(dtype: torch.dtype, sign: int) -> float:
    """The largest number of ``dtype``, or with ``sign`` -1 the least."""
    if dtype.is_floating_point:
        return sign * math.inf
    if dtype == torch.bool:
        return float(sign > 0)
    facts = torch.iinfo(dtype)
    return facts.max if sign > 0 else facts.min


def argmax(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """The place of the first of the largest stored entries; 0 where none is stored."""
    return _reduced(reduce.argmax.body, S, dim, keepdim, on_small(torch.argmax, S, dim, keepdim), 0)


def argmin(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    return _reduced(reduce.argmin.body, S, dim, keepdim, on_small(torch.argmin, S, dim, keepdim), 0)


def max(S: SparseTensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest stored entry, or of each line with its place."""
    if dim is None:
        return amax(S)
    _check_line(dim, "max")
    return torch.return_types.max((_first(S, dim, keepdim, "amax"), argmax(S, dim, keepdim)))


def min(S: SparseTensor, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return amin(S)
    _check_line(dim, "min")
    return torch.return_types.min((_first(S, dim, keepdim, "amin"), argmin(S, dim, keepdim)))


def _first(S: SparseTensor, dim: int, keepdim: bool, how: str) -> torch.Tensor:
    """The extreme entry of each line whose place is told too; it alone has a gradient."""
    if not is_learning(S):
        return amax(S, dim, keepdim) if how == "amax" else amin(S, dim, keepdim)

    def body(groups: Groups, values: torch.Tensor) -> Reduced:
        fixed = values.detach()
        best = groups.reduce(fixed, how)[groups.group]
        is_best = (fixed == best) | (fixed.isnan() & best.isnan())
        numbers = torch.arange(values.numel(), device=values.device)
        return values[groups.reduce(torch.where(is_best, numbers, values.numel()), "amin")], 0.0

    bound = _bound(S.dtype, -1 if how == "amax" else 1)
    return _reduced(body, S, dim, keepdim, S.storage.values, bound)


def _check_line(dim: Any, name: str) -> None:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise OperandError(f"{name} with masked=True takes a dimension, not a {type(dim).__name__}")


def var(
    S: SparseTensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> torch.Tensor:
    return _spread(reduce.var.body, S, dim, unbiased, keepdim, correction)


def std(
    S: SparseTensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> torch.Tensor:
    return _spread(reduce.std.body, S, dim, unbiased, keepdim, correction)


def _spread(
    body: Body, S: SparseTensor, dim: Dims, unbiased: bool | None, keepdim: bool, correction: float | None
) -> torch.Tensor:
    if isinstance(dim, bool):  # torch also takes var(unbiased)
        dim, unbiased = None, dim
    like = on_small(torch.var, S, dim, correction=0, keepdim=keepdim)
    options: Any = {"unbiased": unbiased, "correction": correction}
    return _reduced(body, S, dim, keepdim, like, math.nan, **options)


def norm(
    S: SparseTensor, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> torch.Tensor:
    if p is None or p == "fro":
        p = 2
    if isinstance(p, str):
        raise ArgumentError(f"norm with masked=True is that of a vector: p is a number, not {p!r}")
    order = float(p)
    like = on_small(torch.linalg.vector_norm, S, order, dim, keepdim, dtype=dtype)
    return _reduced(reduce.vector_norm.body, S, dim, keepdim, like, math.inf if order < 0 else 0.0, ord=order)


def logsumexp(S: SparseTensor, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    like = on_small(torch.logsumexp, S, dim, keepdim)
    return _reduced(reduce.logsumexp.body, S, dim, keepdim, like, -math.inf)


def median(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """The lower medians, without their places, of stored entries that are numbers."""
    like = on_small(torch.nansum, S, dim, keepdim, dtype=S.dtype)
    lines = math.prod(size for d, size in enumerate(S.shape) if dim is not None and d != dim % S.dim())
    if not like.dtype.is_floating_point and groups_of(S, dim, masked=True).keys.numel() < lines:
        raise ArgumentError(
            f"median with masked=True: a line without entries has NaN, but {like.dtype} has none; "
            "use .float()"
        )

    def body(groups: Groups, values: torch.Tensor) -> Reduced:
        order = torch.argsort(values, stable=True)  # NaN comes last
        order = order[torch.argsort(groups.group[order], stable=True)]
        numbers = groups.sum((~values.isnan()).to(torch.int64))
        first = torch.cumsum(groups.stored, 0) - groups.stored
        return values[order][first + (numbers - 1).clamp(min=0) // 2], 0.0

    return _reduced(body, S, dim, keepdim, like, math.nan)


# a value for each entry ------------------------------------------------------------------------------


def softmax(S: SparseTensor, dim: int, dtype: Any = None) -> Any:
    return torch.sparse.softmax(S, dim, dtype=dtype)


def log_softmax(S: SparseTensor, dim: int, dtype: Any = None) -> Any:
    return torch.sparse.log_softmax(S, dim, dtype=dtype)


def cumsum(S: SparseTensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    """At each entry the sum of those stored before it in its line, and itself."""
    return _running(S, dim, on_small(torch.cumsum, S, dim, dtype=dtype).dtype, torch.cumsum)


def cumprod(S: SparseTensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    return _running(S, dim, on_small(torch.cumprod, S, dim, dtype=dtype).dtype, torch.cumprod)


def _running(S: SparseTensor, dim: int, dtype: torch.dtype, scan: Callable[..., Any]) -> torch.Tensor:
    groups = groups_of(S, dim, masked=True)
    order = torch.argsort(groups.group, stable=True)
    values = scanned(scan, groups.values(S)[order].to(dtype), groups.stored)
    places = order if groups.numbers is None else groups.numbers[order]
    return sparse_of(S.storage.pattern, values.new_zeros(S.nnz).index_put((places,), values))


# all of them --------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (sum, mean, prod, amax, amin, argmax, argmin, max, min, var, std, norm, logsumexp, median)
}
PER_ENTRY: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (softmax, log_softmax, cumsum, cumprod)
}

# other masks -----------------------------------------------------------------------------------------


def only_at(input: Any, mask: torch.Tensor) -> SparseTensor:
    """A tensor that stores what ``input`` has where the sparse ``mask`` is true, zeros included."""
    S, shape = as_sparse("a sparse mask", input), tuple(input.shape)
    sizes = tuple(mask.shape)
    if len(sizes) > len(shape) or any(
        a not in (1, b) for a, b in zip(sizes[::-1], shape[::-1], strict=False)
    ):
        raise ShapeError(f"a mask of shape {sizes} cannot be broadcast to a tensor of shape {shape}")
    valid = expanded(entries_of(as_sparse("mask", mask)), shape)
    keys = valid.keys[valid.values.to(torch.bool)]
    return from_learned_entries(Entries(keys, learned_entries(S).at(keys), shape), format_for(S, shape))
