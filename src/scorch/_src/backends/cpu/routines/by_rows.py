"""What routines over the rows of a compressed matrix share: chunks of rows for threads, memory for results.

A routine is C text whose first arguments are those of ``PRELUDE``. Threads take chunks of about as many
entries each, one after the other, so that a few long rows hold nobody up. Rows of a result are written by
one thread each, so results never depend on how many threads there are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import invoke, jit
from scorch._src.backends.cpu.launch import builtins, pack, result_facts
from scorch._src.compiler.target import target
from scorch._src.loops.types import FLOAT32, FLOAT64

EACH = 1 << 14  # elements read for each thread

PRELUDE = """\
typedef long long i64;
typedef unsigned long long u64;
typedef int i32;
typedef float f32;
typedef double f64;
/* In registers, and as it lies in memory: for loads and stores only, never by value. */
#define VECTOR(T, N) \\
typedef T N __attribute__((vector_size($VECTOR))); \\
typedef T N##_at __attribute__((vector_size($VECTOR), aligned(sizeof(T)), may_alias))
VECTOR(f32, f32v);
VECTOR(f64, f64v);
VECTOR(i32, f32m); /* what comparisons of vectors give */
VECTOR(i64, f64m);
#define AHEAD 8 /* so many entries before they are read, rows are fetched */
#define FETCH(from, bytes) \\
    for (int byte = 0; byte < (int)(bytes); byte += 64) __builtin_prefetch((const char *)(from) + byte);
#define CLAMP(a, b) ((a) < (b) ? (a) : (b))

#ifdef __clang__ /* arrays of vectors are registers only in loops that are unrolled */
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define ENTRY(T, I, name) \\
    i64 scorch_##name##_##T##_##I(i64 *args) { return by_rows(args, sizeof(I) == 8, name##_rows_##T##_##I); }

typedef void (*work_t)(i64, i64, void *);
typedef void (*rows_t)(const i64 *, i64, i64, i64);
enum { PARALLEL, THREADS, ROWS, POS, CRD, FIRST };
typedef struct { const i64 *args; rows_t rows; int wide; i64 chunks, next; } job_t;

static i64 pointer(const i64 *args, int wide, i64 row) {
    return wide ? ((const i64 *)args[POS])[row] : ((const i32 *)args[POS])[row];
}

/* The first row of a chunk: rows and entries before it are about its share of all. */
static i64 first_row(const job_t *job, i64 chunk) {
    const i64 rows = job->args[ROWS], all = pointer(job->args, job->wide, rows) + rows;
    const i64 wanted = (i64)((double)all * chunk / job->chunks);
    i64 low = 0, high = rows;
    if (chunk >= job->chunks) return rows;
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        if (pointer(job->args, job->wide, middle) + middle < wanted) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void some_chunks(i64 worker, i64 end, void *context) {
    job_t *job = context;
    (void)end;
    for (;;) {
        const i64 chunk = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (chunk >= job->chunks) return;
        job->rows(job->args, first_row(job, chunk), first_row(job, chunk + 1), worker);
    }
}

static i64 by_rows(const i64 *args, int wide, rows_t rows) {
    job_t job = {args, rows, wide, args[THREADS] > 1 ? 8 * args[THREADS] : 1, 0};
    if (args[THREADS] <= 1) some_chunks(0, 1, &job);
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, some_chunks, &job);
    return 0;
}
"""

_NOTHING = "long long scorch_nothing(long long *args) { return 0; }\n"
_TYPES = {torch.float32: FLOAT32, torch.float64: FLOAT64}


def address(source: str, what: str, name: str, dtype: torch.dtype, index: torch.dtype) -> int:
    """Where a function of a routine is, for numbers and indices of these types; 0 if none can be made.

    ``source`` ends with the macro ``ROUTINES(T, I)``, of which just the types that are used are compiled.
    """
    number, integer = "f32" if dtype == torch.float32 else "f64", "i32" if index == torch.int32 else "i64"
    return jit.function_address(text_of(source, number, integer), what, f"scorch_{name}_{number}_{integer}")


@functools.lru_cache(maxsize=256)
def text_of(source: str, number: str, integer: str) -> str:
    """All of a routine's text for these types."""
    text = f"{PRELUDE}{source}ROUTINES({number}, {integer})\n"
    return text.replace("$VECTOR", str(target().vector_bytes))


def run(at: int, work: int, rows: int, arrays: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> None:
    """Call the function at an address: ``arrays`` begin with pos and crd, ``numbers`` follow them."""
    parallel, threads = invoke.threads_for(work, EACH)
    places = [0 if array is None else invoke.address_of(array) for array in arrays]
    invoke.make_caller().call(at, parallel, threads, rows, *places, *numbers)


def most_threads() -> int:
    """How many threads ``run`` may use, for memory that each has for itself."""
    return invoke.threads_for(1 << 62, 1)[1]


def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor that is to be written, in memory that was used before where there is some."""
    made, element = builtins(), _TYPES.get(dtype)
    place = jit.function_address(_NOTHING, "memory of results", "scorch_nothing")
    if made is None or element is None or not place:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return made.fill(place, pack([]), result_facts(element, shape, zero=False), None)
