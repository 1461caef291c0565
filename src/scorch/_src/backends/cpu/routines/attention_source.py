"""The C text of sparse attention: blocks of 16 queries against all keys that any of them sees.

The keys of a block come in chunks, read wherever they lie, and the softmax is computed as they come: a
maximum and a sum for each query, from which the backward pass makes the probabilities again. Scores are in
base 2. Blocks whose queries see different keys run query by query, with lanes along the features.

Threads have shares of their own of all heads and blocks. Where a share begins in the middle of a head, the
gradients of its keys and values go to memory of the thread's own, which the caller adds.
"""

from __future__ import annotations

import functools

from scorch._src.backends.cpu.routines.attention_passes import BACKWARD, FORWARD
from scorch._src.backends.cpu.routines.attention_tiles import products

# in the order of the call; those that end in _AT hold a number for each head
ARGUMENTS = """
PARALLEL, THREADS, QUERIES, KEYS, DEPTH, WIDTH, BLOCKS, BOUNDS, MATRIX,
BEGIN, COLUMNS, MASKS, WIDE_INDEX, POS, CRD, NUMBERS, SEED, HEAD_SEED, DROPPED, SKIP, SKIP_AT,
Q, Q_AT, Q_STEP, K, K_AT, K_STEP, V, V_AT, V_STEP, OUT, STATE, SCRATCH, SCRATCH_SIZE, G, DQ, DK, DV, OWN
"""

_BASICS = """\
typedef long long i64;
typedef int i32;
typedef unsigned u32;
typedef unsigned short u16;
typedef unsigned char u8;
enum { ARGUMENTS };
"""

