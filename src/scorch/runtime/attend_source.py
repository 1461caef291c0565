"""The C text of ``runtime.attend``; heads and their features are numbers in it."""

SOURCE = """\
enum { COUNTS = FIRST, X, SOURCES, TARGETS, OUT, KEPT, SCRATCH, OWN, OPTIONS };
enum { B_X = FIRST, B_SOURCES, B_TARGETS, B_KEPT, B_G, B_EACH, B_TOTAL, B_OPTIONS };
enum { C_PLACES = FIRST, C_KEPT, C_EACH, C_G, C_DX, C_TOTAL, C_OPTIONS };
enum { SLOPE, BELOW, SEED, SCALE }; /* of options */
#define ROW ((i64)KNOWN_HEADS * KNOWN_WIDTH)

typedef union { i64 bits; double number; } slot_t;
static double number(i64 bits) { const slot_t slot = {bits}; return slot.number; }

/* Random bits for draw n: those of splitmix64. */
static inline u64 draw(u64 seed, u64 n) {
    u64 z = seed + (n + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (z ^ (z >> 31)) >> 32;
}

/* exp(x) for x <= 0, to the last digits: 2^n in the exponent, a polynomial for the rest. */
static inline f32 exp_f32(f32 x) {
    x = x < -87.0f ? -87.0f : x;
    union { f32 number; i32 bits; } t = {x * 1.44269504088896341f + 12582912.0f}, power;
    const f32 n = t.number - 12582912.0f;
    const f32 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    f32 p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f, p = p * r + 8.3334519073e-3f, p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f, p = p * r + 5.0000001201e-1f;
    power.bits = (i32)(((unsigned)t.bits << 23) + (127u << 23));
    return (p * r * r + r + 1.0f) * power.number;
}
static inline f64 exp_f64(f64 x) {
    x = x < -708.0 ? -708.0 : x;
    union { f64 number; i64 bits; } t = {x * 1.4426950408889634 + 6755399441055744.0}, power;
    const f64 n = t.number - 6755399441055744.0;
    const f64 r = (x - n * 6.93147180369123816490e-1) - n * 1.90821492927058770002e-10;
    f64 p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600, p = p * r + 1.0 / 39916800, p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880, p = p * r + 1.0 / 40320, p = p * r + 1.0 / 5040, p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120, p = p * r + 1.0 / 24, p = p * r + 1.0 / 6, p = p * r + 0.5;
    power.bits = (i64)(((u64)t.bits << 52) + (1023ull << 52));
    return (p * r * r + r + 1.0) * power.number;
}

/* B heads of V vectors each: the sum of the rows of x at crd times their weights; negative ones are 0. */
#define SUMS(T, I, B, V) \\
static void sums_##T##_##I##_##B##_##V(const I *crd, i64 n, i64 left, const I *places, const T *weights, \\
                                       const T *x, T *out, T scale) { \\
    enum { LANES = sizeof(T##v) / sizeof(T) }; \\
    T##v sum[B * V]; \\
    UNROLL for (int v = 0; v < B * V; v++) sum[v] = (T##v){0}; \\
    for (i64 e = 0; e < n; e++) { \\
        const T *from = x + crd[e] * ROW, *weight = weights + (places ? places[e] : e) * KNOWN_HEADS; \\
        const T *later = x + crd[CLAMP(e + AHEAD, left - 1)] * ROW; \\
        FETCH(later, B * V * sizeof(T##v)) \\
        T##v times[B]; \\
        UNROLL for (int h = 0; h < B; h++) times[h] = (T##v){0} + (weight[h] < 0 ? (T)0 : weight[h]); \\
        UNROLL for (int v = 0; v < B * V; v++) sum[v] += times[v / V] * *(const T##v *)(from + v * LANES); \\
    } \\
    UNROLL for (int v = 0; v < B * V; v++) *(T##v *)(out + v * LANES) = sum[v] * scale; \\
}

#define SUMS_OF_ROWS(T, I) \\
SUMS(T, I, 1, 16) SUMS(T, I, 1, 4) SUMS(T, I, 1, 1) SUMS(T, I, 16, 1) SUMS(T, I, 8, 2) SUMS(T, I, 4, 4) \\
SUMS(T, I, 2, 8) \\
static inline void sums_##T##_##I(const I *crd, i64 n, i64 left, const I *places, const T *weights, \\
                                  const T *x, T *out, T scale) { \\
    enum { LANES = sizeof(T##v) / sizeof(T), VECTORS = KNOWN_WIDTH % LANES ? 0 : KNOWN_WIDTH / LANES }; \\
    const i64 together = VECTORS == 1 ? 16 : VECTORS == 2 ? 8 : VECTORS == 4 ? 4 : VECTORS == 8 ? 2 : 0; \\
    i64 h = 0; \\
    for (; together && h + together <= KNOWN_HEADS; h += together) { \\
        const T *from = x + h * KNOWN_WIDTH, *w = weights + h; \\
        T *to = out + h * KNOWN_WIDTH; \\
        if (together == 16) sums_##T##_##I##_16_1(crd, n, left, places, w, from, to, scale); \\
        else if (together == 8) sums_##T##_##I##_8_2(crd, n, left, places, w, from, to, scale); \\
        else if (together == 4) sums_##T##_##I##_4_4(crd, n, left, places, w, from, to, scale); \\
        else sums_##T##_##I##_2_8(crd, n, left, places, w, from, to, scale); \\
    } \\
    for (; h < KNOWN_HEADS; h++) { \\
        const T *from = x + h * KNOWN_WIDTH, *w = weights + h; \\
        T *to = out + h * KNOWN_WIDTH; \\
        i64 k = 0; \\
        for (; k + 16 * LANES <= KNOWN_WIDTH; k += 16 * LANES) \\
            sums_##T##_##I##_1_16(crd, n, left, places, w, from + k, to + k, scale); \\
        for (; k + 4 * LANES <= KNOWN_WIDTH; k += 4 * LANES) \\
            sums_##T##_##I##_1_4(crd, n, left, places, w, from + k, to + k, scale); \\
        for (; k + LANES <= KNOWN_WIDTH; k += LANES) \\
            sums_##T##_##I##_1_1(crd, n, left, places, w, from + k, to + k, scale); \\
        if (k < KNOWN_WIDTH && KNOWN_WIDTH >= LANES) { /* the last vector overlaps the one before it */ \\
            k = KNOWN_WIDTH - LANES; \\
            sums_##T##_##I##_1_1(crd, n, left, places, w, from + k, to + k, scale); \\
            k = KNOWN_WIDTH; \\
        } \\
        for (; k < KNOWN_WIDTH; k++) { \\
            T sum = 0; \\
            for (i64 e = 0; e < n; e++) { \\
                const T weight = w[(places ? places[e] : e) * KNOWN_HEADS]; \\
                if (!(weight < 0)) sum += weight * from[crd[e] * ROW + k]; \\
            } \\
            to[k] = sum * scale; \\
        } \\
    } \\
}

#define EACH_HEAD for (int h = 0; h < KNOWN_HEADS; h++)
#define ROUTINES(T, I) \\
SUMS_OF_ROWS(T, I) \\
static void attend_rows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \\
    const I *pos = (const I *)args[POS], *all = (const I *)args[CRD]; \\
    const i64 entries = pos[args[ROWS]]; \\
    const T *restrict sources = (const T *)args[SOURCES], slope = (T)number(args[OPTIONS + SLOPE]); \\
    const u64 below = (u64)args[OPTIONS + BELOW], seed = (u64)args[OPTIONS + SEED]; \\
    for (i64 i = begin; i < end; i++) { \\
        const i64 first = pos[i], n = pos[i + 1] - first; \\
        const I *crd = all + first; \\
        const T *counts = args[COUNTS] ? (const T *)args[COUNTS] + first : 0; \\
        T *restrict p = args[KEPT] ? (T *)args[KEPT] + first * KNOWN_HEADS \\
                                   : (T *)args[SCRATCH] + worker * args[OWN]; \\
        T target[KNOWN_HEADS], most[KNOWN_HEADS], total[KNOWN_HEADS]; \\
        EACH_HEAD target[h] = ((const T *)args[TARGETS])[i * KNOWN_HEADS + h]; \\
        EACH_HEAD most[h] = (T)-__builtin_inf(), total[h] = 0; \\
        for (i64 e = 0; e < n; e++) { \\
            const T *restrict source = sources + crd[e] * KNOWN_HEADS; \\
            EACH_HEAD { \\
                const T z = source[h] + target[h], score = z > 0 ? z : z * slope; \\
                p[e * KNOWN_HEADS + h] = score; \\
                most[h] = (score > most[h]) | (score != score) ? score : most[h]; \\
            } \\
        } \\
        for (i64 e = 0; e < n; e++) \\
            EACH_HEAD p[e * KNOWN_HEADS + h] = exp_##T(p[e * KNOWN_HEADS + h] - most[h]); \\
        for (i64 e = 0; counts && e < n; e++) EACH_HEAD p[e * KNOWN_HEADS + h] *= counts[e]; \\
        for (i64 e = 0; e < n; e++) EACH_HEAD total[h] += p[e * KNOWN_HEADS + h]; \\
        EACH_HEAD total[h] = 1 / total[h]; \\
        for (i64 e = 0; e < n; e++) EACH_HEAD p[e * KNOWN_HEADS + h] *= total[h]; \\
        for (i64 k = 0; below && k < n * KNOWN_HEADS; k++) \\
            if (draw(seed, (u64)(first * KNOWN_HEADS + k)) < below) p[k] = -p[k]; \\
        sums_##T##_##I(crd, n, entries - first, 0, p, (const T *)args[X], (T *)args[OUT] + i * ROW, \\
                       (T)number(args[OPTIONS + SCALE])); \\
    } \\
} \\
static inline T dot_##T##_##I(const T *a, const T *b) { \\
    enum { LANES = sizeof(T##v) / sizeof(T) }; \\
    T##v sums = (T##v){0}; \\
    T sum = 0; \\
    i64 k = 0; \\
    for (; k + LANES <= KNOWN_WIDTH; k += LANES) sums += *(const T##v *)(a + k) * *(const T##v *)(b + k); \\
    for (; k < KNOWN_WIDTH; k++) sum += a[k] * b[k]; \\
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane]; \\
    return sum; \\
} \\
static void scores_rows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \\
    const I *pos = (const I *)args[POS], *all = (const I *)args[CRD]; \\
    const i64 last = pos[args[ROWS]] - 1; \\
    const T *restrict x = (const T *)args[B_X], *restrict sources = (const T *)args[B_SOURCES]; \\
    const T slope = (T)number(args[B_OPTIONS + SLOPE]), scale = (T)number(args[B_OPTIONS + SCALE]); \\
    for (i64 i = begin; i < end; i++) { \\
        const i64 first = pos[i], n = pos[i + 1] - first; \\
        const I *crd = all + first; \\
        const T *restrict g = (const T *)args[B_G] + i * ROW; \\
        const T *restrict p = (const T *)args[B_KEPT] + first * KNOWN_HEADS; \\
        T *restrict each = (T *)args[B_EACH] + first * KNOWN_HEADS; \\
        T target[KNOWN_HEADS], mean[KNOWN_HEADS], total[KNOWN_HEADS]; \\
        EACH_HEAD target[h] = ((const T *)args[B_TARGETS])[i * KNOWN_HEADS + h], mean[h] = total[h] = 0; \\
        for (i64 e = 0; e < n; e++) { \\
            const T *from = x + crd[e] * ROW, *later = x + all[CLAMP(first + e + AHEAD, last)] * ROW; \\
            T dots[KNOWN_HEADS]; \\
            FETCH(later, ROW * sizeof(T)) \\
            EACH_HEAD dots[h] = dot_##T##_##I(g + h * KNOWN_WIDTH, from + h * KNOWN_WIDTH); \\
            EACH_HEAD { \\
                const T chance = p[e * KNOWN_HEADS + h], flow = chance < 0 ? 0 : dots[h] * scale; \\
                each[e * KNOWN_HEADS + h] = flow; \\
                mean[h] += chance * flow; \\
            } \\
        } \\
        for (i64 e = 0; e < n; e++) { \\
            const T *restrict source = sources + crd[e] * KNOWN_HEADS; \\
            EACH_HEAD { \\
                const T chance = p[e * KNOWN_HEADS + h], positive = chance < 0 ? -chance : chance; \\
                const T flow = positive * (each[e * KNOWN_HEADS + h] - mean[h]); \\
                const T down = source[h] + target[h] > 0 ? flow : flow * slope; \\
                each[e * KNOWN_HEADS + h] = down; \\
                total[h] += down; \\
            } \\
        } \\
        EACH_HEAD ((T *)args[B_TOTAL])[i * KNOWN_HEADS + h] = total[h]; \\
    } \\
} \\
static void features_rows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \\
    const I *pos = (const I *)args[POS], *all = (const I *)args[CRD]; \\
    const i64 entries = pos[args[ROWS]]; \\
    const T *restrict each = (const T *)args[C_EACH]; \\
    for (i64 j = begin; j < end; j++) { \\
        const i64 first = pos[j], n = pos[j + 1] - first; \\
        const I *places = (const I *)args[C_PLACES] + first; \\
        T total[KNOWN_HEADS]; \\
        EACH_HEAD total[h] = 0; \\
        for (i64 e = 0; e < n; e++) EACH_HEAD total[h] += each[places[e] * KNOWN_HEADS + h]; \\
        EACH_HEAD ((T *)args[C_TOTAL])[j * KNOWN_HEADS + h] = total[h]; \\
        sums_##T##_##I(all + first, n, entries - first, places, (const T *)args[C_KEPT], \\
                       (const T *)args[C_G], (T *)args[C_DX] + j * ROW, \\
                       (T)number(args[C_OPTIONS + SCALE])); \\
    } \\
} \\
ENTRY(T, I, attend) \\
ENTRY(T, I, scores) \\
ENTRY(T, I, features)
"""
