"""Sorting and what goes by rank: ``sort topk kthvalue median mode quantile`` and their like.

All of them take elements by their rank in lines along a dimension (``ops.sorting.sorted_segments``), so time
and memory follow the entries. Values are sparse, since most elements of most lines are zeros. Places are
dense: a line without entries has places too.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.ops.fallback import densely, stored, write_out
from scorch._src.ops.sorting.sorted_segments import Lines
from scorch._src.storage.budget import check_budget, is_within_budget
from scorch._src.tensor.autograd import by_formula
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten
EXACT = 1 << 24  # whole numbers that float32 has; torch takes no quantile of longer lines
NUMPY = {"axis": "dim", "keepdims": "keepdim"}  # torch takes these names too


def _is_empty(self: SparseTensor) -> bool:
    return not self.numel() or not self.dim()


def _check(func: Any, self: SparseTensor, args: tuple[Any, ...], small: tuple[Any, ...] | None = None) -> Any:
    """Raise what torch raises for such arguments; ``small`` are those for a tensor of one element.

    Shells know of shapes, but only tensors with memory refuse dtypes.
    """
    dtype = self.storage.values.dtype
    func(torch.zeros((1,) * self.dim(), dtype=dtype, device=HOST), *(args if small is None else small))
    func(torch.empty(tuple(self.shape), dtype=dtype, device="meta"), *args)


# sorting ---------------------------------------------------------------------------------------------


@implements(aten.sort.default)
def sort(self: SparseTensor, dim: int = -1, descending: bool = False) -> Any:
    """Sorted values, and the places that they had."""
    if _is_empty(self):
        return stored(densely(aten.sort.default, (self, dim, descending), {}), self)
    _check(aten.sort.default, self, (dim, descending))
    size = self.shape[dim]
    cure = "the values alone are torch.msort(S), for rows torch.msort(S.T).T, and S.topk(k) has the first k"
    _check_places(self, dim, size, f"the places of all elements in sort of {tuple(self.shape)}", cure)
    lines = Lines(self, dim, descending)
    return lines.first_values(size), lines.first_places(size)


@implements(aten.sort.stable)
def sort_stable(
    self: SparseTensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    return sort(self, dim, descending)  # which is stable


@implements(torch.msort, torch.Tensor.msort)
def msort(input: Any, *, out: Any = None) -> Any:
    """The values sorted along the first dimension, without their places."""
    if not isinstance(input, SparseTensor) or _is_empty(input):
        found = stored(densely(torch.msort, (input,), {}), input)
    else:
        _check(aten.msort.default, input, ())
        found = Lines(input, 0).first_values(input.shape[0])
    return found if out is None else write_out(out, found, "msort")


@implements(aten.topk.default)
def topk(self: SparseTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The ``k`` largest or smallest elements of each line, and their places."""
    if _is_empty(self):
        return stored(densely(aten.topk.default, (self, k, dim, largest, sorted), {}), self)
    _check(aten.topk.default, self, (k, dim, largest, sorted), (min(k, 1), dim, largest, sorted))
    what = f"the places of the first {k} elements in topk of {tuple(self.shape)}"
    _check_places(self, dim, k, what, "take a smaller k, or fewer lines")
    lines = Lines(self, dim, descending=largest)
    return lines.first_values(k), lines.first_places(k)


def _check_places(self: SparseTensor, dim: int, k: int, what: str, cure: str) -> None:
    count = self.numel() // self.shape[dim] * k
    is_last = dim % self.dim() == self.dim() - 1
    check_budget(8 * count * (1 if is_last else 2), what, cure)


# one element of each line ----------------------------------------------------------------------------


