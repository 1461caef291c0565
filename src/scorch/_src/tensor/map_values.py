"""Functions of the stored values alone, such as ``relu(S)`` and ``S * 2``, in the fewest steps.

``__torch_function__`` tries them before anything else; what autograd or a mode tracks takes the usual way.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch
from torch.autograd import forward_ad

from scorch._src.backends.base import MANY_VALUES, routines_for, run_among_others
from scorch._src.bounded import BoundedCache
from scorch._src.devices import HOST
from scorch._src.grad_state import is_grad_enabled, untracked
from scorch._src.storage.storage import Storage
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor, tensor_of
from scorch._src.torch_internals import any_requires_grad, len_torch_dispatch_stack, peek_interpreter_stack

MAX_CONSTANTS = 256
MANY_SCALED = 1 << 16  # values, up to which torch's threads do not pay
MANY_OF_ARITHMETIC = 1 << 15  # values, below which torch's arithmetic takes one thread
_EXACT = frozenset({torch.float32, torch.float64})  # whose products with a number round it to the same dtype
_constants: BoundedCache[tuple[float, torch.dtype], torch.Tensor] = BoundedCache(MAX_CONSTANTS)


def map_values(func: Any, args: tuple[Any, ...], routine: str) -> SparseTensor | None:
    """Return ``func`` of the stored values and a number; None where more is to be done.

    ``routine``, if any, computes the same, in less time for few values.
    """
    tensor = args[0]
    if type(tensor) is not SparseTensor or peek_interpreter_stack() is not None:
        return None
    storage = tensor.storage
    if (is_grad_enabled() and any_requires_grad(tensor)) or forward_ad._current_level >= 0:
        return None
    if storage.origin is not None or storage.strides is not None:
        return None
    values = storage.values
    operands: tuple[Any, ...] = (values,)
    if routine and len(args) == 1 and not len_torch_dispatch_stack() and not values.requires_grad:
        routines = routines_for(values)
        func = getattr(routines, routine)
        if routines.repeats_calls:
            hooks.repeat_by_builtins()  # the next time
    elif len(args) > 1:
        number, dtype = args[1], values.dtype
        if not number or not isfinite(number):
            return None
        is_plain = values.is_cpu and not values.requires_grad and not len_torch_dispatch_stack()
        if routine and is_plain and dtype in _EXACT and values.numel() <= MANY_SCALED:
            scaled = routines_for(values).scale(values, number)
            return tensor_of(Storage.of_new(storage.pattern, scaled))
        if dtype in _EXACT:  # torch would make a tensor of the number at every call, and convert it
            constant = _constants.get((number, dtype))
            if constant is None:
                with untracked():
                    constant = _constants[number, dtype] = torch.tensor(number, dtype=dtype, device=HOST)
            number = constant
        operands = values, number
    is_small = values.numel() < (MANY_VALUES if len(args) == 1 else MANY_OF_ARITHMETIC)
    values = func(*operands) if is_small else run_among_others(values, func, *operands)
    if type(values) is not torch.Tensor or values.requires_grad:
        return None
    return tensor_of(Storage.of_new(storage.pattern, values))


hooks.map_values = map_values
