"""The C text of sparse attention: blocks of 16 queries against all keys that any of them sees.

The keys of a block come in chunks, read wherever they lie, and the softmax is computed as they come: a
maximum and a sum for each query, from which the backward pass makes the probabilities again. Scores are in
base 2. Blocks whose queries see different keys run query by query, with lanes along the features.

Threads have shares of their own of all heads and blocks. Where a share begins in the middle of a head, the
gradients of its keys and values go to memory of the thread's own, which the caller adds.

The products are in tiles of registers with a query in each lane:

    scores    out[c][q]   = sum(e, rows[c][e] * packed[e][q])        keys, wherever they lie, times queries
    gather    sums[e][q] += sum(c, rows[c][e] * weights[c][q])       a sum of rows for each query
    scatter   rows[c][e] += sum(q, weights[c][q] * block[q][e])      what all queries add to a row

No sum runs across a register, and the rows of keys and values need not be copied. Registers have names, so
that compilers keep them, whatever they think of loops.
"""

from __future__ import annotations

import functools
import math

from scorch._src.backends.cpu.jit import read_source
from scorch._src.compiler.target import target

ROWS = 16  # queries of a block
CHUNK = 64  # keys between two looks at the maximum
_DETAILS = {  # bytes, integers of that size, digits, least exponent, terms of the polynomial
    "float": (4, "int", 23, -126, 7),
    "double": (8, "long long", 52, -1022, 13),
}

# in the order of the call; those that end in _AT hold a number for each head
ARGUMENTS = """
PARALLEL, THREADS, QUERIES, KEYS, DEPTH, WIDTH, BLOCKS, BOUNDS, MATRIX,
BEGIN, COLUMNS, MASKS, WIDE_INDEX, POS, CRD, NUMBERS, SEED, HEAD_SEED, DROPPED, SKIP, SKIP_AT,
Q, Q_AT, Q_STEP, K, K_AT, K_STEP, V, V_AT, V_STEP, OUT, STATE, SCRATCH, SCRATCH_SIZE, G, DQ, DK, DV, OWN
"""


@functools.cache
def source(element: str) -> str:
    """The routines for numbers of the C type ``element``."""
    types = read_source("attention_types.c").replace("ARGUMENTS", ARGUMENTS)
    return types + products(element) + read_source("attention.c")


