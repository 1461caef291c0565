typedef long long i64;
typedef unsigned long long u64;
typedef int i32;
typedef float f32;
typedef double f64;
/* In registers, and as it lies in memory: for loads and stores only, never by value. */
#define VECTOR(T, N) \
typedef T N __attribute__((vector_size($VECTOR))); \
typedef T N##_at __attribute__((vector_size($VECTOR), aligned(sizeof(T)), may_alias))
VECTOR(f32, f32v);
VECTOR(f64, f64v);
VECTOR(i32, f32m); /* what comparisons of vectors give */
VECTOR(i64, f64m);
#define AHEAD 8 /* so many entries before they are read, rows are fetched */
#define FETCH(from, bytes) \
    for (int byte = 0; byte < (int)(bytes); byte += 64) __builtin_prefetch((const char *)(from) + byte);
#define CLAMP(a, b) ((a) < (b) ? (a) : (b))

#ifdef __clang__ /* arrays of vectors are registers only in loops that are unrolled */
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define ENTRY(T, I, name) \
    i64 scorch_##name##_##T##_##I(i64 *args) { return by_rows(args, sizeof(I) == 8, name##_rows_##T##_##I); }

typedef void (*work_t)(i64, i64, void *);
typedef void (*rows_t)(const i64 *, i64, i64, i64);
enum { PARALLEL, THREADS, ROWS, POS, CRD, FIRST };
typedef struct {
    const i64 *args;
    rows_t rows;
    int wide;
    i64 chunks, own; /* of all threads; of each for itself */
    i64 next __attribute__((aligned(64)));
} job_t;

static i64 pointer(const i64 *args, int wide, i64 row) {
    return wide ? ((const i64 *)args[POS])[row] : ((const i32 *)args[POS])[row];
}

/* The first row of a chunk: rows and entries before it are about its share of all. It is looked for from where
   it would be if all rows were alike, since each look elsewhere may miss all caches. */
static i64 first_row(const job_t *job, i64 chunk) {
    const i64 rows = job->args[ROWS], all = pointer(job->args, job->wide, rows) + rows;
    const i64 wanted = (i64)((double)all * chunk / job->chunks);
    if (chunk >= job->chunks) return rows;
    i64 low = 0, high = rows, reach = 8;
    for (i64 at = rows * chunk / job->chunks; low < high && low <= at && at < high; reach *= 4) {
        if (pointer(job->args, job->wide, at) + at < wanted) low = at + 1, at += reach;
        else high = at, at -= reach;
    }
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        if (pointer(job->args, job->wide, middle) + middle < wanted) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void run_chunks(const job_t *job, i64 begin, i64 end, i64 worker) {
    job->rows(job->args, first_row(job, begin), first_row(job, end), worker);
}

/* Threads begin with chunks of their own, and share the rest: a counter that all of them change goes from core to
   core, which takes longer than some rows do. */
static void some_chunks(i64 worker, i64 end, void *context) {
    job_t *job = context;
    const i64 own = job->own, chunks = job->chunks;
    for (i64 thread = worker; thread < end; thread++) run_chunks(job, thread * own, (thread + 1) * own, worker);
    while (__atomic_load_n(&job->next, __ATOMIC_RELAXED) < chunks) {
        const i64 chunk = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (chunk < chunks) run_chunks(job, chunk, chunk + 1, worker);
    }
}

/* So many chunks for each thread, half of which are its own; a single one is. */
static i64 in_chunks(const i64 *args, int wide, rows_t rows, i64 each) {
    const i64 threads = args[THREADS], own = (each + 1) / 2;
    job_t job = {args, rows, wide, threads * each, own, threads * own};
    if (threads <= 1) rows(args, 0, args[ROWS], 0);
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, threads, 1, some_chunks, &job);
    return 0;
}

static i64 by_rows(const i64 *args, int wide, rows_t rows) { return in_chunks(args, wide, rows, 8); }
