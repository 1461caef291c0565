"""Serialize the arguments of a call for graphs that are saved: numbers, dtypes, slices, formats and so on."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from scorch._src.formats import Format
from scorch._src.torch_internals import OpOverload, OpOverloadPacket
from scorch.errors import UnsupportedError

# functions that graphs may call, by name: Scorch's own, and those of torch that torch.overrides lacks
GRAPH_FUNCTIONS: dict[str, Any] = {
    f"torch.sparse.{name}": getattr(torch.sparse, name)
    for name in ("addmm", "log_softmax", "mm", "sampled_addmm", "softmax", "sum", "spdiags")
    if hasattr(torch.sparse, name)
}

_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
_OPERATORS = (OpOverload, OpOverloadPacket)


class Slot:
    """A placeholder among the arguments for a tensor or a symbolic size."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number


def serialize(value: Any) -> Any:
    """Convert a value to lists, dicts, strings and numbers."""
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    for name, (kind, encode, _) in _CODECS.items():
        if isinstance(value, kind):
            return {name: encode(value)}
    raise UnsupportedError(
        f"a {type(value).__name__} cannot be an argument inside of a compiled graph; "
        "pass numbers, strings, dtypes, slices or tensors"
    )


def deserialize(value: Any) -> Any:
    """Convert back what ``serialize`` returned."""
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    return _CODECS[name][2](content)


def _all(convert: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    return [convert(item) for item in items]


def _torch_constant(name: str) -> Any:
    constant = getattr(torch, name)
    assert isinstance(constant, _TORCH_CONSTANTS)
    return constant


def serialize_format(format: Format) -> list[Any]:
    return [format.spelling, list(format.order), [list(block) for block in format.blocks]]


def deserialize_format(content: list[Any]) -> Format:
    letters, order, blocks = content
    return Format(letters, order=order, blocks=dict(blocks))


_CODECS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {  # by name: type, there, back
    "slot": (Slot, lambda slot: [slot.kind, slot.number], lambda content: Slot(*content)),
    "list": (list, lambda items: _all(serialize, items), lambda items: _all(deserialize, items)),
    "tuple": (tuple, lambda items: _all(serialize, items), lambda items: tuple(_all(deserialize, items))),
    "dict": (
        dict,
        lambda items: [_all(serialize, pair) for pair in items.items()],
        lambda pairs: dict(_all(deserialize, pair) for pair in pairs),
    ),
    "slice": (
        slice,
        lambda s: _all(serialize, (s.start, s.stop, s.step)),
        lambda items: slice(*_all(deserialize, items)),
    ),
    "ellipsis": (type(...), lambda _: None, lambda _: ...),
    "complex": (complex, lambda number: [number.real, number.imag], lambda parts: complex(*parts)),
    "device": (torch.device, str, torch.device),
    "torch": (_TORCH_CONSTANTS, lambda constant: str(constant).removeprefix("torch."), _torch_constant),
    "format": (Format, serialize_format, deserialize_format),
}


def name_of(target: Any) -> str:
    """Return the name by which ``find_function`` finds a function."""
    for name, function in GRAPH_FUNCTIONS.items():
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
    if name in GRAPH_FUNCTIONS:
        return GRAPH_FUNCTIONS[name]
    module, *path = name.split(".")
    value: Any = functools.reduce(getattr, path, torch) if module == "torch" else None
    if value is None or not (isinstance(value, _OPERATORS) or value in _overridable_functions()):
        raise UnsupportedError(f"the graph calls {name!r}, which is no function on sparse tensors")
    return value
