typedef long long i64;
typedef int i32;
enum { PARALLEL, THREADS, ROWS, ENTRIES, FROM, TO };
enum { BESIDE = FROM + 1, ENDS, FOUND, COUNT }; /* of rows: what is as long as they, the result, its length */

/* Each entry writes where its row ends: the last one wins. Rows without entries end where those before do: what
   ends before the rows of a thread is searched for. */
#define POINTERS(T) \
static void some_zeros_##T(i64 begin, i64 end, void *context) { \
    const i64 *args = context, size = args[ROWS] + 1, threads = args[THREADS]; \
    T *pos = (T *)args[TO]; \
    for (i64 row = size * begin / threads; row < size * end / threads; row++) pos[row] = 0; \
} \
static void some_pointers_##T(i64 begin, i64 end, void *context) { \
    const i64 *args = context, entries = args[ENTRIES], threads = args[THREADS]; \
    const T *rows = (const T *)args[FROM]; \
    T *pos = (T *)args[TO]; \
    const i64 first = entries * begin / threads; \
    i64 last = entries * end / threads; \
    while (last > first && last < entries && rows[last - 1] == rows[last]) last--; /* the next thread's */ \
    for (i64 entry = first; entry < last; entry++) pos[rows[entry] + 1] = (T)(entry + 1); \
} \
static void some_ends_##T(i64 begin, i64 end, void *context) { \
    const i64 *args = context, size = args[ROWS] + 1, threads = args[THREADS]; \
    const T *rows = (const T *)args[FROM]; \
    T *pos = (T *)args[TO], reached; \
    const i64 first = size * begin / threads; \
    i64 low = 0, high = first ? args[ENTRIES] : 0; /* how many entries are before the first row */ \
    while (low < high) { \
        const i64 middle = (low + high) / 2; \
        if (rows[middle] < first) low = middle + 1; \
        else high = middle; \
    } \
    reached = (T)low; \
    for (i64 row = first; row < size * end / threads; row++) { \
        if (pos[row] > reached) reached = pos[row]; \
        pos[row] = reached; \
    } \
} \
static void some_rows_##T(i64 begin, i64 end, void *context) { \
    const i64 *args = context, rows = args[ROWS], threads = args[THREADS]; \
    const T *pos = (const T *)args[FROM]; \
    T *found = (T *)args[FOUND]; \
    for (i64 row = rows * begin / threads; row < rows * end / threads; row++) \
        for (i64 entry = pos[row]; entry < pos[row + 1]; entry++) found[entry] = (T)row; \
} \
i64 scorch_pointers_##T(i64 *args) { \
    shared(args, some_zeros_##T); \
    shared(args, some_pointers_##T); \
    return shared(args, some_ends_##T); \
} \
i64 scorch_rows_##T(i64 *args) { \
    ((T *)args[ENDS])[0] = 0, ((T *)args[ENDS])[1] = (T)args[ENTRIES]; \
    args[COUNT] = args[ENTRIES]; \
    return shared(args, some_rows_##T); \
}

typedef void (*work_t)(i64, i64, void *);
static i64 shared(i64 *args, work_t work) {
    if (args[THREADS] <= 1) work(0, 1, args);
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, work, args);
    return 0;
}
POINTERS(i32)
POINTERS(i64)
