/* A batch lies in tiles of WIDTH rows of X, padded by zeros, each of which has the features one after the
   other: element b of feature j of a tile is at j * WIDTH + b. */
enum { VALUES = FIRST, BIAS, X, PACKED, OUT, BATCH, FEATURES, WIDTH };
#ifdef NARROW /* columns of 16 bits, which large weights are read with in less time */
#define COLUMN(I) unsigned short
#else
#define COLUMN(I) I
#endif
/* Four columns are one number of 64 bits, which is cheaper to take apart than to load one by one. */
#if defined(NARROW) && defined(__aarch64__) && $VECTOR == 16
#define PICK(q) {x[q & 0xffff], x[q >> 16 & 0xffff], x[q >> 32 & 0xffff], x[q >> 48]}
#define BY_FOURS_f32 \
    f32v low = {0}, high = {0}; \
    for (; e + 8 <= last; e += 8) { \
        u64 q, r; \
        __builtin_memcpy(&q, crd + e, 8), __builtin_memcpy(&r, crd + e + 4, 8); \
        const f32v a = PICK(q), b = PICK(r); \
        low += *(const f32v_at *)(values + e) * a, high += *(const f32v_at *)(values + e + 4) * b; \
    } \
    low += high, sum += (low[0] + low[1]) + (low[2] + low[3]);
