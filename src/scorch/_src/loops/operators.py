"""The operator table: elementwise operators and reductions, one entry each.

Everything that is known of an operator stands in its entry, and every layer reads it there: the parser its
name and symbol, the compiler which zeros of its arguments make its result zero (``support``) and what dtype
it gives, the interpreter what it computes, the printers what it is in C, autograd its derivative, and steps
over dense tensors the PyTorch function of the same name. A new operator is a new entry (``add_operator``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from scorch._src.dataclass import dataclass


class Build:
    """Makes expressions in derivatives: ``f.mul(u, f.cos(a))`` is ``u * cos(a)``; numbers are literals."""

    def __init__(self, make: Callable[[str, tuple[Any, ...]], Any]) -> None:
        self.make = make

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: self.make(name, args)


@dataclass(frozen=True)
class Operator:
    """An elementwise operator.

    ``compute`` is what it means on numbers, as C computes it. Where all arguments that hold tensors are zero,
    the result is zero if ``compute`` says so, and then it can differ from zero only where one of them does.
    ``support`` narrows that:
      ``all``    only where every argument does (``*``);
      ``first``  only where the first argument does, unless the second is zero there as well (``/``);
      ``where``  ``where(c, x, y)``: where c and x do, or y does.
    ``dtype``: ``promote``, ``float`` (integers become the default float), ``bool``, ``real`` (complex
    becomes real) or ``where``.
    ``loop``: its name in the loop language, where it is another one.
    ``c``: what an operator of one argument is in C, by the kind of its operand: the name of a function to
    call, where $n is the name, $t the C type and $f the suffix of libm's float versions, or "" where it
    changes nothing; a kind that is absent has no meaning, and the operand is cast before. ``helpers`` are
    functions of C that come along, by the same kinds.
    ``derivative``: ``(f, u, *args)`` to what ``u`` times the derivative by each argument is, None for those
    that have none. Operators without one jump between constants. ``derivative_by_result``: the same of
    one argument, given ``u`` and the result.
    """

    name: str
    arity: int
    compute: Callable[..., Any]
    dtype: str = "promote"
    loop: str = ""
    support: str = "any"
    symbol: str | None = None
    ordered: bool = False  # is not defined for complex numbers
    c: Mapping[str, str] = field(default_factory=dict)
    helpers: Mapping[str, str] = field(default_factory=dict)
    derivative: Callable[..., Sequence[Any]] | None = None
    derivative_by_result: Callable[..., Any] | None = None
    is_slow: bool = False  # takes longer to compute than to keep
    in_lanes: bool = False  # kernels have it in vectors
    keeps_integers: bool = False  # changes no whole number
    torch: Callable[..., Any] | None = None  # the PyTorch function, where it is not that of this name

    @property
    def in_loops(self) -> str:
        return self.loop or self.name

    @property
    def keeps_zero(self) -> bool:
        """Whether it is zero if all of its arguments are."""
        return self.at(*[0.0] * self.arity) == 0

    def at(self, *numbers: float) -> float:
        """The result for Python's numbers, as one of them."""
        try:
            with np.errstate(all="ignore"):
                result = self.compute(*numbers)
        except (OverflowError, TypeError, ValueError):  # a whole number that no float holds
            return math.nan
        number: float = result.item() if isinstance(result, np.generic) else result
        return number


@dataclass(frozen=True)
class Reduction:
    """A way to combine all values over an index; ``loop`` combines two of them.

    ``skips_zero``: combining with zero changes nothing, so coordinates that are not stored need no visit.
    """

    name: str
    loop: str
    skips_zero: bool
    ordered: bool = False


