"""Find the operator of ATen that a call of torch ends in, and call Scorch's function for it directly.

torch parses the arguments, passes its dispatcher and calls ``__torch_dispatch__``; before the first such call
of a process it imports its distributed tensors and sympy, which takes about a second. Where nothing but the
operator itself would run, the same function is called from here. In-place operators, whose versions torch
counts, and functions that torch composes of others take torch's way.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd import forward_ad

from scorch._src.bounded import BoundedCache
from scorch._src.tensor.dispatch_rules import register_for
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import TENSORS, SparseTensor
from scorch._src.tensor.views.link import without_base
from scorch._src.torch_internals import (
    DisableTorchFunctionSubclass,
    DispatchKey,
    is_any_autocast_enabled,
    len_torch_dispatch_stack,
    peek_interpreter_stack,
    resolve_overload,
)

MAX_KINDS = 4096
_NUMBERS = frozenset({bool, int, float, type(None)})
_SIMPLE_TYPES = frozenset({"Tensor", "number", "int", "float", "bool"})
_METHOD = type(torch.Tensor.tril)
_BUILTINS = (type(torch.tril), _METHOD)

_operators: BoundedCache[Any, Any] = BoundedCache(MAX_KINDS)  # by function and types of arguments


def run_by_torch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``func`` of sparse tensors that nothing tracks as torch does, without torch where that is short."""
    operator = None if kwargs or len_torch_dispatch_stack() else _operator_of(func, args)
    if operator is not None and len(args) > 1 and takes_list(operator) and type(args[1]) is int:
        args = args[0], list(args[1:])  # ``S.permute(1, 0)``
    if operator is None:
        register_for(func)
    with DisableTorchFunctionSubclass():
        if operator is not None:
            result = SparseTensor.__torch_dispatch__(operator, (), args, {})
            return tuple(result) if type(result) is list else result
        return without_base(func(*args, **kwargs))


def _operator_of(func: Any, args: tuple[Any, ...]) -> Any:
    """Return the operator behind a call with tensors and numbers; None where torch does more than call it."""
    kinds = tuple(map(type, args))
    if peek_interpreter_stack() is not None or forward_ad._current_level >= 0 or is_any_autocast_enabled():
        return None
    if not all(kind in TENSORS or kind in _NUMBERS for kind in kinds):
        return None
    key = func, kinds
    if key not in _operators:
        _operators[key] = _find_operator(func, args)
    return _operators.get(key)


def _find_operator(func: Any, args: tuple[Any, ...]) -> Any:
    packet = _packet_of(func)
    if packet is None:
        return None
    if isinstance(func, _METHOD) and len(args) > 1 and all(type(number) is int for number in args[1:]):
        operator = getattr(packet, "default", None)
        if operator is not None and takes_list(operator):
            return None if _is_composed(operator) or _does_more(operator) else operator
    try:
        operator = getattr(packet, resolve_overload(packet._qualified_op_name, *args))
        is_composed = _is_composed(operator)
    except RuntimeError:  # torch converts the arguments first, or refuses them, or only scripts have it
        return None
    places = operator._schema.arguments[: len(args)]
    is_simple = all(map(_is_simple, places))
    is_turned = isinstance(func, _METHOD) and places[0].name != "self"  # ``S.where(condition, other)``
    return None if not is_simple or is_turned or is_composed or _does_more(operator) else operator


def _is_simple(argument: Any) -> bool:
    """Whether an argument is a tensor or a number, and not what schemas show as a number."""
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    return kind in _SIMPLE_TYPES and argument.name not in ("dtype", "layout", "device", "memory_format")


@functools.lru_cache(maxsize=MAX_KINDS)
def _packet_of(func: Any) -> Any:
    """Return the operators of ATen that have the name of a builtin of torch; None if there are none."""
    name = func.__name__ if isinstance(func, _BUILTINS) else ""
    return getattr(torch.ops.aten, name.removeprefix("__").removesuffix("__"), None) if name else None


@functools.lru_cache(maxsize=MAX_KINDS)
def takes_list(operator: Any) -> bool:
    """Whether an operator takes a tensor and a list of numbers, which methods take one by one too."""
    places = [argument for argument in operator._schema.arguments if not argument.kwarg_only]
    return len(places) == 2 and str(places[1].type) == "List[int]"


def _is_composed(operator: Any) -> bool:
    """Whether torch composes an operator of others."""
    return bool(operator.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd))


def _does_more(operator: Any) -> bool:
    """Whether torch counts a write to an argument, or names the results of an operator with several."""
    infos = (argument.alias_info for argument in operator._schema.arguments)
    is_written = any(info is not None and info.is_write for info in infos)
    return is_written or len(operator._schema.returns) != 1


_TO_COPY = torch.ops.aten._to_copy.default
_CONVERSIONS: dict[Any, torch.dtype | None] = {torch.Tensor.to: None} | {
    getattr(torch.Tensor, dtype_name): getattr(torch, dtype_name)
    for dtype_name in ("bfloat16", "bool", "double", "float", "half", "int", "long", "short")
}


def _make_conversion(method: Any, dtype: torch.dtype | None) -> Any:
    """Return a handler of ``S.double()``, or of ``S.to(dtype)``; torch composes them of ``_to_copy``."""

    def convert(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
        is_to = dtype is None and len(args) == 1 and type(args[0]) is torch.dtype
        wanted = args[0] if is_to else dtype
        if kwargs or len(args) != is_to or wanted is None or len_torch_dispatch_stack():
            return run_by_torch(method, (self, *args), kwargs)
        if wanted is self.storage.values.dtype:
            return self
        with DisableTorchFunctionSubclass():
            return SparseTensor.__torch_dispatch__(_TO_COPY, (), (self,), {"dtype": wanted})

    return convert


for _method, _dtype in _CONVERSIONS.items():
    implements(_method)(_make_conversion(_method, _dtype))

hooks.run_by_torch = run_by_torch
