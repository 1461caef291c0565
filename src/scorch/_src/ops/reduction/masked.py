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
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.grad_state import is_learning
from scorch._src.ops.reduction.reduce import Groups
from scorch._src.ops.reduction.scan import scanned
from scorch._src.ops.torch_sparse import as_sparse
from scorch._src.tensor.broadcast import expanded
from scorch._src.tensor.entries import Entries, entries_of, format_for
from scorch._src.tensor.entries_autograd import from_learned_entries, learned_entries
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, OperandError, ShapeError

Dims = Sequence[int] | int | None
Body = Callable[[Groups, torch.Tensor], torch.Tensor]
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}


def _reduced(
    S: SparseTensor, dim: Dims, keepdim: bool, dtype: torch.dtype, identity: float, body: Body
) -> torch.Tensor:
    """One value for each group of entries, in ``dtype``; ``identity`` for groups without entries."""
    groups = Groups(S, dim, learned_entries(S))
    values = groups.entries.values
    computed = torch.promote_types(values.dtype, dtype) if dtype != torch.bool else values.dtype
    found = body(groups, values.to(_WIDE.get(computed, computed)))
    sizes = [1 if d in groups.reduced else size for d, size in enumerate(S.shape)]
    shape = [size for d, size in enumerate(sizes) if keepdim or d not in groups.reduced]
    return groups.result(found, tuple(shape), dtype, identity)


def _dtype_of(function: Callable[..., Any], S: SparseTensor, *args: Any, **kwargs: Any) -> torch.dtype:
    """The dtype that torch gives the result, or its error for arguments that are wrong."""
    small = torch.zeros((3,) * S.dim(), dtype=S.storage.values.dtype)
    found = function(small, *args, **kwargs)
    dtype: torch.dtype = found.dtype
    return dtype


# reductions ------------------------------------------------------------------------------------------