#define BY_FOURS_f64
/* Registers are filled from the places that columns list: eight floats or four doubles at once. */
#elif defined(__AVX2__)
#ifdef NARROW
typedef unsigned short column8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef unsigned short column4 __attribute__((vector_size(8), aligned(2), may_alias));
#define BY_FOURS_f32 GATHERED(f32, 8, "vpcmpeqd", "vgatherdps", 4)
#define BY_FOURS_f64 GATHERED(f64, 4, "vpcmpeqd", "vgatherdpd", 8)
#else
#define BY_FOURS_f32
#define BY_FOURS_f64
#endif
typedef int place8 __attribute__((vector_size(32)));
typedef int place4 __attribute__((vector_size(16)));
typedef f32 f32x8 __attribute__((vector_size(32)));
typedef f64 f64x4 __attribute__((vector_size(32)));
typedef f32 f32x8_at __attribute__((vector_size(32), aligned(4), may_alias));
typedef f64 f64x4_at __attribute__((vector_size(32), aligned(8), may_alias));
struct any_memory { char bytes[1 << 20]; };
#define GATHER(T, N, ONES, NAME, SCALE, k) \
    const place##N at_##k = __builtin_convertvector(*(const column##N *)(crd + e + k * N), place##N); \
    T##x##N got_##k = {0}, mask_##k; \
    __asm__(ONES " %1, %1, %1\n\t" NAME " %1, (%2,%3," #SCALE "), %0" \
            : "+&x"(got_##k), "=&x"(mask_##k) : "r"(x), "x"(at_##k), "m"(*(const struct any_memory *)x)); \
    sum_##k += *(const T##x##N##_at *)(values + e + k * N) * got_##k;
#define GATHERED(T, N, ONES, NAME, SCALE) \
    T##x##N sum_0 = {0}, sum_1 = {0}, sum_2 = {0}, sum_3 = {0}; \
    for (; e + 4 * N <= last; e += 4 * N) { \
        GATHER(T, N, ONES, NAME, SCALE, 0) \
        GATHER(T, N, ONES, NAME, SCALE, 1) \
        GATHER(T, N, ONES, NAME, SCALE, 2) \
        GATHER(T, N, ONES, NAME, SCALE, 3) \
    } \
    for (; e + N <= last; e += N) { GATHER(T, N, ONES, NAME, SCALE, 0) } \
    sum_0 += sum_1 + sum_2 + sum_3; \
    for (int lane = 0; lane < N; lane++) sum += sum_0[lane];
#else
#define BY_FOURS_f32
#define BY_FOURS_f64
#endif
#define BY_FOURS(T) BY_FOURS_##T
enum { /* what is given: numbers, tensors, and the result at last */
    G_BATCH = ROWS + 1, G_FEATURES, G_WIDTH, G_HAS_BIAS, G_POS, G_CRD, G_VALUES, G_BIAS, G_X, G_PACKED, G_OUT
};
#define SHARED 65536 /* elements of a batch from which on threads share the copy */
enum { LINES = 16 }; /* outputs that are stored together, since they are neighbours in memory */

void *malloc(unsigned long);
void free(void *);
typedef struct { const i64 *args; i64 next; } packing_t;

#define INTRINSICS(T, I) \
TILES(T, COLUMN(I)) \
static void dots_##T##_##I(const i64 *args, i64 begin, i64 end) { \
    const I *pos = (const I *)args[POS]; \
    const COLUMN(I) *crd = (const COLUMN(I) *)args[CRD]; \
    const T *values = (const T *)args[VALUES], *x = (const T *)args[X], *bias = (const T *)args[BIAS]; \
    for (i64 row = begin; row < end; row++) { \
        T sum = bias ? bias[row] : (T)0; \
        i64 e = pos[row]; \
        const i64 last = pos[row + 1]; \
        BY_FOURS(T) \
        _Pragma("omp simd reduction(+:sum)") \
        for (i64 rest = e; rest < last; rest++) sum += values[rest] * x[(i64)crd[rest]]; \
        ((T *)args[OUT])[row] = sum; \
    } \
} \
static void linear_rows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const I *pos = (const I *)args[POS]; \
    const COLUMN(I) *crd = (const COLUMN(I) *)args[CRD]; \
    const T *values = (const T *)args[VALUES], *bias = (const T *)args[BIAS]; \
    const i64 batch = args[BATCH], width = args[WIDTH], rows = args[ROWS]; \
    T sums[LINES * MOST * LANES]; \
    (void)worker; \
    if (batch == 1) { dots_##T##_##I(args, begin, end); return; } \
    for (i64 at = 0; at < batch; at += width) { \
        const T *in = (const T *)args[PACKED] + at * args[FEATURES]; \
        const i64 count = CLAMP(width, batch - at), vectors = (count + LANES - 1) / LANES; \
        for (i64 row = begin; row < end; row += LINES) { \
            const i64 lines = CLAMP((i64)LINES, end - row); \
            for (i64 line = 0; line < lines; line++) { \
                const i64 r = row + line, from = pos[r], n = pos[r + 1] - from; \
                for (i64 v = 0; v < vectors;) \
                    v += widest_##T(crd + from, values + from, n, in + v * LANES, width, \
                                          bias ? bias[r] : (T)0, sums + line * width + v * LANES, vectors - v); \
            } \
            T *out = (T *)args[OUT] + at * rows + row; \
            for (i64 b = 0; b < count; b++) \
                for (i64 line = 0; line < lines; line++) out[b * rows + line] = sums[line * width + b]; \
        } \
    } \
} \
/* Eight features of all tiles at a time. */ \
static void pack_##T##_##I(i64 worker, i64 end, void *context) { \
    packing_t *job = context; \
    const i64 *args = job->args, batch = args[BATCH], features = args[FEATURES], width = args[WIDTH]; \
    (void)worker, (void)end; \
    for (;;) { \
        const i64 first = 64 * __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED); \
        if (first >= features) return; \
        const i64 last = CLAMP(first + 64, features); \
        for (i64 at = 0; at < batch; at += width) { \
            const i64 count = CLAMP(width, batch - at); \
            const T *x = (const T *)args[X] + at * features; \
            T *to = (T *)args[PACKED] + at * features; \
            for (i64 j = first; j < last; j += 8) { \
                const i64 some = CLAMP((i64)8, last - j); \
                for (i64 b = 0; b < count; b++) \
                    for (i64 k = 0; k < some; k++) to[(j + k) * width + b] = x[b * features + j + k]; \
                for (i64 k = 0; k < some; k++) \
                    for (i64 b = count; b < width; b++) to[(j + k) * width + b] = 0; \
            } \
        } \
    } \
} \
i64 scorch_linear_##T##_##I(i64 *given) { \
    const i64 threads = given[THREADS], width = given[G_WIDTH], tiles = (given[G_BATCH] + width - 1) / width; \
    const int needs_own = given[G_BATCH] > 1 && given[G_PACKED] == given[G_X]; \
    T *own = needs_own ? malloc(tiles * width * given[G_FEATURES] * sizeof(T)) : 0; \
    if (needs_own && !own) return 1; \
    const i64 args[] = { \
        given[PARALLEL], threads, given[ROWS], given[G_POS], given[G_CRD], given[G_VALUES], \
        given[G_HAS_BIAS] ? given[G_BIAS] : 0, given[G_X], own ? (i64)own : given[G_PACKED], given[G_OUT], \
        given[G_BATCH], given[G_FEATURES], width}; \
    packing_t job = {args, 0}; \
    if (args[BATCH] > 1 && (threads <= 1 || args[BATCH] * args[FEATURES] < SHARED)) \
        pack_##T##_##I(0, 1, &job); \
    else if (args[BATCH] > 1) \
        ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, threads, 1, pack_##T##_##I, &job); \
    by_rows(args, sizeof(I) == 8, linear_rows_##T##_##I); \
    free(own); \
    return 0; \
}
