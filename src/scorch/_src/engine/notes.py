"""Plans as plain data: JSON that can be read back into Scorch's own nodes and into nothing else.

Every value stands where the annotation of its field says what it may be. So a note is read by those
annotations: a tuple is a list, a node is ``["Name", field, ...]`` with a name of the table below, a number or
a text is itself. Whatever does not fit, and whatever a node itself refuses, is no note: nobody runs what
was read to find out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.plan import Operand, Plan, Splits, Step, Vectors
from scorch._src.compiler.schedule.convert_operands import Conversion
from scorch._src.compiler.schedule.cost import Cost
from scorch._src.compiler.schedule.infer_format import Inferred
from scorch._src.compiler.schedule.order_loops import Choice
from scorch._src.formats import Format
from scorch._src.formats.format import LEVELS
from scorch._src.loops.types import TYPES, Type
from scorch._src.notation.nodes import Access, Literal, Op, Reduce

NODES: dict[str, type] = {
    node.__name__: node
    for node in (
        *(Access, Literal, Op, Reduce, Step, Operand, Splits, Vectors, Plan),
        *(Conversion, Inferred, Cost, Choice, Planned),
    )
}
MAX_NOTE_BYTES = 1 << 24  # the largest plans take some kilobytes

Decoder = Callable[[Any], Any]


class NoteError(ValueError):
    """A value that notes cannot hold, or a text that is no note of the requested kind."""


def write(value: object) -> bytes:
    """Write a value of Scorch's nodes as JSON."""
    try:
        return json.dumps(_encoded(value), separators=(",", ":")).encode()
    except RecursionError as error:
        raise NoteError("too deep") from error


def read(text: bytes, kind: Any) -> Any:
    """Read a value of the type ``kind`` that ``write`` wrote; raise ``NoteError`` for everything else."""
    if len(text) > MAX_NOTE_BYTES:
        raise NoteError("too long")
    try:
        return decoder(kind)(json.loads(text))
    except NoteError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        raise NoteError(str(error)) from error


def register(node: type) -> type:
    """Let notes hold a dataclass that is defined above this file."""
    NODES[node.__name__] = node
    return node


def _encoded(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_encoded(part) for part in value]
    if isinstance(value, frozenset):
        return sorted((_encoded(part) for part in value), key=json.dumps)
    if isinstance(value, Type):
        return value.name
    if isinstance(value, Format):
        if any(level not in LEVELS for level in value.levels):
            raise NoteError("levels written outside Scorch")
        return [value.letters, list(value.order), [list(block) for block in value.blocks], value.family]
    name = type(value).__name__
    if NODES.get(name) is not type(value):
        raise NoteError(f"notes cannot store {name}")
    return [name, *(_encoded(getattr(value, field.name)) for field in dataclasses.fields(value))]  # type: ignore[arg-type]


# reading -------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def decoder(kind: Any) -> Decoder:
    """Return the function that reads values of a type."""
    if kind in (bool, int, float, str, type(None)):
        return functools.partial(_scalar, kind)
    if kind is Type:
        return lambda value: TYPES[_scalar(str, value)]
    if kind is Format:
        return _format
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is frozenset or args[1:] == (...,):
        return functools.partial(_items, origin, decoder(args[0]))
    if origin in (tuple, typing.Union, types.UnionType):
        return functools.partial(_tuple if origin is tuple else _union, tuple(map(decoder, args)))
    if isinstance(kind, type):
        return functools.partial(_node, kind)
    raise AssertionError(f"notes cannot store {kind!r}")


def _scalar(kind: type, value: Any) -> Any:
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise NoteError(f"{value!r:.40} is not a {kind.__name__}")
    return value


def _format(value: Any) -> Format:
    letters, order, blocks, family = value
    pairs = tuple([(_scalar(int, dim), _scalar(int, size)) for dim, size in blocks])
    dims = tuple([_scalar(int, dim) for dim in order])
    return _cached_format(
        _scalar(str, letters), dims, pairs, None if family is None else _scalar(str, family)
    )


@functools.lru_cache(maxsize=256)
def _cached_format(
    letters: str, order: tuple[int, ...], blocks: tuple[tuple[int, int], ...], family: str | None
) -> Format:
    if family is None:
        levels = {level.letter: level for level in LEVELS}
        return Format([levels[letter] for letter in letters], order, blocks)
    form = Format(family, dims=len(set(order)))
    if (form.letters, form.order, form.blocks, form.family) != (letters, order, blocks, family):
        raise NoteError(f"{family!r:.40} is not a name in this format")
    return form


def _items(kind: type, read_part: Decoder, value: Any) -> Any:
    if type(value) is not list:
        raise NoteError("not a list")
    return kind([read_part(part) for part in value])


def _tuple(parts: tuple[Decoder, ...], value: Any) -> tuple[Any, ...]:
    if type(value) is not list:
        raise NoteError("not a list")
    return tuple([read_part(part) for read_part, part in zip(parts, value, strict=True)])


def _union(parts: tuple[Decoder, ...], value: Any) -> Any:
    for read_part in parts:
        try:
            return read_part(value)
        except (ValueError, TypeError, KeyError):
            continue
    raise NoteError("unexpected type")


def _node(kind: type, value: Any) -> Any:
    if type(value) is not list or not value or type(value[0]) is not str:
        raise NoteError(f"not a {kind.__name__}")
    node = NODES.get(value[0])
    if node is None or not issubclass(node, kind):
        raise NoteError(f"{value[0]!r:.40} is not a {kind.__name__}")
    fields = _fields(typing.cast(Any, node))
    return node(*[read_field(part) for read_field, part in zip(fields, value[1:], strict=True)])


@functools.lru_cache(maxsize=1024)
def _fields(node: Any) -> tuple[Decoder, ...]:
    """Return the functions that read the fields of a node, by its annotations."""
    kinds: dict[str, Any] = {}
    for base in reversed(node.__mro__):
        for name, kind in vars(base).get("__annotations__", {}).items():
            kinds[name] = _evaluated(kind, base.__module__) if isinstance(kind, str) else kind
    return tuple(decoder(kinds[field.name]) for field in dataclasses.fields(node))


@functools.lru_cache(maxsize=1024)
def _evaluated(annotation: str, module: str) -> Any:
    """Return the type that an annotation means: ``typing.get_type_hints`` takes four times as long."""
    return eval(annotation, vars(sys.modules[module]))
