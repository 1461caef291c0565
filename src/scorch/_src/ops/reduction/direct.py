"""Unary functions that bypass torch's dispatcher.

That saves its time, and for the first call of a process more than a second: torch imports its distributed
tensors and sympy before it dispatches an operator to Python. Calls with unusual arguments take the general
path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.grad_state import is_differentiable
from scorch._src.tensor.autograd import by_formula
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass

Function = Callable[..., Any]
_PLAIN = (int, float, bool, str, type(None), torch.dtype)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    is_dims = kind in (tuple, list, torch.Size) and all(type(item) is int for item in value)
    return is_dims or kind in _PLAIN


def bind(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Bind arguments to names; None where some are unknown, repeated or of unusual types."""
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    is_valid = len(bound) == len(args) + len(kwargs) and all(name in names for name in bound)
    return bound if is_valid and all(map(_is_plain, bound.values())) else None


def by_torch(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``function`` as torch decomposes it, differentiated by its formulas."""
    if is_differentiable(*args, **kwargs):
        return by_formula(function, args, kwargs)
    with DisableTorchFunctionSubclass():
        return function(*args, **kwargs)


def direct(*functions: Function, takes: str, differentiable: bool = False) -> Callable[[Function], Function]:
    """Register ``run`` for functions of a sparse tensor with elements; ``takes`` names other arguments.

    Where it returns None, and for other arguments, torch's own function is called. What is
    ``differentiable`` computes on connected values and serves tensors that require gradients as well.
    """
    names = tuple(takes.split())

    def register(run: Function) -> Function:
        for function in functions:

            def handler(input: Any, *args: Any, function: Function = function, **kwargs: Any) -> Any:
                is_served = isinstance(input, SparseTensor) and input.dim() and input.numel()
                bound = bind(names, args, kwargs) if is_served else None
                result = None if bound is None else run(input, **bound)
                return by_torch(function, (input, *args), kwargs) if result is None else result

            implements(function)(handler)
            if differentiable:
                implements_differentiable(function)(handler)
        return run

    return register
