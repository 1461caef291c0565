"""Differentiable functions composed of others whose gradients cost what the entries cost.

torch's formulas for them expand, compare or fill tensors of the whole shape. What is not supported here (an
``out=``, mixed dtypes, other ranks) takes torch's formula.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.devices import HOST
from scorch._src.grad_state import is_differentiable, untracked
from scorch._src.ops.reduction.reduce import amax, amin
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import by_formula, sparse_of, values_at, values_of
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.operators import run_by_torch
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError, is_integer

Function = Callable[..., Any]
COUNTING = ("kthvalue", "topk")  # their k is checked by the PyTorch function
_GLOBAL = {"max": amax, "min": amin}


def _is_plain(tensor: Any) -> bool:
    return isinstance(tensor, SparseTensor) and tensor.is_floating_point() and bool(tensor.numel())


@implements(F.normalize, differentiable=True)
def normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Any:
    if not _is_plain(input) or input.dim() != 2 or out is not None:
        run = by_formula if is_differentiable(input) else run_by_torch
        return run(F.normalize, (input, p, dim, eps), {"out": out})
    return input / torch.linalg.vector_norm(input, p, dim, True).clamp(min=eps)


@implements_differentiable(torch.cosine_similarity, F.cosine_similarity)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    is_plain = _is_plain(x1) and isinstance(x2, torch.Tensor) and x1.shape == x2.shape
    if not is_plain or x1.dim() != 2 or x1.dtype != x2.dtype:
        return by_formula(torch.cosine_similarity, (x1, x2, dim, eps), {})
    norms = [torch.linalg.vector_norm(x, 2, dim).clamp(min=eps) for x in (x1, x2)]
    return torch.sum(x1 * x2, dim) / (norms[0] * norms[1])


@implements(torch.ops.aten.glu)
def glu(self: SparseTensor, dim: int = -1) -> SparseTensor:
    """Compute the first half times the sigmoid of the second, at the entries of the first."""
    if not self.dim() or self.shape[dim] % 2:
        raise ShapeError(
            f"glu expected dimension {dim} to have an even size, but got shape {tuple(self.shape)}"
        )
    first, second = torch.chunk(self, 2, dim)
    assert isinstance(first, SparseTensor)
    pattern = first.storage.pattern
    return sparse_of(pattern, values_of(first) * torch.sigmoid(values_at(second, pattern)))


@implements_differentiable(F.glu)
def differentiable_glu(input: Any, dim: int = -1) -> Any:
    is_plain = _is_plain(input) and input.shape[dim] % 2 == 0
    if not is_plain or bool(values_of(input).isnan().any()):  # NaN is not zero where the first half is
        return by_formula(F.glu, (input, dim), {})
    return glu(input, dim)


@implements_differentiable(torch.diff, torch.Tensor.diff)
def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if not _is_plain(input) or prepend is not None or append is not None or not 0 < n < input.shape[dim]:
        return by_formula(torch.diff, (input, n, dim, prepend, append), {})
    for _ in range(n):
        size = input.shape[dim] - 1
        input = torch.narrow(input, dim, 1, size) - torch.narrow(input, dim, 0, size)
    return input


# functions of several tensors ------------------------------------------------------------------------


def union_pattern(tensors: Sequence[Any]) -> Pattern:
    """Return the union of the patterns of tensors of one shape."""
    patterns: list[Pattern] = [tensor.storage.pattern for tensor in tensors]
    if all(pattern is patterns[0] for pattern in patterns):
        return patterns[0]
    with torch.no_grad(), untracked():
        total: Any = SparseTensor(Storage(patterns[0], patterns[0].present))
        for pattern in patterns[1:]:
            total = total + SparseTensor(Storage(pattern, pattern.present))
    pattern_of_union: Pattern = total.storage.pattern
    return pattern_of_union


def _run_on_union(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Run ``function`` on the values of several tensors on the union of their patterns."""
    arguments = [*args, *kwargs.values()]
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    is_plain = all(_is_plain(tensor) for tensor in tensors) and kwargs.get("out") is None
    if is_plain and len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1:
        zero = torch.zeros(1, dtype=tensors[0].dtype, device=HOST)
        if not bool(_call_with(function, args, kwargs, lambda _: zero).count_nonzero()):
            pattern = union_pattern(tensors)
            values = _call_with(function, args, kwargs, lambda tensor: values_at(tensor, pattern))
            return sparse_of(pattern, values)
    return by_formula(function, args, kwargs)


def _call_with(function: Function, args: Any, kwargs: Any, convert: Callable[[Any], Any]) -> Any:
    def convert_tensor(value: Any) -> Any:
        return convert(value) if isinstance(value, torch.Tensor) else value

    return function(
        *map(convert_tensor, args), **{name: convert_tensor(value) for name, value in kwargs.items()}
    )


for _name in ("maximum", "minimum", "fmax", "fmin", "hypot", "lerp", "addcmul"):
    for _home in (torch, torch.Tensor):
        _function = getattr(_home, _name)
        implements_differentiable(_function)(functools.partial(_run_on_union, _function))


# Functions that select elements along a dimension: the gradient goes to those whose indices are returned,
# so the values are gathered at the indices again.


def _run_selection(function: Function, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``function`` with gradients; unsupported calls take torch's formula."""
    is_served = isinstance(input, SparseTensor) and input.dim() and input.numel()
    result = None
    if is_served and kwargs.get("out") is None and "axis" not in kwargs:
        if function.__name__ not in COUNTING:
            check_call(function, input, *args, **kwargs)
        result = _select(function, input, args, kwargs)
    return by_formula(function, (input, *args), kwargs) if result is None else result


def _select(function: Function, input: SparseTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gather the values at the indices of ``function``; None where it has none."""
    name = function.__name__
    if not args and "dim" not in kwargs:
        return _GLOBAL[name](input) if name in _GLOBAL else None
    if args and isinstance(args[0], torch.Tensor):
        return None
    with torch.no_grad():
        chosen = function(input.detach(), *args, **kwargs)  # without tangents of forward mode either
    dim_position = 1 if name in COUNTING else 0
    dim = kwargs.get("dim", args[dim_position] if len(args) > dim_position else -1)
    indices = chosen.indices
    if not is_integer(dim) or isinstance(indices, SparseTensor):
        return None
    is_kept = indices.dim() == input.dim()
    values = torch.gather(input, dim, indices if is_kept else indices.unsqueeze(dim))
    if isinstance(values, SparseTensor) and not isinstance(chosen.values, SparseTensor):
        values = values.to_dense()
    return type(chosen)((values if is_kept else values.squeeze(dim), indices))


for _name in ("max", "min", "median", "nanmedian", "kthvalue", "topk", "sort", "mode"):
    for _function in (getattr(torch, _name), getattr(torch.Tensor, _name)):
        implements_differentiable(_function)(functools.partial(_run_selection, _function))
