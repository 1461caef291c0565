"""Elementwise functions of sharded tensors."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch

from scorch._src.distributed.align import same_plans
from scorch._src.distributed.calls import RULES, dense_result, rule
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.distributed.sums import as_replicated
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import UnsupportedError

Tensor = torch.Tensor


def _elementwise(function: Any, a: Any, b: Any, **kwargs: Any) -> RowSharded:
    if not (isinstance(a, RowSharded) and isinstance(b, RowSharded)):
        raise _dense_partner(function)
    one, other = same_plans([a, b])
    result: Any = function(one.local, other.local, **kwargs)
    if not isinstance(result, SparseTensor):
        raise UnsupportedError(
            f"{function.__name__} of these sharded tensors would be dense, and sharded tensors must stay "
            "sparse; gather both first (A.gather())"
        )
    return one.with_local(result)


def _dense_partner(function: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{function.__name__} is not supported for these operands, because the result may be dense. Sharded "
        "tensors can be added to each other, and multiplied or divided by scalars; to scale columns or rows, "
        "use einsum('ij,j->ij', A, x) or einsum('ij,i->ij', A, x)"
    )


@rule(torch.add)
def add(a: Any, b: Any, *, alpha: Any = 1) -> RowSharded:
    return _elementwise(torch.add, a, b, alpha=alpha)


@rule(torch.sub)
def sub(a: Any, b: Any, *, alpha: Any = 1) -> RowSharded:
    return _elementwise(torch.sub, a, b, alpha=alpha)


@rule(torch.mul)
def mul(a: Any, b: Any) -> RowSharded:
    if _is_number(a):
        a, b = b, a
    return _scale(torch.mul, a, b) if _is_number(b) else _elementwise(torch.mul, a, b)


@rule(torch.div)
def div(a: Any, b: Any) -> RowSharded:
    if not _is_number(b) or not isinstance(a, RowSharded):
        raise _dense_partner(torch.div)
    return _scale(torch.div, a, b)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) or (isinstance(value, Tensor) and value.dim() == 0)


def _scale(function: Any, a: RowSharded, number: Any) -> RowSharded:
    return a.map_local(function, as_replicated(number, a.group))


@rule(torch.pow)
def pow(a: Any, exponent: Any) -> RowSharded:
    if not isinstance(a, RowSharded) or not isinstance(exponent, numbers.Real) or exponent <= 0:
        raise dense_result("pow", "A ** x is zero-preserving only for x > 0")
    return a.map_local(torch.pow, exponent)


@rule(torch.t)
def t(a: RowSharded) -> RowSharded:
    return a.T


@rule(torch.clone)
def clone(a: RowSharded) -> RowSharded:
    return a.map_local(torch.clone)


@rule(torch.detach)
def detach(a: RowSharded) -> RowSharded:
    return a.detach()


@rule(torch.numel)
def numel(a: RowSharded) -> int:
    return math.prod(a.shape)


def _size(a: RowSharded, dim: int | None = None) -> Any:
    return torch.Size(a.shape) if dim is None else a.shape[dim]


def _converts_to(dtype: torch.dtype) -> Any:
    return lambda a: a.to(dtype)


RULES[torch.Tensor.size] = _size
for _name in ("float", "double", "half", "bfloat16"):
    RULES[getattr(torch.Tensor, _name)] = _converts_to(getattr(torch, _name))
