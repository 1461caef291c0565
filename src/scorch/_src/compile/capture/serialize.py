"""Serialize the arguments of a call for graphs that are saved: numbers, dtypes, slices, formats and so on."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from scorch._src.formats import Format
from scorch._src.torch_internals import OpOverload, OpOverloadPacket
from scorch.errors import UnsupportedError

SCORCH_FUNCTIONS: dict[str, Any] = {}  # that graphs may call, by name

_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
_EXTRA_TORCH_FUNCTIONS = {  # that torch.overrides lacks
    f"torch.sparse.{name}": getattr(torch.sparse, name)
    for name in ("addmm", "log_softmax", "mm", "sampled_addmm", "softmax", "sum", "spdiags")
    if hasattr(torch.sparse, name)
}


_OPERATORS = (OpOverload, OpOverloadPacket)


class Slot:
    """A placeholder among the arguments for a tensor or a symbolic size."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number


def serialize(value: Any) -> Any:
    """Convert a value to lists, dicts, strings and numbers."""
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, Slot):
        return {"slot": [value.kind, value.number]}
    if isinstance(value, list):
        return {"list": [serialize(item) for item in value]}
    if isinstance(value, tuple):
        return {"tuple": [serialize(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[serialize(key), serialize(item)] for key, item in value.items()]}
    if isinstance(value, slice):
        return {"slice": [serialize(item) for item in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": None}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, _TORCH_CONSTANTS):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, Format):
        return {"format": serialize_format(value)}
    raise UnsupportedError(
        f"a {type(value).__name__} cannot be an argument inside of a compiled graph; "
        "pass numbers, strings, dtypes, slices or tensors"
    )


def deserialize(value: Any) -> Any:
    """Convert back what ``serialize`` returned."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "slot":
            return Slot(*content)
        case "list":
            return [deserialize(item) for item in content]
        case "tuple":
            return tuple(deserialize(item) for item in content)
        case "dict":
            return {deserialize(key): deserialize(item) for key, item in content}
        case "slice":
            return slice(*(deserialize(item) for item in content))
        case "ellipsis":
            return Ellipsis
        case "complex":
            return complex(*content)
        case "device":
            return torch.device(content)
        case "torch":
            constant = getattr(torch, content)
            assert isinstance(constant, _TORCH_CONSTANTS)
            return constant
        case "format":
            return deserialize_format(content)
    raise AssertionError(f"cannot read {value!r}")


def serialize_format(format: Format) -> list[Any]:
    return [format.spelling, list(format.order), [list(block) for block in format.blocks]]


def deserialize_format(content: list[Any]) -> Format:
    letters, order, blocks = content
    return Format(letters, order=order, blocks=dict(blocks))


def name_of(target: Any) -> str:
    """Return the name by which ``find_function`` finds a function."""
    for name, function in (*SCORCH_FUNCTIONS.items(), *_EXTRA_TORCH_FUNCTIONS.items()):
        if function is target:
            return name
    if isinstance(target, _OPERATORS):
        return f"torch.ops.{target}"
    name = resolve_name(target)
    if name is None:
        raise UnsupportedError(f"{getattr(target, '__name__', target)} has no name that a graph could keep")
    return str(name)


@functools.cache
def _overridable_functions() -> frozenset[Any]:
    """Return all functions of torch that dispatch on the type of their arguments."""
    return frozenset(itertools.chain.from_iterable(get_overridable_functions().values()))


def find_function(name: str) -> Any:
    """Find a function of torch or Scorch; refuse other names, which a file may hold."""
    function = SCORCH_FUNCTIONS.get(name) or _EXTRA_TORCH_FUNCTIONS.get(name)
    if function is not None:
        return function
    module, *path = name.split(".")
    value: Any = torch if module == "torch" else None
    for attribute in path if value is not None else []:
        value = getattr(value, attribute)
    if value is None or not (isinstance(value, _OPERATORS) or value in _overridable_functions()):
        raise UnsupportedError(f"the graph calls {name!r}, which is no function on sparse tensors")
    return value
