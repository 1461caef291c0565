"""The value of an index expression at one point, as a loop expression with every conversion explicit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scorch._src.compiler.typing import Typed, argument_type, type_of
from scorch._src.loops.nodes import Binary, Cast, Const, Expr, Select, Unary
from scorch._src.loops.operators import OPERATORS
from scorch._src.loops.types import BOOL, INT64, Type
from scorch._src.loops.values import wrap
from scorch._src.notation import nodes as notation
from scorch._src.notation.nodes import Access, Literal, Op

Read = Callable[[Access], Expr | None]


def value_of(expr: notation.Expr, types: Mapping[str, Type], read: Read) -> Expr:
    """``expr`` where ``read`` gives the value of each access, or None for one that is zero here."""
    match expr:
        case Access():
            found = read(expr)
            return Const(0, types[expr.tensor].computes_in) if found is None else found
        case Literal(value):
            return Const(value, type_of(expr, types).type)
        case Op("present", _):
            return Const(1, INT64)
        case Op("everywhere" | "vanishing", (part,)) | Op("on", (_, part)):
            return value_of(part, types, read)
        case Op(name, args):
            return _apply(name, args, types, read)
    raise AssertionError(f"no value for {expr!r}")


def converted(value: Expr, target: Type) -> Expr:
    """``value`` as ``target``, which is a type kernels compute in."""
    if value.type == target:
        return value
    if isinstance(value, Const) and target.kind != "bool" and not isinstance(value.value, complex):
        return Const(_number(value.value, target), target)
    return Cast(value, target)


def combine(op: str, a: Expr, b: Expr) -> Expr:
    """``a`` and ``b`` joined by a reduction's operator."""
    return Binary(op, a, b, a.type)


def _number(value: float, target: Type) -> float | int:
    return wrap(int(value), target) if target.is_integer else float(value)  # -1 is 255 as uint8


def _apply(name: str, args: tuple[notation.Expr, ...], types: Mapping[str, Type], read: Read) -> Expr:
    operator = OPERATORS[name]
    typed: list[Typed] = [type_of(arg, types) for arg in args]
    wanted = argument_type(name, typed).computes_in
    values = [value_of(arg, types, read) for arg in args]
    result = type_of(Op(name, args), types).type.computes_in
    if operator.dtype == "where":
        condition = converted(values[0], BOOL)
        return Select(condition, converted(values[1], wanted), converted(values[2], wanted), both=True)
    values = [converted(value, wanted) for value in values]
    if operator.arity == 1:
        return Unary(operator.in_loops, values[0], result)
    return Binary(operator.in_loops, values[0], values[1], result)
