"""Forward derivatives by ``torch.autograd.forward_ad``: tensors that carry a tangent, a direction of change.

The values of a sparse tensor carry that of the tensor, and statements, functions of values and what is made
of them hand it on. torch's own formulas know tangents of dense tensors only; functions without a rule of
their own are one step whose derivative is that of autograd (``tensor/whole.py``), and what writes to a sparse
tensor with a tangent is refused. ``torch.func.jvp`` has levels of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from scorch._src import torch_internals as internals
from scorch._src.grad_state import has_tangents, is_asked_by, is_transformed
from scorch._src.storage.storage import Storage
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.registry import implements, look_up, own_arguments
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch._src.torch_internals import DisableTorchFunctionSubclass, tree_leaves
from scorch.errors import UnsupportedError


def carried_forward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func`` of tensors with tangents: by its handler that knows them, by torch, or as one step."""
    known = look_up(func).run_differentiable
    if known is not None:
        return known(*args, **kwargs)
    if func is torch.Tensor.detach:
        return unpack_dual(args[0], forward_ad._current_level)[0]
    name = str(getattr(func, "__name__", ""))
    is_fact = name == "requires_grad_" or name.endswith("_like") or name.startswith("new_")
    if has_sparse_tangents(args, kwargs):
        return _plainly(func, args, kwargs) if is_fact else as_one_step(func, args, kwargs)
    try:
        with DisableTorchFunctionSubclass():
            found = func(*args, **kwargs)
    except RuntimeError as error:
        raise _refused(func) from error
    numbers = [value for value in tree_leaves(found) if _is_number(value)]
    return found if is_fact or not numbers or has_tangents(numbers) else as_one_step(func, args, kwargs)


def as_one_step(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func`` differentiated as a function of arrays; what writes to its arguments is refused."""
    own = own_arguments(func)
    if own > 0:
        raise _refused(func)
    return hooks.run_as_a_whole(func, args, kwargs) if own == 0 else _plainly(func, args, kwargs)


def _plainly(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    handler = look_up(func).run
    if handler is not None:
        return handler(*args, **kwargs)
    with DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def has_sparse_tangents(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return has_tangents([value for value in tree_leaves((args, kwargs)) if isinstance(value, SparseTensor)])


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _refused(func: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{getattr(func, '__name__', func)} of sparse tensors has no derivative in torch.autograd.forward_ad"
        "; use the function that returns its result instead of writing it (mul for mul_), torch.func.jvp, or "
        "torch.func.vjp"
    )


@implements(internals.make_dual, differentiable=True)
def make_dual(tensor: SparseTensor, tangent: torch.Tensor, level: int) -> torch.Tensor:
    """A tensor and a direction, which counts at the places of the tensor."""
    if is_transformed():
        with DisableTorchFunctionSubclass():
            return internals.make_dual(tensor, tangent, level=level)
    if any(is_asked_by("torch.autograd.gradcheck", depth) for depth in range(2, 6)):
        raise UnsupportedError(
            "torch.autograd.gradcheck sets the elements of a tangent, which is as sparse as its tensor; "
            "scorch.autograd.gradcheck checks forward derivatives of sparse tensors"
        )
    change = hooks.values_at(tangent, tensor.storage.pattern)
    values = internals.make_dual(tensor.storage.values, change, level=level)
    return SparseTensor(Storage(tensor.storage.pattern, values))


@implements(internals.unpack_dual, differentiable=True)
def unpack_dual(tensor: SparseTensor, level: int) -> Any:
    """A tensor, and the derivative that it carries."""
    if is_transformed():
        with DisableTorchFunctionSubclass():
            return internals.unpack_dual(tensor, level=level)
    values, change = internals.unpack_dual(tensor.storage.values, level=level)
    return (tensor, None) if change is None else (with_values(tensor, values), with_values(tensor, change))


hooks.carry_forward = carried_forward
