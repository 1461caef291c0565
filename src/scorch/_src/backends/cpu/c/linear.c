/* A batch lies in tiles of WIDTH rows of X, padded by zeros, each of which has the features one after the
   other: element b of feature j of a tile is at j * WIDTH + b. Each thread copies the tile that it works on
   for itself: fetching what another core has written would take as long. ROWS, POS and CRD count blocks. */
enum { VALUES = FIRST, SCALES, BIAS, RESIDUAL, X, SPACE, OUT, BATCH, FEATURES, WIDTH, ACTIVATION, EXPANDS, BLOCK_DEPTH };
enum { /* what is given: numbers, tensors, and the result at last */
    G_BATCH = ROWS + 1, G_FEATURES, G_WIDTH, G_HAS_BIAS, G_HAS_RESIDUAL, G_ACTIVATION, G_EXPANDS, G_BLOCK_DEPTH,
    G_POS, G_CRD, G_VALUES, G_SCALES, G_BIAS, G_RESIDUAL, G_X, G_SPACE, G_OUT
};
enum { LINE = 64 }; /* bytes of a cache line; vectors that lie in two of them take twice as long */
/* Rows that are copied together, since their elements are neighbours where they go, and as rows of blocks. */
enum { LINES = 16, GROUP = LINES / BLOCK_ROWS, PACKED = 64 /* of the columns of a row */ };
enum { WHOLE = GROUP * (HAS_PAIRS ? 2 : 1) };

/* Numbers of X, BIAS, RESIDUAL and OUT as they lie in memory; those that are computed with are of the type T. */
#ifdef BATCH_bf16
#define NUMBER(T) unsigned short
#define IS_NARROW_BATCH 1
#define read_number(x) widen_bf16(x)
#define write_number(x) narrow_bf16(x)
#else
#define NUMBER(T) T
#define IS_NARROW_BATCH 0
#define read_number(x) (x)
#define write_number(x) (x)
#endif

void *malloc(unsigned long);
void free(void *);

/* Memory of the last call, which begins with its size: new pages take longer than small products. */
static i64 *kept;
enum { MOST_KEPT = 1 << 23 };

static i64 *take_memory(i64 bytes) {
    i64 *memory = __atomic_exchange_n(&kept, 0, __ATOMIC_ACQ_REL);
    if (memory && *memory >= bytes) return memory;
    free(memory);
    memory = malloc(bytes);
    if (memory) *memory = bytes;
    return memory;
}

static void give_memory(i64 *memory) {
    free(memory && *memory <= MOST_KEPT ? __atomic_exchange_n(&kept, memory, __ATOMIC_ACQ_REL) : memory);
}

typedef int (*loop_t)(i64, i64, i64, work_t, void *);
/* TILES of the batch times as many parts of the weight's rows as ROWS has chunks; the next part of each tile, in a
   cache line of its own. */
typedef struct { i64 part; char rest[LINE - sizeof(i64)]; } next_t;
typedef struct { job_t rows; i64 tiles; next_t *next; } product_t;

static i64 count_tiles(i64 batch, i64 width) { return (batch + width - 1) / width; }

/* Elements that a thread needs: a tile, and the values of a row where those are stored otherwise. */
static i64 space_of(i64 features, i64 width, i64 expands, i64 block) {
    const i64 space = features * width + (IS_NARROW_WEIGHT ? (features * BLOCK_ROWS + LINE - 1) / LINE * LINE : 0);
    const i64 expanded = expands ? expanded_space(features, expands * width, block) : 0;
    const i64 most = space < expanded ? expanded : space;
    return (most + LINE - 1) / LINE * LINE;
}

/* The first row of blocks of a part; parts begin with whole groups of WHOLE. */
static i64 first_line(const job_t *rows, i64 part) {
    const i64 row = (first_row(rows, part) + WHOLE - 1) / WHOLE * WHOLE;
    return CLAMP(row, rows->args[ROWS]);
}

/* Parts of a tile: one for each thread that begins with it, and more where they take longer than to be counted. */
static i64 count_parts(const i64 *args, int wide, i64 tiles, i64 lanes) {
    const i64 threads = args[THREADS], most = (8 * threads + tiles - 1) / tiles, least = (threads + tiles - 1) / tiles;
    const i64 work = pointer(args, wide, args[ROWS]) * BLOCK * (args[WIDTH] / lanes) / 2048;
    return threads <= 1 ? 1 : work < least ? least : CLAMP(work, most);
}

/* How many chunks of rows each thread has where the batch has one row: few products are not worth a second. */
static i64 chunks_of_dots(const i64 *args, int wide) {
    return pointer(args, wide, args[ROWS]) * BLOCK < args[THREADS] * 8192 ? 1 : 8;
}

