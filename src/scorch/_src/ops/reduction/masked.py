"""``masked=True``: reductions over stored entries only, as ``torch.masked`` with the pattern as mask.

    S.amax(1)                  the largest element of each row, implicit zeros included
    S.amax(1, masked=True)     the largest stored entry; minus infinity for a row without entries

Without stored entries the result is that of ``torch.masked``: 0 for sums and norms, 1 for products,
infinities for extremes, NaN for means, variances and medians. ``softmax``, ``log_softmax``, ``cumsum`` and
``cumprod`` have a value for each stored entry, so their results have the pattern of their operand. All of
them but positions have gradients, at the stored entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.grad_state import is_differentiable
from scorch._src.ops.reduction import reduce
from scorch._src.ops.reduction.groups import Dims, Groups, groups_of
from scorch._src.ops.reduction.reduction import Body, Reduced, run_on_sample, to_computing_dtype
from scorch._src.ops.reduction.scan import scan_segments
from scorch._src.ops.torch_sparse import as_sparse
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.broadcast import expanded
from scorch._src.tensor.entries import Entries, entries_of, format_for
from scorch._src.tensor.entries_autograd import differentiable_entries, from_differentiable_entries
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, OperandError, ShapeError


def _reduce_stored(
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
    """Reduce each group of entries, in the dtype of ``like``; ``identity`` where there are none."""
    groups = groups_of(S, dim, masked=True)
    values = to_computing_dtype(groups.values(S), like.dtype, dtype)
    reduced = body(groups, values, **options)
    assert reduced is not None
    is_position = body in (reduce.argmax.body, reduce.argmin.body)
    return groups.result(S, reduced[0].to(like.dtype), keepdim, identity, is_position)


# reductions ------------------------------------------------------------------------------------------


def sum(S: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    like = run_on_sample(torch.sum, S, dim, keepdim, dtype=dtype)
    return _reduce_stored(reduce.sum.body, S, dim, keepdim, like, 0.0, dtype=dtype)


def mean(S: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    like = run_on_sample(torch.mean, S, dim, keepdim, dtype=dtype)
    return _reduce_stored(reduce.mean.body, S, dim, keepdim, like, math.nan, dtype=dtype)


def prod(S: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    function: Any = torch.prod if isinstance(dim, int) else torch.sum  # which takes a list of dimensions too
    like = run_on_sample(function, S, dim, keepdim, dtype=dtype)
    return _reduce_stored(reduce.prod.body, S, dim, keepdim, like, 1.0, dtype=dtype)


def amax(S: SparseTensor, dim: Dims = (), keepdim: bool = False) -> torch.Tensor:
    like = run_on_sample(torch.amax, S, dim, keepdim)
    return _reduce_stored(reduce.amax.body, S, dim, keepdim, like, _bound(like.dtype, -1))


def amin(S: SparseTensor, dim: Dims = (), keepdim: bool = False) -> torch.Tensor:
    like = run_on_sample(torch.amin, S, dim, keepdim)
    return _reduce_stored(reduce.amin.body, S, dim, keepdim, like, _bound(like.dtype, 1))


def _bound(dtype: torch.dtype, sign: int) -> float:
    """Return the largest number of ``dtype``, or with ``sign`` -1 the least."""
    if dtype.is_floating_point:
        return sign * math.inf
    if dtype == torch.bool:
        return float(sign > 0)
    info = torch.iinfo(dtype)
    return info.max if sign > 0 else info.min


def argmax(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """Return the position of the first of the largest stored entries; 0 where none is stored."""
    return _reduce_stored(
        reduce.argmax.body, S, dim, keepdim, run_on_sample(torch.argmax, S, dim, keepdim), 0
    )


def argmin(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    return _reduce_stored(
        reduce.argmin.body, S, dim, keepdim, run_on_sample(torch.argmin, S, dim, keepdim), 0
    )


def max(S: SparseTensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest stored entry, or of each row with its position."""
    if dim is None:
        return amax(S)
    _check_dim(dim, "max")
    return torch.return_types.max((_extreme_value(S, dim, keepdim, "amax"), argmax(S, dim, keepdim)))


