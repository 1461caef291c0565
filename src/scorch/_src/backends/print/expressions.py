"""Print expressions as C.

Parentheses and casts appear only where C needs them. Arithmetic on narrow integers happens in ``int``,
so its result is cast back to wrap where the loops say it wraps; arithmetic on ``int64`` is made to
happen in 64 bits even between small literals.
"""

from __future__ import annotations

import math

import numpy as np

from scorch._src.backends.print.functions import C_NAMES, EXTERNS, callee, helpers
from scorch._src.loops.analysis import walk
from scorch._src.loops.intrinsics import INTRINSICS
from scorch._src.loops.nodes import Array, Binary, Call, Cast, Const, Expr, Load, Select, Unary, Var
from scorch._src.loops.types import BFLOAT16, BOOL, INT64, Type

# Precedences of C: a larger one binds more tightly.
ATOM, PREFIX, TERNARY = 15, 14, 3
PRECEDENCE = {
    "*": 13, "/": 13, "%": 13, "+": 12, "-": 12,
    "<": 10, "<=": 10, ">": 10, ">=": 10, "==": 9, "!=": 9, "&&": 5, "||": 4,
}  # fmt: skip
_BOOL_OPERATORS = {"+": "||", "*": "&&", "max": "||", "min": "&&", "-": "!="}
_COMPLEX_OPERATORS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "==": "eq"}

_RESERVED = set(
    """auto break case char const continue default do double else enum extern float for goto if inline
    int long register restrict return short signed sizeof static struct switch typedef union unsigned
    void volatile while asm typeof and or not xor bool catch class delete explicit export false friend
    mutable namespace new operator private protected public template this throw true try typeid
    typename using virtual args begin end ctx closure i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 c64
    c128 usize main linux unix""".split()  # noqa: SIM905
)


