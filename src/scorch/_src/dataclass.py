"""Frozen dataclasses that are cheap to define.

``dataclasses.dataclass(frozen=True)`` compiles six methods for every class, which for the two hundred of
Scorch took a third of ``import scorch``. Here only ``__init__`` is compiled; the others are shared by all
classes, or ask an ``attrgetter``, which is as fast. ``fields``, ``replace``, ``asdict`` and ``match`` work as
they do with any dataclass.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def dataclass(cls: Any = None, /, *, frozen: bool = False, eq: bool = True, **options: Any) -> Any:
        """Do what ``dataclasses.dataclass`` does."""
        if not frozen or options:
            return dataclasses.dataclass(cls, frozen=frozen, eq=eq, **options)
        return _define(cls, eq) if cls is not None else lambda cls: _define(cls, eq)

    def replace(instance: Any, /, **changes: Any) -> Any:
        """Do what ``dataclasses.replace`` does, in a third of the time."""
        for name in instance.__match_args__:  # all fields, as ``_make_init`` sees to
            if name not in changes:
                changes[name] = getattr(instance, name)
        return instance.__class__(**changes)


_MISSING = dataclasses.MISSING


def _define(cls: Any, eq: bool) -> Any:
    """Add the methods of a frozen dataclass to ``cls``, but for those that it defines."""
    own = dict(vars(cls))
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # dataclasses would look for a signature to put there
    dataclasses.dataclass(cls, init=False, repr=False, eq=False)
    fields = dataclasses.fields(cls)
    cls.__init__ = _make_init(cls, fields)
    cls.__setattr__, cls.__delattr__ = _refuse_to_set, _refuse_to_delete
    if "__repr__" not in own:
        cls.__repr__ = _make_repr([field.name for field in fields if field.repr])
    if eq:
        if "__eq__" not in own:
            cls.__eq__ = _make_eq(getter([field.name for field in fields if field.compare]))
        if own.get("__hash__") is None:
            is_hashed = [field.compare if field.hash is None else field.hash for field in fields]
            names = [field.name for field, hashed in zip(fields, is_hashed, strict=True) if hashed]
            cls.__hash__ = _make_hash(getter(names))
    return cls


def _make_init(cls: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    parameters, lines, outer = [], [], {"_set": object.__setattr__, "_missing": _MISSING}
    for field in fields:
        assert field.init and not field.kw_only, f"{cls.__name__}.{field.name}"
        name, value = field.name, field.name
        if field.default is not _MISSING:
            parameters.append(f"{name}=_default_{name}")
            outer[f"_default_{name}"] = field.default
        elif field.default_factory is not _MISSING:
            parameters.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
            outer[f"_make_{name}"] = field.default_factory
        else:
            parameters.append(name)
        lines.append(f"  _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("  self.__post_init__()")
    text = f"def __init__({', '.join(['self', *parameters])}):\n" + "\n".join(lines or ["  pass"])
    namespace: dict[str, Any] = {}
    wrapped = f"def _make({', '.join(outer)}):\n" + "\n".join(f" {line}" for line in text.split("\n"))
    exec(f"{wrapped}\n return __init__", vars(sys.modules[cls.__module__]), namespace)
    init = namespace["_make"](**outer)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return init


def getter(names: Sequence[str]) -> Callable[[Any], Any]:
    """Return a function from an instance to a tuple of the values of some fields."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda instance: ()
    (name,) = names
    return lambda instance: (getattr(instance, name),)


def _make_eq(values: Callable[[Any], Any]) -> Any:
    def eq(self: Any, other: Any) -> Any:
        if self is other:
            return True
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return eq


def _make_hash(values: Callable[[Any], Any]) -> Any:
    def hash_values(self: Any) -> int:
        return hash(values(self))

    return hash_values


def _make_repr(names: list[str]) -> Any:
    @reprlib.recursive_repr()
    def show(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return show


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
