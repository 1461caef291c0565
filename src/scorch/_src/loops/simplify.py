"""Make loops smaller without changing what they compute.

    x + 0 -> x        2 * 3 -> 6        if (true) s -> s        for i in 0..0 -> nothing

Lowering emits the general case and leaves the rest to these rules, so that printed kernels look
written by hand. Floating point keeps its exact meaning: ``x * 0.0`` may be NaN and stays, as does
``x + 0.0``, which turns -0.0 into 0.0. An expression that goes away must not have been needed to fail,
so calls, which may have effects, are never dropped.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from scorch._src.loops.analysis import declared_by, walk, with_children
from scorch._src.loops.nodes import (
    FALSE,
    TRUE,
    Array,
    Assign,
    Binary,
    Block,
    Call,
    Cast,
    Comment,
    Const,
    Copy,
    Declare,
    Expr,
    Fill,
    For,
    Function,
    If,
    Kernel,
    Select,
    Stmt,
    Total,
    Unary,
    Var,
    While,
    block,
)
from scorch._src.loops.types import BOOL, Type
from scorch._src.loops.values import binary, convert, unary

Node = TypeVar("Node", Expr, Stmt, Function, Kernel)

_NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


def simplify(node: Node) -> Node:
    """``node`` with constants folded and what does nothing removed.

    >>> from scorch._src.loops.nodes import Var, Binary, Const
    >>> from scorch._src.loops.types import INT64
    >>> simplify(Binary("+", Var("i"), Binary("*", Const(0), Var("n"), INT64), INT64))
    Var(name='i', type=int64)
    """
    simple: Node = _rewritten(node if isinstance(node, Block) else with_children(node, simplify))
    return simple


def _rewritten(node: Any) -> Any:
    """``node``, whose parts are simple, in its simplest form."""
    match node:
        case Block():
            return _block(node)
        case Unary(op, x, t):
            return _unary(op, x, t)
        case Binary(op, a, b, t):
            return _binary(op, a, b, t)
        case Cast(x, t):
            return _cast(x, t)
        case Select(Const(value), a, b):
            return a if value else b
        case If(condition, then, otherwise):
            return _if(condition, then, otherwise)
        case For():
            return _for(node)
        case While(condition) if _is_constant(condition, FALSE):
            return Block(())
        case Assign(var, value) if value == var:
            return Block(())
        case Fill(_, start, stop) if start == stop:
            return Block(())
        case Copy(count=count) if count == Const(0):
            return Block(())
    return node


# Expressions


def _constant(value: Any, t: Type) -> Const:
    """``value`` as a literal of type ``t``, in Python's own types so that nodes compare."""
    value = convert(value, t)
    return Const(value.item() if isinstance(value, np.generic) else value, t)


def _has_call(e: Expr) -> bool:
    return any(isinstance(node, Call) for node in walk(e))


def _unary(op: str, x: Expr, t: Type) -> Expr:
    match op, x:
        case _, Const(value, source) if source.is_integer:
            return _constant(unary(op, convert(value, source), source, t), t)
        case ("-", Const(value, source)):
            return _constant(-convert(value, source), t)
        case ("-", Unary("-", inner, _)) if inner.type == t:
            return inner
        case ("!", Unary("!", inner, _)) if inner.type == BOOL:
            return inner
        case ("!", Binary(comparison, a, b, _)) if comparison in _NEGATED and a.type.is_integer:
            return Binary(_NEGATED[comparison], a, b, BOOL)
        case ("!", Binary("==" | "!=" as comparison, a, b, _)):
            return Binary(_NEGATED[comparison], a, b, BOOL)
    return Unary(op, x, t)


def _binary(op: str, a: Expr, b: Expr, t: Type) -> Expr:
    operand = a.type
    match op, a, b:
        case ("&&", _, _) | ("||", _, _):
            return _logical(op, a, b)
        case (_, Const(x, _), Const(y, _)) if not (op in ("/", "%") and operand.is_integer and y == 0):
            if op != "pow" or operand.is_integer:
                with np.errstate(all="ignore"):
                    value = binary(op, convert(x, operand), convert(y, operand), operand, t)
                return _constant(value, t)
        case ("*", _, Const(1, _)) | ("/", _, Const(1, _)) if operand.kind != "complex":
            return a
        case ("*", Const(1, _), _) if operand.kind != "complex":
            return b
    if not operand.is_integer:
        return Binary(op, a, b, t)
    match op, a, b:
        case ("+", _, Const(0, _)) | ("-", _, Const(0, _)):
            return a
        case ("+", Const(0, _), _):
            return b
        case ("*", Const(0, _), other) | ("*", other, Const(0, _)) if not _has_call(other):
            return _constant(0, t)
        case ("+" | "-", Binary("+" | "-" as inner, first, Const(y, _), _), Const(z, _)) if t != BOOL:
            # first - y + z -> first + (z - y)
            total = _constant((y if inner == "+" else -y) + (z if op == "+" else -z), t)
            return _binary("+", first, total, t)
    return Binary(op, a, b, t)