def min(S: SparseTensor, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return amin(S)
    _check_dim(dim, "min")
    return torch.return_types.min((_extreme_value(S, dim, keepdim, "amin"), argmin(S, dim, keepdim)))


def _extreme_value(S: SparseTensor, dim: int, keepdim: bool, how: str) -> torch.Tensor:
    """Return the extreme entry of each row with a position; it alone has a gradient."""
    if not is_differentiable(S):
        return amax(S, dim, keepdim) if how == "amax" else amin(S, dim, keepdim)

    def body(groups: Groups, values: torch.Tensor) -> Reduced:
        fixed = values.detach()
        best = groups.reduce(fixed, how)[groups.group]
        is_best = (fixed == best) | (fixed.isnan() & best.isnan())
        numbers = torch.arange(values.numel(), device=values.device)
        return values[groups.reduce(torch.where(is_best, numbers, values.numel()), "amin")], 0.0

    bound = _bound(S.dtype, -1 if how == "amax" else 1)
    return _reduce_stored(body, S, dim, keepdim, S.storage.values, bound)


def _check_dim(dim: Any, name: str) -> None:
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
    return _variance_like(reduce.var.body, S, dim, unbiased, keepdim, correction)


def std(
    S: SparseTensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> torch.Tensor:
    return _variance_like(reduce.std.body, S, dim, unbiased, keepdim, correction)


def _variance_like(
    body: Body, S: SparseTensor, dim: Dims, unbiased: bool | None, keepdim: bool, correction: float | None
) -> torch.Tensor:
    if isinstance(dim, bool):  # torch also takes var(unbiased)
        dim, unbiased = None, dim
    like = run_on_sample(torch.var, S, dim, correction=0, keepdim=keepdim)
    options: Any = {"unbiased": unbiased, "correction": correction}
    return _reduce_stored(body, S, dim, keepdim, like, math.nan, **options)


def norm(
    S: SparseTensor, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> torch.Tensor:
    if p is None or p == "fro":
        p = 2
    if isinstance(p, str):
        raise ArgumentError(f"norm with masked=True is that of a vector: p is a number, not {p!r}")
    order = float(p)
    like = run_on_sample(torch.linalg.vector_norm, S, order, dim, keepdim, dtype=dtype)
    return _reduce_stored(
        reduce.vector_norm.body, S, dim, keepdim, like, math.inf if order < 0 else 0.0, ord=order
    )


def logsumexp(S: SparseTensor, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    like = run_on_sample(torch.logsumexp, S, dim, keepdim)
    return _reduce_stored(reduce.logsumexp.body, S, dim, keepdim, like, -math.inf)


def median(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """Return the lower medians, without their positions, of stored entries that are numbers."""
    like = run_on_sample(torch.nansum, S, dim, keepdim, dtype=S.dtype)
    rows = math.prod(size for d, size in enumerate(S.shape) if dim is not None and d != dim % S.dim())
    if not like.dtype.is_floating_point and groups_of(S, dim, masked=True).keys.numel() < rows:
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

    return _reduce_stored(body, S, dim, keepdim, like, math.nan)


# a value for each entry ------------------------------------------------------------------------------


def softmax(S: SparseTensor, dim: int, dtype: Any = None) -> Any:
    return torch.sparse.softmax(S, dim, dtype=dtype)


def log_softmax(S: SparseTensor, dim: int, dtype: Any = None) -> Any:
    return torch.sparse.log_softmax(S, dim, dtype=dtype)


def cumsum(S: SparseTensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    """Compute at each entry the sum of those stored up to it in its row."""
    return _scan_stored(S, dim, run_on_sample(torch.cumsum, S, dim, dtype=dtype).dtype, torch.cumsum)


def cumprod(S: SparseTensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    return _scan_stored(S, dim, run_on_sample(torch.cumprod, S, dim, dtype=dtype).dtype, torch.cumprod)


def _scan_stored(S: SparseTensor, dim: int, dtype: torch.dtype, scan: Callable[..., Any]) -> torch.Tensor:
    groups = groups_of(S, dim, masked=True)
    order = torch.argsort(groups.group, stable=True)
    values = scan_segments(scan, groups.values(S)[order].to(dtype), groups.stored)
    positions = order if groups.numbers is None else groups.numbers[order]
    return sparse_of(S.storage.pattern, values.new_zeros(S.nnz).index_put((positions,), values))


# tables ----------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (sum, mean, prod, amax, amin, argmax, argmin, max, min, var, std, norm, logsumexp, median)
}
PER_ENTRY: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (softmax, log_softmax, cumsum, cumprod)
}

# other masks -----------------------------------------------------------------------------------------


def sample_at_mask(input: Any, mask: torch.Tensor) -> SparseTensor:
    """Return a tensor that stores ``input`` where the sparse ``mask`` is true, zeros included."""
    S, shape = as_sparse("a sparse mask", input), tuple(input.shape)
    sizes = tuple(mask.shape)
    if len(sizes) > len(shape) or any(
        a not in (1, b) for a, b in zip(sizes[::-1], shape[::-1], strict=False)
    ):
        raise ShapeError(f"a mask of shape {sizes} cannot be broadcast to a tensor of shape {shape}")
    valid = expanded(entries_of(as_sparse("mask", mask)), shape)
    keys = valid.keys[valid.values.to(torch.bool)]
    return from_differentiable_entries(
        Entries(keys, differentiable_entries(S).at(keys), shape), format_for(S, shape)
    )
