"""torch_sparse for a PyG that has already been imported without it.

PyG looks for torch_sparse once, when it is imported. If there is none, ``torch_geometric.typing`` defines
placeholders whose methods raise an error, and PyG's other modules import these. ``connect`` replaces them
wherever a module or an annotation refers to them; ``disconnect`` puts them back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Union, get_args, get_origin

_FLAG = "WITH_TORCH_SPARSE"
_OF_TYPES = ("typing", "types")  # where the classes are defined whose instances are types made of others
_replaced: list[tuple[dict[str, Any], str, Any]] = []


def connect(package: ModuleType) -> None:
    """Make PyG use ``package`` as torch_sparse; nothing happens unless PyG has been imported."""
    pyg = sys.modules.get("torch_geometric.typing")
    if pyg is None:
        return
    ours = {
        "torch_sparse": package,
        "SparseStorage": package.SparseStorage,
        "SparseTensor": package.SparseTensor,
    }
    stale = {id(getattr(pyg, name)): new for name, new in ours.items() if getattr(pyg, name) is not new}
    seen: set[int] = set()  # modules import functions and classes from each other
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", {})
        if stale and _replace(namespace, stale):
            for annotations in _annotations(namespace, seen):
                _replace(annotations, stale)
    _set_flags(True)


def disconnect(package: ModuleType) -> None:
    """Undo ``connect``; a PyG that was imported after ``install`` keeps the class, but not the operators."""
    pyg = sys.modules.get("torch_geometric.typing")
    if pyg is not None and pyg.torch_sparse is package:
        _set_flags(False)
    while _replaced:
        namespace, name, old = _replaced.pop()
        namespace[name] = old


def _set_flags(value: bool) -> None:
    """Tell PyG's modules whether there is a torch_sparse."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch_geometric.") and hasattr(module, _FLAG):
            setattr(module, _FLAG, value)


def _replace(namespace: dict[str, Any], stale: dict[int, Any]) -> bool:
    """Replace what is ``stale`` (by its identity) in a namespace, and return whether something was."""
    found = False
    for name, value in list(namespace.items()):
        # Asked here as well: of some 100,000 values, few go on to a call.
        if id(value) not in stale and type(value).__module__ not in _OF_TYPES:
            continue
        new = _renewed(value, stale)
        if new is not value:
            _replaced.append((namespace, name, value))
            namespace[name] = new
            found = True
    return found


def _renewed(value: Any, stale: dict[int, Any]) -> Any:
    """Return what replaces a value: a stale one, or a type such as ``Union[Tensor, SparseTensor]``."""
    if id(value) in stale:
        return stale[id(value)]
    if type(value).__module__ not in _OF_TYPES:  # others may warn when they are looked at
        return value
    origin, arguments = get_origin(value), get_args(value)
    renewed = tuple(_renewed(argument, stale) for argument in arguments)
    if all(new is old for new, old in zip(renewed, arguments, strict=True)):
        return value
    return Union[renewed] if origin is Union else origin[renewed]  # noqa: UP007  (a type, computed)


def _annotations(namespace: dict[str, Any], seen: set[int]) -> Iterator[dict[str, Any]]:
    """Yield the annotations of a module's functions, classes and methods, which TorchScript reads, once."""
    for value in list(namespace.values()):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            yield vars(value).get("__annotations__", {})
            yield from (f.__annotations__ for f in vars(value).values() if isinstance(f, FunctionType))
        elif isinstance(value, FunctionType):
            yield value.__annotations__
