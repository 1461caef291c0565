"""Gradients of functions that select elements along a dimension: ``max``, ``median``, ``topk``, ``sort`` ...

Each goes to the element whose index is returned, so the values are gathered at the indices again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.ops.reduction.reduce import amax, amin
from scorch._src.tensor.autograd import by_formula
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.registry import implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor

Function = Callable[..., Any]
COUNTING = ("kthvalue", "topk")  # their k is checked by torch's own function
_GLOBAL = {"max": amax, "min": amin}


def _make_handler(function: Function) -> Function:
    """Return ``function`` with gradients; unsupported calls take torch's formula."""

    def handler(input: Any, *args: Any, **kwargs: Any) -> Any:
        is_served = isinstance(input, SparseTensor) and input.dim() and input.numel()
        result = None
        if is_served and kwargs.get("out") is None and "axis" not in kwargs:
            if function.__name__ not in COUNTING:
                check_call(function, input, *args, **kwargs)
            result = _select(function, input, args, kwargs)
        return by_formula(function, (input, *args), kwargs) if result is None else result

    return handler


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
    if not isinstance(dim, int) or isinstance(dim, bool) or isinstance(indices, SparseTensor):
        return None
    is_kept = indices.dim() == input.dim()
    values = torch.gather(input, dim, indices if is_kept else indices.unsqueeze(dim))
    if isinstance(values, SparseTensor) and not isinstance(chosen.values, SparseTensor):
        values = values.to_dense()
    return type(chosen)((values if is_kept else values.squeeze(dim), indices))


for _name in ("max", "min", "median", "nanmedian", "kthvalue", "topk", "sort", "mode"):
    for _function in (getattr(torch, _name), getattr(torch.Tensor, _name)):
        implements_differentiable(_function)(_make_handler(_function))
