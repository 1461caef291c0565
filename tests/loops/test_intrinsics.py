"""The C texts of routines against their Python twins."""

from __future__ import annotations

import numpy as np
import pytest

from scorch._src.loops.intrinsics import INTRINSICS
from scorch._src.loops.nodes import (
    Allocate,
    Array,
    Assign,
    Call,
    Const,
    Declare,
    For,
    Free,
    Function,
    Kernel,
    Load,
    Perform,
    Put,
    Return,
    Store,
    Var,
    While,
    block,
    either,
    wide,
)
from scorch._src.loops.types import BOOL, FLOAT32, FLOAT64, INT32, INT64

LENGTHS = [0, 1, 2, 33, 41, 700, 5000]


def keys(n: int, bound: int, how: str, rng: np.random.Generator) -> np.ndarray:
    key = rng.integers(0, bound, n)
    if how == "sorted":
        key.sort()
    if how == "reversed":
        key = np.sort(key)[::-1].copy()
    return key


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("bound", [1, 3, 1000, 10**6, 2**40, 2**63 - 1])
@pytest.mark.parametrize("how", ["random", "sorted", "reversed"])
@pytest.mark.parametrize("told", [True, False])
def test_sort_keys_is_stable(n, bound, how, told, agree) -> None:
    key, perm, count, limit = Array("K", INT64), Array("P", INT64), Var("n"), Var("bound")
    params = (count, limit, key, perm)
    body = Return(Call("sort_keys", (key, perm, count, limit)))
    kernel = Kernel("", params, (Function("f", params, body, True),))
    data = keys(n, bound, how, np.random.default_rng(n))
    slots = agree(kernel, "f", [n, bound if told else 0, data, np.arange(n)])
    np.testing.assert_array_equal(slots[3], np.argsort(data, kind="stable"))
    np.testing.assert_array_equal(slots[2], np.sort(data))


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("spread", [1, 5, 1000, 10**12])
def test_sort_list_sorts_distinct_coordinates(n, spread, agree) -> None:
    values, count, limit = Array("L", INT64), Var("n"), Var("bound")
    params = (count, limit, values)
    body = Return(Call("sort_list", (values, count, limit)))
    kernel = Kernel("", params, (Function("f", params, body, True),))
    rng = np.random.default_rng(n)
    data = rng.permutation(n) * spread + rng.integers(0, spread, n)
    for bound in (n * spread + 1, 0):
        slots = agree(kernel, "f", [n, bound, data])
        np.testing.assert_array_equal(slots[2], np.sort(data))


@pytest.mark.parametrize("side", ["lower", "upper"])
@pytest.mark.parametrize("t", [INT32, INT64], ids=repr)
def test_bounds_agree_with_searchsorted(side, t, agree) -> None:
    crd, out = Array("crd", t), Array("R", INT64)
    lo, hi, c, n = Var("lo"), Var("hi"), Var("c"), Var("n")
    params = (lo, hi, n, crd, out)
    name = f"{side}_bound_{'i32' if t == INT32 else 'i64'}"
    body = For(c, Const(0), n, Store(out, c, Call(name, (crd, lo, hi, c))))
    kernel = Kernel("", params, (Function("f", params, body, True),))
    data = np.sort(np.random.default_rng(0).integers(0, 60, 50)).astype(t.name)
    for first, last in [(0, 50), (0, 0), (7, 31), (50, 50), (49, 50)]:
        slots = agree(kernel, "f", [first, last, 62, data, np.zeros(62, np.int64)])
        want = first + np.searchsorted(
            data[first:last], np.arange(62), "left" if side == "lower" else "right"
        )
        np.testing.assert_array_equal(slots[4], want)


