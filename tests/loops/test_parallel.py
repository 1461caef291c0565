"""Parallel loops on torch's own threads."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from scorch._src.backends.interpreter.interpret import BoundsError, run
from scorch._src.backends.print.c import print_kernel
from scorch._src.loops.nodes import (
    Allocate,
    Array,
    Assign,
    Block,
    Const,
    Copy,
    Declare,
    Fail,
    For,
    Free,
    Function,
    If,
    KeepArray,
    Kernel,
    Load,
    Parallel,
    Put,
    PutArray,
    SlotArray,
    Store,
    Var,
    block,
)
from scorch._src.loops.types import INT64

i, n, chunk, threads, pool = (Var(name) for name in ("i", "n", "chunk", "threads", "parallel_for"))
X, OUT, W, T = (Array(name, INT64) for name in ("X", "out", "W", "T"))


@pytest.fixture(scope="module")
def thread_pool() -> int:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not library.exists():
        pytest.skip("torch has no thread pool here")
    if not hasattr(ctypes.CDLL(str(library)), "torch_parallel_for"):
        pytest.skip("before torch 2.10 kernels reach its threads in another way")
    address = ctypes.cast(ctypes.CDLL(str(library)).torch_parallel_for, ctypes.c_void_p).value
    assert address
    return address


def assembly() -> Kernel:
    """Each turn keeps an array of its own in a table; a serial loop then joins them."""
    lengths, row, total, workspace = (
        Array("lengths", INT64),
        Array("row", INT64),
        Var("total"),
        Array("w", INT64),
    )
    turn = block(
        Declare(Var("length"), chunk % Const(7)),
        Allocate(row, Var("length")),
        For(
            i,
            Const(0),
            Var("length"),
            block(Store(workspace, i, Load(X, chunk) + i), Store(row, i, Load(workspace, i))),
        ),
        KeepArray(T, chunk, row),
        Store(lengths, chunk, Var("length")),
    )
    body = block(
        Allocate(T, n),
        Allocate(lengths, n),
        Parallel(chunk, n, threads, Allocate(workspace, Const(7)), turn, Free(workspace)),
        Declare(total, Const(0)),
        For(i, Const(0), n, Assign(total, total + Load(lengths, i))),
        Allocate(OUT, total),
        Assign(total, Const(0)),
        For(
            i,
            Const(0),
            n,
            block(
                SlotArray(row, T, i),
                Copy(OUT, total, row, Const(0), Load(lengths, i)),
                Assign(total, total + Load(lengths, i)),
                Free(row),
            ),
        ),
        Free(T),
        Free(lengths),
        Put("total", total),
        PutArray("out", OUT),
    )
    params = (n, threads, pool, X)
    return Kernel("", (*params, total, OUT), (Function("f", params, body, True),))


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
@pytest.mark.parametrize("workers", [0, 1, 2, 8])
def test_threads_keep_arrays_in_tables(count, workers, native, thread_pool) -> None:
    data = np.arange(count) * 100
    for address in (0, thread_pool):
        slots = [count, workers, address, data, 0, 0]
        by_c, by_python = native.both(assembly(), "f", slots)
        want = [100 * c + k for c in range(count) for k in range(c % 7)]
        assert by_c[4] == by_python[4] == len(want)
        assert by_c[5].tolist() == by_python[5].tolist() == want


def test_every_turn_is_taken_once(native, thread_pool) -> None:
    loop = Parallel(chunk, n, threads, Block(()), Store(X, chunk, Load(X, chunk) + 1), Block(()))
    params = (n, threads, pool, X)
    kernel = Kernel("", params, (Function("f", params, loop, True),))
    for _ in range(20):
        data = np.zeros(100_000, np.int64)
        assert native.call(kernel, "f", [len(data), 8, thread_pool, data]) == 0
        assert (data == 1).all()
    for count in (0, 1, 5, 31, 33, 200):
        for workers in (0, 1, 2, 3, 32, 33, 100):  # also more than there are shares
            data = np.zeros(count, np.int64)
            assert native.call(kernel, "f", [count, workers, thread_pool, data]) == 0
            assert (data == 1).all()


def test_worker_that_fails_fails_the_kernel(native, thread_pool) -> None:
    loop = Parallel(
        chunk, n, threads, Block(()), If(chunk.equals(3), Fail(), Store(X, chunk, Const(1))), Block(())
    )
    params = (n, threads, pool, X)
    kernel = Kernel("", params, (Function("f", params, loop, True),))
    for address in (0, thread_pool):
        assert native.call(kernel, "f", [3, 4, address, np.zeros(9, np.int64)]) == 0
        assert native.call(kernel, "f", [9, 4, address, np.zeros(9, np.int64)]) == 1
    assert run(kernel, "f", [9, 4, 0, np.zeros(9, np.int64)]) == 1


def test_loops_may_be_nested(native, thread_pool) -> None:
    inner = Parallel(i, n, threads, Block(()), Store(X, chunk * n + i, chunk + i), Block(()))
    loop = Parallel(chunk, n, threads, Block(()), inner, Block(()))
    params = (n, threads, pool, X)
    kernel = Kernel("", params, (Function("f", params, loop, True),))
    by_c, by_python = native.both(kernel, "f", [20, 4, thread_pool, np.zeros(400, np.int64)])
    assert (by_c[3] == by_python[3]).all() and (
        by_c[3].reshape(20, 20) == np.add.outer(range(20), range(20))
    ).all()


def test_workers_capture_only_what_they_use() -> None:
    text = print_kernel(assembly())
    struct = text[text.index("struct closure_1 {") :]
    assert struct[: struct.index("};")].split("\n")[1:-1] == [
        "  i64 closure_failed;",
        "  const i64 *X;",
        "  i64 *T;",
        "  i64 *lengths;",
        "  struct turns closure_turns;",
    ]


def test_captured_variables_may_not_be_assigned() -> None:
    body = block(Declare(i, Const(0)), Parallel(chunk, n, threads, Block(()), Assign(i, i + 1), Block(())))
    params = (n, threads, pool)
    kernel = Kernel("", params, (Function("f", params, body, True),))
    with pytest.raises(AssertionError, match="parallel loop assigns i"):
        print_kernel(kernel)
    with pytest.raises(BoundsError, match="i is a loop variable or captured"):
        run(kernel, "f", [4, 2, 0])


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (Store(X, Const(0), chunk), r"turn 1 writes X\[0\], which turn 0 wrote"),
        (Store(X, chunk, Load(X, Const(0))), r"turn 1 reads X\[0\], which turn 0 wrote"),
    ],
)
def test_races_are_found(turn, message) -> None:
    loop = Parallel(chunk, n, threads, Block(()), turn, Block(()))
    params = (n, threads, pool, X)
    kernel = Kernel("", params, (Function("f", params, loop, True),))
    with pytest.raises(BoundsError, match=message):
        run(kernel, "f", [4, 2, 0, np.zeros(4, np.int64)])


def test_workers_do_not_share_what_they_declare() -> None:
    """A count kept across turns is per worker: two workers number their turns separately."""
    count = Var("count")
    loop = Parallel(
        chunk,
        n,
        threads,
        Declare(count, Const(0)),
        block(Store(X, chunk, count), Assign(count, count + 1)),
        Block(()),
    )
    params = (n, threads, pool, X)
    kernel = Kernel("", params, (Function("f", params, loop, True),))
    data = np.zeros(5, np.int64)
    run(kernel, "f", [5, 2, 0, data])
    assert data.tolist() == [0, 0, 1, 1, 2]
    run(kernel, "f", [5, 1, 0, data])
    assert data.tolist() == [0, 1, 2, 3, 4]
