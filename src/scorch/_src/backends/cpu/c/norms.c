/* Rows of WIDTH numbers, each without its mean if CENTERED, divided by the root of what the mean of their squares and
   EPSILON are together, times GAIN, plus SHIFT. Those two may be missing. number_t is how a number is stored, sum_t
   what is computed with. A row is read again where it lies in the caches still. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, ROWS, WIDTH, CENTERED, HAS_GAIN, HAS_SHIFT, EPSILON, GAIN, SHIFT, FROM, TO };

#ifdef IS_BF16
#define widen(x) widen_bf16(x)
#define narrow(x) narrow_bf16(x)
#else
#define widen(x) (x)
#define narrow(x) (x)
#endif
double sqrt(double);

/* Sums of vectors, some side by side, so that they do not wait for each other. */
enum { LANES = $VECTOR / sizeof(sum_t), STEP = 4 * LANES };
typedef sum_t lanes_t __attribute__((vector_size($VECTOR)));
typedef number_t numbers_t __attribute__((vector_size(LANES * sizeof(number_t)), aligned(sizeof(number_t)), may_alias));
#ifdef IS_BF16
typedef u32 bits_t __attribute__((vector_size($VECTOR)));
static inline lanes_t load(const number_t *from) {
    return (lanes_t)(__builtin_convertvector(*(const numbers_t *)from, bits_t) << 16);
}
#else
static inline lanes_t load(const number_t *from) { return *(const numbers_t *)from; }
#endif
#define SUM_OF(total, x, width, TERM) { \
    lanes_t sums[4] = {{0}, {0}, {0}, {0}}; \
    i64 i = 0; \
    for (; i + STEP <= width; i += STEP) \
        UNROLL for (int k = 0; k < 4; k++) { const lanes_t one = load(x + i + k * LANES); sums[k] += TERM; } \
    sums[0] += sums[1] + (sums[2] + sums[3]); \
    for (int lane = 0; lane < LANES; lane++) total += sums[0][lane]; \
    for (; i < width; i++) { const sum_t one = widen(x[i]); total += TERM; } \
}

static void norm_rows(i64 begin, i64 end, void *context) {
    const i64 *args = context, width = args[WIDTH], last = args[ROWS] * end / args[THREADS];
    const number_t *gain = args[HAS_GAIN] ? (const number_t *)args[GAIN] : 0;
    const number_t *shift = args[HAS_SHIFT] ? (const number_t *)args[SHIFT] : 0;
    const union { i64 bits; double number; } epsilon = {args[EPSILON]};
    for (i64 row = args[ROWS] * begin / args[THREADS]; row < last; row++) {
        const number_t *restrict x = (const number_t *)args[FROM] + row * width;
        number_t *restrict y = (number_t *)args[TO] + row * width;
        sum_t mean = 0, squares = 0;
        if (args[CENTERED]) {
            SUM_OF(mean, x, width, one)
            mean /= width;
        }
        SUM_OF(squares, x, width, (one - mean) * (one - mean))
        const sum_t scale = (sum_t)(1 / sqrt((double)(squares / width) + epsilon.number));
#define STORE(number) \
        _Pragma("omp simd") \
        for (i64 i = 0; i < width; i++) { \
            const sum_t rest = (widen(x[i]) - mean) * scale; \
            y[i] = narrow(number); \
        }
        if (gain && shift) { STORE(rest * widen(gain[i]) + widen(shift[i])) }
        else if (gain) { STORE(rest * widen(gain[i])) }
        else { STORE(rest) }
    }
}

i64 scorch_norm(i64 *args) {
    if (args[THREADS] <= 1) norm_rows(0, 1, args);
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, norm_rows, args);
    return 0;
}
