"""Expressions of a kernel as Python closures, for the interpreter (``backends.interpreter.interpret``).

Trees are compiled to closures over a list of values; names are resolved beforehand with C's scoping, so a
name that C would not know is an error here too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from scorch._src.loops import nodes as ir
from scorch._src.loops.intrinsics import INTRINSICS
from scorch._src.loops.memory import BoundsError
from scorch._src.loops.types import INT64, Type
from scorch._src.loops.values import COMPARISONS, binary_meaning, convert, unary

Frame = list[Any]
Value = Callable[[Frame], Any]


class Evaluator:
    """Turns the expressions of one function into closures.

    ``run`` calls another of the ``functions`` of the kernel.
    """

    def __init__(
        self, functions: Mapping[str, ir.Function], run: Callable[[ir.Function, list[Any]], int]
    ) -> None:
        self.functions = functions
        self.run = run
        self.scopes: list[dict[str, tuple[int, Type]]] = [{}]
        self.size = 0

    # Names

    def declare(self, name: ir.Var | ir.Array) -> int:
        if name.name in self.scopes[-1]:
            raise BoundsError(f"{name.name} is declared twice")
        kind = name.element if isinstance(name, ir.Array) else name.type
        self.scopes[-1][name.name] = self.size, kind
        self.size += 1
        return self.size - 1

    def place(self, name: ir.Var | ir.Array) -> int:
        for scope in reversed(self.scopes):
            if name.name in scope:
                place, kind = scope[name.name]
                want = name.element if isinstance(name, ir.Array) else name.type
                if kind != want:
                    raise BoundsError(f"{name.name} is used as {want} but was declared as {kind}")
                return place
        raise BoundsError(f"{name.name} is not declared")

    # Expressions

    def index(self, e: ir.Expr) -> Value:
        """An index, bound or count, in which int64 overflow is a mistake."""
        if not e.type.is_integer:
            raise BoundsError(f"an index is of type {e.type}")
        return self.expr(e, checked=True)

    def expr(self, e: ir.Expr, checked: bool = False) -> Value:
        match e:
            case ir.Const(value, t):
                constant = convert(value, t)
                if t.is_integer and constant != value:
                    raise BoundsError(f"{value} does not fit {t}")
                return lambda frame: constant
            case ir.Var():
                return operator.itemgetter(self.place(e))
            case ir.Load(array, index):
                into, at = self.place(array), self.index(index)
                return lambda frame: frame[into][at(frame)]
            case ir.Total(array, _, _):
                into, t = self.place(array), array.element
                return lambda frame: convert(sum(frame[into]), t)
            case ir.Unary(op, x, t):
                get, operand = self.expr(x), x.type
                return lambda frame: unary(op, get(frame), operand, t)
            case ir.Binary(op, a, b, t):
                return self.binary(op, a, b, t, checked)
            case ir.Select(condition, a, b):
                self.same(a, b, "?:")
                test, yes, no = self.expr(condition), self.expr(a, checked), self.expr(b, checked)
                return lambda frame: yes(frame) if test(frame) else no(frame)
            case ir.Cast(x, t):
                get = self.expr(x, checked)
                return lambda frame: convert(get(frame), t)
            case ir.Call(function, arguments, t):
                return self.call(function, arguments, t)
        raise AssertionError(f"cannot interpret {e!r}")

    def same(self, a: ir.Expr, b: ir.Expr, op: str) -> None:
        if a.type != b.type:
            raise BoundsError(f"operands of {op} have types {a.type} and {b.type}: {a!r}, {b!r}")

    def binary(self, op: str, a: ir.Expr, b: ir.Expr, t: Type, checked: bool) -> Value:
        self.same(a, b, op)
        left, right = self.expr(a, checked), self.expr(b, checked)
        if op == "&&":
            return lambda frame: bool(left(frame)) and bool(right(frame))
        if op == "||":
            return lambda frame: bool(left(frame)) or bool(right(frame))
        apply = binary_meaning(op, a.type)
        if op in COMPARISONS:
            return lambda frame: bool(apply(left(frame), right(frame)))
        if op in ("/", "%") and a.type.is_integer:
            divisor = right

            def right(frame: Frame) -> Any:
                value = divisor(frame)
                if value == 0:
                    raise BoundsError("an integer is divided by zero")
                return value

        if checked and t == INT64:

            def position(frame: Frame) -> Any:
                value = apply(left(frame), right(frame))
                if not -(2**63) <= value < 2**63:
                    raise BoundsError(f"{left(frame)} {op} {right(frame)} exceeds int64")
                return value

            return position
        return lambda frame: convert(apply(left(frame), right(frame)), t)

    def call(self, function: str, arguments: tuple[ir.Expr | ir.Array, ...], t: Type) -> Value:
        values: list[Value] = [
            operator.itemgetter(self.place(a)) if isinstance(a, ir.Array) else self.expr(a) for a in arguments
        ]
        target = self.functions.get(function)
        if target is not None:
            if len(arguments) != len(target.params):
                raise BoundsError(f"{function} takes {len(target.params)} arguments, not {len(arguments)}")
            for a, p in zip(arguments, target.params, strict=True):
                if isinstance(a, ir.Array) != isinstance(p, ir.Array) or (
                    isinstance(a, ir.Array) and isinstance(p, ir.Array) and a.element != p.element
                ):
                    raise BoundsError(f"{function} takes {p!r}, not {a!r}")
            run = self.run
            return lambda frame: convert(run(target, [get(frame) for get in values]), t)
        routine = INTRINSICS.get(function)
        if routine is None:
            raise BoundsError(f"there is no function {function}")
        for position, a in enumerate(arguments):
            want = routine.arrays.get(position)
            if (a.element if isinstance(a, ir.Array) else None) != want:
                raise BoundsError(f"argument {position} of {function} is {a!r}")
        return lambda frame: convert(routine.twin(*[get(frame) for get in values]), t)
