"""Forward mode by ``torch.autograd.forward_ad``: tensors that carry a tangent, a direction of change.

The values of a sparse tensor carry its tangent, and statements and functions of values propagate it. torch's
own formulas know tangents of dense tensors only; functions without a rule of their own are one autograd
function (``tensor/transforms/functorch.py``), and writes to a sparse tensor with a tangent are refused.
``torch.func.jvp`` has levels of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from scorch._src import torch_internals as internals
from scorch._src.grad_state import has_tangents, is_called_from, is_transformed
from scorch._src.storage.storage import Storage
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.registry import implements, look_up, own_arguments
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch._src.torch_internals import DisableTorchFunctionSubclass, tree_leaves
from scorch.errors import UnsupportedError


def push_forward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute ``func`` of tensors with tangents: by its handler, by torch, or as one autograd function."""
    handler = look_up(func).run_differentiable
    if handler is not None:
        return handler(*args, **kwargs)
    if func is torch.Tensor.detach:
        return unpack_dual(args[0], forward_ad._current_level)[0]
    name = str(getattr(func, "__name__", ""))
    is_fact = name == "requires_grad_" or name.endswith("_like") or name.startswith("new_")
    if has_sparse_tangents(args, kwargs):
        return _plainly(func, args, kwargs) if is_fact else as_one_step(func, args, kwargs)
    try:
        with DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
    except RuntimeError as error:
        raise _refused(func) from error
    numbers = [value for value in tree_leaves(result) if is_number(value)]
    return result if is_fact or not numbers or has_tangents(numbers) else as_one_step(func, args, kwargs)


def as_one_step(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute ``func``, differentiated as a function of arrays; refuse it if it writes to its arguments."""
    own = own_arguments(func)
    if own > 0:
        raise _refused(func)
    return hooks.run_as_one_function(func, args, kwargs) if own == 0 else _plainly(func, args, kwargs)


def _plainly(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    handler = look_up(func).run
    if handler is not None:
        return handler(*args, **kwargs)
    with DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def has_sparse_tangents(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return has_tangents([value for value in tree_leaves((args, kwargs)) if isinstance(value, SparseTensor)])


def is_number(value: Any) -> bool:
    """Whether ``value`` is a tensor of a dtype that derivatives are of."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _refused(func: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{getattr(func, '__name__', func)} of sparse tensors is not supported in "
        "torch.autograd.forward_ad; use the out-of-place function (mul for mul_), torch.func.jvp, or "
        "torch.func.vjp"
    )


@implements(internals.make_dual, differentiable=True)
def make_dual(tensor: SparseTensor, tangent: torch.Tensor, level: int) -> torch.Tensor:
    """Attach a tangent, sampled at the pattern of the tensor."""
    if is_transformed():
        with DisableTorchFunctionSubclass():
            return internals.make_dual(tensor, tangent, level=level)
    if any(is_called_from("torch.autograd.gradcheck", depth) for depth in range(2, 6)):
        raise UnsupportedError(
            "torch.autograd.gradcheck cannot check forward derivatives of sparse tensors, whose tangents "
            "are sparse; use scorch.autograd.gradcheck"
        )
    change = hooks.values_at(tangent, tensor.storage.pattern)
    values = internals.make_dual(tensor.storage.values, change, level=level)
    return SparseTensor(Storage(tensor.storage.pattern, values))


@implements(internals.unpack_dual, differentiable=True)
def unpack_dual(tensor: SparseTensor, level: int) -> Any:
    """Return a tensor without its tangent, and the tangent."""
    if is_transformed():
        with DisableTorchFunctionSubclass():
            return internals.unpack_dual(tensor, level=level)
    values, change = internals.unpack_dual(tensor.storage.values, level=level)
    return (tensor, None) if change is None else (with_values(tensor, values), with_values(tensor, change))


hooks.push_forward = push_forward