@pytest.mark.parametrize("t", [INT32, INT64], ids=repr)
@pytest.mark.parametrize("n", [0, 1, 5, 300])
def test_balance_divides_rows_and_entries(t, n, agree) -> None:
    pos, out, rows, parts, part = Array("pos", t), Array("R", INT64), Var("n"), Var("parts"), Var("part")
    params = (rows, parts, pos, out)
    name = f"balance_{'i32' if t == INT32 else 'i64'}"
    body = For(part, Const(0), parts + 1, Store(out, part, Call(name, (pos, rows, part, parts))))
    kernel = Kernel("", params, (Function("f", params, body, True),))
    lengths = np.random.default_rng(n).integers(0, 9, n)
    lengths[: n // 3] = 0
    data = (7 + np.concatenate([[0], np.cumsum(lengths)])).astype(t.name)
    for count in (1, 2, 7, 400):
        ends = agree(kernel, "f", [n, count, data, np.zeros(count + 1, np.int64)])[3]
        assert ends[0] == 0 and ends[-1] == n and (np.diff(ends) >= 0).all()
        work = (data[ends] - data[0]) + ends
        assert np.abs(work - work[-1] * np.arange(count + 1) / count).max() <= 10


@pytest.mark.parametrize("place", [0, 1, 31, 32, 63, 64, 95])
def test_bits_are_counted_on_every_processor(place, native) -> None:
    """Tests compile for the oldest processor of an architecture, which may have no instruction for it."""
    words, total = Array("W", INT64), Var("total")
    params = (total, words)
    body = block(Put("total", Call("bits_before_i64", (words, Const(place)))), Return(Const(0)))
    kernel = Kernel("", params, (Function("f", params, body, True),))
    bits = np.random.default_rng(0).integers(0, 2, 96)
    data = np.zeros(6, np.int64)
    for word in range(3):
        data[2 * word] = bits[: 32 * word].sum()
        data[2 * word + 1] = (bits[32 * word : 32 * word + 32] << np.arange(32)).sum()
    for slots in native.both(kernel, "f", [0, data]):
        assert slots[0] == bits[:place].sum()


def test_routines_work_in_both_languages(native) -> None:
    """All at once: no routine clashes with another."""
    arrays = {t: Array(f"X_{t}", t) for t in (INT32, INT64)}
    second, used = Array("Y", INT64), Array("used", BOOL)
    total = Var("total")
    body = []
    for name, routine in INTRINSICS.items():
        if not routine.arrays or name.startswith(("union_block", "spread_", "put_")):  # tested below
            continue
        first = arrays[routine.arrays[0]]
        given = (first, second) if 1 in routine.arrays else (first,)
        rest = (Const(0), Const(0)) if name == "sort_list" else (Const(0), Const(0), Const(1))
        if name == "sort_keys":
            rest = (Const(0), Const(0))
        if name.startswith("bit"):
            rest = (Const(0),)
        if name == "sort_places":
            rest = (Const(0), second, arrays[INT64], Const(0))
        if name.startswith("is_erratic"):
            given, rest = tuple(arrays[element] for element in routine.arrays.values()), (Const(0), Const(9))
        if name == "mark_place":
            rest = (Const(70),)
        if name.startswith("list_"):
            given = (first, second if name == "list_marked" else used)
            rest = (Const(0), Const(-1))
        body.append(Assign(total, total + Call(name, (*given, *rest))))
    params = (total, *arrays.values(), second, used)
    kernel = Kernel("", params, (Function("f", params, block(*body, Put("total", total)), True),))
    slots = [0, np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, bool)]
    by_c, by_python = native.both(kernel, "f", slots)
    assert by_c[0] == by_python[0] == 0


@pytest.mark.parametrize("here", [0, 1])
@pytest.mark.parametrize("t", [FLOAT32, FLOAT64, INT32, INT64], ids=repr)
def test_values_are_chosen_without_branches(native, t, here: int) -> None:
    out, chosen, flag, values = Array("R", t), Var("chosen_one"), Var("flag"), Array("V", t)
    value = Load(values, Const(0))
    kept = Call(f"kept_{'f' if t.kind == 'float' else 'i'}{8 * t.bytes}", (value, flag), value.type)
    params = (chosen, flag, out, values)
    found = Put(chosen.name, Call("chosen", (flag, Const(-7), Const(2**40))))
    kernel = Kernel(
        "", params, (Function("f", params, block(Store(out, Const(0), kept), found, Return(Const(0))), True),)
    )
    given = np.array([-5], t.name) if t.is_integer else np.array([np.inf], t.name)
    for slots in native.both(kernel, "f", [0, here, np.ones(1, t.name), given]):
        assert slots[0] == (-7 if here else 2**40)
        assert slots[2][0] == (given[0] if here else 0)


@pytest.mark.parametrize("t", [INT32, INT64], ids=repr)
@pytest.mark.parametrize("how", ["equal", "in turns", "random"])
def test_erratic_turns_are_those_that_nobody_can_foretell(native, t, how: str) -> None:
    rng = np.random.default_rng(0)

    def rows() -> np.ndarray:
        return np.concatenate([np.sort(rng.permutation(200)[:60]) for _ in range(16)])

    a = rows() if how == "random" else np.tile(np.arange(0, 120, 2), 16)
    b = {"equal": a, "in turns": a + 1, "random": rows()}[how]
    pos = np.arange(0, 1020, 60).astype(t.name)
    names = [Array(name, t) for name in ("a_pos", "a_crd", "b_pos", "b_crd")]
    total = Var("total")
    kind = f"i{8 * t.bytes}"
    params = (total, *names)
    called = Put("total", Call(f"is_erratic_{kind}_{kind}", (*names, Const(16), Const(48))))
    kernel = Kernel("", params, (Function("f", params, block(called, Return(Const(0))), True),))
    for slots in native.both(kernel, "f", [0, pos, a.astype(t.name), pos, b.astype(t.name)]):
        assert slots[0] == (how == "random")


@pytest.mark.parametrize("count", [0, 1, 2, 17, 48, 49, 3000])
@pytest.mark.parametrize("extent", [3000, 4096, 100_000])
def test_places_are_sorted_by_a_bitmap(native, count: int, extent: int) -> None:
    words = (extent + 4095) // 4096
    params = (Array("X", INT32), Array("bits", INT64), Array("tops", INT64), Var("n"), Var("words"))
    places, bits, tops, n, number = params
    body = Perform(Call("sort_places", (places, n, bits, tops, number)))
    kernel = Kernel("", params, (Function("f", params, block(body, body), True),))
    drawn = np.random.default_rng(count).permutation(extent)[:count].astype(np.int32)
    given = np.append(drawn, np.int32(0))  # with a place behind them
    slots = [given, np.zeros(64 * words, np.int64), np.zeros(words, np.int64), count, words]
    for found in native.both(kernel, "f", slots):
        assert (found[0][:count] == np.sort(drawn)).all()
        assert not found[1].any() and not found[2].any()


