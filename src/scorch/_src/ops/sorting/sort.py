"""Sorting and selection by rank: ``sort topk kthvalue median mode quantile`` and so on.

All of them take elements by their rank in segments along a dimension (``ops.sorting.sorted_segments``), so
time and memory follow the entries. Values are sparse, since most elements of most segments are zeros. Indices
are dense: a segment without entries has indices too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from scorch._src.devices import HOST
from scorch._src.ops.fallback import run_densely, store_like, write_out
from scorch._src.ops.sorting.sorted_segments import SortedSegments, nonzeros_at
from scorch._src.ops.sorting.whole import WholeOrder
from scorch._src.statements.autocast import in_float32
from scorch._src.storage.budget import check_budget, is_within_budget
from scorch._src.tensor.autograd import by_formula
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten
Handler = TypeVar("Handler", bound=Callable[..., Any])
MAX_FLOAT32_INTEGER = 1 << 24  # torch takes no quantile of longer segments
COUNTING = ("kthvalue", "topk")  # their first argument is a number of elements
NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}  # torch takes these names too


def _is_empty(self: SparseTensor) -> bool:
    return not self.numel() or not self.dim()


def _check(func: Any, self: SparseTensor, *args: Any, **kwargs: Any) -> None:
    """Raise what torch raises for such arguments.

    A tensor of a single element refuses dtypes and dimensions as any other; the first is the only one to
    select of it. Whether there are as many as requested, a meta tensor checks, by way of sympy.
    """
    dtype, name = self.storage.values.dtype, func.overloadpacket.__name__
    small = (min(args[0], 1), *args[1:]) if name in COUNTING else args
    func(torch.zeros((1,) * self.dim(), dtype=dtype, device=HOST), *small, **kwargs)
    if name in COUNTING and not _has_enough(tuple(self.shape), *args, **kwargs):
        func(torch.empty(tuple(self.shape), dtype=dtype, device="meta"), *args, **kwargs)


def _has_enough(shape: tuple[int, ...], count: int, dim: int = -1, *_: Any, **__: Any) -> bool:
    """Whether there are ``count`` elements along a dimension, for certain."""
    return type(count) is int and 0 < count <= shape[dim]


def _run_densely(func: Any, self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    return store_like(run_densely(func, (self, *args), kwargs), self)


def _selects(func: Any) -> Callable[[Handler], Handler]:
    """Register a handler of sparse tensors with elements and arguments that torch accepts."""

    def register(handler: Handler) -> Handler:
        @implements(func)
        def run(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
            if _is_empty(self):
                return _run_densely(func, self, *args, **kwargs)
            _check(func, self, *args, **kwargs)
            return handler(self, *args, **kwargs)

        return handler

    return register


@_selects(aten.sort.default)
def sort(self: SparseTensor, dim: int = -1, descending: bool = False) -> Any:
    """Return sorted values, and the indices that they had."""
    size = self.shape[dim]
    hint = (
        "use torch.msort(S), which sorts columns without indices, torch.msort(S.T).T for rows, or S.topk(k) "
        "for the first k"
    )
    what = f"sort of {tuple(self.shape)}, with the index of each element,"
    return _select_first(self, size, dim, descending, what, hint)


_selects(aten.sort.stable)(lambda self, *, stable=None, **options: sort(self, **options))  # stable anyway


@_selects(aten.topk.default)
def topk(self: SparseTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Return the ``k`` largest or smallest elements of each segment, and their indices."""
    what = f"topk of {tuple(self.shape)}, with the indices of {k} elements of each segment,"
    return _select_first(self, k, dim, largest, what, "use a smaller k, or fewer rows")


def _select_first(self: SparseTensor, k: int, dim: int, descending: bool, what: str, hint: str) -> Any:
    """Return the first ``k`` elements of each segment, and their indices, which need dense memory."""
    count = self.numel() // self.shape[dim] * k
    is_last = dim % self.dim() == self.dim() - 1
    check_budget(8 * count * (1 if is_last else 2), self.storage.device, what, hint)
    segments = SortedSegments(self, dim, descending)
    return segments.first_values(k), segments.first_positions(k)


@implements(torch.msort, torch.Tensor.msort)
def msort(input: Any, *, out: Any = None) -> Any:
    """Sort the values along the first dimension, without indices."""
    if not isinstance(input, SparseTensor) or _is_empty(input):
        result = store_like(run_densely(torch.msort, (input,), {}), input)
    else:
        _check(aten.msort.default, input)
        result = SortedSegments(input, 0).first_values(input.shape[0])
    return result if out is None else write_out(out, result, "msort")


# one element of each segment -------------------------------------------------------------------------


