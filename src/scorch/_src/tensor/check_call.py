"""Check a call as torch would: sparse tensors refuse what torch refuses for dense ones.

A handler that does not call the PyTorch function (a product as an einsum, a gradient by a rule of its own)
would accept too much: einsum broadcasts an index of size 1, and mixes dtypes. So torch runs the call on small
dense tensors, once for all calls with the same shapes, dtypes and numbers. Equal sizes stay equal there, and
0, 1 and 3 (of a cross product) are not replaced: that is exact for functions that compare sizes only with
each other.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.devices import HOST, META
from scorch._src.grad_state import untracked
from scorch._src.tensor.call_errors import (
    KINDS,
    are_small,
    cleaned,
    described,
    error_on,
    name_of,
    tensors_in,
)
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchDispatch, is_any_autocast_enabled
from scorch.errors import ScorchError, ShapeError

MAX_CALLS = 4096  # accepted calls in the cache
MAX_ELEMENTS = 1 << 24  # of an outer product of all small tensors; beyond, meta tensors
_STAND_INS = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)  # dtypes that all products have

_accepted: BoundedCache[Hashable, bool] = BoundedCache(MAX_CALLS)
_lock = threading.Lock()


def check_call(func: Any, *args: Any, **kwargs: Any) -> None:
    """Refuse a call of ``func`` that torch refuses for dense tensors of these shapes and dtypes.

    The error is one of Scorch's and of the type that torch raises. A dtype that torch has no kernel for is no
    reason to refuse: sparse kernels are generated for every dtype.
    """
    if "out" in kwargs and kwargs["out"] is None:
        del kwargs["out"]
    key = _key(func, args, kwargs)
    if key is not None and key in _accepted:
        return
    error = _error_of(func, args, kwargs)
    if error is not None:
        raise _translate(error, func, args, kwargs)
    if key is not None:
        with _lock:
            _accepted[key] = True


def check_out(func: Any, functional: Any, out: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuse an ``out`` of a dtype that torch refuses: ``func`` takes it, ``functional`` is the same without.

    Which dtypes fit differs from operator to operator. torch decides, on small tensors, or on meta tensors
    where the function does not take these.
    """
    named = {**kwargs, "out": out}
    sizes = _small_sizes((args, kwargs, out))
    for tried_sizes, device in ((sizes, HOST), (None, META)):
        if device is HOST and not _is_cheap((args, kwargs, out), sizes):
            continue
        if _error_on(functional, args, kwargs, tried_sizes, {}, device) is None:
            error = _error_on(func, args, named, tried_sizes, {}, device)
            if error is not None and not isinstance(error, NotImplementedError):
                raise _translate(error, func, args, named)
            return


def _key(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Hashable | None:
    """Return the cache key of a call; None where it is not cached."""
    if is_any_autocast_enabled() or kwargs.get("out") is not None:
        return None
    parts: list[Any] = [func, torch.is_grad_enabled()]
    for value in (*args, *kwargs.values()):
        if type(value) is SparseTensor:
            storage = value.storage
            parts += (storage.pattern.shape, storage.values.dtype, value.requires_grad)
        elif isinstance(value, torch.Tensor):
            parts += (value.shape, value.dtype, value.requires_grad)
        elif value is None or type(value) in (int, float, bool, str, torch.dtype):
            parts += (type(value), value)
        elif type(value) in (tuple, list) and all(type(item) is int for item in value):
            parts += (type(value), tuple(value))
        else:
            return None
    parts.append(tuple(kwargs))
    return tuple(parts)


def _error_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Exception | None:
    """Return the error that torch raises for a call on small dense tensors; None if it accepts them."""
    small = _small_sizes((args, kwargs))
    device = HOST if _is_cheap((args, kwargs), small) else META
    error = _error_on(func, args, kwargs, small, {}, device)
    if not isinstance(error, NotImplementedError):
        return error
    kinds = dict.fromkeys(tensor.dtype for tensor in tensors_in((args, kwargs)))
    others = dict(zip(kinds, _STAND_INS, strict=False))
    error = _error_on(func, args, kwargs, small, others, device)
    return None if isinstance(error, NotImplementedError) else error


def _small_sizes(arguments: Any) -> dict[int, int]:
    """Map every size of a tensor to a small one."""
    all_sizes = (size for tensor in tensors_in(arguments) for size in tensor.shape)
    sizes = dict.fromkeys(size for size in all_sizes if size not in (0, 1, 3))
    return {0: 0, 1: 1, 3: 3} | dict(zip(sizes, (2, *range(4, len(sizes) + 3)), strict=False))


def _is_cheap(arguments: Any, sizes: dict[int, int]) -> bool:
    """Whether tensors of the small sizes, and any product of them, are small enough to compute."""
    all_sizes = (size for tensor in tensors_in(arguments) for size in tensor.shape)
    return math.prod(sizes[size] or 1 for size in all_sizes) <= MAX_ELEMENTS


def _error_on(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    sizes: dict[int, int] | None,
    dtypes: dict[torch.dtype, torch.dtype],
    device: torch.device,
) -> Exception | None:
    """Return the error that torch raises for dense zeros, with ``sizes`` and ``dtypes`` replaced."""

    def stand_in(value: torch.Tensor) -> torch.Tensor:
        shape = tuple(value.shape) if sizes is None else tuple(sizes[size] for size in value.shape)
        dtype = dtypes.get(value.dtype, value.dtype)
        is_tracked = value.requires_grad and (dtype.is_floating_point or dtype.is_complex)
        return torch.zeros(shape, dtype=dtype, device=device, requires_grad=is_tracked)

    with untracked(), DisableTorchDispatch():
        return error_on(stand_in, func, args, kwargs)


def _translate(error: Exception, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> ScorchError:
    """Return the error for the user, with torch's message for the sizes that the tensors have."""
    tensors = tensors_in((args, kwargs))
    device = HOST if are_small(tensors) else META
    exact = _error_on(func, args, kwargs, None, {}, device)
    if exact is not None and type(exact) is type(error):
        error = exact
    kind = KINDS[type(error)]
    same = {tensor.dtype: torch.float32 for tensor in tensors}
    floats = {dtype: same[dtype] for dtype in same if dtype.is_floating_point}
    if issubclass(ShapeError, type(error)) and all(
        _error_on(func, args, {}, None, dtypes, device) is not None for dtypes in (floats, same)
    ):
        kind = ShapeError  # whatever the dtypes and numbers are
    name = name_of(func)
    return kind(f"{name}: {cleaned(str(error), name, tensors)}{described(tensors)}")
