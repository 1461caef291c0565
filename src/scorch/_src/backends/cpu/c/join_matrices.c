typedef long long i64;
typedef int i32;
typedef short i16;
typedef signed char i8;
void *memcpy(void *, const void *, unsigned long);
/* the sizes of the parts along the dimension follow, then pos, crd and values of each, then of the result */
enum { PARALLEL, THREADS, COUNT, ROWS, ENTRIES, BYTES, SIZES };

/* Four at a time, also past the end, where what follows is written later and memory goes on. */
#define BESIDE(T, V) \
static void some_beside_##T##_##V(i64 begin, i64 end, void *context) { \
    const i64 *args = context, count = args[COUNT], *parts = args + SIZES + count; \
    const i64 *made = parts + 3 * count; \
    const i64 r0 = args[ROWS] * begin / args[THREADS], r1 = args[ROWS] * end / args[THREADS]; \
    T *pos = (T *)made[0], *restrict crd = (T *)made[1]; \
    V *restrict values = (V *)made[2]; \
    i64 entry = 0, limit = 0; \
    for (i64 p = 0; p < count; p++) \
        entry += ((const T *)parts[3 * p])[r0], limit += ((const T *)parts[3 * p])[r1]; \
    if (!begin) pos[0] = 0; \
    for (i64 r = r0; r < r1; r++) { \
        T further = 0; \
        for (i64 p = 0; p < count; p++) { \
            const T *from = (const T *)parts[3 * p], *restrict columns = (const T *)parts[3 * p + 1]; \
            const V *restrict given = (const V *)parts[3 * p + 2]; \
            const i64 first = from[r], length = from[r + 1] - first; \
            if (entry + length + 4 <= limit && first + length + 4 <= from[args[ROWS]]) \
                for (i64 i = 0; i < length; i += 4) { \
                    *(T##x4_at *)(crd + entry + i) = *(const T##x4_at *)(columns + first + i) + further; \
                    *(V##x4_at *)(values + entry + i) = *(const V##x4_at *)(given + first + i); \
                } \
            else \
                for (i64 i = 0; i < length; i++) { \
                    crd[entry + i] = columns[first + i] + further; \
                    values[entry + i] = given[first + i]; \
                } \
            entry += length, further += (T)args[SIZES + p]; \
        } \
        pos[r + 1] = (T)entry; \
    } \
}

/* As they lie in memory: for loads and stores only, never by value. */
#define FOUR(T) typedef T T##x4_at __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
FOUR(i8)
FOUR(i16)
FOUR(i32)
FOUR(i64)

#define MATRICES(T) \
static void some_below_##T(i64 begin, i64 end, void *context) { \
    const i64 *args = context, count = args[COUNT], bytes = args[BYTES], *parts = args + SIZES + count; \
    const i64 *made = parts + 3 * count; \
    T *pos = (T *)made[0], *crd = (T *)made[1]; \
    i64 row = 0, entry = 0; \
    if (!begin) pos[0] = 0; \
    for (i64 p = 0; p < count; p++) { \
        const T *from = (const T *)parts[3 * p]; \
        const i64 rows = args[SIZES + p]; \
        const i64 r0 = rows * begin / args[THREADS], r1 = rows * end / args[THREADS]; \
        const i64 first = from[r0], length = from[r1] - first; \
        for (i64 r = r0; r < r1; r++) pos[row + r + 1] = (T)(entry + from[r + 1]); \
        memcpy(crd + entry + first, (const T *)parts[3 * p + 1] + first, \
               (unsigned long)length * sizeof(T)); \
        memcpy((char *)made[2] + (entry + first) * bytes, (const char *)parts[3 * p + 2] + first * bytes, \
               (unsigned long)(length * bytes)); \
        row += rows, entry += from[rows]; \
    } \
} \
BESIDE(T, i8) \
BESIDE(T, i16) \
BESIDE(T, i32) \
BESIDE(T, i64) \
i64 scorch_below_##T(i64 *args) { return shared(args, some_below_##T); } \
i64 scorch_beside_##T(i64 *args) { \
    const i64 bytes = args[BYTES]; \
    return shared(args, bytes == 1   ? some_beside_##T##_i8 \
                        : bytes == 2 ? some_beside_##T##_i16 \
                        : bytes == 4 ? some_beside_##T##_i32 \
                                     : some_beside_##T##_i64); \
}

typedef void (*work_t)(i64, i64, void *);
static i64 shared(i64 *args, work_t work) {
    if (args[THREADS] <= 1) work(0, 1, args);
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, work, args);
    args[SIZES + 4 * args[COUNT] + 3] = args[ENTRIES]; /* how many the result has */
    return 0;
}
MATRICES(i32)
MATRICES(i64)
