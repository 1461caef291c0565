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

from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import declared_by, walk, with_children
from scorch._src.loops.types import BOOL, Type
from scorch._src.loops.values import binary, convert, unary

Node = TypeVar("Node", ir.Expr, ir.Stmt, ir.Function, ir.Kernel)

_NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


def simplify(node: Node) -> Node:
    """``node`` with constants folded and what does nothing removed.

    >>> from scorch._src.loops.nodes import Var, Binary, Const
    >>> from scorch._src.loops.types import INT64
    >>> simplify(Binary("+", Var("i"), Binary("*", Const(0), Var("n"), INT64), INT64))
    Var(name='i', type=int64)
    """
    simple: Node = _rewritten(node if isinstance(node, ir.Block) else with_children(node, simplify))
    return simple


def _rewritten(node: Any) -> Any:
    """``node``, whose parts are simple, in its simplest form."""
    match node:
        case ir.Block():
            return _block(node)
        case ir.Unary(op, x, t):
            return _unary(op, x, t)
        case ir.Binary(op, a, b, t):
            return _binary(op, a, b, t)
        case ir.Cast(x, t):
            return _cast(x, t)
        case ir.Select(ir.Const(value), a, b):
            return a if value else b
        case ir.If(condition, then, otherwise):
            return _if(condition, then, otherwise)
        case ir.For():
            return _for(node)
        case ir.While(condition) if _is_constant(condition, ir.FALSE):
            return ir.Block(())
        case ir.Assign(var, value) if value == var:
            return ir.Block(())
        case ir.Fill(_, start, stop) if start == stop:
            return ir.Block(())
        case ir.Copy(count=count) if count == ir.Const(0):
            return ir.Block(())
    return node


# Expressions


def _constant(value: Any, t: Type) -> ir.Const:
    """``value`` as a literal of type ``t``, in Python's own types so that nodes compare."""
    value = convert(value, t)
    return ir.Const(value.item() if isinstance(value, np.generic) else value, t)


def _has_call(e: ir.Expr) -> bool:
    return any(isinstance(node, ir.Call) for node in walk(e))


def _unary(op: str, x: ir.Expr, t: Type) -> ir.Expr:
    match op, x:
        case _, ir.Const(value, source) if source.is_integer:
            return _constant(unary(op, convert(value, source), source, t), t)
        case ("-", ir.Const(value, source)):
            return _constant(-convert(value, source), t)
        case ("-", ir.Unary("-", inner, _)) if inner.type == t:
            return inner
        case ("!", ir.Unary("!", inner, _)) if inner.type == BOOL:
            return inner
        case ("!", ir.Binary(comparison, a, b, _)) if comparison in _NEGATED and a.type.is_integer:
            return ir.Binary(_NEGATED[comparison], a, b, BOOL)
        case ("!", ir.Binary("==" | "!=" as comparison, a, b, _)):
            return ir.Binary(_NEGATED[comparison], a, b, BOOL)
    return ir.Unary(op, x, t)


def _binary(op: str, a: ir.Expr, b: ir.Expr, t: Type) -> ir.Expr:
    operand = a.type
    match op, a, b:
        case ("&&", _, _) | ("||", _, _):
            return _logical(op, a, b)
        case (_, ir.Const(x, _), ir.Const(y, _)) if not (op in ("/", "%") and operand.is_integer and y == 0):
            if op != "pow" or operand.is_integer:
                with np.errstate(all="ignore"):
                    value = binary(op, convert(x, operand), convert(y, operand), operand, t)
                return _constant(value, t)
        case ("*", _, ir.Const(1, _)) | ("/", _, ir.Const(1, _)) if operand.kind != "complex":
            return a
        case ("*", ir.Const(1, _), _) if operand.kind != "complex":
            return b
    if not operand.is_integer:
        return ir.Binary(op, a, b, t)
    match op, a, b:
        case ("+", _, ir.Const(0, _)) | ("-", _, ir.Const(0, _)):
            return a
        case ("+", ir.Const(0, _), _):
            return b
        case ("*", ir.Const(0, _), other) | ("*", other, ir.Const(0, _)) if not _has_call(other):
            return _constant(0, t)
        case ("+" | "-", ir.Binary("+" | "-" as inner, first, ir.Const(y, _), _), ir.Const(z, _)) if (
            t != BOOL
        ):
            # first - y + z -> first + (z - y)
            total = _constant((y if inner == "+" else -y) + (z if op == "+" else -z), t)
            return _binary("+", first, total, t)
    return ir.Binary(op, a, b, t)