@implements(aten.kthvalue.default)
def kthvalue(self: SparseTensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The ``k``-th smallest element of each line, counted from 1, and its place."""
    if _is_empty(self):
        return stored(densely(aten.kthvalue.default, (self, k, dim, keepdim), {}), self)
    _check(aten.kthvalue.default, self, (k, dim, keepdim), (1, dim, keepdim))
    lines = Lines(self, dim)
    return lines.reduced(torch.full_like(lines.stored, k - 1), keepdim, k - 1)


@implements(aten.median.default)
def median(self: SparseTensor) -> Any:
    return _middle(aten.median.default, self, None, ())


@implements(aten.median.dim)
def median_along(self: SparseTensor, dim: int, keepdim: bool = False) -> Any:
    return _middle(aten.median.dim, self, dim, (dim, keepdim))


@implements(aten.nanmedian.default)
def nanmedian(self: SparseTensor) -> Any:
    return _middle(aten.nanmedian.default, self, None, ())


@implements(aten.nanmedian.dim)
def nanmedian_along(self: SparseTensor, dim: int, keepdim: bool = False) -> Any:
    return _middle(aten.nanmedian.dim, self, dim, (dim, keepdim))


def _middle(func: Any, self: SparseTensor, dim: int | None, args: tuple[Any, ...]) -> Any:
    """The lower one of two in the middle; ``nanmedian`` has NaN only if all elements are."""
    if _is_empty(self):
        return stored(densely(func, (self, *args), {}), self)
    _check(func, self, args)
    lines = Lines(self, dim)
    nans = lines.number(lines.values.isnan())
    middle = (lines.size - 1) // 2
    if func.overloadpacket is aten.nanmedian:
        rank = (lines.size - nans - 1).clamp(min=0) // 2
    else:
        rank = torch.where(nans > 0, lines.size - 1, middle)
    found = lines.reduced(rank, bool(args and args[1]), middle)
    return found[0] if dim is None else found


@implements(aten.mode.default)
def mode(self: SparseTensor, dim: int = -1, keepdim: bool = False) -> Any:
    """What is most often in each line, of several the smallest, and the last place where it is.

    In a line with a NaN torch's answer follows the order of its elements, which a dense copy has.
    """
    values = self.storage.values
    has_order = bool(values.isnan().any()) and is_within_budget(self.numel() * values.element_size())
    if _is_empty(self) or has_order:
        return stored(densely(aten.mode.default, (self, dim, keepdim), {}), self)
    _check(aten.mode.default, self, (dim, keepdim))
    lines = Lines(self, dim)
    begins = torch.ones_like(lines.line, dtype=torch.bool)  # of a run of equal entries
    is_same = (lines.line[1:] == lines.line[:-1]) & (lines.values[1:] == lines.values[:-1])
    begins[1:] = ~is_same
    start = torch.nonzero(begins)[:, 0]
    length = torch.diff(start, append=torch.tensor([lines.line.numel()], device=start.device))
    line = lines.line[start]
    longest = torch.zeros_like(lines.stored).scatter_reduce_(0, line, length, "amax")
    is_longest = length == longest[line]
    entry = torch.full_like(lines.stored, lines.line.numel())
    entry.scatter_reduce_(0, line[is_longest], start[is_longest], "amin")
    rank = lines.rank_of(entry, torch.arange(entry.numel(), device=entry.device))
    is_zero = (lines.zeros > longest) | ((lines.zeros == longest) & (rank >= lines.front))
    last = torch.where(is_zero, lines.front + lines.zeros - 1, rank + longest - 1)
    return lines.reduced(last, keepdim, lines.size - 1)


# quantiles -------------------------------------------------------------------------------------------


def _of_one(func: Any, input: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    """The learned quantile: one of several, since torch would squeeze a single one in place."""
    is_several = isinstance(q, torch.Tensor) and q.dim() > 0
    if is_several or kwargs.get("out") is not None or not isinstance(input, SparseTensor):
        return by_formula(func, (input, q, *args), kwargs)
    several = torch.as_tensor(q, dtype=input.dtype, device=input.storage.device).reshape(1)
    return by_formula(func, (input, several, *args), kwargs)[0]


for _func in (torch.quantile, torch.Tensor.quantile, torch.nanquantile, torch.Tensor.nanquantile):
    implements_differentiable(_func)(functools.partial(_of_one, _func))


@implements(torch.quantile, torch.Tensor.quantile)
def quantile(input: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    return _quantile(torch.quantile, input, q, args, kwargs)


@implements(torch.nanquantile, torch.Tensor.nanquantile)
def nanquantile(input: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    return _quantile(torch.nanquantile, input, q, args, kwargs)


def _quantile(func: Any, input: Any, q: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    named = {NUMPY.get(name, name): value for name, value in kwargs.items()}
    named.update(zip(("dim", "keepdim"), args, strict=False))
    out = named.pop("out", None)
    q = q.to_dense() if isinstance(q, SparseTensor) else q
    if not isinstance(input, SparseTensor) or _is_empty(input):
        found = densely(func, (input, q), named)
        found = stored(found, input) if isinstance(input, SparseTensor) else found
    else:
        func(
            torch.zeros((1,) * input.dim(), dtype=input.dtype, device=input.storage.device), q, **named
        )  # says what is wrong
        found = _quantile_of(func is torch.nanquantile, input, q, **named)
    return found if out is None else write_out(out, found, func.__name__)


@functools.cache
def _ranks_are_double() -> bool:
    """Whether this torch computes ranks of float32 in float64, as from 2.15 on."""
    steps = torch.zeros(100_000, device=HOST)
    steps[30_000:] = 1
    share = float(torch.quantile(steps, 0.3))  # how far the rank is beyond 29,999
    return share * 512 != round(share * 512)


def _quantile_of(
    skips_nan: bool,
    input: SparseTensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    interpolation: str = "linear",
) -> Any:
    """Elements of one or several ranks that need not be whole, as torch computes them."""
    lines = Lines(input, dim)
    wanted = torch.as_tensor(q, dtype=input.dtype, device=input.storage.device)
    parts = wanted.reshape(-1, 1)
    parts = parts.double() if lines.size > EXACT or _ranks_are_double() else parts
    size = 8 * parts.numel() * lines.keys.numel()
    check_budget(size, f"{parts.numel()} quantiles of each line", "ask for fewer")
    nans = lines.number(lines.values.isnan())
    if skips_nan:
        ranks = (parts * (lines.size - nans - 1)).clamp(min=0)
    else:
        ranks = (parts * (lines.size - 1)).masked_fill(nans > 0, lines.size - 1)
    rounded = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}
    ranks = rounded[interpolation](ranks) if interpolation in rounded else ranks
    line = torch.arange(lines.keys.numel(), device=lines.keys.device).expand(ranks.shape)
    below = lines.values_at(line, ranks.long())
    if interpolation in ("linear", "midpoint"):
        above = lines.values_at(line, ranks.ceil().long())
        share = ranks - ranks.floor() if interpolation == "linear" else torch.full_like(ranks, 0.5)
        below = torch.lerp(below, above, share.to(below.dtype))
    keys = torch.arange(parts.numel(), device=lines.keys.device).unsqueeze(1) * lines.count + lines.keys
    kept: tuple[int, ...] = lines.shape
    if keepdim:
        kept = tuple(1 if dim is None or d == lines.dim else n for d, n in enumerate(input.shape))
    shape = (*wanted.shape, *kept)
    return lines.stored_at(keys.reshape(-1), below.reshape(-1), shape)
