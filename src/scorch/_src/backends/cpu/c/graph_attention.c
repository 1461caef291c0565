enum { COUNTS = FIRST, X, SOURCES, TARGETS, EDGES, OUT, KEPT, SCRATCH, OWN, OPTIONS };
enum { B_X = FIRST, B_SOURCES, B_TARGETS, B_EDGES, B_KEPT, B_G, B_EACH, B_TOTAL, B_OPTIONS };
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

#define PICK(T, mask, a, b) ((T##v)(((T##m)(a) & (mask)) | ((T##m)(b) & ~(mask))))
#define ALL(T, number) ((T##v){0} + (T)(number))

/* exp(x) for x <= 0, to the last digits: 2^n in the exponent, a polynomial for the rest; 0 far below. */
static inline f32v exp_f32(f32v given) {
    const f32m tiny = given < ALL(f32, -87.0f);
    const f32v x = PICK(f32, tiny, ALL(f32, 0), given);
    const f32v t = x * 1.44269504088896341f + 12582912.0f, n = t - 12582912.0f;
    const f32v r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    f32v p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f, p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f, p = p * r + 5.0000001201e-1f;
    const f32m power = ((f32m)t << 23) + (127 << 23);
    return (f32v)((f32m)((p * r * r + r + 1.0f) * (f32v)power) & ~tiny);
}
static inline f64v exp_f64(f64v given) {
    const f64m tiny = given < ALL(f64, -708.0);
    const f64v x = PICK(f64, tiny, ALL(f64, 0), given);
    const f64v t = x * 1.4426950408889634 + 6755399441055744.0, n = t - 6755399441055744.0;
    const f64v r = (x - n * 6.93147180369123816490e-1) - n * 1.90821492927058770002e-10;
    f64v p = r * (1.0 / 6227020800) + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800, p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880, p = p * r + 1.0 / 40320, p = p * r + 1.0 / 5040, p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120, p = p * r + 1.0 / 24, p = p * r + 1.0 / 6, p = p * r + 0.5;
    const f64m power = ((f64m)t << 52) + (1023ll << 52);
    return (f64v)((f64m)((p * r * r + r + 1.0) * (f64v)power) & ~tiny);
}

/* Scores become exp(leaky_relu(score) - most), most the largest of each head: a row of n entries in a few
   passes. Heads take turns in the lanes of vectors, and after TURNS vectors it begins again; what is left
   over at the end is put into as many that are filled up. */
