"""Arguments of a call as text, for graphs that are saved: numbers, dtypes, slices, formats and their like."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from scorch._src.formats import Format
from scorch._src.torch_internals import OpOverload, OpOverloadPacket
from scorch.errors import UnsupportedError

OURS: dict[str, Any] = {}  # functions of Scorch that graphs may call, by name

_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_MORE = {  # functions of torch that its own table lacks
    f"torch.sparse.{name}": getattr(torch.sparse, name)
    for name in ("addmm", "log_softmax", "mm", "sampled_addmm", "softmax", "sum", "spdiags")
    if hasattr(torch.sparse, name)
}


_OPERATORS = (OpOverload, OpOverloadPacket)


class Slot:
    """Where a tensor or a size that is not known yet stands among the arguments."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number


def write(value: Any) -> Any:
    """A value as lists, dicts, strings and numbers."""
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, Slot):
        return {"slot": [value.kind, value.number]}
    if isinstance(value, list):
        return {"list": [write(part) for part in value]}
    if isinstance(value, tuple):
        return {"tuple": [write(part) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[write(key), write(part)] for key, part in value.items()]}
    if isinstance(value, slice):
        return {"slice": [write(part) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": None}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, _OF_TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, Format):
        return {"format": write_format(value)}
    raise UnsupportedError(
        f"a {type(value).__name__} cannot be an argument inside of a compiled graph; "
        "pass numbers, strings, dtypes, slices or tensors"
    )


def read(value: Any) -> Any:
    """What ``write`` has written."""
    if not isinstance(value, dict):
        return value
    ((kind, given),) = value.items()
    match kind:
        case "slot":
            return Slot(*given)
        case "list":
            return [read(part) for part in given]
        case "tuple":
            return tuple(read(part) for part in given)
        case "dict":
            return {read(key): read(part) for key, part in given}
        case "slice":
            return slice(*(read(part) for part in given))
        case "ellipsis":
            return Ellipsis
        case "complex":
            return complex(*given)
        case "device":
            return torch.device(given)
        case "torch":
            found = getattr(torch, given)
            assert isinstance(found, _OF_TORCH)
            return found
        case "format":
            return read_format(given)
    raise AssertionError(f"cannot read {value!r}")


def write_format(format: Format) -> list[Any]:
    return [format.spelling, list(format.order), [list(block) for block in format.blocks]]


def read_format(given: list[Any]) -> Format:
    letters, order, blocks = given
    return Format(letters, order=order, blocks=dict(blocks))


def name_of(func: Any) -> str:
    """The name by which ``function_named`` finds a function again."""
    for name, known in (*OURS.items(), *_MORE.items()):
        if known is func:
            return name
    if isinstance(func, _OPERATORS):
        return f"torch.ops.{func}"
    name = resolve_name(func)
    if name is None:
        raise UnsupportedError(f"{getattr(func, '__name__', func)} has no name that a graph could keep")
    return str(name)


@functools.cache
def _functions_of_torch() -> frozenset[Any]:
    """All functions of torch that look at the type of their arguments."""
    return frozenset(itertools.chain.from_iterable(get_overridable_functions().values()))


def function_named(name: str) -> Any:
    """A function of torch or Scorch; other names, which a file may hold, are refused."""
    known = OURS.get(name) or _MORE.get(name)
    if known is not None:
        return known
    module, *path = name.split(".")
    found: Any = torch if module == "torch" else None
    for part in path if found is not None else []:
        found = getattr(found, part)
    if found is None or not (isinstance(found, _OPERATORS) or found in _functions_of_torch()):
        raise UnsupportedError(f"the graph calls {name!r}, which is no function on sparse tensors")
    return found