@pytest.mark.parametrize("count", [0, 1, 40, 700])
def test_marked_places_are_listed_in_order(native, count: int) -> None:
    params = (Array("X", INT32), Array("Y", INT32), Array("used", BOOL), Array("bits", INT64), Var("n"))
    by_bytes, by_bits, used, bits, n = params
    turn, limits = Var("turn"), (Var("low"), Var("high"))
    marks = For(turn, Const(0), n, Perform(Call("mark_place", (bits, wide(Load(by_bytes, turn))))))
    lists = [
        Perform(Call("list_used", (by_bytes, used, *limits))),
        Perform(Call("list_marked", (by_bits, bits, *limits))),
    ]
    kernel = Kernel("", (*params, *limits), (Function("f", (*params, *limits), block(marks, *lists), True),))
    drawn = 70 + np.random.default_rng(count).permutation(900)[:count].astype(np.int32)
    room, marked = np.zeros(count + 1, np.int32), np.zeros(1000, bool)
    marked[drawn] = True
    low, high = drawn.min(initial=1000), drawn.max(initial=-1)
    slots = [np.append(drawn, np.int32(0)), room, marked, np.zeros(16, np.int64), count, low, high]
    for found in native.both(kernel, "f", slots):
        assert (found[0][:count] == np.sort(drawn)).all() and (found[1][:count] == np.sort(drawn)).all()
        assert not found[3].any()


@pytest.mark.parametrize("t", [FLOAT32, FLOAT64, INT32, INT64], ids=repr)
@pytest.mark.parametrize("lengths", [(0, 5), (40, 0), (3, 4), (8, 9), (60, 31), (700, 700)], ids=repr)
def test_lists_are_merged_in_blocks(native, t, lengths: tuple[int, int]) -> None:
    """With instructions for it, without them, and in Python."""
    short = ("f" if t.kind == "float" else "i") + str(8 * t.bytes)
    names = ("a", "a_vals", "b", "b_vals", "crd", "a_out", "b_out")
    a, a_vals, b, b_vals, crd, *outs = arrays = [Array(name, t if len(name) > 3 else INT32) for name in names]
    p, p_end, q, q_end, n, total = (Var(name) for name in ("p", "p_end", "q", "q_end", "n", "total"))
    block_, lanes = Array("block", INT64), [Array("x", INT32), Array("u", t), Array("v", t)]
    a_count, b_count, a_bits, b_bits, count = (Load(block_, Const(fact)) for fact in range(5))
    turn = block(
        Perform(Call("union_block_i32", (a, p, p_end, b, q, q_end, block_))),
        Perform(Call("spread_coordinates", (lanes[0], a, p, a_bits, b, q, b_bits))),
        Perform(Call(f"spread_{short}", (lanes[1], a_vals, p, a_bits))),
        Perform(Call(f"spread_{short}", (lanes[2], b_vals, q, b_bits))),
        *(
            Perform(Call(name, (to, n, lane, count)))
            for name, to, lane in zip(
                ("put_i32", f"put_{short}", f"put_{short}"), (crd, *outs), lanes, strict=True
            )
        ),
        Assign(p, p + a_count),
        Assign(q, q + b_count),
        Assign(n, n + count),
    )
    body = block(
        *(Declare(var, Const(0)) for var in (p, q, n)),
        Allocate(block_, Const(5)),
        *(Allocate(lane, Const(16)) for lane in lanes),
        While(either(p < p_end, q < q_end), turn),
        *(Free(array) for array in (block_, *lanes)),
        Put("total", n),
        Return(Const(0)),
    )
    params = (p_end, q_end, total, *arrays)
    kernel = Kernel("", params, (Function("f", params, body, True),))
    rng = np.random.default_rng(sum(lengths))
    lists = [np.sort(rng.permutation(900)[:length]).astype(np.int32) for length in lengths]
    values = [rng.integers(1, 99, length).astype(t.name) for length in lengths]
    union = np.union1d(*lists)
    expected = [np.zeros(len(union), t.name) for _ in lists]
    for found, crds, vals in zip(expected, lists, values, strict=True):
        found[np.searchsorted(union, crds)] = vals
    room = [np.full(len(union) + 1, 7, kind) for kind in ("int32", t.name, t.name)]
    slots = [*lengths, 0, lists[0], values[0], lists[1], values[1], *room]
    ways = list(native.both(kernel, "f", slots))
    ways.append([slot.copy() if isinstance(slot, np.ndarray) else slot for slot in slots])
    assert native.call(kernel, "f", ways[-1], "-march=native") == 0
    for way in ways:
        assert way[2] == len(union)
        for found, want in zip(way[-3:], (union, *expected), strict=True):
            np.testing.assert_array_equal(found, [*want, 7])
