"""Make loops smaller without changing what they compute.

    x + 0 -> x        2 * 3 -> 6        if (true) s -> s        for i in 0..0 -> nothing

Lowering emits the general case and leaves the rest to these rules, so that printed kernels look
written by hand. Floating point keeps its exact meaning: ``x * 0.0`` may be NaN and stays, as does
``x + 0.0``, which turns -0.0 into 0.0. An expression that goes away must not have been needed to fail,
so calls, which may have effects, are never dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, overload

import numpy as np

from scorch._src.loops.analysis import walk
from scorch._src.loops.nodes import (
    FALSE,
    TRUE,
    Allocate,
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
    KeepArray,
    Kernel,
    Lanes,
    Load,
    Parallel,
    Perform,
    Prefetch,
    Put,
    Resize,
    Return,
    Select,
    SlotArray,
    Stmt,
    Store,
    Tile,
    Total,
    Unary,
    Var,
    While,
    block,
)
from scorch._src.loops.types import BOOL, Type
from scorch._src.loops.values import binary, convert, unary

_NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


@overload
def simplify(node: Expr) -> Expr: ...


@overload
def simplify(node: Stmt) -> Stmt: ...


@overload
def simplify(node: Function) -> Function: ...


@overload
def simplify(node: Kernel) -> Kernel: ...


def simplify(node: Expr | Stmt | Function | Kernel) -> Expr | Stmt | Function | Kernel:
    """``node`` with constants folded and what does nothing removed.

    >>> from scorch._src.loops.nodes import Var, Binary, Const
    >>> from scorch._src.loops.types import INT64
    >>> simplify(Binary("+", Var("i"), Binary("*", Const(0), Var("n"), INT64), INT64))
    Var(name='i', type=int64)
    """
    if isinstance(node, Expr):
        return _expr(node)
    if isinstance(node, Stmt):
        return _stmt(node)
    if isinstance(node, Function):
        return replace(node, body=_stmt(node.body))
    return replace(node, functions=tuple(simplify(function) for function in node.functions))


# Expressions


def _expr(e: Expr) -> Expr:
    match e:
        case Const() | Var() | Total():
            return e
        case Load(array, index):
            return Load(array, _expr(index))
        case Unary(op, x, t):
            return _unary(op, _expr(x), t)
        case Binary(op, a, b, t):
            return _binary(op, _expr(a), _expr(b), t)
        case Select(condition, a, b, both):
            return _select(_expr(condition), _expr(a), _expr(b), both)
        case Cast(x, t):
            return _cast(_expr(x), t)
        case Call(function, arguments, t):
            return Call(function, tuple(_expr(a) if isinstance(a, Expr) else a for a in arguments), t)
    raise AssertionError(f"cannot simplify {e!r}")


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


def _select(condition: Expr, a: Expr, b: Expr, both: bool) -> Expr:
    if isinstance(condition, Const):
        return a if condition.value else b
    return Select(condition, a, b, both)


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


def _stmt(stmt: Stmt) -> Stmt:
    match stmt:
        case Block():
            return _block(stmt)
        case If(condition, then, otherwise):
            return _if(_expr(condition), _stmt(then), _stmt(otherwise))
        case For(var, start, stop, body, sums):
            return _for(var, _expr(start), _expr(stop), _stmt(body), sums)
        case Lanes(var, start, count, lanes, body):
            return Lanes(var, _expr(start), count, lanes, _stmt(body))
        case Prefetch(array, index, count):
            return Prefetch(array, _expr(index), count)
        case While(condition, body):
            condition = _expr(condition)
            return Block(()) if _is_constant(condition, FALSE) else While(condition, _stmt(body))
        case Declare(var, value):
            return Declare(var, _expr(value))
        case Assign(var, value):
            value = _expr(value)
            return Block(()) if value == var else Assign(var, value)
        case Store(array, index, value):
            return Store(array, _expr(index), _expr(value))
        case Allocate(array, count, zero):
            return Allocate(array, _expr(count), zero)
        case Resize(array, count):
            return Resize(array, _expr(count))
        case Fill(array, start, stop, value):
            start, stop = _expr(start), _expr(stop)
            return Block(()) if start == stop else Fill(array, start, stop, _expr(value))
        case Copy(target, target_start, source, source_start, count):
            count = _expr(count)
            if count == Const(0):
                return Block(())
            return Copy(target, _expr(target_start), source, _expr(source_start), count)
        case Perform(Call() as call):
            simple = _expr(call)
            assert isinstance(simple, Call)
            return Perform(simple)
        case Return(value):
            return Return(_expr(value))
        case Put(slot, value):
            return Put(slot, _expr(value))
        case SlotArray(array, table, index):
            return SlotArray(array, table, _expr(index))
        case KeepArray(table, index, array):
            return KeepArray(table, _expr(index), array)
        case Parallel(var, count, threads, prologue, body, epilogue):
            parts = _stmt(prologue), _stmt(body), _stmt(epilogue)
            return Parallel(var, _expr(count), _expr(threads), *parts)
    return stmt  # Comment, Free, Fail, PutArray have nothing inside


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
    flat = _flatten(stmt)
    statements = _flatten(Block(tuple(_stmt(s) for s in flat)))
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
    match stmt:
        case Block(body):
            return {name for s in body for name in _declared(s)}
        case Declare(var, _):
            return {var.name}
        case Allocate(array, _, _) | SlotArray(array, _, _) | Tile(array, _, _):
            return {array.name}
    return set()


def _for(var: Var, start: Expr, stop: Expr, body: Stmt, sums: int) -> Stmt:
    calls = _has_call(start) or _has_call(stop)
    if _is_empty(body) and not calls:
        return Block(())
    match start, stop:
        case (Const(first, _), Const(last, _)) if not isinstance(first, complex) and not isinstance(
            last, complex
        ):
            if last <= first:
                return Block(())
    return Block(()) if start == stop and not calls else For(var, start, stop, body, sums)


def _is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, Comment) or (isinstance(stmt, Block) and all(_is_empty(s) for s in stmt.body))