@_selects(aten.kthvalue.default)
def kthvalue(self: SparseTensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the ``k``-th smallest element of each segment, counted from 1, and its index."""
    segments = SortedSegments(self, dim)
    return segments.select_rank(torch.full_like(segments.stored, k - 1), keepdim, k - 1)


def _median(skips_nan: bool, self: SparseTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower of two in the middle; ``nanmedian`` has NaN only if all elements are."""
    if dim is None:
        whole = WholeOrder(self)
        numbers = whole.size - whole.nans
        return whole.at([max(numbers - 1, 0) // 2 if skips_nan or not whole.nans else whole.size - 1])[0]
    segments = SortedSegments(self, dim)
    nans = segments.count_nans()
    middle = (segments.size - 1) // 2
    if skips_nan:
        rank = (segments.size - nans - 1).clamp(min=0) // 2
    else:
        rank = torch.where(nans > 0, segments.size - 1, middle)
    return segments.select_rank(rank, keepdim, middle)


for _packet in (aten.median, aten.nanmedian):
    for _operator in (_packet.default, _packet.dim):
        _selects(_operator)(functools.partial(_median, _packet is aten.nanmedian))


@_selects(aten.mode.default)
def mode(self: SparseTensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the most frequent element of each segment, of several the smallest, and its last index.

    In a segment with a NaN, PyTorch's answer depends on the order of its elements, so it is computed densely.
    """
    values = self.storage.values
    size = self.numel() * values.element_size()
    has_order = bool(values.isnan().any()) and is_within_budget(size, values.device)
    if has_order:
        return _run_densely(aten.mode.default, self, dim, keepdim)
    segments = SortedSegments(self, dim)
    begins = torch.ones_like(segments.segment, dtype=torch.bool)  # of a run of equal entries
    is_same = (segments.segment[1:] == segments.segment[:-1]) & (segments.values[1:] == segments.values[:-1])
    begins[1:] = ~is_same
    start = torch.nonzero(begins)[:, 0]
    length = torch.diff(start, append=torch.tensor([segments.segment.numel()], device=start.device))
    segment = segments.segment[start]
    longest = torch.zeros_like(segments.stored).scatter_reduce_(0, segment, length, "amax")
    is_longest = length == longest[segment]
    entry = torch.full_like(segments.stored, segments.segment.numel())
    entry.scatter_reduce_(0, segment[is_longest], start[is_longest], "amin")
    rank = segments.rank_of(entry)
    is_zero = (segments.zeros > longest) | ((segments.zeros == longest) & (rank >= segments.front))
    last = torch.where(is_zero, segments.front + segments.zeros - 1, rank + longest - 1)
    return segments.select_rank(last, keepdim, segments.size - 1)


def _differentiable_quantile(func: Any, input: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    """Differentiate a single quantile as one of several, since torch would squeeze it in place."""
    is_several = isinstance(q, torch.Tensor) and q.dim() > 0
    if is_several or kwargs.get("out") is not None or not isinstance(input, SparseTensor):
        return by_formula(func, (input, q, *args), kwargs)
    quantiles = torch.as_tensor(q, dtype=input.dtype, device=input.storage.device).reshape(1)
    return by_formula(func, (input, quantiles, *args), kwargs)[0]


def _quantile(func: Any, input: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    options = {NUMPY_NAMES.get(name, name): value for name, value in kwargs.items()}
    options.update(zip(("dim", "keepdim"), args, strict=False))
    out = options.pop("out", None)
    q = q.to_dense() if isinstance(q, SparseTensor) else q
    if not isinstance(input, SparseTensor) or _is_empty(input):
        result = run_densely(func, (input, q), options)
        result = store_like(result, input) if isinstance(input, SparseTensor) else result
    else:
        small = torch.zeros((1,) * input.dim(), dtype=input.dtype, device=input.storage.device)
        func(small, q, **options)  # raises torch's error
        result = _compute_quantiles(func is torch.nanquantile, input, q, **options)
    return result if out is None else write_out(out, result, func.__name__)


for _quantiles in (torch.quantile, torch.nanquantile):
    for _function in (_quantiles, getattr(torch.Tensor, _quantiles.__name__)):
        implements(_function)(in_float32(is_on_host=True)(functools.partial(_quantile, _quantiles)))
        implements_differentiable(_function)(functools.partial(_differentiable_quantile, _function))


@functools.cache
def _has_double_ranks() -> bool:
    """Whether this torch computes ranks of float32 in float64, as from 2.15 on."""
    steps = torch.zeros(100_000, device=HOST)
    steps[30_000:] = 1
    share = float(torch.quantile(steps, 0.3))  # how far the rank is beyond 29,999
    return share * 512 != round(share * 512)


def _compute_quantiles(
    skips_nan: bool,
    input: SparseTensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    interpolation: str = "linear",
) -> Any:
    """Interpolate elements at one or several fractional ranks, as torch does."""
    segments = WholeOrder(input) if dim is None else SortedSegments(input, dim)
    quantiles = torch.as_tensor(q, dtype=input.dtype, device=input.storage.device)
    fractions = quantiles.reshape(-1, 1)
    if segments.size > MAX_FLOAT32_INTEGER or _has_double_ranks():
        fractions = fractions.double()
    size = 8 * fractions.numel() * segments.keys.numel()
    check_budget(size, fractions.device, f"{fractions.numel()} quantiles of each row", "ask for fewer")
    nans = segments.count_nans()
    if skips_nan:
        ranks = (fractions * (segments.size - nans - 1)).clamp(min=0)
    else:
        ranks = (fractions * (segments.size - 1)).masked_fill(nans > 0, segments.size - 1)
    rounding = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}
    ranks = rounding[interpolation](ranks) if interpolation in rounding else ranks
    result = segments.values_at(ranks.long())
    if interpolation in ("linear", "midpoint"):
        above = segments.values_at(ranks.ceil().long())
        share = ranks - ranks.floor() if interpolation == "linear" else torch.full_like(ranks, 0.5)
        result = torch.lerp(result, above, share.to(result.dtype))
    numbers = torch.arange(fractions.numel(), device=segments.keys.device).unsqueeze(1)
    keys = numbers * segments.count + segments.keys
    result_shape: tuple[int, ...] = segments.shape
    if keepdim:
        is_reduced = [dim is None or d == dim % input.dim() for d in range(input.dim())]
        result_shape = tuple(1 if one else n for one, n in zip(is_reduced, input.shape, strict=True))
    shape = (*quantiles.shape, *result_shape)
    return nonzeros_at(keys.reshape(-1), result.reshape(-1), shape, input)
