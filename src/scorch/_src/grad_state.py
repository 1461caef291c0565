"""Ask whether torch tracks a computation: for autograd, forward mode, ``torch.func``, or ``torch.jit``."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from scorch._src.torch_internals import (
    DEFAULT_DEVICE_MODE,
    DisableTorchFunctionSubclass,
    DispatchKey,
    any_requires_grad,
    is_dispatch_key_excluded,
    is_jit_tracing,
    is_legacy_batchedtensor,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    peek_interpreter_stack,
    tree_leaves,
)
from scorch.errors import UnsupportedError

_depth = threading.local()
Result = TypeVar("Result")

_AUTOGRAD = DispatchKey.AutogradFunctionality

is_grad_enabled = torch.is_grad_enabled


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is running."""
    return peek_interpreter_stack() is not None


def unsupported_in_jit(what: str) -> UnsupportedError:
    """Return the error for what ``torch.jit`` meets, also when ``torch.onnx.export`` calls it."""
    text = f"{what}: torch.jit.trace and torch.jit.script do not support sparse tensors"
    return UnsupportedError(f"{text}; use torch.export.export or torch.compile")


def refuse_jit(what: str) -> None:
    """Refuse a call while ``torch.jit.trace`` records: results of kernels would be constants there."""
    if not is_dynamo_compiling() and is_jit_tracing():
        raise unsupported_in_jit(what)


def is_composed(*tensors: Any) -> bool:
    """Whether what is computed of these tensors must be composed of functions that have all derivatives.

    ``torch.func`` needs them, and so do the tangents of forward mode: an autograd function that has only a
    ``backward`` would lose those.
    """
    if peek_interpreter_stack() is not None:
        return True
    return forward_ad._current_level >= 0 and has_tangents(tensors)


def is_differentiable(*tensors: Any, **named: Any) -> bool:
    """Whether a result of these tensors must be connected to them, for autograd or ``torch.func``."""
    if peek_interpreter_stack() is not None:
        return True
    if is_grad_enabled() and any_requires_grad(*tensors, **named):
        return True
    return forward_ad._current_level >= 0 and has_tangents(tensors, named)


def is_plain_inference(*tensors: Any) -> bool:
    """Whether nothing tracks calls on these tensors: no gradients, transforms or modes of torch."""
    if is_dynamo_compiling() or peek_interpreter_stack() is not None:
        return False
    if len_torch_function_stack() or len_torch_dispatch_stack() or is_jit_tracing():
        return False
    if is_grad_enabled() and any_requires_grad(*tensors):
        return False
    return forward_ad._current_level < 0 or not has_tangents(tensors)


def is_tracked_by_autograd_alone() -> bool:
    """Whether no transform, forward mode or mode of torch sees calls: at most gradients are recorded."""
    if is_dynamo_compiling() or peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return False
    return not len_torch_function_stack() and not len_torch_dispatch_stack() and not is_jit_tracing()


def tangent_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tangent of a tensor in forward mode; of a sparse tensor, that of its values."""
    storage = tensor.__dict__.get("storage")
    array: torch.Tensor = tensor if storage is None else storage.values
    if is_legacy_batchedtensor(array):
        raise UnsupportedError(
            "batched forward derivatives, as torch.autograd.functional.jacobian requests with "
            "vectorize=True, are not supported; use torch.func.jacfwd, or strategy='reverse-mode'"
        )
    tangent: torch.Tensor | None = forward_ad.unpack_dual(array).tangent
    return tangent


def has_tangents(*values: Any) -> bool:
    """Whether tensors among ``values`` carry tangents of forward mode.

    Inside an operator torch has handled them already, and ``torch.func`` has levels of its own.
    """
    if forward_ad._current_level < 0 or peek_interpreter_stack() is not None:
        return False
    if is_dispatch_key_excluded(_AUTOGRAD):
        return False
    tensors = (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
    return any(tangent_of(tensor) is not None for tensor in tensors)


def untracked() -> contextlib.AbstractContextManager[Any]:
    """Compute index arrays, and all that is cached, inside this context: they outlive the modes of a call.

    ``torch.func`` would track them too, and tensors that are created in ``torch.inference_mode`` cannot be
    saved for a backward pass later.
    """
    if torch.is_inference_mode_enabled():
        return _outside_inference_mode()
    if peek_interpreter_stack() is None:
        return contextlib.nullcontext()
    return _outside_transforms()


def _outside_transforms() -> contextlib.AbstractContextManager[Any]:
    from scorch._src.torch_internals import without_interpreters

    cleared: contextlib.AbstractContextManager[Any] = without_interpreters()
    return cleared


@contextlib.contextmanager
def _outside_inference_mode() -> Iterator[None]:
    """Leave ``torch.inference_mode`` and transforms, but not switch gradients on, as leaving that does."""
    outside = contextlib.nullcontext() if peek_interpreter_stack() is None else _outside_transforms()
    with torch.inference_mode(False), torch.no_grad(), outside:
        yield


def outside_modes(make: Callable[..., Result]) -> Callable[..., Result]:
    """Run ``make`` inside ``untracked()``: what it returns is cached."""

    @functools.wraps(make)
    def run_outside(*args: Any) -> Result:
        if peek_interpreter_stack() is None and not torch.is_inference_mode_enabled():
            return make(*args)
        with untracked():
            return make(*args)

    return run_outside


def cached_outside_modes(make: Callable[[Any], Result]) -> functools.cached_property[Result]:
    """Return the cached property that ``make`` computes inside ``untracked()``."""
    return functools.cached_property(outside_modes(make))


@contextlib.contextmanager
def fixed_patterns() -> Iterator[None]:
    """Keep results dense whose zeros depend on values, while torch differentiates by its own formulas.

    A gradient is sampled at the pattern of a tensor, which is right only if the pattern does not depend on
    values.
    """
    _depth.number = getattr(_depth, "number", 0) + 1
    try:
        yield
    finally:
        _depth.number -= 1


def are_patterns_fixed() -> bool:
    return getattr(_depth, "number", 0) > 0


def is_called_from(module: str, depth: int) -> bool:
    """Whether the frame ``depth`` above is in ``module``: torch's graph capture inspects tensors itself.

    Frames of ``torch.set_default_device``, through which every call of torch goes then, do not count.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and depth:
        frame = frame.f_back
        depth -= frame is not None and frame.f_globals.get("__name__") != DEFAULT_DEVICE_MODE
    name: str = "" if frame is None else frame.f_globals.get("__name__", "")
    return name == module or name.startswith(f"{module}.")


def is_ordinary_in_inference_mode(source: torch.Tensor) -> bool:
    """Whether views of ``source`` are created in ``torch.inference_mode``, and yet are ordinary tensors."""
    if not torch.is_inference_mode_enabled():
        return False
    with DisableTorchFunctionSubclass():
        return not source.is_inference()
