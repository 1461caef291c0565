/* A few rows of a batch by a weight with N:M sparsity: each window of WINDOW columns has PER_WINDOW entries in every
   row. A vector holds the sums of LANES rows of the weight, whose next entries lie in the same window: one load and
   one shuffle give all of them their features, in place of one load each. Where an entry is in its window takes four
   bits: CRD has those of LANES rows next to each other, entry by entry, in place of columns. Values are in the order
   of rows, and become vectors in registers, some columns at a time. */
#ifdef PER_WINDOW
#define IS_WINDOWED 1
enum {
    WINDOW = $VECTOR / sizeof(f32), /* a vector of features */
    PANEL = 64, FEW_ROWS = 16 /* entries that are turned, and rows of a batch, at a time */
};
typedef int f32p __attribute__((vector_size($VECTOR)));
#if defined(__AVX512F__) && $VECTOR == 64 || defined(__AVX2__) && $VECTOR == 32
#define PICK_IN_WINDOW(result, at, window) \
    __asm__("vpermps %2, %1, %0" : "=v"(result) : "v"(at), "m"(*(const f32v_at *)(window)));
#if $VECTOR == 64
static inline f32p positions_f32(const unsigned char *from) {
    typedef unsigned long long wide __attribute__((vector_size(64)));
    const f32p by = {0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28};
    u64 packed;
    __builtin_memcpy(&packed, from, 8);
    return (f32p)((wide){0} + packed) >> by; /* higher bits than those of a position are ignored */
}
#else
static inline f32p positions_f32(const unsigned char *from) {
    const f32p by = {0, 4, 8, 12, 16, 20, 24, 28};
    int packed;
    __builtin_memcpy(&packed, from, 4);
    return ((f32p){0} + packed) >> by;
}
#endif
#else
enum { POSITION_LANES = sizeof(f32v) / sizeof(f32) };
static inline f32p positions_f32(const unsigned char *from) {
    f32p at;
    for (int lane = 0; lane < POSITION_LANES; lane++) {
        const int k = POSITION_LANES == 16 ? lane % 2 * 8 + lane / 2 : lane;
        at[lane] = from[k / 2] >> k % 2 * 4 & 15;
    }
    return at;
}
#define PICK_IN_WINDOW(result, at, window) \
    for (int lane = 0; lane < POSITION_LANES; lane++) result[lane] = (window)[at[lane]];
#endif

/* N rows of the batch from X on by HEIGHT rows of the weight; U entries at a time, so that sums do not wait for each
   other. */
#define WINDOWED(T, N, U) \
static void windowed_##T##_##N(const i64 *args, const T *x, i64 row, i64 height, i64 n, T *sums) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const i64 features = args[FEATURES]; \
    const WEIGHT(T) *values = (const WEIGHT(T) *)args[VALUES] + row * n; \
    const unsigned char *positions = (const unsigned char *)args[CRD] + row * n / 2; \
    T panel[PANEL * LANES], wide[IS_NARROW_WEIGHT ? PANEL * LANES : 1]; \
    T##v sum[U][N]; \
    UNROLL for (int u = 0; u < U; u++) \
        UNROLL for (int b = 0; b < N; b++) sum[u][b] = (T##v){0}; \
    if (height < LANES) __builtin_memset(panel, 0, sizeof(panel)); \
    for (i64 first = 0; first < n; first += PANEL) { \
        const i64 count = CLAMP((i64)PANEL, n - first); \
        const i64 ahead = first + PANEL < n ? first + PANEL : height * n; \
        for (i64 line = 0; line < height; line++) { \
            FETCH(values + line * n + ahead, PANEL * sizeof(*values)) \
            if (IS_NARROW_WEIGHT) \
                for (i64 k = 0; k < count; k++) wide[line * PANEL + k] = widen(values[line * n + first + k]); \
        } \
        turn_##T(IS_NARROW_WEIGHT ? wide : (const T *)values + first, IS_NARROW_WEIGHT ? PANEL : n, panel, LANES, \
                 height, count, height == LANES); \
        i64 e = 0; \
        for (; e + U <= count; e += U) { \
            UNROLL for (int u = 0; u < U; u++) { ADD_ENTRY(T, N, u, e + u) } \
        } \
        for (; e < count; e++) { ADD_ENTRY(T, N, 0, e) } \
    } \
    UNROLL for (int b = 0; b < N; b++) { \
        UNROLL for (int u = 1; u < U; u++) sum[0][b] += sum[u][b]; \
        *(T##v_at *)(sums + b * LANES) = sum[0][b]; \
    } \
}
#define ADD_ENTRY(T, N, u, e) \
    const T##v weight = *(const T##v_at *)(panel + (e) * LANES); \
    const T##p at = positions_##T(positions + (first + (e)) * (LANES / 2)); \
    const T *window = x + (first + (e)) / PER_WINDOW * WINDOW; \
    UNROLL for (int b = 0; b < N; b++) { \
        T##v picked; \
        PICK_IN_WINDOW(picked, at, window + b * features) \
        sum[u][b] += weight * picked; \
    }
