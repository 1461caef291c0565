"""What all reductions share: how they are checked, run and registered.

A reduction is a body: what becomes of the values of each group of entries (``groups.py``, ``reduce.py``).

Calls with usual arguments bypass torch's dispatcher (``direct``). That saves its time, and for the first call
of a process more than a second: torch imports its distributed tensors and sympy before it dispatches an
operator to Python.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.backends.base import routines_for, run_among_others, settle
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.grad_state import is_differentiable, is_plain_inference, untracked
from scorch._src.ops.fallback import run_densely
from scorch._src.ops.reduction.groups import Dims, groups_of, reduced_dims
from scorch._src.statements.call_cache import keep_as
from scorch._src.statements.evaluate import evaluate
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import by_formula, sparse_of, values_of
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass

aten = torch.ops.aten
LETTERS = "abcdefghijklmnop"
MAX_SAMPLE_DIMS = 10  # of size 2, so that a sample stays small
_PLAIN = (int, float, bool, str, type(None), torch.dtype)
MIN_COUNTED = 1 << 14  # values to count that are worth a routine; PyTorch would wait for all threads
SUMMED_BY_KERNELS = (torch.float32, torch.float64, torch.int64)
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}

Function = Callable[..., Any]
Reduced = tuple[torch.Tensor, float]  # a value for every group, and the one of groups without entries
Body = Callable[..., Reduced | None]
OfSum = Callable[..., torch.Tensor]
Summand = Callable[..., torch.Tensor | None]
SumAtOnce = Callable[..., torch.Tensor | None]


def _is_plain(value: Any) -> bool:
    kind = type(value)
    is_dims = kind in (tuple, list, torch.Size) and all(type(item) is int for item in value)
    return is_dims or kind in _PLAIN


def bind(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Bind arguments to names; None where some are unknown, repeated or of unusual types."""
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    is_valid = len(bound) == len(args) + len(kwargs) and all(name in names for name in bound)
    return bound if is_valid and all(map(_is_plain, bound.values())) else None


def direct(*functions: Function, takes: str, differentiable: bool = False) -> Callable[[Function], Function]:
    """Register ``run`` for functions of a sparse tensor with elements; ``takes`` names other arguments.

    Where it returns None, and for other arguments, the PyTorch function is called. What is
    ``differentiable`` computes on connected values and serves tensors that require gradients as well.
    """
    names = tuple(takes.split())

    def register(run: Function) -> Function:
        for function in functions:

            def handler(input: Any, *args: Any, function: Function = function, **kwargs: Any) -> Any:
                is_served = isinstance(input, SparseTensor) and input.dim() and input.numel()
                bound = bind(names, args, kwargs) if is_served else None
                result = None if bound is None else run(input, **bound)
                if result is not None:
                    return result
                if is_differentiable(input, *args, **kwargs):
                    return by_formula(function, (input, *args), kwargs)
                with DisableTorchFunctionSubclass():
                    return function(input, *args, **kwargs)

            implements(function)(handler)
            if differentiable:
                implements_differentiable(function)(handler)
        return run

    return register


