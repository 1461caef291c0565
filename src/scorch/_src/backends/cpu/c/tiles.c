/* Sums of rows of IN, STRIDE apart, that the entries of a sparse row pick and weigh: some vectors at a time.
   C is the type of coordinates. */
#if $VECTOR == 16
#define MOST 16 /* vectors that are summed in registers at a time */
#else
#define MOST 8
#endif

/* N vectors of positions; U entries at a time, so that sums do not wait for each other. */
#define TILE(T, C, N, U) \
static void tile_##T##_##N(const C *crd, const T *values, i64 n, const T *in, i64 stride, T start, T *out) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    T##v sum[U][N]; \
    i64 e = 0; \
    UNROLL for (int u = 0; u < U; u++) \
        UNROLL for (int v = 0; v < N; v++) sum[u][v] = (T##v){0} + (u ? (T)0 : start); \
    for (; e + U <= n; e += U) { \
        UNROLL for (int u = 0; u < U; u++) { \
            const T *from = in + crd[e + u] * stride; \
            const T##v weight = (T##v){0} + values[e + u]; \
            UNROLL for (int v = 0; v < N; v++) sum[u][v] += weight * *(const T##v_at *)(from + v * LANES); \
        } \
    } \
    for (; e < n; e++) { \
        const T *from = in + crd[e] * stride; \
        const T##v weight = (T##v){0} + values[e]; \
        UNROLL for (int v = 0; v < N; v++) sum[0][v] += weight * *(const T##v_at *)(from + v * LANES); \
    } \
    UNROLL for (int u = 1; u < U; u++) \
        UNROLL for (int v = 0; v < N; v++) sum[0][v] += sum[u][v]; \
    UNROLL for (int v = 0; v < N; v++) *(T##v_at *)(out + v * LANES) = sum[0][v]; \
}

#define CASE(T, N) \
    if (left >= N) { tile_##T##_##N(crd, values, n, in, stride, start, out); return N; }

#define TILES(T, C) \
TILE(T, C, 16, 1) TILE(T, C, 12, 1) TILE(T, C, 8, 1) TILE(T, C, 6, 1) TILE(T, C, 4, 2) TILE(T, C, 3, 2) \
TILE(T, C, 2, 4) TILE(T, C, 1, 4) \
/* As many of LEFT vectors as fit in registers; return how many. */ \
static i64 widest_##T(const C *crd, const T *values, i64 n, const T *in, i64 stride, T start, \
                            T *out, i64 left) { \
    if (MOST > 8) { CASE(T, 16) CASE(T, 12) } \
    CASE(T, 8) CASE(T, 6) CASE(T, 4) CASE(T, 3) CASE(T, 2) CASE(T, 1) \
    return 0; \
}
