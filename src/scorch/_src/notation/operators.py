"""The elementwise operators and reductions, one line each.

All that the compiler needs to know of an operator is here: which zeros of its arguments make its result
zero (``support``), what dtype it gives (``dtype``), and its name in the loop language. Co-iteration and
format inference both follow from ``support``, so a new operator is a new line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Operator:
    """An elementwise operator.

    ``at`` computes it on numbers. Where all arguments that hold tensors are zero, the result is zero if
    ``at`` says so, and then it can differ from zero only where one of them does. ``support`` narrows that:
      ``all``    only where every argument does (``*``);
      ``first``  only where the first argument does, unless the second is zero there as well (``/``);
      ``where``  ``where(c, x, y)``: where c and x do, or y does.
    ``dtype``: ``promote``, ``float`` (integers become the default float), ``bool``, ``real`` (complex
    becomes real) or ``where``.
    ``loop``: the operator of the loop language.
    """

    name: str
    arity: int
    at: Callable[..., float]
    dtype: str
    loop: str
    support: str = "any"
    symbol: str | None = None
    ordered: bool = False  # has no meaning for complex numbers


@dataclass(frozen=True)
class Reduction:
    """A way to combine all values over an index; ``loop`` combines two of them.

    ``skips_zero``: combining with zero changes nothing, so coordinates that are not stored need no visit.
    """

    name: str
    loop: str
    skips_zero: bool
    ordered: bool = False


def _table(*rows: Operator) -> dict[str, Operator]:
    return {row.name: row for row in rows}


def _divide(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _maximum(a: float, b: float) -> float:
    return a if a > b or a != a else b  # not a number if one of them is, as in torch


def _minimum(a: float, b: float) -> float:
    return a if a < b or a != a else b


def _log(a: float) -> float:
    return math.log(a) if a > 0 else (-math.inf if a == 0 else math.nan)


def _log1p(a: float) -> float:
    return math.log1p(a) if a > -1 else (-math.inf if a == -1 else math.nan)


OPERATORS = _table(
    Operator("add", 2, lambda a, b: a + b, "promote", "+", symbol="+"),
    Operator("sub", 2, lambda a, b: a - b, "promote", "-", symbol="-"),
    Operator("mul", 2, lambda a, b: a * b, "promote", "*", support="all", symbol="*"),
    Operator("div", 2, _divide, "float", "/", support="first", symbol="/"),
    Operator("neg", 1, lambda a: -a, "promote", "-", symbol="-"),
    Operator("relu", 1, lambda a: max(a, 0), "promote", "relu", ordered=True),
    Operator("abs", 1, abs, "real", "abs"),
    Operator("sqrt", 1, lambda a: math.sqrt(a) if a >= 0 else math.nan, "float", "sqrt"),
    Operator("tanh", 1, math.tanh, "float", "tanh"),
    Operator("sin", 1, math.sin, "float", "sin"),
    Operator("expm1", 1, math.expm1, "float", "expm1", ordered=True),
    Operator("log1p", 1, _log1p, "float", "log1p", ordered=True),
    Operator("square", 1, lambda a: a * a, "promote", "square"),
    Operator("sign", 1, lambda a: (a > 0) - (a < 0), "promote", "sign", ordered=True),
    Operator("exp", 1, math.exp, "float", "exp"),
    Operator("log", 1, _log, "float", "log"),
    Operator("cos", 1, math.cos, "float", "cos"),
    Operator("sigmoid", 1, lambda a: 1 / (1 + math.exp(-a)), "float", "sigmoid"),
    Operator("maximum", 2, _maximum, "promote", "max", ordered=True),
    Operator("minimum", 2, _minimum, "promote", "min", ordered=True),
    Operator("where", 3, lambda c, a, b: a if c else b, "where", "select", support="where"),
    Operator("lt", 2, lambda a, b: a < b, "bool", "<", symbol="<", ordered=True),
    Operator("gt", 2, lambda a, b: a > b, "bool", ">", symbol=">", ordered=True),
    Operator("ne", 2, lambda a, b: a != b, "bool", "!=", symbol="!="),
    Operator("le", 2, lambda a, b: a <= b, "bool", "<=", symbol="<=", ordered=True),
    Operator("ge", 2, lambda a, b: a >= b, "bool", ">=", symbol=">=", ordered=True),
    Operator("eq", 2, lambda a, b: a == b, "bool", "==", symbol="=="),
)

REDUCTIONS = {
    row.name: row
    for row in (
        Reduction("sum", "+", skips_zero=True),
        Reduction("any", "||", skips_zero=True),
        Reduction("max", "max", skips_zero=False, ordered=True),
        Reduction("min", "min", skips_zero=False, ordered=True),
        Reduction("prod", "*", skips_zero=False),
    )
}
