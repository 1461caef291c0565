/* One row of features by a weight with four values in every window of eight columns, as 2:4 and 4:8 sparsity have.
   A code of eight bits for each window names the row of TABLE that has the places of its values: for each byte of a
   vector of four values, where it comes from in the window. No coordinates are read, and no element is picked by
   itself. Two rows of the weight share what they read of the features. */
enum { VALUES = FIRST, SCALES, BIAS, RESIDUAL, TABLE, X, OUT, ACTIVATION };
enum { /* what is given: numbers, tensors, and the result at last */
    G_HAS_BIAS = ROWS + 1, G_HAS_RESIDUAL, G_ACTIVATION,
    G_POS, G_CODES, G_VALUES, G_SCALES, G_BIAS, G_RESIDUAL, G_TABLE, G_X, G_OUT
};
enum { WINDOW = 8, STORED = 4, AHEAD_BYTES = 1024 };
typedef unsigned char u8;
typedef u8 bytes __attribute__((vector_size(16)));
#ifdef __clang__ /* which has no shuffles by a variable */
#define SELECT(code, at, low, high) ({ \
    const u8 *from = (const u8 *)(table + (code)); \
    (f32v){(at)[from[0] / 4], (at)[from[4] / 4], (at)[from[8] / 4], (at)[from[12] / 4]}; \
})
#else
#define SELECT(code, at, low, high) ((f32v)__builtin_shuffle((bytes)(low), (bytes)(high), table[code]))
#endif

#define ADD_WINDOW(T, N, k) { \
    const T *at = x + (w + k) * WINDOW; \
    const T##v low = *(const T##v_at *)at, high = *(const T##v_at *)(at + 4); \
    UNROLL for (int r = 0; r < N; r++) \
        sum[r][k] += LOAD(T, 4, values + (r * count + w + k) * STORED) * SELECT(codes[r * count + w + k], at, low, high); \
}
#define WINDOWS(T, N) \
static void windows_##T##_##N(const i64 *args, i64 row, i64 count) { \
    const u8 *codes = (const u8 *)args[CRD] + row * count; \
    const WEIGHT(T) *values = (const WEIGHT(T) *)args[VALUES] + row * count * STORED; \
    const bytes *table = (const bytes *)args[TABLE]; \
    const T *x = (const T *)args[X], *bias = (const T *)args[BIAS], *scales = (const T *)args[SCALES]; \
    T##v sum[N][2] = {{{0}}}; /* two, which do not wait for each other */ \
    i64 w = 0; \
    for (; w + 2 <= count; w += 2) { \
        UNROLL for (int r = 0; r < N; r++) \
            __builtin_prefetch((const char *)(values + (r * count + w) * STORED) + AHEAD_BYTES); \
        ADD_WINDOW(T, N, 0) \
        ADD_WINDOW(T, N, 1) \
    } \
    if (w < count) { ADD_WINDOW(T, N, 0) } \
    UNROLL for (int r = 0; r < N; r++) { \
        const T##v both = sum[r][0] + sum[r][1]; \
        const T total = (both[0] + both[1]) + (both[2] + both[3]); \
        const i64 to = row + r; \
        ((T *)args[OUT])[to] = (scales ? scales[to] * total : total) + (bias ? bias[to] : (T)0); \
    } \
}
#define INTRINSICS(T, I) \
ACTIVATIONS(T) \
WINDOWS(T, 1) WINDOWS(T, 2) \
static void grouped_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    const I *pos = (const I *)args[POS]; \
    const i64 count = (pos[1] - pos[0]) / STORED; \
    T *out = (T *)args[OUT]; \
    const T *residual = (const T *)args[RESIDUAL]; \
    i64 row = begin; \
    (void)worker; \
    for (; row + 2 <= end; row += 2) windows_##T##_2(args, row, count); \
    for (; row < end; row++) windows_##T##_1(args, row, count); \
    activate_##T(args[ACTIVATION], out + begin, end - begin); \
    for (row = begin; residual && row < end; row++) out[row] += residual[row]; \
} \
i64 scorch_groups_##T##_##I(i64 *given) { \
    const i64 args[] = { \
        given[PARALLEL], given[THREADS], given[ROWS], given[G_POS], given[G_CODES], given[G_VALUES], \
        HAS_SCALES ? given[G_SCALES] : 0, given[G_HAS_BIAS] ? given[G_BIAS] : 0, \
        given[G_HAS_RESIDUAL] ? given[G_RESIDUAL] : 0, given[G_TABLE], given[G_X], given[G_OUT], \
        given[G_ACTIVATION]}; \
    return by_rows(args, sizeof(I) == 8, grouped_##T##_##I); \
}