def _logical(op: str, a: Expr, b: Expr) -> Expr:
    """``&&`` and ``||``; the right side of an undecided one is only evaluated if needed."""
    decided = FALSE if op == "&&" else TRUE
    neutral = TRUE if op == "&&" else FALSE
    if _is_constant(a, neutral):
        return b
    if _is_constant(a, decided):
        return decided
    if _is_constant(b, neutral):
        return a
    if _is_constant(b, decided) and not _has_call(a):
        return decided
    return Binary(op, a, b, BOOL)


def _is_constant(e: Expr, truth: Const) -> bool:
    return isinstance(e, Const) and e.type == BOOL and bool(e.value) == truth.value


def _cast(x: Expr, t: Type) -> Expr:
    match x:
        case _ if x.type == t:
            return x
        case Const(value, source) if _casts_exactly(value, source, t):
            return _constant(convert(value, source), t)
        case Cast(inner, middle) if _is_widening(inner.type, middle) and middle.kind == t.kind:
            return _cast(inner, t)
    return Cast(x, t)


def _casts_exactly(value: int | float | complex | bool, source: Type, t: Type) -> bool:
    """Whether C says what the cast gives: a float beyond an integer's range does not."""
    if not t.is_integer or t == BOOL or source.is_integer:
        return True
    real = float(convert(value, source).real)
    return abs(real) < 2 ** (8 * t.bytes - 1) and (t.kind != "uint" or real >= 0)


def _is_widening(narrow: Type, wide: Type) -> bool:
    return (
        narrow.kind == wide.kind and narrow.kind in ("int", "float", "complex") and narrow.bytes <= wide.bytes
    )


# Statements


def _if(condition: Expr, then: Stmt, otherwise: Stmt) -> Stmt:
    if isinstance(condition, Const):
        taken = then if condition.value else otherwise
        return If(TRUE, taken) if _declared(taken) else taken
    if _is_empty(then) and _is_empty(otherwise) and not _has_call(condition):
        return Block(())
    if _is_empty(then) and not _is_empty(otherwise):
        return If(_unary("!", condition, BOOL), otherwise)
    return If(condition, then, otherwise)


def _block(stmt: Block) -> Block:
    """Open nested blocks, and branches always taken unless names that they declare could clash."""
    statements = _flatten(Block(tuple(map(simplify, _flatten(stmt)))))
    body: list[Stmt] = []
    for position, s in enumerate(statements):
        if isinstance(s, If) and s.condition == TRUE:
            others = statements[:position] + statements[position + 1 :]
            used = {n.name for other in others for n in walk(other) if isinstance(n, Var | Array)}
            if not used & _declared(s.then):
                body.extend(_flatten(block(s.then)))
                continue
        body.append(s)
    return Block(tuple(_without_zero(body)))


def _without_zero(body: list[Stmt]) -> list[Stmt]:
    """``acc = 0; ...; acc += total`` as ``...; acc = total``: a total, which began at zero, is never -0.0."""
    for place, s in enumerate(body):
        match s:
            case Assign(var, Binary("+", same, Total() as total, _)) if same == var:
                start = Declare(var, Const(0, var.type))
                before = body[:place]
                if before.count(start) == 1 and sum(var in walk(other) for other in before) == 1:
                    before.remove(start)
                    return _without_zero([*before, Declare(var, total), *body[place + 1 :]])
    return body


def _flatten(stmt: Block) -> list[Stmt]:
    return [inner for s in stmt.body for inner in (_flatten(s) if isinstance(s, Block) else [s])]


def _declared(stmt: Stmt) -> set[str]:
    """Names that ``stmt`` declares in the scope it stands in."""
    return {own.name for s in _flatten(Block((stmt,))) if (own := declared_by(s)) is not None}


def _for(loop: For) -> Stmt:
    start, stop = loop.start, loop.stop
    calls = _has_call(start) or _has_call(stop)
    if not calls and (_is_empty(loop.body) or start == stop):
        return Block(())
    match start, stop:
        case Const(int() | float() as first), Const(int() | float() as last) if last <= first:
            return Block(())
    return loop


def _is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, Comment) or (isinstance(stmt, Block) and all(_is_empty(s) for s in stmt.body))