def run_on_sample(func: Any, tensor: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """Run the PyTorch function on a small tensor of the same rank and dtype, for its dtype or its error.

    (A meta tensor of the same shape would do, but torch imports its compilers for one.)
    """
    pattern, dtype = tensor.storage.pattern, tensor.storage.values.dtype
    rank = len(pattern.shape)
    sample = torch.zeros([2 if dim < MAX_SAMPLE_DIMS else 1 for dim in range(rank)], dtype=dtype, device=HOST)
    if rank <= MAX_SAMPLE_DIMS:
        return func(sample, *args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the spread of one number
        return func(sample, *args, **kwargs)


def to_computing_dtype(
    values: torch.Tensor, dtype: torch.dtype, requested: torch.dtype | None
) -> torch.Tensor:
    """Convert values to the dtype that a result of ``dtype`` is computed in, by way of ``requested``."""
    if requested is not None and not requested.is_floating_point and not requested.is_complex:
        values = values.to(requested)
    computing_dtype = values.dtype if dtype == torch.bool else torch.promote_types(values.dtype, dtype)
    return values.to(_WIDE.get(computing_dtype, computing_dtype))


@dataclass(frozen=True)
class Reduction:
    """A reduction of tensors by its ``body``, a function of the values of each group of entries.

    ``dense``: the result always is. ``of_sum``: computes it from a sum and the number of elements, where a
    kernel has the sum: that of what ``summand`` makes of the values, unless it is None, or of themselves.
    ``sum_at_once`` computes that sum without an array of summands where nothing tracks the call; or None.
    """

    body: Body
    function: Function
    dense: bool
    of_sum: OfSum | None
    summand: Summand | None
    sum_at_once: SumAtOnce | None = None

    def __call__(self, input: SparseTensor, **options: Any) -> Any:
        """Reduce a tensor with elements; None where that is not supported."""
        return self.run(self.function, input, **options)

    def run(self, function: Function, input: SparseTensor, **options: Any) -> Any:
        """Reduce, with arguments checked as those of ``function``."""
        dim = options.get("dim")
        if dim is None or len(reduced_dims(input.dim(), dim)) == input.dim():  # whose bits depend on threads
            return self._run(function, input, **options)
        return run_among_others(input.storage.values, self._run, function, input, **options)

    def _run(self, function: Function, input: SparseTensor, **options: Any) -> Any:
        if isinstance(options.get("dim"), bool):  # var(unbiased)
            options["unbiased"] = options.pop("dim")
        like = run_on_sample(function, input, **options)
        dim, dtype = options.pop("dim", None), options.pop("dtype", None)
        keepdim = options.pop("keepdim", False)
        if dim in ((), []) and like.numel() > 1:  # any(dim=()) reduces nothing
            return None
        if self.of_sum is not None:
            length = math.prod(input.shape[d] for d in reduced_dims(input.dim(), dim))
            total = None
            is_usual = self.sum_at_once is not None and dtype is None and is_plain_inference(input)
            if is_usual and routines_for(input.storage.values).answers_at_once:
                assert self.sum_at_once is not None
                total = self.sum_at_once(input, length, dim, keepdim, **options)
            if total is None:
                added = self._map(input, length, options)
                total = None if added is None else sum_by_kernel(added, dim, keepdim, dtype)
            if total is not None:
                return self.of_sum(total, length, **options).to(like.dtype)
        groups = groups_of(input, dim)
        values = to_computing_dtype(groups.values(input), like.dtype, dtype)
        reduced = self.body(groups, values, **options)
        if reduced is None:
            return None
        result, fill = reduced
        return groups.result(input, result.to(like.dtype), keepdim, fill, self.dense)

    def _map(self, input: SparseTensor, length: int, options: dict[str, Any]) -> SparseTensor | None:
        """Return the tensor of what is summed, integers as int64; None where a kernel does not sum it."""
        values = input.storage.values
        is_whole = not (values.is_floating_point() or values.is_complex())
        if values.dtype not in SUMMED_BY_KERNELS and not is_whole:
            return None
        if self.summand is None and not (is_whole and values.dtype != torch.int64):
            return input
        summed = (
            values_of(input) if self.summand is None else self.summand(values_of(input), length, **options)
        )
        if summed is None:
            return None
        return sparse_of(input.storage.pattern, summed.to(torch.int64) if is_whole else summed)


def reduction(
    *functions: Function,
    takes: str = "dim keepdim dtype",
    differentiable: bool = False,
    dense: bool = False,
    of_sum: OfSum | None = None,
    summand: Summand | None = None,
    sum_at_once: SumAtOnce | None = None,
) -> Callable[[Body], Reduction]:
    """Register a reduction, by its body, for PyTorch functions and ATen operators."""

    def register(body: Body) -> Reduction:
        instance = Reduction(body, functions[0], dense, of_sum, summand, sum_at_once)
        for function in functions:
            run = functools.partial(instance.run, function)
            if hasattr(function, "overloadpacket"):
                implements(function)(as_operator(function, run, takes))
            else:
                direct(function, takes=takes, differentiable=differentiable)(run)
        return instance

    return register


def as_operator(operator: Any, run: Function, takes: str) -> Function:
    """Return the handler of an ATen operator; without elements the dense computation costs nothing."""
    names = tuple(takes.split())

    def handler(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
        bound = bind(names, args, kwargs) if self.numel() else None
        with torch.no_grad():  # torch connects the result
            result = None if bound is None else run(self, **bound)
            return run_densely(operator, (self, *args), kwargs) if result is None else result

    return handler


def sum_by_kernel(
    self: SparseTensor,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
    operator: str = "",
) -> torch.Tensor | None:
    """Sum by a generated kernel, where the result is dense; None where it is not or dims are wrong.

    With an ``operator`` of expressions, what it makes of each value is summed.
    """
    pattern, values = self.storage.pattern, self.storage.values
    if values.dtype not in SUMMED_BY_KERNELS or dtype not in (None, values.dtype):
        return None
    dims = () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    parsed = _sum_statement(len(pattern.shape), dims, operator)
    if parsed is None:
        return None
    statement, kept_dims = parsed
    if not kept_dims:
        if operator:
            return None
        total = values_of(self).sum()
    elif len(kept_dims) > 1 and _is_sparse(self, math.prod(pattern.shape[d] for d in kept_dims)):
        return None
    else:
        total = evaluate(statement, A=self, format="dense")
        if (
            len(kept_dims) == 1 and not operator and is_plain_inference(self)
        ):  # of more, entries decide whether it is dense
            dims_key = dim if isinstance(dim, int) else dims
            keep_as((("sum", dims_key), None), (statement, "dense", "A"), (self,))
    if not keepdim:
        return total
    return total.reshape([size if d in kept_dims else 1 for d, size in enumerate(pattern.shape)])


def _is_sparse(self: SparseTensor, size: int) -> bool:
    """Whether a result with ``size`` elements, reduced from the entries of a tensor, is stored sparse."""
    stored = int(torch.count_nonzero(self.storage.values)) if self.format.is_blocked else self.nnz
    return size > 2 * stored


@functools.lru_cache(maxsize=256)
def _sum_statement(
    rank: int, dims: tuple[int, ...], operator: str = ""
) -> tuple[str, tuple[int, ...]] | None:
    """Return ``C[a] = A[a,b]``, the sum over ``dims`` (all if empty), and those left; None for wrong dims."""
    reduced = {d % rank for d in dims if -rank <= d < rank} if dims else set(range(rank))
    if len(reduced) != (len(dims) or rank) or rank > len(LETTERS):
        return None
    kept_dims = tuple(d for d in range(rank) if d not in reduced)
    summed = f"A[{','.join(LETTERS[:rank])}]"
    if operator:
        summed = f"{operator}({summed})"
        for d in sorted(reduced, reverse=True):
            summed = f"sum({LETTERS[d]}, {summed})"
    return f"C[{','.join(LETTERS[d] for d in kept_dims)}] = {summed}", kept_dims


def stored_in_each(self: SparseTensor, dim: Dims, keepdim: bool) -> torch.Tensor | None:
    """Count the entries of each sum over ``dim``, cached with the pattern; None where some may be zero.

    They are numbers of the dtype of the values, if that has all up to how many there are, or integers.
    """
    pattern, values = self.storage.pattern, self.storage.values
    if values.is_complex() or pattern.format.is_blocked or not values.numel():
        return None
    dtype = values.dtype if values.is_floating_point() else torch.int64
    if dtype not in SUMMED_BY_KERNELS or not has_all_counts(dtype, values.numel()):
        return None
    is_short, routines = values.numel() < MIN_COUNTED, routines_for(values)
    nonzeros = int(values.count_nonzero()) if is_short else routines.count_signs(values.detach())[1]
    if nonzeros < values.numel():
        return None
    key = ("stored in each", reduced_dims(len(pattern.shape), dim), keepdim, dtype)
    counts: torch.Tensor | None = pattern.structures.get(key)
    if counts is None:
        with untracked():
            ones = SparseTensor(Storage(pattern, torch.ones_like(values, dtype=dtype)))
            counts = sum_by_kernel(ones, dim, keepdim, None)
        if counts is not None:
            settle(values.device, "the entries of each sum")
            pattern.structures[key] = counts
    return None if counts is None else counts.clone()


def has_all_counts(dtype: torch.dtype, most: int) -> bool:
    """Whether a dtype has all numbers up to ``most``."""
    return not dtype.is_floating_point or most * torch.finfo(dtype).eps < 1
