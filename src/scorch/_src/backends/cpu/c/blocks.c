/* Weights of dense blocks, BLOCK_ROWS by BLOCK_COLUMNS, each of which has its values row by row; single values
   are blocks of one. MULTIPLY_ROWS multiplies a row of blocks by V vectors of a tile, SUM_ROWS by one row of
   features: a block is one vector then, and no element of the features is picked by itself. */
#ifndef BLOCK_ROWS
#define BLOCK_ROWS 1
#define BLOCK_COLUMNS 1
#endif
#define BLOCK (BLOCK_ROWS * BLOCK_COLUMNS)

#if BLOCK_ROWS == 1 && BLOCK_COLUMNS == 1
#define BLOCKS(T, C) TILES(T, C)
#define MULTIPLY_ROWS(T, crd, values, n, in, width, bias, out, left) \
    widest_##T(crd, values, n, in, width, bias ? *bias : (T)0, out, left)
#define SUM_ROWS(T) \
    T sum = 0; \
    PICKED_##T \
    _Pragma("omp simd reduction(+:sum)") \
    for (i64 rest = e; rest < last; rest++) sum += widen(values[rest]) * x[(i64)crd[rest]]; \
    sums[0] = sum;
#else

enum {
    MOST_SUMS = $VECTOR == 32 ? 8 : 16, /* registers with sums */
    COPIES = BLOCK_ROWS > 1 ? 1 : BLOCK_COLUMNS < 4 ? BLOCK_COLUMNS : 4 /* so that sums do not wait for each other */
};
#define BLOCK_TILE(T, C, N) \
static void block_##T##_##N(const C *crd, const T *values, i64 n, const T *in, i64 width, const T *bias, T *out) { \
    enum { LANES = sizeof(T##v) / sizeof(T), HIGH = CLAMP(BLOCK_ROWS, MOST_SUMS / N) }; \
    for (int first = 0; first < BLOCK_ROWS; first += HIGH) { \
        T##v sum[HIGH][COPIES][N]; \
        UNROLL for (int r = 0; r < HIGH; r++) \
            UNROLL for (int k = 0; k < COPIES; k++) \
                UNROLL for (int v = 0; v < N; v++) \
                    sum[r][k][v] = (T##v){0} + (bias && !k ? bias[first + r] : (T)0); \
        for (i64 e = 0; e < n; e++) { \
            const T *from = in + (i64)crd[e] * BLOCK_COLUMNS * width; \
            const T *weights = values + e * BLOCK + first * BLOCK_COLUMNS; \
            UNROLL for (int c = 0; c < BLOCK_COLUMNS; c++) \
                UNROLL for (int v = 0; v < N; v++) { \
                    const T##v x = *(const T##v_at *)(from + c * width + v * LANES); \
                    UNROLL for (int r = 0; r < HIGH; r++) \
                        sum[r][c % COPIES][v] += ((T##v){0} + weights[r * BLOCK_COLUMNS + c]) * x; \
                } \
        } \
        UNROLL for (int r = 0; r < HIGH; r++) \
            UNROLL for (int v = 0; v < N; v++) { \
                UNROLL for (int k = 1; k < COPIES; k++) sum[r][0][v] += sum[r][k][v]; \
                *(T##v_at *)(out + (first + r) * width + v * LANES) = sum[r][0][v]; \
            } \
    } \
}
#define BLOCK_CASE(T, N) \
    if (left >= N) { block_##T##_##N(crd, values, n, in, width, bias, out); return N; }
#define BLOCK_VECTOR(T) \
typedef T T##b __attribute__((vector_size(BLOCK * sizeof(T)))); \
typedef T T##b_at __attribute__((vector_size(BLOCK * sizeof(T)), aligned(sizeof(T)), may_alias))
BLOCK_VECTOR(place);
BLOCK_VECTOR(bits);
BLOCK_VECTOR(small);
BLOCK_VECTOR(column);
#if defined(STORED_bf16)
#define LOAD_BLOCK(T, from) ((T##b)(__builtin_convertvector(*(const columnb_at *)(from), bitsb) << 16))
#elif defined(STORED_int8)
#define LOAD_BLOCK(T, from) __builtin_convertvector(__builtin_convertvector(*(const smallb_at *)(from), placeb), T##b)
#else
#define LOAD_BLOCK(T, from) (*(const T##b_at *)(from))
#endif
#if BLOCK_COLUMNS == 1
#define SPREAD(T, from) ((T##b){0} + *(from))
#elif BLOCK_ROWS == 1
#define SPREAD(T, from) (*(const T##b_at *)(from))
#elif defined(__clang__) || __GNUC__ >= 12 /* 4 by 4 */
#define SPREAD(T, from) ({ \
    const T##x4 four = *(const T##x4_at *)(from); \
    __builtin_shufflevector(four, four, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3); \
})
#else
#define FOUR(from) (from)[0], (from)[1], (from)[2], (from)[3]
#define SPREAD(T, from) ((T##b){FOUR(from), FOUR(from), FOUR(from), FOUR(from)})
#endif
#define BLOCKS(T, C) \
BLOCK_VECTOR(T); \
BLOCK_TILE(T, C, 8) BLOCK_TILE(T, C, 4) BLOCK_TILE(T, C, 2) BLOCK_TILE(T, C, 1) \
static i64 blocks_##T(const C *crd, const T *values, i64 n, const T *in, i64 width, const T *bias, \
                      T *out, i64 left) { \
    BLOCK_CASE(T, 8) BLOCK_CASE(T, 4) BLOCK_CASE(T, 2) BLOCK_CASE(T, 1) \
    return 0; \
}
#define MULTIPLY_ROWS(T, crd, values, n, in, width, bias, out, left) \
    blocks_##T(crd, values, n, in, width, bias, out, left)
#define ADD_BLOCK(T, k) sum_##k += LOAD_BLOCK(T, values + (e + k) * BLOCK) * SPREAD(T, x + (i64)crd[e + k] * BLOCK_COLUMNS);
#define SUM_ROWS(T) \
    T##b sum_0 = {0}, sum_1 = {0}, sum_2 = {0}, sum_3 = {0}; \
    for (; e + 4 <= last; e += 4) { \
        FETCH(values + (e + 64) * BLOCK, 4 * BLOCK * sizeof(*values)) \
        ADD_BLOCK(T, 0) ADD_BLOCK(T, 1) ADD_BLOCK(T, 2) ADD_BLOCK(T, 3) \
    } \
    for (; e < last; e++) { ADD_BLOCK(T, 0) } \
    sum_0 += sum_1 + (sum_2 + sum_3); \
    UNROLL for (int r = 0; r < BLOCK_ROWS; r++) { \
        sums[r] = 0; \
        UNROLL for (int c = 0; c < BLOCK_COLUMNS; c++) sums[r] += sum_0[r * BLOCK_COLUMNS + c]; \
    }
#endif
