"""The text of printed kernels, and what it computes."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

from scorch._src.backends.print.c import print_kernel
from scorch._src.loops.nodes import (
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
    Fail,
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
    Return,
    Select,
    SlotArray,
    Stmt,
    Store,
    Unary,
    Var,
    While,
    block,
    both,
    either,
)
from scorch._src.loops.types import BOOL, COMPLEX64, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, INT64, Type

i, j, p, n, m = (Var(name) for name in "ijpnm")
X, Y, OUT = Array("X", FLOAT32), Array("Y", INT64), Array("out", INT64)


def kernel_of(
    body: Stmt, *params: Var | Array, header: str = "", slots: tuple[Var | Array, ...] = ()
) -> Kernel:
    return Kernel(header, (*params, *slots), (Function("f", params, body, True),))


def body_of(kernel: Kernel) -> str:
    """The printed body of the exported function, without its last line."""
    text = print_kernel(kernel)
    start = text.index("long long f(long long *args) {\n")
    lines = text[start : text.index("\n}\n", start)].splitlines()[1:]
    return "\n".join(line[2:] for line in lines if line != "  return 0;" and "args[" not in line)


def expression(e: Expr) -> str:
    params = (n, m, i, j, X, Y)
    return body_of(kernel_of(Declare(Var("r", e.type), e), *params)).split(" = ", 1)[1].rstrip(";")


def test_spmv_reads_like_c() -> None:
    pos, crd, vals = Array("A2_pos", INT32), Array("A2_crd", INT32), Array("A_vals", FLOAT32)
    x, y, acc = Array("x_vals", FLOAT32), Array("y_vals", FLOAT32), Var("acc", FLOAT32)
    row = block(
        Declare(acc, Const(0.0, FLOAT32)),
        For(
            p,
            Cast(Load(pos, i), INT64),
            Cast(Load(pos, i + 1), INT64),
            block(
                Declare(j, Cast(Load(crd, p), INT64)),
                Assign(acc, Binary("+", acc, Binary("*", Load(vals, p), Load(x, j), FLOAT32), FLOAT32)),
            ),
            sums=16,
        ),
        Store(y, i, acc),
    )
    kernel = kernel_of(For(i, Const(0), n, row), n, pos, crd, vals, x, y, header="y[i] = A[i,j] * x[j]")
    assert (
        print_kernel(kernel)
        == """\
// y[i] = A[i,j] * x[j]

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
typedef struct { f32 re, im; } c64;
typedef struct { f64 re, im; } c128;
typedef __SIZE_TYPE__ usize;