class ExpressionPrinter:
    """Prints expressions and collects in ``used`` the helpers, externs and routines they call."""

    def __init__(self, used: set[str]) -> None:
        self.used = used

    def use(self, name: str) -> str:
        self.used.add(name)
        return name

    def element(self, array: Array, index: Expr) -> str:
        return f"{safe_name(array.name)}[{self.converted(index)}]"

    def widened(self, array: Array, text: str) -> str:
        """An element of an array as what it computes in."""
        if array.element.computes_in == array.element:
            return text
        return f"{self.use('from_bf16' if array.element == BFLOAT16 else 'from_f16')}({text})"

    def address(self, array: Array, start: Expr) -> str:
        if start == Const(0):
            return safe_name(array.name)
        return f"{safe_name(array.name)} + {self.expr(start, PRECEDENCE['+'] + 1)}"

    def size(self, count: Expr, array: Array) -> str:
        return f"(usize){self.expr(count, PREFIX)} * sizeof({c_name(array.element)})"

    def converted(self, e: Expr) -> str:
        """``e`` where C converts to its type anyway, as in an assignment: widening needs no cast."""
        match e:
            case Cast(x, t) if t.kind == "int" and x.type.is_integer and x.type.bytes < t.bytes:
                return self.expr(x)
        return self.expr(e)

    def expr(self, e: Expr, context: int = 0) -> str:
        """``e``, in parentheses if it binds less tightly than ``context``."""
        text, precedence = self.term(e)
        return f"({text})" if precedence < context else text

    def term(self, e: Expr) -> tuple[str, int]:
        match e:
            case Const(value, t):
                return self.constant(value, t)
            case Var(name, _):
                return safe_name(name), ATOM
            case Load(array, index):
                return self.widened(array, self.element(array, index)), ATOM
            case Unary(op, x, t):
                return self.unary(op, x, t)
            case Binary(op, a, b, t):
                return self.binary(op, a, b, t)
            case Select(condition, a, b, True) if a.type.kind == "float" and (_loads(a) or _loads(b)):
                given = ", ".join([self.expr(condition), self.converted(a), self.converted(b)])
                return f"{self.use(f'where_{c_name(a.type)}')}({given})", ATOM
            case Select(condition, a, b):
                test = self.expr(condition, TERNARY + 1)
                return f"{test} ? {self.expr(a, TERNARY)} : {self.expr(b, TERNARY)}", TERNARY
            case Cast(x, t):
                return self.cast(x, t)
            case Call(function, arguments, _):
                self.use(function)
                values = [safe_name(a.name) if isinstance(a, Array) else self.converted(a) for a in arguments]
                return f"{function}({', '.join(values)})", ATOM
        raise AssertionError(f"cannot print {e!r}")

    def constant(self, value: int | float | complex | bool, t: Type) -> tuple[str, int]:
        if t.kind == "complex":
            z = complex(value)
            half = "float32" if t.bytes == 8 else "float64"
            parts = f"{_real(z.real, half)}, {_real(z.imag, half)}"
            return f"{self.use(f'make_{c_name(t)}')}({parts})", ATOM
        assert not isinstance(value, complex), f"{value} is not of type {t}"
        if t.kind == "float":
            text = _real(value, t.name)
        else:
            number = int(bool(value)) if t == BOOL else int(value)
            if number == -(2**63):
                return "-9223372036854775807LL - 1", PRECEDENCE["-"]
            text = str(number)
        return text, PREFIX if text.startswith("-") else ATOM

    def unary(self, op: str, x: Expr, t: Type) -> tuple[str, int]:
        name = callee(op, x.type)
        if not name:
            return self.term(x)
        if name in ("-", "!"):
            inner = self.expr(x, PREFIX)
            text = f"{name}{inner}" if not inner.startswith(name) else f"{name}({inner})"
            if name == "-" and t.is_integer and t.bytes < 4:
                return f"({c_name(t)}){text}", PREFIX
            return text, PREFIX
        return f"{self.use(name)}({self.converted(x)})", ATOM

    def binary(self, op: str, a: Expr, b: Expr, t: Type) -> tuple[str, int]:
        operand = a.type
        assert operand == b.type, f"operands of {op} have types {operand} and {b.type}: {a!r}, {b!r}"
        if operand.kind == "complex":
            name = _COMPLEX_OPERATORS["==" if op == "!=" else op]
            text = f"{self.use(f'{name}_{c_name(operand)}')}({self.expr(a)}, {self.expr(b)})"
            return (f"!{text}", PREFIX) if op == "!=" else (text, ATOM)
        if operand == BOOL:
            op = _BOOL_OPERATORS.get(op, op)
        if op == "pow" and operand.kind == "float":
            return (
                f"{self.use('pow' + ('f' if operand.bytes == 4 else ''))}({self.expr(a)}, {self.expr(b)})",
                ATOM,
            )
        if op in ("max", "min", "pow"):
            return f"{self.use(f'{op}_{c_name(operand)}')}({self.converted(a)}, {self.converted(b)})", ATOM
        match op, b:
            case ("+", Const(int(value), _)) if operand.is_integer and -(2**31) < value < 0:
                op, b = "-", Const(-value, operand)
        level = PRECEDENCE[op]
        # + and * of wrapping integers associate; chains of comparisons would read like mathematics.
        associates = op in ("&&", "||") or (op in ("+", "*") and operand == INT64 and _is_same(op, b))
        compares = PRECEDENCE["=="] <= level <= PRECEDENCE["<"]
        left_text = self.operand(a, op, PRECEDENCE["<"] + 1 if compares else level)
        right_text = self.operand(b, op, PRECEDENCE["<"] + 1 if compares else level + (not associates))
        if op in ("+", "-", "*") and operand == INT64 and not (_is_wide(a) or _is_wide(b)):
            left_text = f"(i64){self.expr(a, PREFIX)}"
        text = f"{left_text} {op} {right_text}"
        if op in ("+", "-", "*", "/", "%") and operand.is_integer and operand.bytes < 4 and t != BOOL:
            return f"({c_name(t)})({text})", PREFIX
        return text, level

    def operand(self, e: Expr, op: str, context: int) -> str:
        """``e`` as an operand of ``op``; ``&&`` within ``||`` gets parentheses, as compilers recommend."""
        text, precedence = self.term(e)
        apart = precedence < context or (op == "||" and precedence == PRECEDENCE["&&"])
        return f"({text})" if apart else text

    def cast(self, x: Expr, t: Type) -> tuple[str, int]:
        source = x.type
        if source == t:
            return self.term(x)
        if source.kind == "complex":
            if t.kind == "complex":
                return f"{self.use(f'cast_{c_name(t)}')}({self.expr(x)})", ATOM
            if t == BOOL:
                return f"!{self.use(f'zero_{c_name(source)}')}({self.expr(x)})", PREFIX
            return f"({c_name(t)}){self.expr(x, ATOM)}.re", PREFIX
        if t.kind == "complex":
            half = "f32" if t.bytes == 8 else "f64"
            return f"{self.use(f'make_{c_name(t)}')}(({half}){self.expr(x, PREFIX)}, 0)", ATOM
        if t == BOOL:
            return f"{self.expr(x, PRECEDENCE['!='])} != 0", PRECEDENCE["!="]
        return f"({c_name(t)}){self.expr(x, PREFIX)}", PREFIX


def _loads(e: Expr) -> bool:
    return any(isinstance(part, Load) for part in walk(e))


def _is_same(op: str, e: Expr) -> bool:
    return isinstance(e, Binary) and e.op == op


def _is_wide(e: Expr) -> bool:
    """Whether the C type of the int64 ``e`` as printed is 64 bits wide."""
    match e:
        case Const(value, _):
            return not isinstance(value, complex) and not -(2**31) < value < 2**31
        case Select(_, a, b):
            return _is_wide(a) or _is_wide(b)
        case Unary(_, x, _):
            return _is_wide(x)
        case Binary("/" | "%", a, b, _):
            return _is_wide(a) or _is_wide(b)
    return True


def c_name(t: Type) -> str:
    return C_NAMES[t.name]


def indent(lines: list[str]) -> list[str]:
    return [f"  {line}" if line else line for line in lines]


def pointer_to(array: Array, changed: bool, restrict: bool = True) -> str:
    return f"{'' if changed else 'const '}{c_name(array.element)} *{'restrict ' if restrict else ''}"


def safe_name(name: str) -> str:
    """``name``, or a spelling that means nothing to C."""
    return (
        f"{name}_"
        if name in _RESERVED or name in EXTERNS or name in helpers() or name in INTRINSICS
        else name
    )


def _real(value: float, name: str) -> str:
    """A float literal that reads back as exactly this value."""
    suffix = "f" if name == "float32" else ""
    if suffix:
        with np.errstate(over="ignore"):
            rounded = np.float32(value)
        value, digits = float(rounded), str(rounded)
    else:
        value = float(value)
        digits = repr(value)
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return digits + suffix
