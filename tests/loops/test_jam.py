"""Turns of a loop side by side compute what they do one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from scorch._src.backends.interpreter.interpret import run
from scorch._src.loops.jam import jammed, renamed
from scorch._src.loops.nodes import (
    Array,
    Assign,
    Binary,
    Const,
    Declare,
    For,
    Function,
    If,
    Kernel,
    Load,
    Stmt,
    Store,
    Var,
    block,
)
from scorch._src.loops.simplify import simplify
from scorch._src.loops.types import FLOAT64, INT64

i, k, n, m, first = (Var(name) for name in ("i", "k", "n", "m", "first"))
A, B, C = (Array(name, FLOAT64) for name in "ABC")
acc = Var("acc", FLOAT64)


def rows() -> For:
    """``C[i] = sum of A[i,k] * B[k]``, of the first i + 1 columns where i is odd."""
    at = Var("at")
    add = Assign(acc, acc + Binary("*", Load(A, at), Load(B, k), FLOAT64))
    inside = block(Declare(at, i * m + k), add)
    short = For(k, Const(0), Binary("min", i + 1, m, INT64), inside)
    body = block(
        Declare(acc, Const(0.0, FLOAT64)),
        If((i % 2).equals(Const(0)), For(k, Const(0), m, inside), short),
        For(k, Const(0), m, inside),
        Store(C, i, acc),
    )
    return For(i, first, n, body)


def result(body: Stmt, count: int, start: int) -> np.ndarray:
    slots = (n, m, first, A, B, C)
    kernel = Kernel("test", slots, (Function("f", slots, body, exported=True),))
    generator = np.random.default_rng(1)
    given = [count, 3, start, generator.random(3 * count + 1), generator.random(3), np.zeros(count + 1)]
    run(kernel, "f", given)
    return given[-1]


@pytest.mark.parametrize("turns", [2, 3, 4])
@pytest.mark.parametrize(("count", "start"), [(0, 0), (1, 0), (4, 0), (7, 0), (9, 2), (5, 5)])
def test_side_by_side_is_one_after_the_other(count, start, turns):
    wanted = result(rows(), count, start)
    assert np.array_equal(result(jammed(rows(), turns), count, start), wanted)
    assert np.array_equal(result(simplify(jammed(rows(), turns)), count, start), wanted)


@pytest.mark.parametrize("count", [0, 3, 8, 9])
def test_turns_may_add_to_one_variable(count):
    add = Assign(acc, acc + Binary("*", Load(B, i % 3), Load(A, i), FLOAT64))
    total = For(i, Const(0), n, block(Declare(k, i + 1), add, Assign(acc, acc + Load(B, k % 3))))

    def summed(loop: Stmt) -> Stmt:
        return block(Declare(acc, Const(0.0, FLOAT64)), loop, Store(C, Const(0), acc))

    assert np.array_equal(result(summed(jammed(total, 4)), count, 0), result(summed(total), count, 0))


def test_what_does_not_depend_on_the_turn_is_done_once():
    once = For(i, Const(0), n, block(Declare(acc, Load(B, k)), Store(C, i, acc)))
    assert simplify(jammed(once, 2)) == block(
        For(
            Var("i_turn"),
            Const(0),
            n // 2,
            block(
                Declare(Var("i_t0"), Var("i_turn") * 2),
                Declare(Var("i_t1"), Var("i_turn") * 2 + 1),
                Declare(acc, Load(B, k)),
                Store(C, Var("i_t0"), acc),
                Store(C, Var("i_t1"), acc),
            ),
        ),
        For(i, n - n % 2, n, once.body),
    )


def test_renamed_leaves_other_names_alone():
    assert renamed(Store(C, i, acc), {"i": "i_0", "C": "D"}) == Store(Array("D", FLOAT64), Var("i_0"), acc)