#ifdef __cplusplus
#define restrict __restrict__
extern "C" {
#endif

long long f(long long *args) {
  const i64 n = args[0];
  const i32 *restrict A2_pos = (const i32 *)args[1];
  const i32 *restrict A2_crd = (const i32 *)args[2];
  const f32 *restrict A_vals = (const f32 *)args[3];
  const f32 *restrict x_vals = (const f32 *)args[4];
  f32 *restrict y_vals = (f32 *)args[5];
  for (i64 i = 0; i < n; i++) {
    f32 acc = 0.0f;
    const i64 p_stop = A2_pos[i + 1];
    #pragma omp simd reduction(+:acc)
    for (i64 p = A2_pos[i]; p < p_stop; p++) {
      const i64 j = A2_crd[p];
      acc += A_vals[p] * x_vals[j];
    }
    y_vals[i] = acc;
  }
  return 0;
}

#ifdef __cplusplus
}
#endif
"""
    )


def f32(value: float) -> Const:
    return Const(value, FLOAT32)


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (n * 2 + i, "n * 2 + i"),
        (n * (i + 2), "n * (i + 2)"),
        (n - (i - j), "n - (i - j)"),
        (n + (i + j), "n + i + j"),
        (n + Const(-1), "n - 1"),
        (n * (i * j), "n * i * j"),
        (n // (i * j), "n / (i * j)"),
        (n * (i // j), "n * (i / j)"),
        (Unary("-", Const(-1), INT64), "-(-1)"),
        (Unary("-", Unary("-", n, INT64), INT64), "-(-n)"),
        (Unary("!", n < i, BOOL), "!(n < i)"),
        (both(n < i, either(i < j, j < n)), "n < i && (i < j || j < n)"),
        (either(both(n < i, i < j), j < n), "(n < i && i < j) || j < n"),
        (Binary("==", n < i, i < j, BOOL), "(n < i) == (i < j)"),
        (Select(n < i, n, i) + 1, "(n < i ? n : i) + 1"),
        (Select(n < i, n, Select(i < j, i, j)), "n < i ? n : i < j ? i : j"),
        (Binary("*", Cast(n, INT8), Cast(i, INT8), INT8), "(i8)((i8)n * (i8)i)"),
        (Binary("*", Const(2), Const(3), INT64), "(i64)2 * 3"),
        (Binary("max", n, i + 1, INT64), "max_i64(n, i + 1)"),
        (Binary("-", Load(X, n), Binary("-", f32(0.1), f32(-2), FLOAT32), FLOAT32), "X[n] - (0.1f - -2.0f)"),
        (Cast(Load(X, n), BOOL), "X[n] != 0"),
        (Cast(Binary("+", Load(X, n), f32(1), FLOAT32), FLOAT64), "(f64)(X[n] + 1.0f)"),
        (Binary("*", n < i, i < j, BOOL), "n < i && i < j"),
        (Const(-(2**63)), "-9223372036854775807LL - 1"),
        (
            Binary("+", n, Binary("*", i, Const(-(2**63)), INT64), INT64),
            "n + i * (-9223372036854775807LL - 1)",
        ),
        (Unary("exp", Cast(n, FLOAT32), FLOAT32), "exp_f32((f32)n)"),
    ],
)
def test_expressions_have_the_parentheses_they_need(e: Expr, text: str) -> None:
    assert expression(e) == text


def test_statements_read_like_c() -> None:
    W, T, few = Array("W", FLOAT32), Array("T", INT64), Array("few", INT64)
    body = block(
        Comment("two lines\nof comment\\"),
        Allocate(W, n + 1, zero=True),
        Allocate(T, Const(40)),
        Allocate(few, Const(4)),
        Declare(i, Const(0)),
        While(i < n, Assign(i, i + 1)),
        If(i < 3, Fail(), If(i < 4, Assign(i, i * 2), Assign(i, i - j))),
        Fill(W, Const(0), n, f32(0.0)),
        Fill(T, Const(1), i + 1, Const(-1)),
        Copy(W, n, X, i, j),
        Resize(W, n * 2),
        KeepArray(T, Const(0), W),
        SlotArray(Array("V", FLOAT32), T, Const(0)),
        Free(T),
        Free(few),
        Put("n", i),
        PutArray("X", W),
    )
    text = print_kernel(kernel_of(body, n, j, X))
    assert (
        text[text.index("  // two") : text.index("  return 0;")]
        == """\
  // two lines
  // of comment
  f32 *restrict W = (f32 *)allocate_zero(n + 1, sizeof(f32));
  if (!W) return 1;
  i64 *restrict T = (i64 *)allocate(40, sizeof(i64));
  if (!T) return 1;
  i64 few[4] __attribute__((aligned(64)));
  i64 i = 0;
  while (i < n) {
    i++;
  }
  if (i < 3) {
    return 1;
  } else if (i < 4) {
    i *= 2;
  } else {
    i -= j;
  }
  memset(W, 0, (usize)n * sizeof(f32));
  {
    const i64 T_fill = -1;
    for (i64 T_at = 1, T_at_stop = i + 1; T_at < T_at_stop; T_at++)
      T[T_at] = T_fill;
  }
  memcpy(W + n, X + i, (usize)j * sizeof(f32));
  W = (f32 *)resize(W, n * 2, sizeof(f32));
  if (!W) return 1;
  T[0] = (i64)W;
  const f32 *restrict V = (const f32 *)T[0];
  free((void *)T);
  args[0] = i;
  args[2] = (i64)W;
