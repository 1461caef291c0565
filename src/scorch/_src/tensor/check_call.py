"""Check a call as torch would: what it refuses for dense tensors, sparse tensors refuse too.

A handler that computes by other means than torch's own function (a product as an einsum, a gradient by a rule
of its own) would accept what its means accept: einsum broadcasts an index of size 1, and mixes dtypes. So
torch is asked, once for all calls with the same shapes, dtypes and numbers, on small dense tensors. Equal
sizes stay equal there, and 0, 1 and 3 (of a cross product) stay what they are: that is exact for functions
that compare sizes with each other and with nothing else.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.devices import HOST, META
from scorch._src.grad_state import untracked
from scorch._src.tensor.call_errors import KINDS, SMALL, cleaned, described, name_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchDispatch, is_any_autocast_enabled, tree_leaves, tree_map
from scorch.errors import ScorchError, ShapeError

CAPACITY = 4096  # calls that are remembered as accepted
MOST_ELEMENTS = 1 << 24  # of an outer product of all small tensors; beyond, tensors have no memory
_STAND_INS = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)  # dtypes that all products have

_accepted: BoundedCache[Hashable, bool] = BoundedCache(CAPACITY)
_lock = threading.Lock()


def check_call(func: Any, *args: Any, **kwargs: Any) -> None:
    """Refuse a call of ``func`` that torch refuses for dense tensors of these shapes and dtypes.

    The error is one of ours and of the type that torch raises. A dtype that torch has no kernel for is no
    reason to refuse: sparse kernels are generated for every dtype.
    """
    if "out" in kwargs and kwargs["out"] is None:
        del kwargs["out"]
    key = _key(func, args, kwargs)
    if key is not None and key in _accepted:
        return
    error = _error_of(func, args, kwargs)
    if error is not None:
        raise _as_ours(error, func, args, kwargs)
    if key is not None:
        with _lock:
            _accepted[key] = True


def check_out(func: Any, functional: Any, out: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuse an ``out`` of a dtype that torch refuses: ``func`` takes it, ``functional`` is the same without.

    Which dtypes fit differs from operator to operator. Torch is asked on small tensors, or on such without
    memory where the function does not take these.
    """
    named = {**kwargs, "out": out}
    sizes = _small_sizes((args, kwargs, out))
    for given, device in ((sizes, HOST), (None, META)):
        if device is HOST and not _is_cheap((args, kwargs, out), sizes):
            continue
        if _error_on(functional, args, kwargs, given, {}, device) is None:
            error = _error_on(func, args, named, given, {}, device)
            if error is not None and not isinstance(error, NotImplementedError):
                raise _as_ours(error, func, args, named)
            return


def _key(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Hashable | None:
    """What the answer depends on; None where it is not remembered."""
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
    """What torch raises for a call on small dense tensors; None if it accepts them."""
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    small = _small_sizes((args, kwargs))
    device = HOST if _is_cheap((args, kwargs), small) else META
    error = _error_on(func, args, kwargs, small, {}, device)
    if not isinstance(error, NotImplementedError):
        return error
    kinds = dict.fromkeys(tensor.dtype for tensor in tensors)
    others = dict(zip(kinds, _STAND_INS, strict=False))
    error = _error_on(func, args, kwargs, small, others, device)
    return None if isinstance(error, NotImplementedError) else error


def _small_sizes(given: Any) -> dict[int, int]:
    """For every size of a tensor a small one."""
    tensors = [value for value in tree_leaves(given) if isinstance(value, torch.Tensor)]
    sizes = dict.fromkeys(size for tensor in tensors for size in tensor.shape if size not in (0, 1, 3))
    return {0: 0, 1: 1, 3: 3} | dict(zip(sizes, (2, *range(4, len(sizes) + 3)), strict=False))


def _is_cheap(given: Any, sizes: dict[int, int]) -> bool:
    """Whether tensors of small sizes are small enough, and so is all that can be made of them."""
    tensors = [value for value in tree_leaves(given) if isinstance(value, torch.Tensor)]
    return math.prod(sizes[size] or 1 for tensor in tensors for size in tensor.shape) <= MOST_ELEMENTS


def _error_on(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    sizes: dict[int, int] | None,
    dtypes: dict[torch.dtype, torch.dtype],
    device: torch.device,
) -> Exception | None:
    """What torch raises for dense tensors of zeros, of other ``sizes`` and ``dtypes`` where these say so."""

    def replaced(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = tuple(value.shape) if sizes is None else tuple(sizes[size] for size in value.shape)
        dtype = dtypes.get(value.dtype, value.dtype)
        is_tracked = value.requires_grad and (dtype.is_floating_point or dtype.is_complex)
        return torch.zeros(shape, dtype=dtype, device=device, requires_grad=is_tracked)

    try:
        with untracked(), DisableTorchDispatch(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            func(*tree_map(replaced, tuple(args)), **tree_map(replaced, kwargs))
    except Exception as error:
        return error if type(error) in KINDS else None
    return None


def _as_ours(error: Exception, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> ScorchError:
    """The error for the user, in torch's words for the sizes that the tensors have."""
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    is_small = sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= SMALL
    device = HOST if is_small else META
    exact = _error_on(func, args, kwargs, None, {}, device)
    if exact is not None and type(exact) is type(error):
        error = exact
    kind = KINDS[type(error)]
    same = {tensor.dtype: torch.float32 for tensor in tensors if tensor.dtype.is_floating_point}
    if issubclass(ShapeError, type(error)) and _error_on(func, args, {}, None, same, device) is not None:
        kind = ShapeError  # whatever the dtypes and numbers are
    name = name_of(func)
    return kind(f"{name}: {cleaned(str(error), name)}{described(tensors)}")
