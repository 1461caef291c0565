typedef long long i64;
typedef float f32;
typedef double f64;
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, COUNT, FROM };
typedef struct { const i64 *args; i64 found; } search_t;

/* A finite number times zero is zero, and any other is not a number, which sums keep. */
#define FINITE(T) \
typedef T T##_lanes __attribute__((vector_size($VECTOR))); \
typedef T T##_at __attribute__((vector_size($VECTOR), aligned(sizeof(T)), may_alias)); \
static int has_other_##T(const T *x, i64 count) { \
    enum { WIDE = $VECTOR / sizeof(T) }; \
    T##_lanes sums[4] = {{0}, {0}, {0}, {0}}; \
    T total = 0; \
    i64 i = 0; \
    while (i < count && (unsigned long)(x + i) % $VECTOR) total += x[i++] * 0; /* whole lines from there on */ \
    for (; i + 4 * WIDE <= count; i += 4 * WIDE) { \
        sums[0] += *(const T##_at *)(x + i) * 0; \
        sums[1] += *(const T##_at *)(x + i + WIDE) * 0; \
        sums[2] += *(const T##_at *)(x + i + 2 * WIDE) * 0; \
        sums[3] += *(const T##_at *)(x + i + 3 * WIDE) * 0; \
    } \
    for (; i < count; i++) total += x[i] * 0; \
    sums[0] += sums[1] + sums[2] + sums[3]; \
    for (int lane = 0; lane < WIDE; lane++) total += sums[0][lane]; \
    return total != 0; \
} \
static void some_##T(i64 begin, i64 end, void *context) { \
    search_t *search = context; \
    const i64 count = search->args[COUNT], threads = search->args[THREADS]; \
    const i64 first = count * begin / threads, last = count * end / threads; \
    if (has_other_##T((const T *)search->args[FROM] + first, last - first)) \
        __atomic_store_n(&search->found, 1, __ATOMIC_RELAXED); \
} \
i64 scorch_finite_##T(i64 *args) { \
    search_t search = {args, 0}; \
    if (args[THREADS] <= 1) return !has_other_##T((const T *)args[FROM], args[COUNT]); \
    ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, some_##T, &search); \
    return !search.found; \
}

FINITE(f32)
FINITE(f64)