_HEADS = """
#define NONE (-(T)__builtin_inf())
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
enum { LINE = 64 / sizeof(T) };

/* What belongs to one head, and the memory of one thread */
typedef struct {
    const i64 *args;
    i64 depth, width, deep, wide; /* features of keys and values; the same in whole registers */
    T factor, scale, kept;        /* of scores in base 2; of scores; of what dropout keeps */
    const T *q, *k, *v, *out, *g;
    T *to, *state, *dq, *dk, *dv;
    const u8 *skip;
    i64 matrix;
    u32 seed;
    T *packed_q, *packed_g, *rows_q, *rows_g, *sums, *P, *D, *nowhere;
    T top[R], total[R], delta[R];
    u32 seeds[R];
    i64 count; /* keys of the chunk, the rest of the last tile included in whole */
    i64 whole;
    int full;
    i32 which[C];
    u16 bits[C];
    const T *keys[C], *values[C];
    T *to_keys[C], *to_values[C];
} head_t;

static void begin_head(head_t *h, const i64 *args, i64 head, i64 thread, int is_first) {
    const double *numbers = (const double *)args[NUMBERS];
    const i64 Q_ = args[QUERIES], S = args[KEYS];
    h->args = args;
    h->depth = args[DEPTH], h->width = args[WIDTH];
    h->deep = (h->depth + R - 1) / R * R, h->wide = (h->width + R - 1) / R * R;
    h->factor = (T)numbers[0], h->scale = (T)numbers[1], h->kept = (T)numbers[2];
    h->q = (const T *)args[Q] + ((const i64 *)args[Q_AT])[head];
    h->k = (const T *)args[K] + ((const i64 *)args[K_AT])[head];
    h->v = (const T *)args[V] + ((const i64 *)args[V_AT])[head];
    h->to = (T *)args[OUT] + head * Q_ * h->width;
    h->state = (T *)args[STATE] + head * Q_ * 2;
    h->skip = args[SKIP] ? (const u8 *)args[SKIP] + ((const i64 *)args[SKIP_AT])[head] : 0;
    h->matrix = ((const i64 *)args[MATRIX])[head];
    h->seed = mixed((u32)head ^ (u32)args[HEAD_SEED]);
    T *memory = (T *)args[SCRATCH] + thread * args[SCRATCH_SIZE];
    h->packed_q = memory, memory += R * h->deep;
    h->packed_g = memory, memory += R * h->wide;
    h->rows_q = memory, memory += R * h->deep;
    h->rows_g = memory, memory += R * h->wide;
    h->sums = memory, memory += R * (h->deep > h->wide ? h->deep : h->wide);
    h->P = memory, memory += R * C;
    h->D = memory, memory += R * C;
    h->nowhere = memory;
    if (!args[DQ]) return;
    const T *own = (const T *)((const i64 *)args[OWN])[thread];
    h->g = (const T *)args[G] + head * Q_ * h->width;
    h->dq = (T *)args[DQ] + head * Q_ * h->depth;
    h->dk = is_first && own ? (T *)own : (T *)args[DK] + head * S * h->deep;
    h->dv = is_first && own ? (T *)own + S * h->deep : (T *)args[DV] + head * S * h->wide;
}

static inline void take(head_t *h, i32 column, u16 bits) {
    const i64 at = h->count++;
    h->which[at] = column, h->bits[at] = bits, h->full &= bits == 0xffff;
    h->keys[at] = h->k + column * h->args[K_STEP], h->values[at] = h->v + column * h->args[V_STEP];
    h->to_keys[at] = h->dk + column * h->deep, h->to_values[at] = h->dv + column * h->wide;
}

/* The next keys of a block; 0 if there are none. The last tile is filled with keys that nobody sees. */
static i64 next_keys(head_t *h, i64 *at, i64 end) {
    const i32 *columns = (const i32 *)h->args[COLUMNS];
    const u16 *masks = (const u16 *)h->args[MASKS];
    h->count = 0, h->full = 1;
    for (; *at < end && h->count < C; ++*at)
        if (!h->skip || !h->skip[columns[*at]]) take(h, columns[*at], masks[*at]);
    if (!h->count) return 0;
    const i64 count = h->count;
    while (h->count % TALL) {
        h->to_keys[h->count] = h->to_values[h->count] = h->nowhere;
        h->keys[h->count] = h->keys[0], h->values[h->count] = h->values[0];
        h->which[h->count] = 0, h->bits[h->count++] = 0, h->full = 0;
    }
    h->whole = h->count, h->count = count;
    return count;
}

static i64 next_entries(head_t *h, i64 *at, i64 end) {
    h->count = 0;
    for (; *at < end && h->count < C; ++*at) {
        const i64 column = h->args[WIDE_INDEX] ? ((const i64 *)h->args[CRD])[*at]
                                               : ((const i32 *)h->args[CRD])[*at];
        if (h->skip && h->skip[column]) continue;
        take(h, (i32)column, 1);
        const T *key = h->keys[h->count - 1], *value = h->values[h->count - 1];
        for (i64 e = 0; e < h->depth; e += LINE) __builtin_prefetch(key + e);
        for (i64 e = 0; e < h->width; e += LINE) __builtin_prefetch(value + e);
    }
    return h->count;
}

static i64 place(const head_t *h, i64 row) {
    const i64 at = h->matrix * h->args[QUERIES] + row;
    return h->args[WIDE_INDEX] ? ((const i64 *)h->args[POS])[at] : ((const i32 *)h->args[POS])[at];
}

static inline ivec seen(const head_t *h, i64 c, i64 g) {
    return (((ivec){0} + (I)h->bits[c]) & BIT[g / W]) != 0;
}

/* What dropout makes of the pair of a query with this seed and a key */
static inline T dropped(const head_t *h, u32 seed, i32 column) {
    return (i64)mixed(seed ^ (u32)column * 0x9e3779b1u) >= h->args[DROPPED] ? h->kept : 0;
}

static void begin_row(head_t *h, i64 row, int q) {
    h->seeds[q] = mixed(mixed((u32)row ^ (u32)h->args[SEED]) + h->seed);
}

/* Lanes along the features, for one query */
static inline T sum(vec x) {
    T part[W];
    for (int lane = 0; lane < W; lane++) part[lane] = x[lane];
    for (int half = W / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++) part[lane] += part[lane + half];
    return part[0];
}

static void dots(T *out, const T *const *rows, i64 count, const T *x, i64 n) {
    i64 c = 0;
    for (; c + 4 <= count; c += 4) {
        const T *a = rows[c], *b = rows[c + 1], *d = rows[c + 2], *f = rows[c + 3];
        vec s = {0}, t = {0}, u = {0}, v = {0};
        T more[4] = {0, 0, 0, 0};
        i64 e = 0;
        for (; e + W <= n; e += W) {
            const vec y = *(const vec_at *)(x + e);
            s += y * *(const vec_at *)(a + e), t += y * *(const vec_at *)(b + e);
            u += y * *(const vec_at *)(d + e), v += y * *(const vec_at *)(f + e);
        }
        for (; e < n; e++)
            more[0] += x[e] * a[e], more[1] += x[e] * b[e], more[2] += x[e] * d[e], more[3] += x[e] * f[e];
        out[c] = more[0] + sum(s), out[c + 1] = more[1] + sum(t);
        out[c + 2] = more[2] + sum(u), out[c + 3] = more[3] + sum(v);
    }
    for (; c < count; c++) {
        vec s = {0};
        T more = 0;
        i64 e = 0;
        for (; e + W <= n; e += W) s += *(const vec_at *)(x + e) * *(const vec_at *)(rows[c] + e);
        for (; e < n; e++) more += x[e] * rows[c][e];
        out[c] = more + sum(s);
    }
}

static void sum_rows(T *sums, const T *const *rows, i64 count, const T *weights, i64 n) {
    i64 e = 0;
    for (; e + 4 * W <= n; e += 4 * W) {
        vec_at *to = (vec_at *)(sums + e);
        vec s = to[0], t = to[1], u = to[2], v = to[3];
        for (i64 c = 0; c < count; c++) {
            const vec_at *from = (const vec_at *)(rows[c] + e);
            s += weights[c] * from[0], t += weights[c] * from[1];
            u += weights[c] * from[2], v += weights[c] * from[3];
        }
        to[0] = s, to[1] = t, to[2] = u, to[3] = v;
    }
    for (i64 c = 0; c < count; c++)
        for (i64 i = e; i < n; i++) sums[i] += weights[c] * rows[c][i];
}

static void add_rows(T *const *rows, i64 count, const T *weights, const T *x, i64 pad) {
    for (i64 c = 0; c < count; c++) {
        const T weight = weights[c];
        T *to = rows[c];
        for (i64 e = 0; c + 2 < count && e < pad; e += LINE) __builtin_prefetch(rows[c + 2] + e, 1);
        for (i64 e = 0; e < pad; e += R) {
            vec sums[R / W];
            for (int i = 0; i < R / W; i++)
                sums[i] = *(vec_at *)(to + e + i * W) + weight * *(const vec_at *)(x + e + i * W);
            for (int i = 0; i < R / W; i++) *(vec_at *)(to + e + i * W) = sums[i];
        }
    }
}
"""