#define WINDOWED_CASE(T, N) \
    if (left >= N) { windowed_##T##_##N(args, x, row, height, n, sums); return N; }
#define WINDOWS(T, I) \
WINDOWED(T, 16, 1) WINDOWED(T, 8, 1) WINDOWED(T, 4, 1) WINDOWED(T, 3, 2) WINDOWED(T, 2, 2) WINDOWED(T, 1, 4) \
/* As many of LEFT rows as fit in registers; return how many. */ \
static i64 most_windowed_##T(const i64 *args, const T *x, i64 row, i64 height, i64 n, T *sums, i64 left) { \
    if (LANES_##T == 16) { WINDOWED_CASE(T, 16) } \
    WINDOWED_CASE(T, 8) WINDOWED_CASE(T, 4) WINDOWED_CASE(T, 3) WINDOWED_CASE(T, 2) WINDOWED_CASE(T, 1) \
    return 0; \
} \
static void windows_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const i64 rows = args[ROWS], batch = args[BATCH], n = pointer(args, sizeof(I) == 8, 1); \
    const T *bias = (const T *)args[BIAS], *scales = (const T *)args[SCALES], *residual = (const T *)args[RESIDUAL]; \
    T sums[FEW_ROWS * LANES]; \
    (void)worker; \
    begin = (begin + LANES - 1) / LANES * LANES; /* vectors belong to the thread in whose part they begin */ \
    for (i64 row = begin; row < end; row += LANES) { \
        const i64 height = CLAMP((i64)LANES, rows - row); \
        for (i64 first = 0; first < batch;) { \
            const T *x = (const T *)args[X] + first * args[FEATURES]; \
            const i64 count = most_windowed_##T(args, x, row, height, n, sums, batch - first); \
            for (i64 b = 0; b < count; b++) \
                for (i64 line = 0; line < height; line++) { \
                    T *sum = sums + b * LANES + line; \
                    *sum = (scales ? scales[row + line] * *sum : *sum) + (bias ? bias[row + line] : (T)0); \
                } \
            activate_##T(args[ACTIVATION], sums, count * LANES); \
            for (i64 b = 0; b < count; b++) { \
                const i64 to = (first + b) * rows + row; \
                for (i64 line = 0; line < height; line++) \
                    ((T *)args[OUT])[to + line] = sums[b * LANES + line] + (residual ? residual[to + line] : (T)0); \
            } \
            first += count; \
        } \
    } \
}
#define LANES_f32 ($VECTOR / 4)
#else
#define IS_WINDOWED 0
#define WINDOWS(T, I)
#define windows_f32_i32 0
#define windows_f32_i64 0
#define windows_f64_i32 0
#define windows_f64_i64 0
#endif
