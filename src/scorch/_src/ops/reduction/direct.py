"""Reductions that are called by every program, without the way through torch's dispatcher.

It saves its time, and for the first call of a process more than a second: torch imports its distributed
tensors and sympy before it hands an operator to Python. Calls with unusual arguments go the general way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.ops.fallback import densely
from scorch._src.ops.reduction import reduce, scan
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass

Handler = Callable[..., Any]
Fits = Callable[[Any], bool]


def _is_dim(value: Any) -> bool:
    return type(value) is int


def _is_dim_or_none(value: Any) -> bool:
    return value is None or type(value) is int


def _is_dims(value: Any) -> bool:
    return _is_dim_or_none(value) or (type(value) is tuple and all(type(dim) is int for dim in value))


def _is_some_dims(value: Any) -> bool:
    return value is not None and _is_dims(value)


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _dense_result(function: Handler, self: SparseTensor, dim: int) -> Any:
    return densely(function, (self, dim), {})


def _largest(self: SparseTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return reduce.max_of_all(self)
    return torch.return_types.max(reduce.max_along(self, dim, keepdim))


def _smallest(self: SparseTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return reduce.min_of_all(self)
    return torch.return_types.min(reduce.min_along(self, dim, keepdim))


def _directly(name: str, handler: Handler, least: int = 0, **parameters: Fits) -> None:
    """Let ``torch.name`` and the method call ``handler`` where every argument is one of ``parameters``."""
    function = getattr(torch, name)

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        is_plain = least <= len(given) == len(args) + len(kwargs) and type(input) is SparseTensor
        if is_plain and all(key in parameters and parameters[key](value) for key, value in given.items()):
            return handler(input, **given)
        with DisableTorchFunctionSubclass():
            return function(input, *args, **kwargs)

    implements(function, getattr(torch.Tensor, name))(call)


for _name in ("mean", "any", "all"):
    _directly(_name, getattr(reduce, _name), dim=_is_dims, keepdim=_is_flag)
for _name in ("amax", "amin"):
    _directly(_name, getattr(reduce, _name), dim=_is_some_dims, keepdim=_is_flag)
for _name in ("argmax", "argmin"):
    _directly(_name, getattr(reduce, _name), dim=_is_dim_or_none, keepdim=_is_flag)
_directly("max", _largest, dim=_is_dim, keepdim=_is_flag)
_directly("min", _smallest, dim=_is_dim, keepdim=_is_flag)
for _name in ("std", "var"):
    _directly(_name, getattr(reduce, _name), dim=_is_dims)
_directly("cumsum", scan.cumsum, 1, dim=_is_dim)
for _function in (torch.softmax, torch.log_softmax):
    _directly(_function.__name__, functools.partial(_dense_result, _function), 1, dim=_is_dim)


@implements(torch.norm, torch.Tensor.norm)
def norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None, out: Any = None
) -> Any:
    """The norm of all elements, or along one dimension."""
    is_plain = type(input) is SparseTensor and dtype is None and out is None and type(keepdim) is bool
    if is_plain and _is_dim_or_none(dim) and (p in ("fro", None) or type(p) in (int, float)):
        return reduce.vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim)
    with DisableTorchFunctionSubclass():
        named = {"dtype": dtype, **({} if out is None else {"out": out})}
        return torch.norm(input, p, dim, keepdim, **named)