def products(element: str) -> str:
    """Write the three products and an exponential for numbers of the C type ``element``."""
    size, whole, digits, least, terms = _DETAILS[element]
    machine = target()
    lanes = min(machine.vector_bytes // size, ROWS)
    vectors = max(1, min(ROWS // lanes, 4 if machine.vector_registers > 16 else 2))
    tall = 8 if vectors == 1 else 4
    head = f"""\
typedef {element} T;
typedef {whole} I;
enum {{ R = {ROWS}, C = {CHUNK}, W = {lanes}, TALL = {tall}, WIDE = {lanes * vectors} }};
typedef T vec __attribute__((vector_size({size * lanes})));
typedef I ivec __attribute__((vector_size({size * lanes})));
typedef T vec_at __attribute__((vector_size({size * lanes}), aligned({size}), may_alias)); /* in memory */
"""
    return head + _exponential(lanes, digits, least, terms) + _tiles(tall, vectors)


def _exponential(lanes: int, digits: int, least: int, terms: int) -> str:
    """2 to the power of numbers that are not positive: of what is left after rounding, by a polynomial."""
    up, bias = 1.5 * 2**digits, (1 - (least - 1) - 1) << digits
    series = [f"(T){math.log(2) ** power / math.factorial(power)!r}" for power in range(terms + 1)]
    polynomial = f"(vec){{0}} + {series[terms]}"
    for term in reversed(series[:terms]):
        polynomial = f"({polynomial}) * r + {term}"
    bits = ("{" + ", ".join(str(1 << lane + g) for lane in range(lanes)) + "}" for g in range(0, ROWS, lanes))
    return f"""
static const ivec BIT[R / W] = {{{", ".join(bits)}}}; /* of each lane in the mask of a key */

static inline vec pick(ivec which, vec a, vec b) {{ return (vec)((which & (ivec)a) | (~which & (ivec)b)); }}

static inline vec power(vec x) {{
    x = pick(x < (T){least}, (vec){{0}} + (T){least}, x);
    const vec up = x + (T){up!r}, r = x - (up - (T){up!r});
    return ({polynomial}) * (vec)(((ivec)up << {digits}) + (I){bias}LL);
}}
"""


def _tile(tall: int, vectors: int, place: str, factor: str) -> tuple[str, str, str, str]:
    """Lines that load ``tall`` by ``vectors`` registers, or zero them, add products, and store them."""
    load, zero, store = [], [], []
    add = [f"const vec b{j} = *(const vec_at *)(b + {j} * W);" for j in range(vectors)]
    for i in range(tall):
        add.append(f"const T a{i} = {factor.format(i=i)};")
        for j in range(vectors):
            at = f"*(vec_at *)({place.format(i=i)} + {j} * W)"
            load.append(f"vec s{i}_{j} = {at};")
            zero.append(f"vec s{i}_{j} = {{0}};")
            add.append(f"s{i}_{j} += a{i} * b{j};")
            store.append(f"{at} = s{i}_{j};")
    return " ".join(load), " ".join(zero), " ".join(add), " ".join(store)


def _tiles(tall: int, vectors: int) -> str:
    read = " ".join(f"const T *a_{i} = rows[c + {i}];" for i in range(tall))
    write = " ".join(f"T *to_{i} = rows[c + {i}];" for i in range(tall))
    _, zero, add, store = _tile(tall, vectors, "to + {i} * R", "a_{i}[e]")
    text = f"""
static void scores(T *restrict out, const T *const *rows, i64 count, const T *restrict packed, i64 depth) {{
    for (i64 c = 0; c < count; c += TALL) {{
        {read}
        for (i64 g = 0; g < R; g += WIDE) {{
            const T *b = packed + g;
            T *to = out + c * R + g;
            {zero}
            for (i64 e = 0; e < depth; e++, b += R) {{ {add} }}
            {store}
        }}
    }}
}}

static void gather_few(T *restrict sums, const T *const *rows, i64 count, const T *restrict weights,
                       i64 width) {{
    i64 e = 0;
"""
    for height in (tall, 1):
        load, _, add, store = _tile(height, vectors, "to + {i} * R", "a[{i}]")
        text += f"""\
    for (; e + {height} <= width; e += {height})
        for (i64 g = 0; g < R; g += WIDE) {{
            T *to = sums + e * R + g;
            const T *b = weights + g;
            {load}
            for (i64 c = 0; c < count; c++, b += R) {{ const T *a = rows[c] + e; {add} }}
            {store}
        }}
"""
    load, _, add, store = _tile(tall, vectors, "to_{i} + e", "a[{i} * R]")
    return (
        text
        + f"""\
}}

/* A few rows at a time: columns of many rows, whose lengths are often a power of two, crowd a cache */
static void gather(T *restrict sums, const T *const *rows, i64 count, const T *restrict weights, i64 width) {{
    for (i64 c = 0; c < count; c += R)
        gather_few(sums, rows + c, count - c < R ? count - c : R, weights + c * R, width);
}}

static void scatter(T *const *rows, i64 count, const T *restrict weights, const T *restrict block, i64 pad) {{
    for (i64 c = 0; c < count; c += TALL) {{
        {write}
        for (i64 e = 0; e < pad; e += WIDE) {{
            const T *a = weights + c * R, *b = block + e;
            {load}
            for (int q = 0; q < R; q++, a++, b += pad) {{ {add} }}
            {store}
        }}
    }}
}}
"""
    )
