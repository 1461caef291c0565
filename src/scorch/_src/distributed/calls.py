"""What PyTorch functions do with sharded tensors; those without a rule are refused by name."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.devices import HOST
from scorch._src.distributed.communication.budget import one_call
from scorch._src.tensor.registry import look_up
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import MissingAttributeError, UnsupportedError

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
    """Register what PyTorch functions, and methods and operators of these names, do with sharded tensors."""

    def register(function: Rule) -> Rule:
        for torch_function in functions:
            name = torch_function.__name__
            forms = [getattr(torch.Tensor, form, None) for form in (name, f"__{name}__")]
            RULES.update(dict.fromkeys([torch_function, *filter(None, forms)], function))
        return function

    return register


@one_call
def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the rule of a PyTorch function, or refuse it by name."""
    name = getattr(func, "__name__", str(func)).removeprefix("_sparse_")
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
    """Refuse arguments that PyTorch's function has and the rule does not."""
    signature = _signature_of(found)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UnsupportedError(f"{name}: {error}; for sharded tensors, call {name}{signature}") from None


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
            f"{name} of a sharded tensor and another tensor is not supported; use "
            "scorch.distributed.evaluate instead"
        )
    of_zero = func(torch.zeros((), dtype=a.dtype, device=HOST), *others, **kwargs)
    if of_zero != 0:
        raise dense_result(name, f"it maps zero to {of_zero.item()}")
    result = func(a.local, *others, **kwargs)
    if not isinstance(result, SparseTensor):
        raise dense_result(name, "its result is dense")
    return a.with_local(result)


# refusals --------------------------------------------------------------------------------------------

_ROWS = "A.local has the entries of this rank (own rows and columns first, then the halo)"
_GATHER = "A.gather() returns the whole tensor on every rank"
_MOVE = "move the tensor before you shard it: shard(S.to(device)), or load_rows(..., device=...)"
_ENTRIES = (
    "A.entries() returns the global coordinates and the values of this rank's entries, "
    "A.local.values() only the values"
)
_COUNT = "A.local.nnz counts the entries of this rank; A.count_entries(), called on all ranks, counts all"
_LEAF = "call it on A.local, which is the leaf of autograd"

HINTS = {
    **dict.fromkeys(
        ("to_dense", "numpy", "numpy.asarray(A)", "tolist", "item", "to_torch", "to_scipy", "to_networkx"),
        _GATHER,
    ),
    **dict.fromkeys(("values", "indices", "crow_indices", "col_indices", "coo", "csr", "csc"), _ENTRIES),
    **dict.fromkeys(("to(device)", "pin_memory"), _MOVE),
    **dict.fromkeys(("nnz", "density", "nbytes", "_nnz"), _COUNT),
    **dict.fromkeys(("register_hook", "retain_grad", "data"), _LEAF),
    "nn.Parameter(A)": (
        "A.local is the leaf of autograd: A = A.with_local(torch.nn.Parameter(A.local)), and register A.local"
    ),
    "backward": "call backward on a scalar, such as scorch.distributed.mean(loss_of_rows)",
    "A[...]": (f"rows may be on other ranks. {_ROWS}; scorch.distributed.repartition moves rows; {_GATHER}"),
    "A[...] = x": "sharded tensors cannot be modified in place; build another with A.with_local(...)",
    "iteration": f"{_ROWS}; {_GATHER}",
    "softmax": "A.softmax(dim) normalizes the stored entries of each row (dim=1) or column (dim=0)",
    "cumsum": f"cumulative sums over rows cross ranks; {_GATHER}",
    "reshape": "the first dimension must stay that of the rows; use scorch.distributed.evaluate",
    "permute": "A.T transposes a matrix; for other permutations, use scorch.distributed.evaluate",
}


def refusal(name: str) -> UnsupportedError:
    """Return the error for a function or method without a rule, with what to do instead."""
    return UnsupportedError(f"{name} is not supported for sharded tensors. {_advice(name)}")


def missing_attribute(name: str) -> MissingAttributeError:
    """Return the error for an attribute that sharded tensors do not have, with what to do instead."""
    return MissingAttributeError(f"sharded tensors have no attribute {name!r}. {_advice(name)}")


def _advice(name: str) -> str:
    advice = _MOVE if _is_device(name) else HINTS.get(name)
    if advice is None and name.endswith("_") and not name.endswith("__"):
        known = hasattr(torch.Tensor, name[:-1])
        advice = "sharded tensors cannot be modified in place" + (
            f": A = A.{name[:-1]}(...)" if known else ""
        )
    if advice is None:
        advice = f"Apply it to the local shard (A.local), or gather the tensor first: {_GATHER}"
    return advice if advice.startswith("A.") else advice[0].upper() + advice[1:]


def _is_device(name: str) -> bool:
    """Return whether a method has the name of a device type, and moves tensors there."""
    try:
        return torch.device(name).type == name
    except RuntimeError:
        return False


def dense_result(name: str, why: str) -> UnsupportedError:
    """Return the error for a call whose result is nonzero where the tensor has implicit zeros."""
    return UnsupportedError(f"{name}: {why}, so the result would be dense; sharded tensors must stay sparse")