#define EACH_HEAD for (int h = 0; h < KNOWN_HEADS; h++)
#define EACH_TURN for (int v = 0; v < TURNS; v++)
#define LEAKY(T, z) PICK(T, (z) > ALL(T, 0), z, (z) * slope)
#define EXPONENTIALS(T) \
static inline void exponentials_##T(T *restrict p, i64 n, T slope) { \
    enum { LANES = sizeof(T##v) / sizeof(T), ROUND = TURNS * LANES }; \
    const i64 size = n * KNOWN_HEADS, whole = size - size % ROUND; \
    T##v most[TURNS], rest[TURNS]; \
    T lanes[ROUND], largest[KNOWN_HEADS]; \
    for (i64 k = 0; k < ROUND; k++) { \
        const T z = whole + k < size ? p[whole + k] : (T)-__builtin_inf(); \
        lanes[k] = z > 0 || whole + k >= size ? z : z * slope; \
    } \
    EACH_TURN most[v] = rest[v] = *(const T##v_at *)(lanes + v * LANES); \
    for (i64 k = 0; k < whole; k += ROUND) \
        EACH_TURN { \
            T##v_at *at = (T##v_at *)(p + k + v * LANES); \
            const T##v score = LEAKY(T, *at); \
            *at = score; \
            most[v] = PICK(T, (score > most[v]) | (score != score), score, most[v]); \
        } \
    EACH_TURN *(T##v_at *)(lanes + v * LANES) = most[v]; \
    EACH_HEAD largest[h] = lanes[h]; \
    for (int k = KNOWN_HEADS; k < ROUND; k++) { \
        T *other = largest + k % KNOWN_HEADS; \
        if (lanes[k] > *other || lanes[k] != lanes[k]) *other = lanes[k]; \
    } \
    for (int k = 0; k < ROUND; k++) lanes[k] = largest[k % KNOWN_HEADS]; \
    EACH_TURN most[v] = *(const T##v_at *)(lanes + v * LANES); \
    for (i64 k = 0; k < whole; k += ROUND) \
        EACH_TURN { \
            T##v_at *at = (T##v_at *)(p + k + v * LANES); \
            *at = exp_##T(*at - most[v]); \
        } \
    EACH_TURN *(T##v_at *)(lanes + v * LANES) = exp_##T(rest[v] - most[v]); \
    for (i64 k = whole; k < size; k++) p[k] = lanes[k - whole]; \
}

/* Without comparisons, which keep compilers from using vectors. */
#define ABSOLUTE_f32 __builtin_fabsf
#define ABSOLUTE_f64 __builtin_fabs
#define SIGN_f32(x) __builtin_copysignf(0.5f, x)
#define SIGN_f64(x) __builtin_copysign(0.5, x)
#define LEAST_f32 1.17549435e-38f
#define LEAST_f64 2.2250738585072014e-308
#define POSITIVE(T, x) ((T)0.5 * ((x) + ABSOLUTE_##T(x)))                    /* x, or 0 below it */
#define STEP(T, x, below) ((1 - (below)) * SIGN_##T(x) + (T)0.5 * (1 + (below))) /* 1, or below */

/* B heads of V vectors each: the sum of the rows of x at crd times their weights; negative ones are 0. */
#define SUMS(T, I, B, V) \
static void sums_##T##_##I##_##B##_##V(const I *crd, i64 n, i64 left, const I *places, const T *weights, \
                                       const T *x, T *out, T scale) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    T##v sum[B * V]; \
    UNROLL for (int v = 0; v < B * V; v++) sum[v] = (T##v){0}; \
    for (i64 e = 0; e < n; e++) { \
        const T *from = x + crd[e] * ROW, *weight = weights + (places ? places[e] : e) * KNOWN_HEADS; \
        const T *later = x + crd[CLAMP(e + AHEAD, left - 1)] * ROW; \
        FETCH(later, B * V * sizeof(T##v)) \
        if (places) __builtin_prefetch(weights + places[CLAMP(e + AHEAD, left - 1)] * KNOWN_HEADS); \
        T##v times[B]; \
        UNROLL for (int h = 0; h < B; h++) times[h] = ALL(T, POSITIVE(T, weight[h])); \
        UNROLL for (int v = 0; v < B * V; v++) \
            sum[v] += times[v / V] * *(const T##v_at *)(from + v * LANES); \
    } \
    UNROLL for (int v = 0; v < B * V; v++) *(T##v_at *)(out + v * LANES) = sum[v] * scale; \
}

#define SUMS_OF_ROWS(T, I) \
SUMS(T, I, 1, 16) SUMS(T, I, 1, 4) SUMS(T, I, 1, 1) SUMS(T, I, 16, 1) SUMS(T, I, 8, 2) SUMS(T, I, 4, 4) \
SUMS(T, I, 2, 8) \
static inline void sums_##T##_##I(const I *crd, i64 n, i64 left, const I *places, const T *weights, \
                                  const T *x, T *out, T scale) { \
    enum { LANES = sizeof(T##v) / sizeof(T), VECTORS = KNOWN_WIDTH % LANES ? 0 : KNOWN_WIDTH / LANES }; \
    const i64 together = VECTORS == 1 ? 16 : VECTORS == 2 ? 8 : VECTORS == 4 ? 4 : VECTORS == 8 ? 2 : 0; \
    i64 h = 0; \
    for (; together && h + together <= KNOWN_HEADS; h += together) { \
        const T *from = x + h * KNOWN_WIDTH, *w = weights + h; \
        T *to = out + h * KNOWN_WIDTH; \
        if (together == 16) sums_##T##_##I##_16_1(crd, n, left, places, w, from, to, scale); \
        else if (together == 8) sums_##T##_##I##_8_2(crd, n, left, places, w, from, to, scale); \
        else if (together == 4) sums_##T##_##I##_4_4(crd, n, left, places, w, from, to, scale); \
        else sums_##T##_##I##_2_8(crd, n, left, places, w, from, to, scale); \
    } \
    for (; h < KNOWN_HEADS; h++) { \
        const T *from = x + h * KNOWN_WIDTH, *w = weights + h; \
        T *to = out + h * KNOWN_WIDTH; \
        i64 k = 0; \
        for (; k + 16 * LANES <= KNOWN_WIDTH; k += 16 * LANES) \
            sums_##T##_##I##_1_16(crd, n, left, places, w, from + k, to + k, scale); \
        for (; k + 4 * LANES <= KNOWN_WIDTH; k += 4 * LANES) \
            sums_##T##_##I##_1_4(crd, n, left, places, w, from + k, to + k, scale); \
        for (; k + LANES <= KNOWN_WIDTH; k += LANES) \
            sums_##T##_##I##_1_1(crd, n, left, places, w, from + k, to + k, scale); \
        if (k < KNOWN_WIDTH && KNOWN_WIDTH >= LANES) { /* the last vector overlaps the one before it */ \
            k = KNOWN_WIDTH - LANES; \
            sums_##T##_##I##_1_1(crd, n, left, places, w, from + k, to + k, scale); \
            k = KNOWN_WIDTH; \
        } \
        for (; k < KNOWN_WIDTH; k++) { \
            T sum = 0; \
            for (i64 e = 0; e < n; e++) { \
                const T weight = w[(places ? places[e] : e) * KNOWN_HEADS]; \
                if (!(weight < 0)) sum += weight * from[crd[e] * ROW + k]; \
            } \
            to[k] = sum * scale; \
        } \
    } \
}

#define INTRINSICS(T, I) \
EXPONENTIALS(T) \
SUMS_OF_ROWS(T, I) \
static void attend_rows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    const I *pos = (const I *)args[POS], *all = (const I *)args[CRD]; \
    const i64 entries = pos[args[ROWS]]; \
    const T *restrict sources = (const T *)args[SOURCES], slope = (T)number(args[OPTIONS + SLOPE]); \
    const u64 below = (u64)args[OPTIONS + BELOW], seed = (u64)args[OPTIONS + SEED]; \
    for (i64 i = begin; i < end; i++) { \
        const i64 first = pos[i], n = pos[i + 1] - first; \
        const I *crd = all + first; \
        const T *counts = args[COUNTS] ? (const T *)args[COUNTS] + first : 0; \
        T *restrict p = args[KEPT] ? (T *)args[KEPT] + first * KNOWN_HEADS \
                                   : (T *)args[SCRATCH] + worker * args[OWN]; \
        T target[KNOWN_HEADS], total[KNOWN_HEADS]; \
        EACH_HEAD target[h] = ((const T *)args[TARGETS])[i * KNOWN_HEADS + h], total[h] = 0; \
        for (i64 e = 0; e < n; e++) { \
            const T *restrict source = sources + crd[e] * KNOWN_HEADS; \
            EACH_HEAD p[e * KNOWN_HEADS + h] = source[h] + target[h]; \
        } \
        if (args[EDGES]) { \
            const T *restrict own = (const T *)args[EDGES] + first * KNOWN_HEADS; \
            for (i64 k = 0; k < n * KNOWN_HEADS; k++) p[k] += own[k]; \
        } \
        exponentials_##T(p, n, slope); \
        for (i64 e = 0; counts && e < n; e++) EACH_HEAD p[e * KNOWN_HEADS + h] *= counts[e]; \
        for (i64 e = 0; e < n; e++) EACH_HEAD total[h] += p[e * KNOWN_HEADS + h]; \
        EACH_HEAD total[h] = 1 / total[h]; \
        for (i64 e = 0; e < n; e++) EACH_HEAD p[e * KNOWN_HEADS + h] *= total[h]; \
        for (i64 k = 0; below && k < n * KNOWN_HEADS; k++) \
            if (draw(seed, (u64)(first * KNOWN_HEADS + k)) < below) p[k] = -p[k]; \
        sums_##T##_##I(crd, n, entries - first, 0, p, (const T *)args[X], (T *)args[OUT] + i * ROW, \
                       (T)number(args[OPTIONS + SCALE])); \
    } \
} \
static inline T dot_##T##_##I(const T *a, const T *b) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    T##v sums = (T##v){0}; \
    T sum = 0; \
    i64 k = 0; \
    UNROLL for (; k + LANES <= KNOWN_WIDTH; k += LANES) \
        sums += *(const T##v_at *)(a + k) * *(const T##v_at *)(b + k); \
    for (; k < KNOWN_WIDTH; k++) sum += a[k] * b[k]; \
    UNROLL for (int half = LANES / 2; half; half /= 2) \
        UNROLL for (int lane = 0; lane < half; lane++) sums[lane] += sums[lane + half]; \
    return sum + sums[0]; \
} \
static void scores_rows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    const I *pos = (const I *)args[POS], *all = (const I *)args[CRD]; \
    const i64 last = pos[args[ROWS]] - 1; \
    const T *restrict x = (const T *)args[B_X], *restrict sources = (const T *)args[B_SOURCES]; \
    const T slope = (T)number(args[B_OPTIONS + SLOPE]), scale = (T)number(args[B_OPTIONS + SCALE]); \
    for (i64 i = begin; i < end; i++) { \
        const i64 first = pos[i], n = pos[i + 1] - first; \
        const I *crd = all + first; \
        const T *restrict g = (const T *)args[B_G] + i * ROW; \
        const T *restrict p = (const T *)args[B_KEPT] + first * KNOWN_HEADS; \
        T *restrict each = (T *)args[B_EACH] + first * KNOWN_HEADS; \
        T target[KNOWN_HEADS], mean[KNOWN_HEADS], total[KNOWN_HEADS]; \
        EACH_HEAD target[h] = ((const T *)args[B_TARGETS])[i * KNOWN_HEADS + h], mean[h] = total[h] = 0; \
        for (i64 e = 0; e < n; e++) { \
            const T *from = x + crd[e] * ROW, *later = x + all[CLAMP(first + e + AHEAD, last)] * ROW; \
            T dots[KNOWN_HEADS]; \
            FETCH(later, ROW * sizeof(T)) \
            UNROLL EACH_HEAD dots[h] = dot_##T##_##I(g + h * KNOWN_WIDTH, from + h * KNOWN_WIDTH); \
            EACH_HEAD { \
                const T chance = p[e * KNOWN_HEADS + h], flow = STEP(T, chance, (T)0) * scale * dots[h]; \
                each[e * KNOWN_HEADS + h] = flow; \
                mean[h] += chance * flow; \
            } \
        } \
        const T *edges = args[B_EDGES] ? (const T *)args[B_EDGES] + first * KNOWN_HEADS : 0; \
        for (i64 e = 0; e < n; e++) { \
            const T *restrict source = sources + crd[e] * KNOWN_HEADS; \
            T score[KNOWN_HEADS]; \
            EACH_HEAD score[h] = source[h] + target[h]; \
            if (edges) EACH_HEAD score[h] += edges[e * KNOWN_HEADS + h]; \
            EACH_HEAD { \
                const T chance = ABSOLUTE_##T(p[e * KNOWN_HEADS + h]); \
                const T z = score[h] - LEAST_##T; /* 0 is below */ \
                const T down = STEP(T, z, slope) * chance * (each[e * KNOWN_HEADS + h] - mean[h]); \
                each[e * KNOWN_HEADS + h] = down; \
                total[h] += down; \
            } \
        } \
        EACH_HEAD ((T *)args[B_TOTAL])[i * KNOWN_HEADS + h] = total[h]; \
    } \
} \
static void features_rows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    const I *pos = (const I *)args[POS], *all = (const I *)args[CRD]; \
    const i64 entries = pos[args[ROWS]]; \
    const T *restrict each = (const T *)args[C_EACH]; \
    for (i64 j = begin; j < end; j++) { \
        const i64 first = pos[j], n = pos[j + 1] - first; \
        const I *places = (const I *)args[C_PLACES] + first; \
        T total[KNOWN_HEADS]; \
        EACH_HEAD total[h] = 0; \
        for (i64 e = 0; e < n; e++) { \
            __builtin_prefetch(each + places[CLAMP(e + AHEAD, entries - first - 1)] * KNOWN_HEADS); \
            EACH_HEAD total[h] += each[places[e] * KNOWN_HEADS + h]; \
        } \
        EACH_HEAD ((T *)args[C_TOTAL])[j * KNOWN_HEADS + h] = total[h]; \
        sums_##T##_##I(all + first, n, entries - first, places, (const T *)args[C_KEPT], \
                       (const T *)args[C_G], (T *)args[C_DX] + j * ROW, \
                       (T)number(args[C_OPTIONS + SCALE])); \
    } \
} \
ENTRY(T, I, attend) \
ENTRY(T, I, scores) \
ENTRY(T, I, features)
