"""Simplified loops are smaller and compute the same."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorch._src.backends.interpreter.interpret import BoundsError, run
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
    Load,
    Perform,
    Put,
    Select,
    Stmt,
    Store,
    Tile,
    Total,
    Unary,
    Var,
    While,
    block,
)
from scorch._src.loops.simplify import simplify
from scorch._src.loops.types import BOOL, COMPLEX64, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, Type

i, n, m = Var("i"), Var("n"), Var("m")
X, F = Array("X", INT64), Array("F", FLOAT32)
TYPES = (BOOL, INT8, UINT8, INT32, INT64, FLOAT32, FLOAT64, COMPLEX64)
INPUTS = {t: Array(f"in_{t}", t) for t in TYPES}
RESULTS = {t: Array(f"out_{t}", t) for t in TYPES}


def data(t: Type) -> np.ndarray:
    return np.array([0, 1, 3, 100]).astype(t.name)


def expressions(pick: Any, t: Type, depth: int) -> Expr:
    """A random expression of type ``t``; ``pick`` chooses from a list."""
    if depth == 0 or pick([0, 0, 0, 1]):
        if pick([0, 1]):
            return Load(INPUTS[t], Const(pick([0, 1, 2, 3])))
        limits = {BOOL: [False, True], UINT8: [0, 1, 2, 255], INT8: [0, 1, -1, 127, -128]}
        wide = [0, 1, -1, 2, 1000, 2**31 - 1, -(2**31)]
        whole = {INT32: wide, INT64: [*wide, 2**63 - 1, -(2**63)]}
        real = [0.0, -0.0, 1.0, -1.0, 0.1, float("inf"), float("nan")]
        return Const(pick((limits | whole).get(t, real)), t)

    def sub(of: Type) -> Expr:
        return expressions(pick, of, depth - 1)

    match pick(["binary", "binary", "unary", "select", "cast"]):
        case "binary" if t == BOOL:
            op = pick(["&&", "||", "==", "!=", "<", "<=", "+", "*"])
            if op in ("&&", "||", "+", "*"):
                return Binary(op, sub(BOOL), sub(BOOL), BOOL)
            operand = pick(TYPES[:-1])
            return Binary(op, sub(operand), sub(operand), BOOL)
        case "binary":
            ops = ["+", "-", "*", "*"] + (["max", "min"] if t != COMPLEX64 else [])
            return Binary(pick(ops), sub(t), sub(t), t)
        case "unary":
            return Unary("!", sub(BOOL), BOOL) if t == BOOL else Unary("-", sub(t), t)
        case "select":
            return Select(sub(BOOL), sub(t), sub(t))
    sources = [s for s in TYPES if s.is_integer] if t.is_integer else [s for s in TYPES if s != COMPLEX64]
    return Cast(sub(pick(sources)), t)


def store_all(exprs: list[Expr]) -> Kernel:
    counts = dict.fromkeys(TYPES, 0)
    stores: list[Stmt] = []
    for e in exprs:
        stores.append(Store(RESULTS[e.type], Const(counts[e.type]), e))
        counts[e.type] += 1
    params = (*INPUTS.values(), *RESULTS.values())
    return Kernel("", params, (Function("f", params, Block(tuple(stores)), True),))


def slots_for(count: int) -> list[Any]:
    return [*(data(t) for t in TYPES), *(np.zeros(count, t.name) for t in TYPES)]


def assert_same(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
        if a.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)]))


@settings(max_examples=max(100, settings.default.max_examples), deadline=None)
@given(st.data(), st.sampled_from(TYPES))
def test_simplified_expressions_have_the_same_value(source, t) -> None:
    e = expressions(lambda options: source.draw(st.sampled_from(options)), t, 4)
    before, after = slots_for(1), slots_for(1)
    run(store_all([e]), "f", before)
    simple = simplify(e)
    assert simple.type == t
    run(store_all([simple]), "f", after)
    assert_same(before, after)
    assert repr(simplify(simple)) == repr(simple)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_c_and_interpreter_agree_on_random_expressions(seed, native) -> None:
    """Many expressions in one kernel: parentheses, casts and wrapping as printed are right."""
    rng = random.Random(seed)
    exprs = [expressions(rng.choice, t, 5) for t in TYPES for _ in range(40)]
    want = slots_for(40)
    run(store_all(exprs), "f", want)
    for kernel in (store_all(exprs), simplify(store_all(exprs))):
        got = slots_for(40)
        native.call(kernel, "f", got, "-ffp-contract=off", "-Wno-error")
        assert_same(want, got)


@pytest.mark.parametrize(
    ("e", "simple"),
    [
        (Binary("+", n, Const(0), INT64), n),
        (Binary("*", Const(0), n, INT64), Const(0)),
        (Binary("+", Binary("-", n, Const(1), INT64), Const(1), INT64), n),
        (Binary("-", Binary("+", n, Const(5), INT64), Const(2), INT64), n + 3),
        (Binary("+", Const(127, INT8), Const(1, INT8), INT8), Const(-128, INT8)),
        (Binary("&&", TRUE, n < m, BOOL), n < m),
        (Binary("||", n < m, TRUE, BOOL), TRUE),
        (Unary("!", Unary("!", n < m, BOOL), BOOL), n < m),
        (Unary("!", n < m, BOOL), Binary(">=", n, m, BOOL)),
        (Cast(n, INT64), n),
        (Cast(Cast(Load(F, n), FLOAT64), FLOAT32), Load(F, n)),
        (Cast(Const(3), FLOAT32), Const(3.0, FLOAT32)),
        (Select(TRUE, n, m), n),
        (Select(Const(1) < Const(0), n, m), m),
        (Load(X, Binary("*", n, Const(1), INT64)), Load(X, n)),
    ],
)
def test_expressions_fold(e: Expr, simple: Expr) -> None:
    assert simplify(e) == simple


@pytest.mark.parametrize(
    "e",
    [
        Binary("*", Load(F, n), Const(0.0, FLOAT32), FLOAT32),
        Binary("+", Load(F, n), Const(0.0, FLOAT32), FLOAT32),
        Unary("!", Binary("<", Load(F, n), Load(F, m), BOOL), BOOL),
        Binary("/", n, Const(0), INT64),
        Cast(Cast(n, INT8), INT64),
        Binary("*", Call("sort_list", (X, n, Const(0))), Const(0), INT64),
    ],
    ids=repr,
)
def test_expressions_that_must_stay(e: Expr) -> None:
    assert simplify(e) == e


TURN = Store(X, i, Const(1))


@pytest.mark.parametrize(
    ("stmt", "simple"),
    [
        (If(TRUE, TURN), TURN),
        (If(FALSE, TURN), Block(())),
        (If(FALSE, TURN, Assign(n, m)), Assign(n, m)),
        (If(n < m, Block(()), TURN), If(Binary(">=", n, m, BOOL), TURN)),
        (If(n < m, Comment("nothing"), Block((Block(()),))), Block(())),
        (For(i, Const(3), Const(3), TURN), Block(())),
        (For(i, n, n, TURN), Block(())),
        (For(i, Const(0), n, Block((Block(()),))), Block(())),
        (While(FALSE, TURN), Block(())),
        (Assign(n, Binary("+", n, Const(0), INT64)), Block(())),
        (Fill(X, n, n, Const(0)), Block(())),
        (Copy(X, n, X, m, Const(0)), Block(())),
        (Block((Block((TURN, Block(()))), TURN)), Block((TURN, TURN))),
        (
            block(If(TRUE, block(Declare(n, Const(1)), Put("r", n))), TURN),
            block(Declare(n, Const(1)), Put("r", n), TURN),
        ),
    ],
)
def test_statements_fold(stmt: Stmt, simple: Stmt) -> None:
    assert simplify(stmt) == simple


def test_branch_keeps_its_scope_where_names_would_clash() -> None:
    inner = If(TRUE, block(Declare(n, Const(1)), Put("r", n)))
    stmt = block(inner, Put("n", n))
    assert simplify(stmt) == stmt


def test_calls_are_never_dropped() -> None:
    call = Call("sort_list", (X, n, Const(0)))
    assert simplify(Perform(call)) == Perform(call)
    stmt = If(call < 0, Block(()))
    assert simplify(stmt) == stmt


def test_divisions_by_zero_still_fail() -> None:
    kernel = store_all([Binary("/", Const(1), Const(0), INT64)])
    with pytest.raises(BoundsError, match="divided by zero"):
        run(simplify(kernel), "f", slots_for(1))


def test_a_sum_of_one_total_does_not_begin_at_zero() -> None:
    acc, tile = Var("acc", FLOAT32), Array("sums", FLOAT32)
    start, add = Declare(acc, Const(0, FLOAT32)), Assign(acc, acc + Total(tile, 8, 4))
    registers = Tile(tile, 8, 4)
    assert simplify(block(start, registers, add)) == block(registers, Declare(acc, Total(tile, 8, 4)))
    used = block(start, registers, Assign(acc, acc + acc), add)
    assert simplify(used) == used