def _divide(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _maximum(a: float, b: float) -> float:
    return a if a > b or a != a else b  # not a number if one of them is, as in torch


def _minimum(a: float, b: float) -> float:
    return a if a < b or a != a else b


def _share(f: Any, condition: str, u: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The gradients of maximum and minimum: where both are equal, each gets half of it, as in torch."""
    tie = f.where(f.eq(a, b), f.mul(0.5, u), 0)
    is_taken = getattr(f, condition)
    return f.where(is_taken(a, b), u, tie), f.where(is_taken(b, a), u, tie)


# in C, by the kind of the operand: of libm, of libm and brought along for complex numbers, all brought along
_REAL = {"float": "$n$f"}
_BOTH = {"float": "$n$f", "complex": "${n}_$t"}
_OWN = {"float": "${n}_$t", "complex": "${n}_$t"}
_EACH = {"bool": "", "int": "${n}_$t", "float": "${n}_$t"}
_WHOLE = {"bool": "", "int": "", "float": "$n$f"}
_SAME = {"bool": "", "int": "", "float": ""}

OPERATORS: dict[str, Operator] = {}  # what expressions can say
IN_LOOPS: dict[str, Operator] = {}  # those of one argument, by their names in the loop language


def add_operator(entry: Operator) -> None:
    """Put an operator into the table: ``evaluate`` knows it from then on."""
    if entry.name in OPERATORS:
        raise ValueError(f"the operator {entry.name!r} already exists")
    OPERATORS[entry.name] = entry
    if entry.arity == 1:
        IN_LOOPS[entry.in_loops] = entry


for _entry in (
    Operator(
        "add", 2, operator.add, loop="+", symbol="+",
        derivative=lambda f, u, a, b: (u, u),
    ),
    Operator(
        "sub", 2, operator.sub, loop="-", symbol="-",
        derivative=lambda f, u, a, b: (u, f.neg(u)),
    ),
    Operator(
        "mul", 2, operator.mul, loop="*", support="all", symbol="*",
        derivative=lambda f, u, a, b: (f.mul(u, b), f.mul(u, a)),
    ),
    Operator(
        "div", 2, _divide, "float", loop="/", support="first", symbol="/",
        derivative=lambda f, u, a, b: (f.div(u, b), f.neg(f.div(f.mul(u, a), f.mul(b, b)))),
    ),
    Operator(
        "neg", 1, operator.neg, loop="-", symbol="-", in_lanes=True,
        c={"int": "-", "float": "-", "complex": "neg_$t"},
        derivative=lambda f, u, a: (f.neg(u),),
    ),
    Operator(
        "relu", 1, lambda x: 0 if x < 0 else x, ordered=True, in_lanes=True, c=_EACH,
        derivative=lambda f, u, a: (f.where(f.gt(a, 0), u, 0),),
        derivative_by_result=lambda f, u, y: f.where(f.le(y, 0.0), 0.0, u),
    ),
    Operator(
        "abs", 1, abs, "real", in_lanes=True,
        c={"bool": "", "int": "abs_$t", "float": "fabs$f", "complex": "abs_$t"},
        derivative=lambda f, u, a: (f.mul(u, f.sign(a)),),
    ),
    Operator(
        "sqrt", 1, np.sqrt, "float", in_lanes=True, c=_BOTH,
        derivative=lambda f, u, a: (f.div(u, f.mul(2, f.sqrt(a))),),
        derivative_by_result=lambda f, u, y: f.div(u, f.mul(2.0, y)),
    ),
    Operator(
        "tanh", 1, np.tanh, "float", is_slow=True, in_lanes=True, c=_OWN,
        derivative=lambda f, u, a: (f.mul(u, f.sub(1, f.square(f.tanh(a)))),),
        derivative_by_result=lambda f, u, y: f.mul(u, f.sub(1.0, f.square(y))),
    ),
    Operator(
        "sin", 1, np.sin, "float", c=_BOTH,
        derivative=lambda f, u, a: (f.mul(u, f.cos(a)),),
    ),
    Operator(
        "expm1", 1, np.expm1, "float", ordered=True, is_slow=True, in_lanes=True, c={"float": "${n}_$t"},
        derivative=lambda f, u, a: (f.mul(u, f.exp(a)),),
        derivative_by_result=lambda f, u, y: f.mul(u, f.add(y, 1.0)),
    ),
    Operator(
        "log1p", 1, np.log1p, "float", ordered=True, c=_REAL,
        derivative=lambda f, u, a: (f.div(u, f.add(a, 1)),),
    ),
    Operator(
        "square", 1, lambda x: x * x, in_lanes=True, c={**_EACH, "complex": "square_$t"},
        derivative=lambda f, u, a: (f.mul(u, f.mul(2, a)),),
    ),
    Operator("sign", 1, lambda x: int(x > 0) - int(x < 0), ordered=True, c=_EACH),
    Operator(
        "exp", 1, np.exp, "float", is_slow=True, in_lanes=True, c=_OWN,
        derivative=lambda f, u, a: (f.mul(u, f.exp(a)),),
        derivative_by_result=lambda f, u, y: f.mul(u, y),
    ),
    Operator(
        "log", 1, np.log, "float", is_slow=True, c=_BOTH,
        derivative=lambda f, u, a: (f.div(u, a),),
    ),
    Operator(
        "cos", 1, np.cos, "float", c=_BOTH,
        derivative=lambda f, u, a: (f.neg(f.mul(u, f.sin(a))),),
    ),
    Operator(
        "sigmoid", 1, lambda x: 1 / (1 + np.exp(-x)), "float", is_slow=True, in_lanes=True, c=_OWN,
        derivative=lambda f, u, a: (f.mul(u, f.mul(f.sigmoid(a), f.sub(1, f.sigmoid(a)))),),
        derivative_by_result=lambda f, u, y: f.mul(u, f.mul(y, f.sub(1.0, y))),
    ),
    Operator(
        "maximum", 2, _maximum, loop="max", ordered=True,
        derivative=lambda f, u, a, b: _share(f, "gt", u, a, b),
    ),
    Operator(
        "minimum", 2, _minimum, loop="min", ordered=True,
        derivative=lambda f, u, a, b: _share(f, "lt", u, a, b),
    ),
    Operator(
        "where", 3, lambda c, a, b: a if c else b, "where", loop="select", support="where",
        derivative=lambda f, u, c, a, b: (None, f.where(c, u, 0), f.where(c, 0, u)),
    ),
    Operator("lt", 2, operator.lt, "bool", loop="<", symbol="<", ordered=True),
    Operator("gt", 2, operator.gt, "bool", loop=">", symbol=">", ordered=True),
    Operator("ne", 2, operator.ne, "bool", loop="!=", symbol="!="),
    Operator("le", 2, operator.le, "bool", loop="<=", symbol="<=", ordered=True),
    Operator("ge", 2, operator.ge, "bool", loop=">=", symbol=">=", ordered=True),
    Operator("eq", 2, operator.eq, "bool", loop="==", symbol="=="),
):  # fmt: skip
    add_operator(_entry)

IN_LOOPS |= {  # what only loops say
    entry.name: entry
    for entry in (
        Operator("!", 1, lambda x: x == 0, c={"bool": "!", "int": "!", "float": "!", "complex": "zero_$t"}),
        Operator("floor", 1, np.floor, c=_WHOLE, keeps_integers=True),
        Operator("ceil", 1, np.ceil, c=_WHOLE, keeps_integers=True),
        Operator("round", 1, np.rint, c={**_WHOLE, "float": "rint$f"}, keeps_integers=True),
        Operator("trunc", 1, np.trunc, c=_WHOLE, keeps_integers=True),
        Operator("erf", 1, math.erf, c=_REAL),
        Operator("reciprocal", 1, lambda x: 1 / x, c=_OWN),
        Operator("isnan", 1, lambda x: x != x, c={"bool": "never", "int": "never", **_OWN}),
        Operator("conj", 1, np.conj, c={**_SAME, "complex": "conj_$t"}, keeps_integers=True),
        Operator("real", 1, np.real, c={**_SAME, "complex": "real_$t"}, keeps_integers=True),
    )
}

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