"""
    )


def test_stop_is_evaluated_once(agree) -> None:
    """A loop whose body changes its own bound runs as often as the bound said first."""
    count = Var("count")
    body = block(
        Declare(count, n),
        For(i, Const(0), count, Assign(count, count + 1)),
        For(i, Const(0), Load(OUT, Const(0)), Store(OUT, Const(0), Load(OUT, Const(0)) + 1)),
        Put("n", count),
    )
    slots = agree(kernel_of(body, n, OUT), "f", [5, np.array([3])])
    assert slots[0] == 10 and slots[1][0] == 6


def test_names_that_mean_something_to_c_are_renamed(agree) -> None:
    names = [Var(name) for name in ("int", "class", "exp", "malloc", "args", "i64", "max_i64", "end")]
    total: Expr = Const(0)
    for name in names:
        total = total + name
    body = block(*(Declare(v, Const(k + 1)) for k, v in enumerate(names)), Store(OUT, Const(0), total))
    assert agree(kernel_of(body, OUT), "f", [np.zeros(1, np.int64)])[0][0] == 36


def test_helpers_may_come_after_their_callers(agree) -> None:
    a, total = Array("a", INT64), Var("total")
    sum_to = Function(
        "sum_to",
        (a, n),
        block(
            Declare(total, Const(0)), For(i, Const(0), n, Assign(total, total + Load(a, i))), Return(total)
        ),
    )
    clear = Function("clear", (a, n), block(Fill(a, Const(0), n, Const(0)), Return(Call("sum_to", (a, n)))))
    f = Function(
        "f",
        (n, Y, OUT),
        block(
            Store(OUT, Const(0), Call("sum_to", (Y, n))),
            Store(OUT, Const(1), Call("clear", (Y, n))),
            If(Call("fails", (n,)) < 0, block(Store(OUT, Const(2), Const(7)), Fail())),
        ),
        True,
    )
    W = Array("W", INT64)
    fails = Function("fails", (n,), block(Allocate(W, n), Free(W), Fail()))
    kernel = Kernel("", (n, Y, OUT), (f, clear, sum_to, fails))
    slots = agree(kernel, "f", [4, np.arange(1, 5), np.zeros(3, np.int64)])
    assert slots[2].tolist() == [10, 0, 7] and slots[1].tolist() == [0] * 4
    text = print_kernel(kernel)
    assert "static i64 sum_to(const i64 *restrict a, const i64 n)" in text
    assert "static i64 clear(i64 *restrict a, const i64 n)" in text


def test_allocation_that_is_too_large_fails(native) -> None:
    W = Array("W", FLOAT64)
    grow = kernel_of(block(Allocate(W, Const(1)), Resize(W, n), Free(W)), n)
    for body in (block(Allocate(W, n), Free(W)), block(Allocate(W, n, True), Free(W))):
        for count in (-1, 2**61, 2**62, 2**63 - 1, -(2**63)):
            assert native.call(kernel_of(body, n), "f", [count]) == 1
            assert native.call(grow, "f", [count]) == 1
        assert native.call(kernel_of(body, n), "f", [0]) == 0


def test_results_grow_and_are_put(agree) -> None:
    """The shape of assembly: append to an array that doubles, put it and its length."""
    W, size, capacity = Array("W", INT64), Var("size"), Var("capacity")
    body = block(
        Declare(size, Const(0)),
        Declare(capacity, Const(1)),
        Allocate(W, capacity),
        For(
            i,
            Const(0),
            n,
            If(
                Load(X, i).differs(Const(0.0, FLOAT32)),  # type: ignore[arg-type]
                block(
                    If(size.equals(capacity), block(Assign(capacity, capacity * 2), Resize(W, capacity))),
                    Store(W, size, i),
                    Assign(size, size + 1),
                ),
            ),
        ),
        Resize(W, size),
        Put("size", size),
        PutArray("W", W),
    )
    kernel = kernel_of(body, n, X, slots=(size, W))
    data = (np.arange(50) % 3 == 1).astype(np.float32)
    slots = agree(kernel, "f", [50, data, 0, 0])
    assert slots[2] == 17 and slots[3].tolist() == np.flatnonzero(data).tolist()


def test_operands_must_have_one_type() -> None:
    with pytest.raises(AssertionError, match="operands of \\+ have types int32 and int64"):
        print_kernel(kernel_of(Put("n", Load(Array("c", INT32), n) + n), n, Array("c", INT32)))


def everything() -> Kernel:
    """One kernel that uses most of the language."""
    half, z, W = Array("half", FLOAT16), Array("z", COMPLEX64), Array("W", INT64)
    key: Type = INT64
    body = block(
        Allocate(W, n),
        For(i, Const(0), n, Store(W, i, Binary("max", n - i, Const(1), key))),
        Perform(Call("sort_list", (W, n, Const(0)))),
        For(
            i,
            Const(0),
            n,
            block(
                Store(Y, i, Call("lower_bound_i64", (W, Const(0), n, i))),
                Store(X, i, Binary("pow", Load(half, i), Unary("tanh", Load(X, i), FLOAT32), FLOAT32)),
                Store(z, i, Binary("/", Load(z, i), Cast(Load(half, i), COMPLEX64), COMPLEX64)),
            ),
        ),
        Free(W),
    )
    return kernel_of(body, n, half, z, X, Y)


@pytest.mark.parametrize("language", ["c", "c++", "clang", "zig"])
def test_printed_text_is_c_and_cplusplus(language, tmp_path) -> None:
    source = tmp_path / "kernel.c"
    source.write_text(print_kernel(everything()))
    compilers = {
        "c": ["gcc", "-x", "c", "-std=gnu11", "-Wall", "-Wextra", "-Werror"],
        "c++": ["g++", "-x", "c++", "-Wall", "-Wextra", "-Werror"],
        "clang": ["clang", "-x", "c", "-std=gnu11", "-Wall", "-Werror"],
        "zig": [sys.executable, "-m", "ziglang", "cc", "-x", "c", "-std=gnu11", "-Wall", "-Werror"],
    }
    command = compilers[language]
    if language in ("clang", "zig"):  # some loops have a pragma for gcc
        command = [*command, "-Wno-unknown-pragmas"]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    if language == "zig":
        pytest.importorskip("ziglang")
    options = ["-O3", "-nostdlib", "-fPIC", "-shared", "-fwrapv", "-o", str(tmp_path / "kernel.so")]
    done = subprocess.run([*command, *options, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_kernel_runs_clean_under_sanitizers(tmp_path) -> None:
    """The whole kernel under the address and undefined behaviour sanitizers, in a process of its own."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    main = """
int main(void) {
  static unsigned short half[100]; static float z[200], x[100]; static long long y[100];
  for (int i = 0; i < 100; i++) half[i] = 0x3c00 + i, z[2 * i] = 1 + i, x[i] = i;
  long long args[5] = {100, (long long)half, (long long)z, (long long)x, (long long)y};
  return (int)f(args);
}
"""
    source, program = tmp_path / "kernel.c", tmp_path / "kernel"
    source.write_text(print_kernel(everything()) + main)
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    done = subprocess.run(
        ["gcc", "-g", "-O1", "-std=gnu11", *sanitize, str(source), "-lm", "-o", str(program)],
        capture_output=True,
        text=True,
    )
    if "cannot find" in done.stderr:
        pytest.skip("no sanitizer runtime")
    assert done.returncode == 0, done.stderr
    assert subprocess.run([str(program)], capture_output=True, text=True).returncode == 0


def test_empty_kernel_returns_success(agree) -> None:
    agree(kernel_of(Block(()), n), "f", [3])
