"""What operations mean on scalars.

The interpreter computes with these, and the simplifier folds constants with them, so that both agree
with the C that is printed. Integers are Python integers kept in the range of their type, truth values
are ``bool``, and floating point numbers are numpy scalars, which round as C does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from scorch._src.loops.operators import IN_LOOPS
from scorch._src.loops.types import Type


def wrap(value: int, type: Type) -> int:
    """``value`` modulo the range of an integer type."""
    bits = 8 * type.bytes
    if type.kind == "uint":
        return value & ((1 << bits) - 1)
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def _divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _float_power(a: Any, b: Any) -> Any:
    # numpy takes the square root for 0.5, which is NaN for -inf where C's pow is inf.
    return abs(a) if a == -math.inf and b == 0.5 else np.power(a, b)


def _power(a: int, b: int) -> int:
    if b < 0:
        return 1 if a == 1 else (-1 if b & 1 else 1) if a == -1 else 0
    return int(pow(a, b, 1 << 64))


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
}  # fmt: skip
_BINARY: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
    "bool": {"+": operator.or_, "*": operator.and_, "-": operator.ne, "max": operator.or_,
             "min": operator.and_},
    "int": {**_ARITHMETIC, "/": _divide, "%": lambda a, b: a - b * _divide(a, b), "max": max, "min": min,
            "pow": _power},
    "float": {**_ARITHMETIC, "/": np.divide, "max": np.maximum, "min": np.minimum, "pow": _float_power},
    "complex": {**_ARITHMETIC, "/": np.divide},
}  # fmt: skip


def convert(value: Any, type: Type) -> Any:
    """``value`` as a value of ``type``, as C's cast does."""
    match type.kind:
        case "bool":
            return bool(value != 0)
        case "int" | "uint":
            if isinstance(value, complex | np.complexfloating):
                value = value.real
            if isinstance(value, float | np.floating) and not math.isfinite(value):
                return wrap(-(2**63), type)  # what x86 does; C leaves it open
            return wrap(int(value), type)
        case "float":
            value = value.real if isinstance(value, complex | np.complexfloating) else value
            if isinstance(value, int) and abs(value) < 2**63:
                value = np.asarray(value, np.int64).astype(np.float32 if type.bytes == 4 else np.float64)
            return np.float32(value) if type.bytes == 4 else np.float64(value)
    return np.complex64(value) if type.bytes == 8 else np.complex128(value)


def unary(op: str, x: Any, operand: Type, type: Type) -> Any:
    """The value of ``op(x)``."""
    entry = IN_LOOPS[op]
    if entry.keeps_integers and operand.is_integer:
        return x
    return convert(entry.compute(x), type)


def binary(op: str, a: Any, b: Any, operand: Type, type: Type) -> Any:
    """The value of ``a op b``, both of type ``operand``; integers are not divided by zero."""
    return convert(binary_meaning(op, operand)(a, b), type)


def binary_meaning(op: str, operand: Type) -> Callable[[Any, Any], Any]:
    """What ``op`` does to two values of type ``operand``, before the result is made to fit its type."""
    if op in COMPARISONS:
        return COMPARISONS[op]
    meaning = _BINARY["int" if operand.kind == "uint" else operand.kind].get(op)
    assert meaning is not None, f"{op} is not defined for {operand}"
    return meaning
