"""``masked=True``: reductions over stored entries only, as ``torch.masked`` with the pattern as mask.

    S.amax(1)                  the largest element of each row, implicit zeros included
    S.amax(1, masked=True)     the largest stored entry; minus infinity for a row without entries

Without stored entries the result is that of ``torch.masked``: 0 for sums and norms, 1 for products,
infinities for extremes, NaN for means, variances and medians. ``softmax``, ``log_softmax``, ``cumsum`` and
``cumprod`` have a value for each stored entry, so their results have the pattern of their operand. All of
them but positions have gradients, at the stored entries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.backends.base import routines_for
from scorch._src.grad_state import is_differentiable
from scorch._src.ops.reduction import reduce
from scorch._src.ops.reduction.groups import Dims, Groups, groups_of
from scorch._src.ops.reduction.reduction import Body, Reduced, Reduction, run_on_sample, to_computing_dtype
from scorch._src.ops.torch_sparse import as_sparse
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.broadcast import expanded
from scorch._src.tensor.entries import Entries, entries_of, format_for
from scorch._src.tensor.entries_autograd import differentiable_entries, from_differentiable_entries
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, OperandError, ShapeError, is_integer, kind_of

Operation = Callable[..., Any]


def _reduce_stored(
    body: Body,
    S: SparseTensor,
    dim: Dims,
    keepdim: bool,
    like: torch.Tensor,
    empty: float,
    *,
    dense: bool = False,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> torch.Tensor:
    """Reduce each group of entries, in the dtype of ``like``; ``empty`` where there are none."""
    groups = groups_of(S, dim, masked=True)
    values = to_computing_dtype(groups.values(S), like.dtype, dtype)
    reduced = body(groups, values, **options)
    assert reduced is not None
    return groups.result(S, reduced[0].to(like.dtype), keepdim, empty, dense)


def _bound(dtype: torch.dtype, sign: int) -> float:
    """Return the largest number of ``dtype``, or with ``sign`` -1 the least."""
    if dtype.is_floating_point:
        return sign * math.inf
    if dtype == torch.bool:
        return float(sign > 0)
    info = torch.iinfo(dtype)
    return info.max if sign > 0 else info.min


_LEAST, _MOST = functools.partial(_bound, sign=-1), functools.partial(_bound, sign=1)


def _define(name: str, empty: Any, default: Any = None) -> Operation:
    """Define a reduction over ``dim``, by ``default`` all; without entries it is ``empty``, of a dtype."""
    reduction: Reduction = getattr(reduce, name)
    function: Any = getattr(torch, name)

    def run(S: SparseTensor, dim: Dims = default, keepdim: bool = False, **options: Any) -> torch.Tensor:
        is_list = name == "prod" and not isinstance(dim, int)  # which torch.sum takes
        like = run_on_sample(torch.sum if is_list else function, S, dim, keepdim, **options)
        fill = empty(like.dtype) if callable(empty) else empty
        return _reduce_stored(reduction.body, S, dim, keepdim, like, fill, dense=reduction.dense, **options)

    return run


def _define_with_position(name: str) -> Operation:
    """Define ``max`` or ``min``: an extreme of all entries, or those of each row with their positions."""
    extreme, position = OPERATIONS[f"a{name}"], OPERATIONS[f"arg{name}"]

    def run(S: SparseTensor, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return extreme(S)
        if not is_integer(dim):
            raise OperandError(
                f"{name} with masked=True expected dim to be an integer, but got {kind_of(dim)}"
            )
        is_tracked = is_differentiable(S)
        values = _extreme_value(S, dim, keepdim, f"arg{name}") if is_tracked else extreme(S, dim, keepdim)
        return getattr(torch.return_types, name)((values, position(S, dim, keepdim)))

    return run


def _extreme_value(S: SparseTensor, dim: int, keepdim: bool, how: str) -> torch.Tensor:
    """Return the extreme entry of each row with a position; it alone has a gradient."""

    def body(groups: Groups, values: torch.Tensor) -> Reduced:
        return values[groups.places(values, how)], 0.0

    bound = (_LEAST if how == "argmax" else _MOST)(S.dtype)
    return _reduce_stored(body, S, dim, keepdim, S.storage.values, bound)


def _define_variance(name: str) -> Operation:
    reduction: Reduction = getattr(reduce, name)

    def run(
        S: SparseTensor,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> torch.Tensor:
        if isinstance(dim, bool):  # torch also takes var(unbiased)
            dim, unbiased = None, dim
        like = run_on_sample(torch.var, S, dim, correction=0, keepdim=keepdim)
        options: Any = {"unbiased": unbiased, "correction": correction}
        return _reduce_stored(reduction.body, S, dim, keepdim, like, math.nan, **options)

    return run


def norm(
    S: SparseTensor, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> torch.Tensor:
    if isinstance(p, str) and p != "fro":
        raise ArgumentError(f"norm with masked=True is a vector norm: p must be a number, but got {p!r}")
    order = 2.0 if p in (None, "fro") else float(p)
    like = run_on_sample(torch.linalg.vector_norm, S, order, dim, keepdim, dtype=dtype)
    empty = math.inf if order < 0 else 0.0
    return _reduce_stored(reduce.vector_norm.body, S, dim, keepdim, like, empty, ord=order)


def median(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """Return the lower medians, without their positions, of stored entries that are numbers."""
    like = run_on_sample(torch.nansum, S, dim, keepdim, dtype=S.dtype)
    rows = math.prod(size for d, size in enumerate(S.shape) if dim is not None and d != dim % S.dim())
    if not like.dtype.is_floating_point and int((groups_of(S, dim, masked=True).stored > 0).sum()) < rows:
        raise ArgumentError(
            f"median with masked=True is NaN where there are no entries, which {like.dtype} cannot "
            "represent; use .float()"
        )

    def body(groups: Groups, values: torch.Tensor) -> Reduced:
        if dim is None and values.numel() and not is_differentiable(values):
            routines = routines_for(values)
            numbers_in_all = values.numel() - routines.count_signs(values)[2]
            return routines.select(values, [max(numbers_in_all - 1, 0) // 2]), 0.0
        order = groups.sorted(values, descending=False)  # NaN comes last
        numbers = groups.sum((~values.isnan()).to(torch.int64))
        middle = groups.begins[:-1] + (numbers - 1).clamp(min=0) // 2
        return values[order[middle.clamp(max=order.numel() - 1)]], 0.0

    return _reduce_stored(body, S, dim, keepdim, like, math.nan)


# a value for each entry ------------------------------------------------------------------------------


def softmax(S: SparseTensor, dim: int, dtype: Any = None) -> Any:
    return torch.sparse.softmax(S, dim, dtype=dtype)


def log_softmax(S: SparseTensor, dim: int, dtype: Any = None) -> Any:
    return torch.sparse.log_softmax(S, dim, dtype=dtype)


def _define_scan(scan: Callable[..., Any]) -> Operation:
    """Define ``scan`` at each entry, of those stored up to it in its row."""

    def run(S: SparseTensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
        like = run_on_sample(scan, S, dim, dtype=dtype)
        groups = groups_of(S, dim, masked=True)
        values = groups.scan(groups.values(S).to(like.dtype), scan.__name__)
        if groups.numbers is not None:
            values = values.new_zeros(S.nnz).index_put((groups.numbers,), values)
        return sparse_of(S.storage.pattern, values)

    return run


OPERATIONS: dict[str, Operation] = {
    "sum": _define("sum", 0.0),
    "mean": _define("mean", math.nan),
    "prod": _define("prod", 1.0),
    "amax": _define("amax", _LEAST, default=()),
    "amin": _define("amin", _MOST, default=()),
    "argmax": _define("argmax", 0),  # the first of several
    "argmin": _define("argmin", 0),
    "var": _define_variance("var"),
    "std": _define_variance("std"),
    "norm": norm,
    "logsumexp": _define("logsumexp", -math.inf),
    "median": median,
}
OPERATIONS |= {name: _define_with_position(name) for name in ("max", "min")}
PER_ENTRY: dict[str, Operation] = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "cumsum": _define_scan(torch.cumsum),
    "cumprod": _define_scan(torch.cumprod),
}
for _name, _operation in {**OPERATIONS, **PER_ENTRY}.items():
    setattr(_operation, "__name__", _name)  # noqa: B010 - as errors call it
    setattr(_operation, "__qualname__", _name)  # noqa: B010


def sample_at_mask(input: Any, mask: torch.Tensor) -> SparseTensor:
    """Return a tensor that stores ``input`` where the sparse ``mask`` is true, zeros included."""
    S, shape = as_sparse("a sparse mask", input), tuple(input.shape)
    sizes = tuple(mask.shape)
    pairs = zip(sizes[::-1], shape[::-1], strict=False)
    if len(sizes) > len(shape) or any(size not in (1, extent) for size, extent in pairs):
        raise ShapeError(f"a mask of shape {sizes} cannot be broadcast to a tensor of shape {shape}")
    valid = expanded(entries_of(as_sparse("mask", mask)), shape)
    keys = valid.keys[valid.values.to(torch.bool)]
    entries = Entries(keys, differentiable_entries(S).at(keys), shape)
    return from_differentiable_entries(entries, format_for(S, shape))
