"""Loops in vector lanes and sums in parts: C and the interpreter agree, whatever the widths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scorch._src.backends.interpreter.interpret import BoundsError, run
from scorch._src.backends.print.c import print_kernel
from scorch._src.backends.print.lanes import stride
from scorch._src.backends.print.totals import offsets
from scorch._src.loops.nodes import (
    Array,
    Assign,
    Binary,
    Cast,
    Const,
    Declare,
    For,
    Function,
    Kernel,
    Lanes,
    Load,
    Prefetch,
    Stmt,
    Store,
    Tile,
    Total,
    Unary,
    Var,
    block,
    lane,
)
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, INT64, Type

k, n, p = Var("k"), Var("n"), Var("p")


def kernel(body: Stmt, *arrays: Array) -> Kernel:
    params = (n, *arrays)
    return Kernel("", params, (Function("f", params, body, True),))


@pytest.mark.parametrize(("count", "lanes"), [(1, 1), (3, 2), (4, 4), (7, 4), (16, 4), (19, 8), (33, 16)])
@pytest.mark.parametrize("element", [FLOAT32, FLOAT64, INT32, INT64])
def test_rows_in_registers(native: Any, count: int, lanes: int, element: Type) -> None:
    """out[k] = -(the sum over p of a[p] * B[p, k]) * a[0] + 2."""
    a, B, out, acc = (Array(name, element) for name in ("a", "B", "out", "acc"))
    place = lane(k, Const(0), count, count)
    term = Binary("*", Load(a, p), Load(B, p * count + k), element)
    add = Store(acc, place, Binary("+", Load(acc, place), term, element))
    scaled = Binary("*", Unary("-", Load(acc, place), element), Load(a, Const(0)), element)
    done = Store(out, k, Binary("+", scaled, Const(2, element), element))
    body = block(
        Tile(acc, count, lanes),
        For(p, Const(0), n, block(Prefetch(B, p * count, count), Lanes(k, Const(0), count, lanes, add))),
        Lanes(k, Const(0), count, lanes, done),
    )
    rng = np.random.default_rng(0)
    values = rng.integers(-3, 4, 5).astype(element.name)
    rows = rng.integers(-3, 4, (5, count)).astype(element.name)
    slots = [5, values, rows.ravel(), np.zeros(count, element.name)]
    by_c, by_hand = native.both(kernel(body, a, B, out), "f", slots)
    np.testing.assert_array_equal(by_c[3], by_hand[3])
    np.testing.assert_array_equal(by_c[3], -(values @ rows) * values[0] + 2)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("sums", [1, 2, 3, 5])
def test_partial_sums(native: Any, lanes: int, sums: int) -> None:
    x, y, out, total = (Array(name, FLOAT32) for name in ("x", "y", "out", "total"))
    count, width = sums * lanes, 2 * sums * lanes
    place = lane(k, n, width, count)
    term = Binary("*", Load(x, k), Load(y, k - n), FLOAT32)
    add = Store(total, place, Binary("+", Load(total, place), term, FLOAT32))
    body = block(
        Tile(total, count, lanes),
        Lanes(k, n, width, lanes, add),
        Store(out, Const(0), Total(total, count, lanes)),
    )
    rng = np.random.default_rng(1)
    left, right = (rng.integers(-3, 4, size).astype(np.float32) for size in (width + 3, width))
    by_c, by_hand = native.both(kernel(body, x, y, out), "f", [3, left, right, np.zeros(1, np.float32)])
    assert by_c[3][0] == by_hand[3][0] == left[3:] @ right


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("number", [2, 3, 4, 7])
@pytest.mark.parametrize("element", [FLOAT32, FLOAT64, INT32, INT64])
def test_sums_that_follow_each_other_are_made_at_once(
    native: Any, lanes: int, number: int, element: Type
) -> None:
    x, out = Array("x", element), Array("out", element)
    tiles = [Array(f"sums_{place}", element) for place in range(number)]
    sums = [Var(f"acc_{place}", element) for place in range(number)]
    place = lane(k, n, lanes, lanes)
    adds = [
        Lanes(
            k, n, lanes, lanes, Store(tile, place, Binary("+", Load(tile, place), Load(x, k + turn), element))
        )
        for turn, tile in enumerate(tiles)
    ]
    body = block(
        *(Tile(tile, lanes, lanes) for tile in tiles),
        *adds,
        *(Declare(var, Total(tile, lanes, lanes)) for var, tile in zip(sums, tiles, strict=True)),
        *(Store(out, Const(turn), var) for turn, var in enumerate(sums)),
    )
    whole = kernel(body, x, out)
    assert ("totals_" in print_kernel(whole)) == (lanes > 1)
    values = np.random.default_rng(2).integers(-9, 9, lanes + number + 2).astype(element.name)
    by_c, by_hand = native.both(whole, "f", [2, values, np.zeros(number, element.name)])
    wanted = [values[2 + turn : 2 + turn + lanes].sum() for turn in range(number)]
    assert list(by_c[2]) == list(by_hand[2]) == wanted


@pytest.mark.parametrize("length", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("parts", [1, 2, 16])
def test_sums_in_parts(native: Any, length: int, parts: int) -> None:
    x, crd, out = Array("x", FLOAT32), Array("crd", INT32), Array("out", FLOAT32)
    acc, j = Var("acc", FLOAT32), Var("j")
    turn = block(Declare(j, Cast(Load(crd, p), INT64)), Assign(acc, Binary("+", acc, Load(x, j), FLOAT32)))
    body = block(
        Declare(acc, Const(0.0, FLOAT32)), For(p, Const(0), n, turn, parts), Store(out, Const(0), acc)
    )
    picked = np.arange(length, dtype=np.int32)[::-1].copy()
    slots = [length, np.arange(1, 9, dtype=np.float32), picked, np.zeros(1, np.float32)]
    by_c, by_hand = native.both(kernel(body, x, crd, out), "f", slots)
    assert by_c[3][0] == by_hand[3][0] == length * (length + 1) / 2


def test_registers_overlap_at_the_end() -> None:
    assert offsets(7, 4) == [0, 3] and offsets(8, 4) == [0, 4] and offsets(1, 1) == [0]


def test_strides() -> None:
    assert stride(p * n + k, k) == 1 and stride(p * n, k) == 0
    assert stride(k * 2, k) is None and stride(k + k, k) == 2 and stride(n - k, k) == -1


def test_a_lane_that_jumps_is_refused() -> None:
    x, out = Array("x", FLOAT32), Array("out", FLOAT32)
    body = Lanes(k, Const(0), 4, 4, Store(out, k, Load(x, k * n)))
    with pytest.raises(AssertionError, match="lanes jump in x"):
        print_kernel(kernel(body, x, out))


def test_the_interpreter_checks_tiles_and_what_is_fetched() -> None:
    x, acc = Array("x", FLOAT32), Array("acc", FLOAT32)
    outside = block(Tile(acc, 4, 4), Lanes(k, Const(0), 4, 4, Store(acc, k + 1, Load(x, k))))
    with pytest.raises(BoundsError, match="element 4 of a tile of 4"):
        run(kernel(outside, x), "f", [4, np.zeros(4, np.float32)])
    with pytest.raises(BoundsError, match="outside"):
        run(kernel(Prefetch(x, n, 1), x), "f", [4, np.zeros(4, np.float32)])
