typedef long long i64;
typedef int i32;
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, COUNT, FROM, TO };

/* An array as another type of integers, in shares of several threads. */
#define COPY(F, T) \
static void some_##F##_##T(i64 begin, i64 end, void *context) { \
    const i64 *args = context, first = args[COUNT] * begin / args[THREADS], last = args[COUNT] * end / args[THREADS]; \
    const F *from = (const F *)args[FROM]; \
    T *restrict to = (T *)args[TO]; \
    for (i64 at = first; at < last; at++) to[at] = (T)from[at]; \
} \
i64 scorch_copy_##F##_##T(i64 *args) { \
    if (args[THREADS] <= 1) args[THREADS] = 1, some_##F##_##T(0, 1, args); \
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, some_##F##_##T, args); \
    return 0; \
}

COPY(i32, i32)
COPY(i32, i64)
COPY(i64, i32)
COPY(i64, i64)
