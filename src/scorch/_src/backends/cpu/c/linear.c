/* A batch lies in tiles of WIDTH rows of X, padded by zeros, each of which has the features one after the
   other: element b of feature j of a tile is at j * WIDTH + b. */
enum { VALUES = FIRST, BIAS, X, PACKED, OUT, BATCH, FEATURES, WIDTH };
enum { /* what is given: numbers, tensors, and the result at last */
    G_BATCH = ROWS + 1, G_FEATURES, G_WIDTH, G_HAS_BIAS, G_POS, G_CRD, G_VALUES, G_BIAS, G_X, G_PACKED, G_OUT
};
#define SHARED 65536 /* elements of a batch from which on threads share the copy */
enum { LINES = 16 }; /* rows that are copied together, since their elements are neighbours where they go */

void *malloc(unsigned long);
void free(void *);
typedef int (*loop_t)(i64, i64, i64, work_t, void *);
typedef struct { const i64 *args; i64 next; } packing_t;
/* TILES of the batch times PARTS of the rows of the weight. */
typedef struct { job_t rows; i64 tiles, next; } product_t;

static i64 count_tiles(const i64 *args) { return (args[BATCH] + args[WIDTH] - 1) / args[WIDTH]; }

/* The first row of a part; parts begin with whole LINES. */
static i64 first_line(const job_t *rows, i64 part) {
    const i64 row = (first_row(rows, part) + LINES - 1) / LINES * LINES;
    return CLAMP(row, rows->args[ROWS]);
}

#define INTRINSICS(T, I) \
TILES(T, COLUMN(I)) \
SQUARE(T) \
/* Columns of up to LINES rows become rows. */ \
static void turn_##T(const T *from, i64 from_apart, T *to, i64 to_apart, i64 height, i64 width) { \
    const i64 high = height / 4 * 4, wide = width / 4 * 4; \
    for (i64 column = 0; column < wide; column += 4) \
        for (i64 row = 0; row < high; row += 4) \
            square_##T(from + row * from_apart + column, from_apart, to + column * to_apart + row, to_apart); \
    for (i64 column = 0; column < width; column++) \
        for (i64 row = column < wide ? high : 0; row < height; row++) \
            to[column * to_apart + row] = from[row * from_apart + column]; \
} \
static void dots_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    const I *pos = (const I *)args[POS]; \
    const COLUMN(I) *crd = (const COLUMN(I) *)args[CRD]; \
    const T *values = (const T *)args[VALUES], *x = (const T *)args[X], *bias = (const T *)args[BIAS]; \
    (void)worker; \
    for (i64 row = begin; row < end; row++) { \
        T sum = bias ? bias[row] : (T)0; \
        i64 e = pos[row]; \
        const i64 last = pos[row + 1]; \
        PICKED_##T \
        _Pragma("omp simd reduction(+:sum)") \
        for (i64 rest = e; rest < last; rest++) sum += values[rest] * x[(i64)crd[rest]]; \
        ((T *)args[OUT])[row] = sum; \
    } \
} \
static void multiply_##T##_##I(const i64 *args, i64 tile, i64 begin, i64 end) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const I *pos = (const I *)args[POS]; \
    const COLUMN(I) *crd = (const COLUMN(I) *)args[CRD]; \
    const T *values = (const T *)args[VALUES], *bias = (const T *)args[BIAS]; \
    const i64 width = args[WIDTH], rows = args[ROWS], at = tile * width; \
    const T *in = (const T *)args[PACKED] + at * args[FEATURES]; \
    const i64 count = CLAMP(width, args[BATCH] - at), vectors = (count + LANES - 1) / LANES; \
    T sums[LINES * MOST * LANES]; \
    for (i64 row = begin; row < end; row += LINES) { \
        const i64 lines = CLAMP((i64)LINES, end - row); \
        for (i64 line = 0; line < lines; line++) { \
            const i64 r = row + line, from = pos[r], n = pos[r + 1] - from; \
            for (i64 v = 0; v < vectors;) \
                v += widest_##T(crd + from, values + from, n, in + v * LANES, width, bias ? bias[r] : (T)0, \
                                sums + line * width + v * LANES, vectors - v); \
        } \
        turn_##T(sums, width, (T *)args[OUT] + at * rows + row, rows, lines, count); \
    } \
} \
static void products_##T##_##I(i64 worker, i64 end, void *context) { \
    product_t *job = context; \
    (void)worker, (void)end; \
    for (;;) { \
        const i64 next = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED), parts = job->rows.chunks; \
        if (next >= job->tiles * parts) return; \
        const i64 part = next % parts; \
        multiply_##T##_##I(job->rows.args, next / parts, first_line(&job->rows, part), \
                           first_line(&job->rows, part + 1)); \
    } \
} \
/* Some features of all tiles at a time. */ \
static void pack_##T##_##I(i64 worker, i64 end, void *context) { \
    packing_t *job = context; \
    const i64 *args = job->args, batch = args[BATCH], features = args[FEATURES], width = args[WIDTH]; \
    (void)worker, (void)end; \
    for (;;) { \
        const i64 first = 64 * __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED); \
        if (first >= features) return; \
        const i64 some = CLAMP((i64)64, features - first); \
        for (i64 at = 0; at < batch; at += width) { \
            const i64 count = CLAMP(width, batch - at); \
            const T *x = (const T *)args[X] + at * features + first; \
            T *to = (T *)args[PACKED] + at * features + first * width; \
            for (i64 b = 0; b < count; b += LINES) \
                turn_##T(x + b * features, features, to + b, width, CLAMP((i64)LINES, count - b), some); \
            for (i64 j = 0; j < some && count < width; j++) \
                for (i64 b = count; b < width; b++) to[j * width + b] = 0; \
        } \
    } \
} \
static void multiply_batch_##T##_##I(const i64 *args) { \
    const i64 threads = args[THREADS], tiles = count_tiles(args), wanted = threads > 1 ? 8 * threads : 1; \
    const loop_t loop = (loop_t)args[PARALLEL]; \
    packing_t packing = {args, 0}; \
    product_t product = {{args, 0, sizeof(I) == 8, (wanted + tiles - 1) / tiles, 0}, tiles, 0}; \
    if (threads <= 1 || args[BATCH] * args[FEATURES] < SHARED) pack_##T##_##I(0, 1, &packing); \
    else loop(0, threads, 1, pack_##T##_##I, &packing); \
    if (threads <= 1) products_##T##_##I(0, 1, &product); \
    else loop(0, threads, 1, products_##T##_##I, &product); \
} \
i64 scorch_linear_##T##_##I(i64 *given) { \
    const i64 batch = given[G_BATCH], width = given[G_WIDTH], tiles = (batch + width - 1) / width; \
    const int needs_own = batch > 1 && given[G_PACKED] == given[G_X]; \
    T *own = needs_own ? malloc(tiles * width * given[G_FEATURES] * sizeof(T)) : 0; \
    if (needs_own && !own) return 1; \
    const i64 args[] = { \
        given[PARALLEL], given[THREADS], given[ROWS], given[G_POS], given[G_CRD], given[G_VALUES], \
        given[G_HAS_BIAS] ? given[G_BIAS] : 0, given[G_X], own ? (i64)own : given[G_PACKED], given[G_OUT], \
        batch, given[G_FEATURES], width}; \
    if (batch > 1) multiply_batch_##T##_##I(args); \
    else by_rows(args, sizeof(I) == 8, dots_##T##_##I); \
    free(own); \
    return 0; \
}
