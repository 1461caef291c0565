
static inline u32 mixed(u32 x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

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

/* Forward, the softmax is computed as keys come: when a larger maximum is met, what was summed is made smaller.
   Backward, the weights P are made again from the maxima and sums, and with D, the gradients of weights,

       delta[q] = sum(e, G[q,e] * O[q,e])        dS[c,q] = P[c,q] * (D[c,q] - delta[q])

   are the gradients of the scores, from which those of queries, keys and values are sums. */

/* The chunk's scores in P become weights relative to the maximum so far */
static void absorb(head_t *h) {
    const i64 count = h->whole;
    for (i64 g = 0; g < R; g += W) {
        const vec before = *(vec_at *)(h->top + g);
        vec top = before;
        for (i64 c = 0; c < count; c++) {
            vec_at *s = (vec_at *)(h->P + c * R + g);
            if (!h->full) *s = pick(seen(h, c, g), *s, (vec){0} + NONE);
            top = pick(*s > top, *s, top);
        }
        const vec by = pick(top == NONE, (vec){0}, top), smaller = power(before - by);
        vec total = *(vec_at *)(h->total + g) * smaller;
        for (i64 c = 0; c < count; c++) {
            vec_at *s = (vec_at *)(h->P + c * R + g);
            vec p = power(*s - by);
            if (!h->full) p = pick(seen(h, c, g), p, (vec){0});
            total += p, *s = p;
        }
        *(vec_at *)(h->top + g) = top, *(vec_at *)(h->total + g) = total;
        int is_same = 1;
        for (int lane = 0; lane < W; lane++) is_same &= before[lane] == top[lane];
        if (!is_same)
            for (i64 e = 0; e < h->width; e++) *(vec_at *)(h->sums + e * R + g) *= smaller;
    }
}

static void forward_block(head_t *h, i64 first, i64 rows, i64 at, i64 end) {
    for (int q = 0; q < R; q++) {
        const T *from = h->q + (first + q) * h->args[Q_STEP];
        for (i64 e = 0; e < h->depth; e++) h->packed_q[e * R + q] = q < rows ? h->factor * from[e] : 0;
        h->top[q] = NONE, h->total[q] = 0;
        begin_row(h, first + q, q);
    }
    for (i64 i = 0; i < R * h->width; i++) h->sums[i] = 0;
    while (next_keys(h, &at, end)) {
        scores(h->P, h->keys, h->whole, h->packed_q, h->depth);
        absorb(h);
        if (h->args[DROPPED])
            for (i64 c = 0; c < h->count; c++)
                for (int q = 0; q < R; q++) h->P[c * R + q] *= dropped(h, h->seeds[q], h->which[c]);
        gather(h->sums, h->values, h->count, h->P, h->width);
    }
    for (int q = 0; q < rows; q++) {
        const T by = h->total[q] > 0 || h->total[q] != h->total[q] ? 1 / h->total[q] : 0;
        T *to = h->to + (first + q) * h->width;
        for (i64 e = 0; e < h->width; e++) to[e] = h->sums[e * R + q] * by;
        h->state[2 * (first + q)] = h->top[q] == NONE ? 0 : h->top[q], h->state[2 * (first + q) + 1] = by;
    }
}

static void forward_row(head_t *h, i64 row, i64 at, i64 end) {
    const T *from = h->q + row * h->args[Q_STEP];
    T top = NONE, total = 0, *to = h->to + row * h->width;
    for (i64 e = 0; e < h->depth; e++) h->rows_q[e] = h->factor * from[e];
    for (i64 e = 0; e < h->width; e++) h->sums[e] = 0;
    begin_row(h, row, 0);
    while (next_entries(h, &at, end)) {
        const T before = top;
        dots(h->P, h->keys, h->count, h->rows_q, h->depth);
        for (i64 c = 0; c < h->count; c++) top = h->P[c] > top ? h->P[c] : top;
        const T by = top == NONE ? 0 : top, smaller = power((vec){0} + (before - by))[0];
        for (i64 c = 0; c < h->count; c += W) *(vec_at *)(h->P + c) = power(*(vec_at *)(h->P + c) - by);
        total *= smaller;
        for (i64 c = 0; c < h->count; c++) total += h->P[c];
        if (before != top)
            for (i64 e = 0; e < h->width; e++) h->sums[e] *= smaller;
        if (h->args[DROPPED])
            for (i64 c = 0; c < h->count; c++) h->P[c] *= dropped(h, h->seeds[0], h->which[c]);
        sum_rows(h->sums, h->values, h->count, h->P, h->width);
    }
    const T by = total > 0 || total != total ? 1 / total : 0;
    for (i64 e = 0; e < h->width; e++) to[e] = h->sums[e] * by;
    h->state[2 * row] = top == NONE ? 0 : top, h->state[2 * row + 1] = by;
}

/* The gradient of the scores is P (D - delta), where D is that of the weights */
static void backward_block(head_t *h, i64 first, i64 rows, i64 at, i64 end) {
    for (int q = 0; q < R; q++) {
        const T *from = h->q + (first + q) * h->args[Q_STEP], *out = h->to + (first + q) * h->width;
        const T *g = h->g + (first + q) * h->width;
        h->delta[q] = h->top[q] = h->total[q] = 0;
        for (i64 e = 0; e < h->depth; e++) {
            const T x = q < rows ? from[e] : 0;
            h->packed_q[e * R + q] = h->factor * x, h->rows_q[q * h->deep + e] = h->scale * x;
        }
        for (i64 e = 0; e < h->width; e++) {
            const T x = q < rows ? g[e] : 0;
            h->packed_g[e * R + q] = h->rows_g[q * h->wide + e] = x;
            if (q < rows) h->delta[q] += x * out[e];
        }
        for (i64 e = h->depth; e < h->deep; e++) h->rows_q[q * h->deep + e] = 0;
        for (i64 e = h->width; e < h->wide; e++) h->rows_g[q * h->wide + e] = 0;
        if (q < rows) h->top[q] = h->state[2 * (first + q)], h->total[q] = h->state[2 * (first + q) + 1];
        begin_row(h, first + q, q);
    }
    for (i64 i = 0; i < R * h->depth; i++) h->sums[i] = 0;
    while (next_keys(h, &at, end)) {
        scores(h->P, h->keys, h->whole, h->packed_q, h->depth);
        scores(h->D, h->values, h->whole, h->packed_g, h->width);
        for (i64 c = 0; c < h->whole; c++)
            for (i64 g = 0; g < R; g += W) {
                vec_at *p = (vec_at *)(h->P + c * R + g), *d = (vec_at *)(h->D + c * R + g);
                vec x = power(*p - *(vec_at *)(h->top + g)) * *(vec_at *)(h->total + g);
                if (!h->full) x = pick(seen(h, c, g), x, (vec){0});
                if (h->args[DROPPED]) {
                    vec kept;
                    for (int lane = 0; lane < W; lane++)
                        kept[lane] = dropped(h, h->seeds[g + lane], h->which[c]);
                    *p = x * kept, *d = x * (*d * kept - *(vec_at *)(h->delta + g));
                } else *p = x, *d = x * (*d - *(vec_at *)(h->delta + g));
            }
        scatter(h->to_values, h->whole, h->P, h->rows_g, h->wide);
        scatter(h->to_keys, h->whole, h->D, h->rows_q, h->deep);
        gather(h->sums, h->keys, h->count, h->D, h->depth);
    }
    for (int q = 0; q < rows; q++)
        for (i64 e = 0; e < h->depth; e++) h->dq[(first + q) * h->depth + e] = h->scale * h->sums[e * R + q];
}

static void backward_row(head_t *h, i64 row, i64 at, i64 end) {
    const T *from = h->q + row * h->args[Q_STEP], *out = h->to + row * h->width, *g = h->g + row * h->width;
    const T top = h->state[2 * row], by = h->state[2 * row + 1];
    T delta = 0, *scaled = h->rows_q + h->deep;
    for (i64 e = 0; e < h->deep; e++) {
        const T x = e < h->depth ? from[e] : 0;
        h->rows_q[e] = h->factor * x, scaled[e] = h->scale * x, h->sums[e] = 0;
    }
    for (i64 e = 0; e < h->wide; e++) {
        h->rows_g[e] = e < h->width ? g[e] : 0;
        if (e < h->width) delta += g[e] * out[e];
    }
    begin_row(h, row, 0);
    while (next_entries(h, &at, end)) {
        dots(h->P, h->keys, h->count, h->rows_q, h->depth);
        dots(h->D, h->values, h->count, h->rows_g, h->width);
        for (i64 c = 0; c < h->count; c += W) *(vec_at *)(h->P + c) = power(*(vec_at *)(h->P + c) - top) * by;
        for (i64 c = 0; c < h->count; c++) {
            const T kept = h->args[DROPPED] ? dropped(h, h->seeds[0], h->which[c]) : 1;
            h->D[c] = h->P[c] * (h->D[c] * kept - delta), h->P[c] *= kept;
        }
        add_rows(h->to_values, h->count, h->P, h->rows_g, h->wide);
        add_rows(h->to_keys, h->count, h->D, scaled, h->deep);
        sum_rows(h->sums, h->keys, h->count, h->D, h->depth);
    }
    for (i64 e = 0; e < h->depth; e++) h->dq[row * h->depth + e] = h->scale * h->sums[e];
}

typedef void (*work_t)(i64, i64, void *);

/* Head and block where each thread begins, and where the last one ends */
#define SHARE(name) \
static void name##_share(i64 begin, i64 stop, void *context) { \
    const i64 *args = context, blocks = args[BLOCKS], *bounds = (const i64 *)args[BOUNDS]; \
    for (i64 thread = begin; thread < stop; thread++) { \
        const i64 first = bounds[thread], last = bounds[thread + 1]; \
        head_t h = {0}; \
        for (i64 unit = first; unit < last; unit++) { \
            const i64 block = unit % blocks, row = block * R, rows = LEAST(R, args[QUERIES] - row); \
            if (unit == first || !block) begin_head(&h, args, unit / blocks, thread, unit == first); \
            const i64 *keys = (const i64 *)args[BEGIN] + h.matrix * blocks + block; \
            if (keys[0] < keys[1]) name##_block(&h, row, rows, keys[0], keys[1]); \
            else for (i64 q = row; q < row + rows; q++) name##_row(&h, q, place(&h, q), place(&h, q + 1)); \
        } \
    } \
} \
i64 scorch_attention_##name(i64 *args) { \
    if (args[THREADS] <= 1) name##_share(0, 1, args); \
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, name##_share, args); \
    return 0; \
}
SHARE(forward)
SHARE(backward)