#define INTRINSICS(T, I) \
SQUARE(T) \
BLOCKS(T, COLUMN(I)) \
ACTIVATIONS(T) \
TURN(T) \
WINDOWS(T, I) \
/* Rows without gaps, plus rows of a residual if there is one, go to rows as far apart as those. */ \
static void store_##T(const T *rows, const NUMBER(T) *residual, NUMBER(T) *to, i64 apart, i64 height, i64 width) { \
    for (i64 row = 0; row < height; row++, rows += width, to += apart) { \
        const NUMBER(T) *added = residual ? residual + row * apart : 0; \
        if (added) \
            _Pragma("omp simd") \
            for (i64 k = 0; k < width; k++) to[k] = write_number(rows[k] + read_number(added[k])); \
        else \
            _Pragma("omp simd") \
            for (i64 k = 0; k < width; k++) to[k] = write_number(rows[k]); \
    } \
} \
static void load_##T(const NUMBER(T) *from, T *to, i64 count) { \
    _Pragma("omp simd") \
    for (i64 k = 0; k < count; k++) to[k] = read_number(from[k]); \
} \
static void dots_##T##_##I(const i64 *args, i64 begin, i64 end, i64 worker) { \
    const I *pos = (const I *)args[POS]; \
    const COLUMN(I) *crd = (const COLUMN(I) *)args[CRD]; \
    const WEIGHT(T) *values = (const WEIGHT(T) *)args[VALUES]; \
    const T *x = (const T *)args[X], *bias = (const T *)args[BIAS], *scales = (const T *)args[SCALES]; \
    T *out = (T *)args[OUT]; \
    (void)worker; \
    FETCH(values + pos[begin] * BLOCK, 1024) /* what no row before has fetched */ \
    FETCH(crd + pos[begin], 1024) \
    const i64 first = begin * BLOCK_ROWS, count = (end - begin) * BLOCK_ROWS; \
    for (i64 row = begin; row < end; row++) { \
        T sums[BLOCK_ROWS]; \
        i64 e = pos[row]; \
        const i64 last = pos[row + 1]; \
        SUM_ROWS(T) \
        for (int line = 0; line < BLOCK_ROWS; line++) { \
            const i64 r = row * BLOCK_ROWS + line; \
            out[r] = (scales ? scales[r] * sums[line] : sums[line]) + (bias ? bias[r] : (T)0); \
        } \
    } \
    activate_##T(args[ACTIVATION], out + first, count); \
    const NUMBER(T) *residual = (const NUMBER(T) *)args[RESIDUAL]; \
    if (residual) store_##T(out + first, residual + first, (NUMBER(T) *)(out + first), 0, 1, count); \
} \
/* The values of a row of N blocks, in SPACE where they are stored in less. */ \
static const T *weights_##T(const i64 *args, i64 row, i64 from, i64 n, T *space) { \
    const WEIGHT(T) *values = (const WEIGHT(T) *)args[VALUES] + from * BLOCK; \
    if (!IS_NARROW_WEIGHT) return (const T *)values; \
    const T *scales = args[SCALES] ? (const T *)args[SCALES] + row * BLOCK_ROWS : 0; \
    _Pragma("omp simd") \
    for (i64 k = 0; k < n * BLOCK; k++) \
        space[k] = (scales ? scales[k / BLOCK_COLUMNS % BLOCK_ROWS] : (T)1) * widen(values[k]); \
    return space; \
} \
PAIRS(T, COLUMN(I)) \
/* Sums of so many rows of the weight times a tile become results: those for ROW begin at SUMS. */ \
static void finish_##T(const i64 *args, i64 tile, i64 row, i64 lines, T *sums) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const NUMBER(T) *residual = (const NUMBER(T) *)args[RESIDUAL]; \
    const i64 width = args[WIDTH], rows = args[ROWS] * BLOCK_ROWS, at = tile * width, to = at * rows + row; \
    const i64 count = CLAMP(width, args[BATCH] - at), vectors = (count + LANES - 1) / LANES; \
    const i64 is_full = vectors * LANES == width, used = is_full ? lines * width : vectors * LANES; \
    T turned[WHOLE * BLOCK_ROWS * MOST * LANES]; \
    for (i64 line = 0; line < (is_full ? 1 : lines); line++) \
        activate_##T(args[ACTIVATION], sums + line * width, used); \
    NUMBER(T) *out = (NUMBER(T) *)args[OUT] + to; \
    const int is_stored = !residual && !IS_NARROW_BATCH; \
    for (i64 line = 0; line < lines; line += LINES) \
        turn_##T(sums + line * width, width, (is_stored ? (T *)out : turned) + line, is_stored ? rows : lines, \
                 CLAMP((i64)LINES, lines - line), count, 0); \
    if (!is_stored) store_##T(turned, residual ? residual + to : 0, out, rows, count, lines); \
} \
EXPANDED(T, I) \
static void multiply_##T##_##I(const i64 *args, T *in, i64 tile, i64 begin, i64 end) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const I *pos = (const I *)args[POS]; \
    const COLUMN(I) *crd = (const COLUMN(I) *)args[CRD]; \
    const T *bias = (const T *)args[BIAS]; \
    const NUMBER(T) *residual = (const NUMBER(T) *)args[RESIDUAL]; \
    const i64 width = args[WIDTH], rows = args[ROWS] * BLOCK_ROWS, at = tile * width; \
    const i64 count = CLAMP(width, args[BATCH] - at), vectors = (count + LANES - 1) / LANES; \
    T sums[LINES * MOST * LANES], *space = in + args[FEATURES] * width; \
    for (i64 row = begin; row < end; row += GROUP) { \
        const i64 lines = CLAMP((i64)GROUP, end - row) * BLOCK_ROWS, to = at * rows + row * BLOCK_ROWS; \
        for (i64 b = 0; residual && b < count; b++) __builtin_prefetch(residual + to + b * rows); \
        for (i64 line = 0; line < lines; line += BLOCK_ROWS) { \
            const i64 r = row + line / BLOCK_ROWS, from = pos[r], n = pos[r + 1] - from; \
            if (IS_PAIRED(width)) { \
                const i64 groups = (count + 2 * LINES - 1) / (2 * LINES); \
                multiply_pairs_##T(args, r, from, n, in, space, sums + line * width, groups); \
                continue; \
            } \
            const T *values = weights_##T(args, r, from, n, space), *start = bias ? bias + r * BLOCK_ROWS : 0; \
            for (i64 v = 0; v < vectors;) \
                v += MULTIPLY_ROWS(T, crd + from, values, n, in + v * LANES, width, start, \
                                   sums + line * width + v * LANES, vectors - v); \
        } \
        finish_##T(args, tile, row * BLOCK_ROWS, lines, sums); \
    } \
} \
static void pack_##T(const i64 *args, i64 tile, T *to) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const i64 features = args[FEATURES], width = args[WIDTH], at = tile * width; \
    const i64 count = CLAMP(width, args[BATCH] - at), padded = (count + LANES - 1) / LANES * LANES; \
    const NUMBER(T) *x = (const NUMBER(T) *)args[X] + at * features; \
    T wide[IS_NARROW_BATCH ? LINES * PACKED : 1]; \
    for (i64 first = 0; first < features; first += PACKED) \
        for (i64 b = 0; b < count; b += LINES) { \
            const NUMBER(T) *from = x + b * features + first; \
            const i64 lines = CLAMP((i64)LINES, count - b), columns = CLAMP((i64)PACKED, features - first); \
            for (i64 line = 0; IS_NARROW_BATCH && line < lines; line++) \
                load_##T(from + line * features, wide + line * PACKED, columns); \
            turn_##T(IS_NARROW_BATCH ? wide : (const T *)from, IS_NARROW_BATCH ? PACKED : features, \
                     to + first * width + b, width, lines, columns, 1); \
        } \
    for (i64 j = SIDE_##T ? features / LINES * LINES : 0; j < features && count < padded; j++) \
        for (i64 b = count; b < padded; b++) to[j * width + b] = 0; \
} \
/* Threads begin with different tiles, and go on to those of others where enough is left for what packing takes. */ \
static void products_##T##_##I(i64 worker, i64 end, void *context) { \
    product_t *job = context; \
    const i64 *args = job->rows.args, tiles = job->tiles, parts = job->rows.chunks, threads = args[THREADS]; \
    const i64 home = worker * tiles / threads, homes = (end * tiles + threads - 1) / threads - home; \
    T *in = (T *)args[SPACE] + worker * space_of(args[FEATURES], args[WIDTH], args[EXPANDS], args[BLOCK_DEPTH]); \
    const i64 expands = args[EXPANDS]; \
    if (expands) begin_tiles(); \
    for (i64 step = 0; step < tiles; step++) { \
        const i64 tile = (home + step) % tiles; \
        i64 *next = &job->next[tile].part, part = __atomic_load_n(next, __ATOMIC_RELAXED); \
        if (part >= parts || (step >= homes && parts - part <= parts / 4)) continue; \
        part = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); \
        for (i64 each = 0; part < parts && each < expands; each++) \
            pack_expanded_##T(args, tile * expands + each, in + each * expanded_apart(args[FEATURES], args[WIDTH])); \
        if (part < parts && !expands && IS_PAIRED(args[WIDTH])) pack_pairs_##T(args, tile, in); \
        else if (part < parts && !expands) pack_##T(args, tile, in); \
        for (; part < parts; part = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) { \
            const i64 begin = first_line(&job->rows, part), end = first_line(&job->rows, part + 1); \
            if (expands) multiply_expanded_##T##_##I(args, in, tile, begin, end); \
            else multiply_##T##_##I(args, in, tile, begin, end); \
        } \
    } \
    if (expands) end_tiles(); \
} \
static void multiply_batch_##T##_##I(const i64 *args, i64 tiles, next_t *next) { \
    const i64 threads = args[THREADS], parts = count_parts(args, sizeof(I) == 8, tiles, sizeof(T##v) / sizeof(T)); \
    product_t product = {{args, 0, sizeof(I) == 8, parts}, tiles, next}; \
    for (i64 tile = 0; tile < tiles; tile++) next[tile].part = 0; \
    if (threads <= 1) products_##T##_##I(0, 1, &product); \
    else ((loop_t)args[PARALLEL])(0, threads, 1, products_##T##_##I, &product); \
} \
i64 scorch_linear_##T##_##I(i64 *given) { \
    const i64 batch = given[G_BATCH], features = given[G_FEATURES], width = given[G_WIDTH]; \
    const i64 is_tiled = batch > 1 && !IS_WINDOWED, is_own = given[G_SPACE] == given[G_X]; \
    const unsigned short *bits = (const unsigned short *)given[G_X]; \
    const int may = given[G_EXPANDS] && may_expand() && all_finite(bits, batch * features); \
    const i64 expands = may ? given[G_EXPANDS] : 0, tiles = count_tiles(batch, width * (expands ? expands : 1)); \
    const i64 each = space_of(features, width, expands, given[G_BLOCK_DEPTH]); \
    const i64 space = is_tiled && is_own ? given[THREADS] * each * sizeof(T) : 0; \
    /* Of a narrow batch the bias is widened first; where it is in no tiles, X and the results are, too. */ \
    const i64 rows = given[ROWS] * BLOCK_ROWS, biases = IS_NARROW_BATCH && given[G_HAS_BIAS] ? rows : 0; \
    const i64 widened = IS_NARROW_BATCH && !is_tiled ? batch * features : 0, results = widened ? batch * rows : 0; \
    const i64 needed = space + (biases + widened + results) * sizeof(T); \
    i64 *own = is_tiled || needed ? take_memory((tiles + 2) * sizeof(next_t) + needed) : 0; \
    if (!own && (is_tiled || needed)) return 1; \
    next_t *next = (next_t *)((i64)own / LINE * LINE) + 1; \
    T *bias = (T *)((char *)(next + tiles) + space), *x = bias + biases, *out = x + widened; \
    if (biases) load_##T((const NUMBER(T) *)given[G_BIAS], bias, biases); \
    if (widened) load_##T((const NUMBER(T) *)given[G_X], x, widened); \
    const NUMBER(T) *residual = given[G_HAS_RESIDUAL] ? (const NUMBER(T) *)given[G_RESIDUAL] : 0; \
    const i64 args[] = { \
        given[PARALLEL], given[THREADS], given[ROWS], given[G_POS], given[G_CRD], given[G_VALUES], \
        HAS_SCALES ? given[G_SCALES] : 0, biases ? (i64)bias : given[G_HAS_BIAS] ? given[G_BIAS] : 0, \
        results ? 0 : (i64)residual, widened ? (i64)x : given[G_X], is_own ? (i64)(next + tiles) : given[G_SPACE], \
        results ? (i64)out : given[G_OUT], batch, features, width, given[G_ACTIVATION], expands, given[G_BLOCK_DEPTH]}; \
    if (IS_WINDOWED) in_chunks(args, sizeof(I) == 8, windows_##T##_##I, chunks_of_dots(args, sizeof(I) == 8)); \
    else if (batch > 1) multiply_batch_##T##_##I(args, tiles, next); \
    else in_chunks(args, sizeof(I) == 8, dots_##T##_##I, chunks_of_dots(args, sizeof(I) == 8)); \
    if (results) store_##T(out, residual, (NUMBER(T) *)given[G_OUT], 0, 1, results); \
    give_memory(own); \
    return 0; \
}
