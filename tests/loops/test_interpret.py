"""What the interpreter refuses, and how it says so."""

from __future__ import annotations

import numpy as np
import pytest

from scorch._src.backends.interpreter.interpret import BoundsError, Memory, run
from scorch._src.loops.nodes import (
    Allocate,
    Array,
    Assign,
    Binary,
    Block,
    Call,
    Cast,
    Const,
    Copy,
    Declare,
    Fill,
    For,
    Free,
    Function,
    If,
    KeepArray,
    Kernel,
    Load,
    Perform,
    Put,
    PutArray,
    Resize,
    SlotArray,
    Stmt,
    Store,
    Var,
    While,
    block,
)
from scorch._src.loops.types import FLOAT32, INT32, INT64

i, n = Var("i"), Var("n")
X, W, V, T = (Array(name, INT64) for name in "XWVT")
POS = Array("A2_pos", INT32)


def kernel_of(body: Stmt) -> Kernel:
    params = (n, X, POS)
    return Kernel("", (*params, Array("out", INT64)), (Function("f", params, body, True),))


def check(body: Stmt, count: int = 5) -> list[object]:
    slots: list[object] = [count, np.arange(5), np.arange(5, dtype=np.int32), 0]
    assert run(kernel_of(body), "f", slots) == 0
    return slots


ALLOCATED = Allocate(W, Const(4))
MISTAKES: list[tuple[Stmt, str]] = [
    (Store(X, Const(0), Cast(Load(POS, n), INT64)), r"A2_pos\[5\] is outside 0\.\.4"),
    (Store(X, Const(-1), Const(0)), r"X\[-1\] is outside 0\.\.4"),
    (For(i, Const(0), n + 1, Store(X, i, Const(0))), r"X\[5\] is outside 0\.\.4"),
    (Fill(X, Const(3), Const(6), Const(0)), r"X\[5\] is outside"),
    (Fill(X, Const(3), Const(2), Const(0)), r"X is filled from 3 to 2"),
    (block(ALLOCATED, Copy(W, Const(0), X, Const(2), Const(4)), Free(W)), r"X\[5\] is outside"),
    (block(ALLOCATED, Copy(W, Const(1), X, Const(0), Const(4)), Free(W)), r"W\[4\] is outside"),
    (Perform(Call("sort_keys", (X, X, Const(6), Const(0)))), r"X\[5\] is outside"),
    (
        block(ALLOCATED, Store(X, Const(0), Load(W, Const(3))), Free(W)),
        "element 3 of W before it was written",
    ),
    (
        block(ALLOCATED, Copy(X, Const(0), W, Const(0), Const(1)), Free(W)),
        "W are copied to X before they were written",
    ),
    (
        block(
            ALLOCATED,
            Allocate(V, Const(4)),
            Copy(V, Const(0), W, Const(0), Const(4)),
            Store(X, Const(0), Load(V, Const(2))),
            Free(W),
        ),
        "element 2 of V before it was written",
    ),
    (
        block(
            ALLOCATED,
            Fill(W, Const(0), Const(4), Const(1)),
            Resize(W, Const(6)),
            Store(X, Const(0), Load(W, Const(5))),
        ),
        "element 5 of W before it was written",
    ),
    (ALLOCATED, "W was never freed"),
    (block(ALLOCATED, Free(W), Free(W)), "W is freed twice"),
    (block(ALLOCATED, Free(W), Store(W, Const(0), Const(0))), "is used after W was freed or resized"),
    (
        block(
            ALLOCATED,
            Allocate(T, Const(1)),
            KeepArray(T, Const(0), W),
            Resize(W, Const(9)),
            SlotArray(V, T, Const(0)),
        ),
        "V is not an array: there is none at address",
    ),
    (block(ALLOCATED, Allocate(T, Const(1)), KeepArray(T, Const(0), W), Free(T)), "W was never freed"),
    (block(ALLOCATED, Free(W), PutArray("out", W)), "given to the caller after it was freed"),
    (Free(X), "X is freed but belongs to the caller"),
    (Resize(X, Const(9)), "X is resized but belongs to the caller"),
    (Allocate(W, Const(-1)), "W is allocated with -1 elements"),
    (Put("n", i), "i is not declared"),
    (block(If(n < 9, Declare(i, Const(1))), Put("n", i)), "i is not declared"),
    (block(Declare(i, Const(1)), Declare(i, Const(2))), "i is declared twice"),
    (
        block(Declare(i, Const(1)), Put("n", Cast(Var("i", INT32), INT64))),
        "i is used as int32 but was declared as int64",
    ),
    (For(i, Const(0), n, Assign(i, i + 1)), "i is a loop variable"),
    (Store(X, n * (2**62) // (2**62), Const(0)), r"5 \* 4611686018427387904 exceeds int64"),
    (Store(X, Const(0), n // (n - n)), "an integer is divided by zero"),
    (Store(POS, Const(0), Const(2**31)), "2147483648 stored to A2_pos.0. does not fit int32"),
    (Store(X, Const(0), Const(1.0, FLOAT32)), "float32 is stored to X of int64"),
    (Store(X, Const(0), Binary("+", n, Load(POS, n), INT64)), r"operands of \+ have types int64 and int32"),
    (Perform(Call("lower_bound_i64", (POS, Const(0), Const(1), Const(1)))), "argument 0 of lower_bound_i64"),
    (Perform(Call("nothing", ())), "there is no function nothing"),
]


@pytest.mark.parametrize(("body", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_named(body: Stmt, message: str) -> None:
    with pytest.raises(BoundsError, match=message):
        check(body)


def test_slots_are_typed() -> None:
    with pytest.raises(BoundsError, match="slot A2_pos holds int64 elements where int32 is expected"):
        run(kernel_of(Block(())), "f", [5, np.arange(5), np.arange(5), 0])


def test_values_wrap_but_positions_do_not(agree) -> None:
    big = Const(2**63 - 1)
    slots = agree(
        kernel_of(Store(X, Const(0), Binary("+", n, big, INT64))),
        "f",
        [5, np.arange(5), np.arange(5, dtype=np.int32), 0],
    )
    assert slots[1][0] == -(2**63) + 4


def test_scopes_shadow_as_in_c(agree) -> None:
    body = block(
        Declare(i, Const(1)),
        If(n < 9, block(Declare(i, Const(2)), Store(X, Const(1), i))),
        Store(X, Const(0), i),
        While(i < 4, block(Declare(Var("k"), i), Assign(i, Var("k") + 1))),
        Store(X, Const(2), i),
    )
    slots = agree(kernel_of(body), "f", [5, np.arange(5), np.arange(5, dtype=np.int32), 0])
    assert slots[1][:3].tolist() == [1, 2, 4]


def test_empty_rows_of_tables_may_be_freed() -> None:
    check(block(Allocate(T, Const(1), zero=True), SlotArray(V, T, Const(0)), Free(V), Free(T)))


def test_arrays_pass_from_one_function_to_the_next() -> None:
    first = Function(
        "first", (n,), block(Allocate(W, n), Fill(W, Const(0), n, Const(3)), PutArray("W", W)), True
    )
    second = Function("second", (n, W), block(Put("n", Load(W, n - 1)), Free(W)), True)
    kernel = Kernel("", (n, W), (first, second))
    memory, slots = Memory(), [4, 0]
    assert run(kernel, "first", slots, memory) == 0
    assert run(kernel, "second", slots, memory) == 0
    assert slots[0] == 3
    with pytest.raises(BoundsError, match="freed"):
        run(kernel, "second", slots, memory)