_MIXED = """
static inline u32 mixed(u32 x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}
"""

_SHARED = """
typedef void (*work_t)(i64, i64, void *);

/* Head and block where each thread begins, and where the last one ends */
#define SHARE(name) \\
static void name##_share(i64 begin, i64 stop, void *context) { \\
    const i64 *args = context, blocks = args[BLOCKS], *bounds = (const i64 *)args[BOUNDS]; \\
    for (i64 thread = begin; thread < stop; thread++) { \\
        const i64 first = bounds[thread], last = bounds[thread + 1]; \\
        head_t h = {0}; \\
        for (i64 unit = first; unit < last; unit++) { \\
            const i64 block = unit % blocks, row = block * R, rows = LEAST(R, args[QUERIES] - row); \\
            if (unit == first || !block) begin_head(&h, args, unit / blocks, thread, unit == first); \\
            const i64 *keys = (const i64 *)args[BEGIN] + h.matrix * blocks + block; \\
            if (keys[0] < keys[1]) name##_block(&h, row, rows, keys[0], keys[1]); \\
            else for (i64 q = row; q < row + rows; q++) name##_row(&h, q, place(&h, q), place(&h, q + 1)); \\
        } \\
    } \\
} \\
i64 scorch_attention_##name(i64 *args) { \\
    if (args[THREADS] <= 1) name##_share(0, 1, args); \\
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, name##_share, args); \\
    return 0; \\
}
SHARE(forward)
SHARE(backward)
"""


@functools.cache
def source(element: str) -> str:
    """The routines for numbers of the C type ``element``."""
    body = _MIXED + _HEADS + FORWARD + BACKWARD + _SHARED
    return _BASICS.replace("ARGUMENTS", ARGUMENTS) + products(element) + body