def sum(S: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    wanted = _dtype_of(torch.sum, S, dim, keepdim, dtype=dtype)
    return _reduced(S, dim, keepdim, wanted, 0.0, lambda g, v: g.sum(v))


def mean(S: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    wanted = _dtype_of(torch.mean, S, dim, keepdim, dtype=dtype)
    return _reduced(S, dim, keepdim, wanted, math.nan, lambda g, v: g.sum(v) / g.stored)


def prod(S: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    if isinstance(dim, int):
        wanted = _dtype_of(torch.prod, S, dim, keepdim, dtype=dtype)
    else:  # torch.prod takes no list of dimensions; sums have the same dtypes
        wanted = _dtype_of(torch.sum, S, dim, keepdim, dtype=dtype)
    return _reduced(S, dim, keepdim, wanted, 1.0, lambda g, v: g.reduce(v, "prod"))


def amax(S: SparseTensor, dim: Dims = (), keepdim: bool = False) -> torch.Tensor:
    wanted = _dtype_of(torch.amax, S, dim, keepdim)
    return _reduced(S, dim, keepdim, wanted, _bound(wanted, -1), lambda g, v: g.reduce(v, "amax"))


def amin(S: SparseTensor, dim: Dims = (), keepdim: bool = False) -> torch.Tensor:
    wanted = _dtype_of(torch.amin, S, dim, keepdim)
    return _reduced(S, dim, keepdim, wanted, _bound(wanted, 1), lambda g, v: g.reduce(v, "amin"))


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
    _dtype_of(torch.argmax, S, dim, keepdim)
    return _place(S, dim, keepdim, "amax")


def argmin(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    _dtype_of(torch.argmin, S, dim, keepdim)
    return _place(S, dim, keepdim, "amin")


def _place(S: SparseTensor, dim: int | None, keepdim: bool, how: str) -> torch.Tensor:
    def body(groups: Groups, _: torch.Tensor) -> torch.Tensor:
        values = groups.entries.values
        values = values.to(_WIDE.get(values.dtype, values.dtype))
        best = groups.reduce(values, how)[groups.group]
        is_best = (values == best) | (values.isnan() & best.isnan())
        return groups.reduce(torch.where(is_best, groups.inside, groups.places), "amin")

    found = _reduced(S, dim, keepdim, torch.int64, 0, body)
    return found.to_dense() if isinstance(found, SparseTensor) else found


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

    def body(groups: Groups, values: torch.Tensor) -> torch.Tensor:
        fixed = values.detach()
        best = groups.reduce(fixed, how)[groups.group]
        is_best = (fixed == best) | (fixed.isnan() & best.isnan())
        numbers = torch.arange(values.numel())
        return values[groups.reduce(torch.where(is_best, numbers, values.numel()), "amin")]

    bound = _bound(S.dtype, -1 if how == "amax" else 1)
    return _reduced(S, dim, keepdim, S.dtype, bound, body)


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
    if isinstance(dim, bool):  # torch also takes var(unbiased)
        dim, unbiased = None, dim
    if correction is None:
        correction = 1.0 if unbiased is None or unbiased else 0.0
    subtracted = float(correction)
    wanted = _dtype_of(torch.var, S, dim, correction=0, keepdim=keepdim)

    def body(groups: Groups, values: torch.Tensor) -> torch.Tensor:
        center = groups.sum(values) / groups.stored
        squares = groups.sum((values - center[groups.group]).abs() ** 2)
        count = (groups.stored - subtracted).clamp(min=0)
        none = squares.detach() / count  # infinity or NaN, without a gradient
        return torch.where(count > 0, squares / torch.where(count > 0, count, 1), none)

    return _reduced(S, dim, keepdim, wanted, math.nan, body)


def std(
    S: SparseTensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> torch.Tensor:
    found: torch.Tensor = _root(var(S, dim, unbiased, keepdim, correction=correction), 2)
    return found


def _root(powers: Any, order: float) -> Any:
    """The root; its gradient is 0 where the root is, as that of torch's norms and deviations."""
    if not is_learning(powers) or isinstance(powers, SparseTensor) or order < 0:
        return powers ** (1 / order)
    is_zero = powers == 0
    return torch.where(is_zero, 0, torch.where(is_zero, 1, powers) ** (1 / order))


def norm(
    S: SparseTensor, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> torch.Tensor:
    if p is None or p == "fro":
        p = 2
    if isinstance(p, str):
        raise ArgumentError(f"norm with masked=True is that of a vector: p is a number, not {p!r}")
    order = float(p)
    wanted = _dtype_of(torch.linalg.vector_norm, S, order, dim, keepdim, dtype=dtype)

    def body(groups: Groups, values: torch.Tensor) -> torch.Tensor:
        sizes = values.abs()
        if math.isinf(order):
            return groups.reduce(sizes, "amax" if order > 0 else "amin")
        if order == 0:
            return groups.sum(torch.where(sizes != 0, 1, sizes))
        found: torch.Tensor = _root(groups.sum(sizes**order), order)
        return found

    return _reduced(S, dim, keepdim, wanted, math.inf if order < 0 else 0.0, body)


def logsumexp(S: SparseTensor, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    wanted = _dtype_of(torch.logsumexp, S, dim, keepdim)

    def body(groups: Groups, values: torch.Tensor) -> torch.Tensor:
        top = groups.reduce(values.detach(), "amax")
        top = torch.where(top.isinf(), 0.0, top)
        return torch.log(groups.sum(torch.exp(values - top[groups.group]))) + top

    return _reduced(S, dim, keepdim, wanted, -math.inf, body)


def median(S: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """The lower medians, without their places, of stored entries that are numbers."""
    wanted = _dtype_of(torch.nansum, S, dim, keepdim, dtype=S.dtype)
    lines = math.prod(size for d, size in enumerate(S.shape) if dim is not None and d != dim % S.dim())
    if not wanted.is_floating_point and Groups(S, dim).count < lines:
        raise ArgumentError(
            f"median with masked=True: a line without entries has NaN, but {wanted} has none; use .float()"
        )

    def body(groups: Groups, values: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(values, stable=True)  # NaN comes last
        order = order[torch.argsort(groups.group[order], stable=True)]
        numbers = groups.sum((~values.isnan()).to(torch.int64))
        first = torch.cumsum(groups.stored, 0) - groups.stored
        return values[order][first + (numbers - 1).clamp(min=0) // 2]

    return _reduced(S, dim, keepdim, wanted, math.nan, body)


# a value for each entry ------------------------------------------------------------------------------


def softmax(S: SparseTensor, dim: int, dtype: Any = None) -> Any:
    return torch.sparse.softmax(S, dim, dtype=dtype)


def log_softmax(S: SparseTensor, dim: int, dtype: Any = None) -> Any:
    return torch.sparse.log_softmax(S, dim, dtype=dtype)


def cumsum(S: SparseTensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    """At each entry the sum of those stored before it in its line, and itself."""
    return _running(S, dim, _dtype_of(torch.cumsum, S, dim, dtype=dtype), torch.cumsum)


def cumprod(S: SparseTensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    return _running(S, dim, _dtype_of(torch.cumprod, S, dim, dtype=dtype), torch.cumprod)


def _running(S: SparseTensor, dim: int, dtype: torch.dtype, scan: Callable[..., Any]) -> torch.Tensor:
    groups = Groups(S, dim, learned_entries(S))
    order = torch.argsort(groups.group, stable=True)
    values = scanned(scan, groups.entries.values[order].to(dtype), groups.stored)
    made = torch.empty_like(values).index_put((order,), values)
    shape = groups.entries.shape
    return from_learned_entries(Entries(groups.entries.keys, made, shape), format_for(S, shape))


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
