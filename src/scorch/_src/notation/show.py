"""Trees printed back in the notation they are written in, with no more parentheses than needed.

What is printed reads back as the same tree: ``parse(show(assign)).assign == assign``.
"""

from __future__ import annotations

from scorch._src.loops.operators import OPERATORS
from scorch._src.notation.indexing import COMPARISONS, Statement
from scorch._src.notation.nodes import Access, Assign, Expr, Literal, Op, Reduce

# How tightly a node holds together; a part that holds less tightly than its place asks gets parentheses.
_COMPARISON, _SUM, _PRODUCT, _UNARY, _ATOM = range(5)
_STRENGTH = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT} | dict.fromkeys(COMPARISONS, _COMPARISON)


def show(node: Expr | Assign | Statement) -> str:
    """The text of an expression or statement.

    >>> show(Op("mul", (Access("A", ("i", "j")), Op("add", (Access("x", ("j",)), Literal(1))))))
    'A[i,j] * (x[j] + 1)'
    """
    match node:
        case Statement(Assign(target, Op("add", (_, value))), accumulate=True):
            return f"{_show(target, _ATOM)} += {_show(value, _COMPARISON)}"
        case Statement(assign):
            return show(assign)
        case Assign(target, value):
            return f"{_show(target, _ATOM)} = {_show(value, _COMPARISON)}"
        case Expr():
            return _show(node, _COMPARISON)
    raise AssertionError(f"cannot show {node!r}")


def _show(expr: Expr, place: int) -> str:
    """The text of ``expr`` where only nodes of strength ``place`` or more stand without parentheses."""
    text, strength = _text(expr)
    return f"({text})" if strength < place else text


def _text(expr: Expr) -> tuple[str, int]:
    """The text of ``expr`` and how tightly it holds together."""
    match expr:
        case Access(tensor, indices):
            return (f"{tensor}[{','.join(indices)}]" if indices else tensor), _ATOM
        case Literal(value):
            return repr(value), _UNARY if repr(value).startswith("-") else _ATOM
        case Reduce(op, indices, body):
            return f"{op}({', '.join(indices)}, {_show(body, _COMPARISON)})", _ATOM
        case Op("neg", (part,)):
            # -(2) is the negation of 2, -2 is a number of its own.
            text, strength = _text(part)
            needs_parentheses = strength < _UNARY or (isinstance(part, Literal) and strength == _ATOM)
            return f"-({text})" if needs_parentheses else f"-{text}", _UNARY
        case Op(name, (left, right)) if (symbol := OPERATORS[name].symbol) is not None:
            strength = _STRENGTH[symbol]
            # Operators of one strength read from the left; comparisons do not chain at all.
            before = _show(left, strength if strength > _COMPARISON else _SUM)
            return f"{before} {symbol} {_show(right, strength + 1)}", strength
        case Op(name, args):
            return f"{name}({', '.join(_show(arg, _COMPARISON) for arg in args)})", _ATOM
    raise AssertionError(f"cannot show {expr!r}")