def _logical(op: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """``&&`` and ``||``; the right side of an undecided one is only evaluated if needed."""
    decided = ir.FALSE if op == "&&" else ir.TRUE
    neutral = ir.TRUE if op == "&&" else ir.FALSE
    if _is_constant(a, neutral):
        return b
    if _is_constant(a, decided):
        return decided
    if _is_constant(b, neutral):
        return a
    if _is_constant(b, decided) and not _has_call(a):
        return decided
    return ir.Binary(op, a, b, BOOL)


def _is_constant(e: ir.Expr, truth: ir.Const) -> bool:
    return isinstance(e, ir.Const) and e.type == BOOL and bool(e.value) == truth.value


def _cast(x: ir.Expr, t: Type) -> ir.Expr:
    match x:
        case _ if x.type == t:
            return x
        case ir.Const(value, source) if _casts_exactly(value, source, t):
            return _constant(convert(value, source), t)
        case ir.Cast(inner, middle) if _is_widening(inner.type, middle) and middle.kind == t.kind:
            return _cast(inner, t)
    return ir.Cast(x, t)


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


def _if(condition: ir.Expr, then: ir.Stmt, otherwise: ir.Stmt) -> ir.Stmt:
    if isinstance(condition, ir.Const):
        taken = then if condition.value else otherwise
        return ir.If(ir.TRUE, taken) if _declared(taken) else taken
    if _is_empty(then) and _is_empty(otherwise) and not _has_call(condition):
        return ir.Block(())
    if _is_empty(then) and not _is_empty(otherwise):
        return ir.If(_unary("!", condition, BOOL), otherwise)
    return ir.If(condition, then, otherwise)


def _block(stmt: ir.Block) -> ir.Block:
    """Open nested blocks, and branches always taken unless names that they declare could clash."""
    statements = _flatten(ir.Block(tuple(map(simplify, _flatten(stmt)))))
    body: list[ir.Stmt] = []
    for position, s in enumerate(statements):
        if isinstance(s, ir.If) and s.condition == ir.TRUE:
            others = statements[:position] + statements[position + 1 :]
            used = {n.name for other in others for n in walk(other) if isinstance(n, ir.Var | ir.Array)}
            if not used & _declared(s.then):
                body.extend(_flatten(ir.block(s.then)))
                continue
        body.append(s)
    return ir.Block(tuple(_without_zero(body)))


def _without_zero(body: list[ir.Stmt]) -> list[ir.Stmt]:
    """``acc = 0; ...; acc += total`` as ``...; acc = total``: a total, which began at zero, is never -0.0."""
    for place, s in enumerate(body):
        match s:
            case ir.Assign(var, ir.Binary("+", same, ir.Total() as total, _)) if same == var:
                start = ir.Declare(var, ir.Const(0, var.type))
                before = body[:place]
                if before.count(start) == 1 and sum(var in walk(other) for other in before) == 1:
                    before.remove(start)
                    return _without_zero([*before, ir.Declare(var, total), *body[place + 1 :]])
    return body


def _flatten(stmt: ir.Block) -> list[ir.Stmt]:
    return [inner for s in stmt.body for inner in (_flatten(s) if isinstance(s, ir.Block) else [s])]


def _declared(stmt: ir.Stmt) -> set[str]:
    """Names that ``stmt`` declares in the scope it stands in."""
    return {own.name for s in _flatten(ir.Block((stmt,))) if (own := declared_by(s)) is not None}


def _for(loop: ir.For) -> ir.Stmt:
    start, stop = loop.start, loop.stop
    calls = _has_call(start) or _has_call(stop)
    if not calls and (_is_empty(loop.body) or start == stop):
        return ir.Block(())
    match start, stop:
        case ir.Const(int() | float() as first), ir.Const(int() | float() as last) if last <= first:
            return ir.Block(())
    return loop


def _is_empty(stmt: ir.Stmt) -> bool:
    return isinstance(stmt, ir.Comment) or (
        isinstance(stmt, ir.Block) and all(_is_empty(s) for s in stmt.body)
    )
