"""What functions of torch do with sharded tensors; those without a rule are refused by name."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.devices import HOST
from scorch._src.distributed.refusals import dense_result, refusal
from scorch._src.tensor.registry import look_up
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import UnsupportedError

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}

# Functions of each number, which map zero to zero for some of their other arguments.
_COMPARISONS = ("eq", "ge", "gt", "isfinite", "isinf", "isnan", "le", "logical_not", "lt", "ne")
_ROUNDINGS = ("clamp", "clamp_max", "clamp_min", "clip", "floor_divide", "fmod", "remainder")
_OTHERS = ("cos", "exp", "log", "reciprocal", "rsqrt", "sigmoid")
_ACTIVATIONS = (
    "celu",
    "elu",
    "gelu",
    "hardshrink",
    "hardtanh",
    "leaky_relu",
    "mish",
    "relu6",
    "selu",
    "silu",
)
_ELEMENTWISE = {
    getattr(home, name) for name in (*_COMPARISONS, *_ROUNDINGS, *_OTHERS) for home in (torch, torch.Tensor)
} | {getattr(F, name) for name in _ACTIVATIONS}


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register what functions of torch, and methods and operators of these names, do with sharded tensors."""

    def register(function: Rule) -> Rule:
        for torch_function in functions:
            name = torch_function.__name__
            forms = [getattr(torch.Tensor, form, None) for form in (name, f"__{name}__")]
            RULES.update(dict.fromkeys([torch_function, *filter(None, forms)], function))
        return function

    return register


def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the rule of a function of torch, or refuse it by name."""
    name = getattr(func, "__name__", str(func))
    found = RULES.get(func)
    if found is not None:
        _check_arguments(name, found, args, kwargs)
        return found(*args, **kwargs)
    if look_up(func).maps_values == 1 and len(args) == 1 and not kwargs:
        return args[0].map_local(func)
    if func in _ELEMENTWISE:
        return _map_if_zero_stays(name, func, args, kwargs)
    raise refusal(name)


def _check_arguments(name: str, found: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that torch's function has and the rule has not."""
    signature = _signature_of(found)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UnsupportedError(f"{name} of sharded tensors takes {signature}: {error}") from None


@functools.lru_cache(maxsize=256)
def _signature_of(found: Rule) -> inspect.Signature:
    signature = inspect.signature(found)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return inspect.Signature(plain)


def _map_if_zero_stays(name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Map the local entries, if the function of zero and the other arguments is zero."""
    a, *others = args
    if not all(isinstance(value, numbers.Number) or value is None for value in (*others, *kwargs.values())):
        raise UnsupportedError(
            f"{name} of a sharded tensor and another tensor has no rule; write it with "
            "scorch.distributed.evaluate"
        )
    of_zero = func(torch.zeros((), dtype=a.dtype, device=HOST), *others, **kwargs)
    if of_zero != 0:
        raise dense_result(name, f"it makes {of_zero.item()} of zero")
    result = func(a.local, *others, **kwargs)
    if not isinstance(result, SparseTensor):
        raise dense_result(name, "its result is dense")
    return a.with_local(result)
