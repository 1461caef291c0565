enum { COUNTS = FIRST, X, OUT, TIES, WIDTH };        /* forwards */
enum { B_COUNTS = FIRST, B_X, B_OUT, B_G, B_DX, B_WIDTH }; /* back: rows are those of X */

#define PICK(T, mask, a, b) ((T##v)(((T##m)(a) & (mask)) | ((T##m)(b) & ~(mask))))

/* The larger of both; what is not a number stays. One instruction of ARM does what takes four elsewhere. */
#if defined(__aarch64__) && $VECTOR == 16
#define IN_f32 "4s"
#define IN_f64 "2d"
#define LARGER(T) \
static inline T##v larger_##T(T##v a, T##v b) { \
    T##v most; \
    __asm__("fmax %0." IN_##T ", %1." IN_##T ", %2." IN_##T : "=w"(most) : "w"(a), "w"(b)); \
    return most; \
}
#else
#define LARGER(T) \
static inline T##v larger_##T(T##v a, T##v b) { return PICK(T, (a > b) | (a != a), a, b); }
#endif
LARGER(f32)
LARGER(f64)

/* Columns of N vectors: the largest, and with TIED how many entries reach it. */
#define LARGEST(T, I, N, TIED) \
static void largest_##T##_##I##_##N##_##TIED(const I *crd, const T *counts, i64 n, i64 left, const T *x, \
                                             i64 width, T *out, T *ties) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    T##v best[N], reached[N]; \
    UNROLL for (int v = 0; v < N; v++) best[v] = (T##v){0} - (T)__builtin_inf(), reached[v] = (T##v){0}; \
    for (i64 e = 0; e < n; e++) { \
        const T *from = x + crd[e] * width, *later = x + crd[CLAMP(e + AHEAD, left - 1)] * width; \
        const T##v times = (T##v){0} + (TIED && counts ? counts[e] : (T)1); \
        FETCH(later, N * sizeof(T##v)) \
        UNROLL for (int v = 0; v < N; v++) { \
            const T##v here = *(const T##v_at *)(from + v * LANES); \
            const T##v most = larger_##T(here, best[v]); \
            const T##m stays = most == best[v], comes = most == here; \
            if (TIED) reached[v] = (T##v)((T##m)reached[v] & stays) + (T##v)((T##m)times & comes); \
            best[v] = most; \
        } \
    } \
    UNROLL for (int v = 0; v < N; v++) { \
        *(T##v_at *)(out + v * LANES) = best[v]; \
        if (TIED) *(T##v_at *)(ties + v * LANES) = reached[v]; \
    } \
}

#define BACK(T, I, N) \
static void back_##T##_##I##_##N(const I *crd, const T *counts, i64 n, i64 left, const T *x, const T *out, \
                                 const T *g, i64 width, T *dx) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    T##v sum[N], here[N]; \
    UNROLL for (int v = 0; v < N; v++) sum[v] = (T##v){0}, here[v] = *(const T##v_at *)(x + v * LANES); \
    for (i64 e = 0; e < n; e++) { \
        const T *best = out + crd[e] * width, *from = g + crd[e] * width; \
        const i64 later = crd[CLAMP(e + AHEAD, left - 1)] * width; \
        const T##v times = (T##v){0} + (counts ? counts[e] : (T)1); \
        FETCH(out + later, N * sizeof(T##v)) \
        FETCH(g + later, N * sizeof(T##v)) \
        UNROLL for (int v = 0; v < N; v++) { \
            const T##m same = here[v] == *(const T##v_at *)(best + v * LANES); \
            sum[v] += (T##v)((T##m)(times * *(const T##v_at *)(from + v * LANES)) & same); \
        } \
    } \
    UNROLL for (int v = 0; v < N; v++) *(T##v_at *)(dx + v * LANES) = sum[v]; \
}

#define INTRINSICS(T, I) \
LARGEST(T, I, 16, 0) LARGEST(T, I, 4, 0) LARGEST(T, I, 1, 0) \
LARGEST(T, I, 8, 1) LARGEST(T, I, 4, 1) LARGEST(T, I, 1, 1) \
BACK(T, I, 8) BACK(T, I, 4) BACK(T, I, 1) \
static void largest_one_##T##_##I(const I *crd, const T *counts, i64 n, const T *x, i64 width, \
                                  T *out, T *ties) { \
    T best = (T)-__builtin_inf(), reached = 0; \
    for (i64 e = 0; e < n; e++) { \
        const T here = x[crd[e] * width], times = counts ? counts[e] : (T)1; \
        if (here > best || here != here) best = here, reached = times; \
        else if (here == best) reached += times; \
    } \
    *out = best; \
    if (ties) *ties = reached; \
} \
static void back_one_##T##_##I(const I *crd, const T *counts, i64 n, const T *x, const T *out, const T *g, \
                               i64 width, T *dx) { \
    T sum = 0; \
    for (i64 e = 0; e < n; e++) \
        if (*x == out[crd[e] * width]) sum += (counts ? counts[e] : (T)1) * g[crd[e] * width]; \
    *dx = sum; \
} \
static void largest_rows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const I *pos = (const I *)args[POS], *all = (const I *)args[CRD]; \
    const T *x = (const T *)args[X]; \
    const i64 width = args[WIDTH]; \
    for (i64 i = begin; i < end; i++) { \
        const I *crd = all + pos[i]; \
        const T *counts = args[COUNTS] ? (const T *)args[COUNTS] + pos[i] : 0; \
        const i64 n = pos[i + 1] - pos[i], left = pos[args[ROWS]] - pos[i]; \
        T *out = (T *)args[OUT] + i * width, *ties = args[TIES] ? (T *)args[TIES] + i * width : 0; \
        if (!n) { \
            for (i64 k = 0; k < width; k++) out[k] = 0; \
            for (i64 k = 0; ties && k < width; k++) ties[k] = 1; \
            continue; \
        } \
        i64 k = 0; \
        for (; !ties && k + 16 * LANES <= width; k += 16 * LANES) \
            largest_##T##_##I##_16_0(crd, counts, n, left, x + k, width, out + k, 0); \
        for (; !ties && k + 4 * LANES <= width; k += 4 * LANES) \
            largest_##T##_##I##_4_0(crd, counts, n, left, x + k, width, out + k, 0); \
        for (; !ties && k + LANES <= width; k += LANES) \
            largest_##T##_##I##_1_0(crd, counts, n, left, x + k, width, out + k, 0); \
        for (; ties && k + 8 * LANES <= width; k += 8 * LANES) \
            largest_##T##_##I##_8_1(crd, counts, n, left, x + k, width, out + k, ties + k); \
        for (; ties && k + 4 * LANES <= width; k += 4 * LANES) \
            largest_##T##_##I##_4_1(crd, counts, n, left, x + k, width, out + k, ties + k); \
        for (; ties && k + LANES <= width; k += LANES) \
            largest_##T##_##I##_1_1(crd, counts, n, left, x + k, width, out + k, ties + k); \
        if (k < width && width >= LANES) { /* the last vector overlaps the one before it */ \
            k = width - LANES; \
            if (ties) largest_##T##_##I##_1_1(crd, counts, n, left, x + k, width, out + k, ties + k); \
            else largest_##T##_##I##_1_0(crd, counts, n, left, x + k, width, out + k, 0); \
            k = width; \
        } \
        for (; k < width; k++) \
            largest_one_##T##_##I(crd, counts, n, x + k, width, out + k, ties ? ties + k : 0); \
    } \
} \
static void back_rows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const I *pos = (const I *)args[POS], *all = (const I *)args[CRD]; \
    const T *out = (const T *)args[B_OUT], *g = (const T *)args[B_G]; \
    const i64 width = args[B_WIDTH]; \
    for (i64 j = begin; j < end; j++) { \
        const I *crd = all + pos[j]; \
        const T *counts = args[B_COUNTS] ? (const T *)args[B_COUNTS] + pos[j] : 0; \
        const T *x = (const T *)args[B_X] + j * width; \
        const i64 n = pos[j + 1] - pos[j], left = pos[args[ROWS]] - pos[j]; \
        T *dx = (T *)args[B_DX] + j * width; \
        i64 k = 0; \
        for (; k + 8 * LANES <= width; k += 8 * LANES) \
            back_##T##_##I##_8(crd, counts, n, left, x + k, out + k, g + k, width, dx + k); \
        for (; k + 4 * LANES <= width; k += 4 * LANES) \
            back_##T##_##I##_4(crd, counts, n, left, x + k, out + k, g + k, width, dx + k); \
        for (; k + LANES <= width; k += LANES) \
            back_##T##_##I##_1(crd, counts, n, left, x + k, out + k, g + k, width, dx + k); \
        if (k < width && width >= LANES) { \
            k = width - LANES; \
            back_##T##_##I##_1(crd, counts, n, left, x + k, out + k, g + k, width, dx + k); \
            k = width; \
        } \
        for (; k < width; k++) back_one_##T##_##I(crd, counts, n, x + k, out + k, g + k, width, dx + k); \
    } \
} \
ENTRY(T, I, largest) \
ENTRY(T, I, back)
