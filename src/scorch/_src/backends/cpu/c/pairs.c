/* Tiles of a batch in bf16 that keep 16 bits of a number: half of the bytes that each entry of the weight reads come
   from caches that way. A number of 32 bits has row b of the batch in its lower half and row b + LINES in its upper
   one; 2 * LINES rows are a group, and a tile has whole groups. Sums are floats. Where there are no such tiles,
   IS_PAIRED is 0. */
#if defined(BATCH_bf16) && BLOCK == 1
#define HAS_PAIRS 1
#define IS_PAIRED(width) ((width) % (2 * LINES) == 0)
typedef unsigned bits_at __attribute__((may_alias));

#define ADD_PAIRS(T, entry, u) \
    const T *from = in + crd[entry] * stride; \
    const T##v weight = (T##v){0} + values[entry]; \
    UNROLL for (int v = 0; v < N; v++) { \
        const T##m pair = *(const T##m_at *)(from + v * LANES); \
        low[u][v] += weight * (T##v)(pair << 16); \
        high[u][v] += weight * (T##v)(pair & ~0xffff); \
    }

/* G groups; U entries at a time, so that sums do not wait for each other. */
#define PAIR_TILE(T, C, G, U) \
static void pairs_##T##_##G(const C *crd, const T *values, i64 n, const T *in, i64 stride, T start, T *out) { \
    enum { LANES = sizeof(T##v) / sizeof(T), EACH = LINES / LANES, N = G * EACH }; \
    T##v low[U][N], high[U][N]; \
    i64 e = 0; \
    UNROLL for (int u = 0; u < U; u++) \
        UNROLL for (int v = 0; v < N; v++) low[u][v] = high[u][v] = (T##v){0} + (u ? (T)0 : start); \
    for (; e + U <= n; e += U) { \
        UNROLL for (int u = 0; u < U; u++) { ADD_PAIRS(T, e + u, u) } \
    } \
    for (; e < n; e++) { ADD_PAIRS(T, e, 0) } \
    UNROLL for (int v = 0; v < N; v++) { \
        UNROLL for (int u = 1; u < U; u++) low[0][v] += low[u][v], high[0][v] += high[u][v]; \
        T *to = out + v / EACH * 2 * LINES + v % EACH * LANES; \
        *(T##v_at *)to = low[0][v]; \
        *(T##v_at *)(to + LINES) = high[0][v]; \
    } \
}

#define PAIRS(T, C) \
PAIR_TILE(T, C, 2, 2) PAIR_TILE(T, C, 1, 4) \
/* N entries of a row of the weight, from FROM on, times so many groups of a tile. */ \
static void multiply_pairs_##T(const i64 *args, i64 row, i64 from, i64 n, const T *in, T *space, T *out, i64 groups) { \
    const C *crd = (const C *)args[CRD] + from; \
    const T *values = weights_##T(args, row, from, n, space); \
    const T start = args[BIAS] ? ((const T *)args[BIAS])[row] : 0; \
    const i64 stride = args[WIDTH] / 2; \
    i64 g = 0; \
    for (; g + 2 <= groups; g += 2) pairs_##T##_2(crd, values, n, in + g * LINES, stride, start, out + 2 * g * LINES); \
    if (g < groups) pairs_##T##_1(crd, values, n, in + g * LINES, stride, start, out + 2 * g * LINES); \
} \
static void join_##T(const unsigned short *low, const unsigned short *high, bits_at *to, i64 count) { \
    _Pragma("omp simd") \
    for (i64 k = 0; k < count; k++) to[k] = low[k] | (unsigned)high[k] << 16; \
} \
/* Copy a tile; rows behind the last are zeros. */ \
static void pack_pairs_##T(const i64 *args, i64 tile, T *to) { \
    static const unsigned short none[PACKED]; \
    const i64 features = args[FEATURES], width = args[WIDTH], at = tile * width; \
    const i64 count = CLAMP(width, args[BATCH] - at); \
    const unsigned short *x = (const unsigned short *)args[X] + at * features; \
    T joined[LINES * PACKED]; \
    for (i64 first = 0; first < features; first += PACKED) \
        for (i64 b = 0; b < count; b += 2 * LINES) { \
            const i64 columns = CLAMP((i64)PACKED, features - first); \
            for (i64 line = 0; line < LINES; line++) { \
                const i64 low = b + line, high = low + LINES; \
                join_##T(low < count ? x + low * features + first : none, \
                         high < count ? x + high * features + first : none, \
                         (bits_at *)(joined + line * PACKED), columns); \
            } \
            turn_##T(joined, PACKED, to + first * (width / 2) + b / 2, width / 2, LINES, columns, 1); \
        } \
}
#else
#define HAS_PAIRS 0
#define IS_PAIRED(width) 0
#define PAIRS(T, C)
#define multiply_pairs_f32(...) ((void)0)
#define multiply_pairs_f64(...) ((void)0)
#define pack_pairs_f32(...) ((void)0)
#define pack_pairs_f64(...) ((void)0)
#endif
