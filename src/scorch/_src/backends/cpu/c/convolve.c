/* Images lie one after the other, INPUT elements of IN each, and entry e of a row reads from crd[e] on. SPAN
   neighbouring positions are computed of each row, in lines of LINE, the first KEPT of which are stored.
   Of kernels of one pixel, entry e of a row reads channel crd[e], and channels are STRIDE elements apart, which is 1
   otherwise. If there are CHANNELS, threads copy them to SPACE, some positions at a time, where rows read them in
   turn: positions that begin inside of cache lines, and lines that are far from each other, take longer. */
enum {
    VALUES = FIRST, BIAS, IN, OUT, SPACE, MEAN, VARIANCE, WEIGHT, NORM_BIAS, NORMED, RESIDUAL,
    IMAGES, INPUT, SPAN, LINE, KEPT, STRIDE, CHANNELS, EPSILON, ACTIVATION
};
enum { TILE_BYTES = 128 }; /* of positions that are copied for a channel: two cache lines */

double sqrt(double);

typedef struct { const i64 *args; i64 tiles, parts, next; int wide; } convolution_t;

#define INTRINSICS(T, I) \
TILES(T, I) \
ACTIVATIONS(T) \
/* What each row is multiplied by, and what is added then. */ \
static void find_norm_##T##_##I(const i64 *args) { \
    const union { i64 bits; f64 number; } epsilon = {args[EPSILON]}; \
    const T *mean = (const T *)args[MEAN], *variance = (const T *)args[VARIANCE]; \
    const T *weight = (const T *)args[WEIGHT], *bias = (const T *)args[NORM_BIAS]; \
    const i64 rows = args[ROWS]; \
    T *gain = (T *)args[NORMED], *shift = gain + rows; \
    for (i64 row = 0; row < rows; row++) { \
        gain[row] = (T)((weight ? weight[row] : (T)1) / sqrt((f64)variance[row] + epsilon.number)); \
        shift[row] = (bias ? bias[row] : (T)0) - mean[row] * gain[row]; \
    } \
} \
/* What follows some vectors of a row; REST is the residual, if there is one, of the same positions. */ \
static void finish_##T##_##I(const i64 *args, i64 row, T *sums, const T *rest, i64 vectors) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    if (args[NORMED]) { \
        const T gain = ((const T *)args[NORMED])[row], shift = ((const T *)args[NORMED])[args[ROWS] + row]; \
        for (i64 v = 0; v < vectors; v++) { \
            T##v_at *at = (T##v_at *)(sums + v * LANES); \
            *at = *at * gain + shift; \
        } \
    } \
    for (i64 v = 0; rest && v < vectors; v++) *(T##v_at *)(sums + v * LANES) += *(const T##v_at *)(rest + v * LANES); \
    activate_##T(args[ACTIVATION], sums, vectors * LANES); \
} \
/* Copy those of COUNT positions from AT on that are kept from or to an image, all of whose positions are. */ \
static void keep_##T##_##I(const i64 *args, T *sums, i64 at, i64 count, T *image, int is_read) { \
    const i64 line = args[LINE], kept = args[KEPT]; \
    while (count > 0) { \
        const i64 y = at / line, x = at - y * line, step = CLAMP(line - x, count), most = CLAMP(step, kept - x); \
        T *to = image + y * kept + x; \
        if (is_read) for (i64 k = 0; k < most; k++) sums[k] = to[k]; \
        else for (i64 k = 0; k < most; k++) to[k] = sums[k]; \
        at += step, sums += step, count -= step; \
    } \
} \
static void part_##T##_##I(const convolution_t *job, i64 image, i64 tile, i64 begin, i64 end) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const i64 *args = job->args; \
    const I *pos = (const I *)args[POS]; \
    const i64 span = args[SPAN], vectors = (span + LANES - 1) / LANES; \
    const i64 first = vectors * tile / job->tiles, last = vectors * (tile + 1) / job->tiles; \
    const i64 size = (span + args[LINE] - 1) / args[LINE] * args[KEPT]; \
    const T *in = (const T *)args[IN] + image * args[INPUT], *bias = (const T *)args[BIAS]; \
    T sums[MOST * LANES], rest[MOST * LANES] = {0}; \
    for (i64 row = begin; row < end; row++) { \
        const I *crd = (const I *)args[CRD] + pos[row]; \
        const T *values = (const T *)args[VALUES] + pos[row], start = bias ? bias[row] : (T)0; \
        const i64 first_out = (image * args[ROWS] + row) * size; \
        for (i64 v = first; v < last;) { \
            const i64 at = v * LANES; \
            v += widest_##T(crd, values, pos[row + 1] - pos[row], in + at, args[STRIDE], start, sums, \
                                   last - v); \
            const i64 count = CLAMP(v * LANES, span) - at; \
            if (args[RESIDUAL]) keep_##T##_##I(args, rest, at, count, (T *)args[RESIDUAL] + first_out, 1); \
            finish_##T##_##I(args, row, sums, args[RESIDUAL] ? rest : 0, v - at / LANES); \
            keep_##T##_##I(args, sums, at, count, (T *)args[OUT] + first_out, 0); \
        } \
    } \
} \
static void pack_##T##_##I(const i64 *args, i64 image, i64 at, i64 count, T *to) { \
    enum { WIDTH = TILE_BYTES / sizeof(T) }; \
    const T *in = (const T *)args[IN] + image * args[INPUT] + at; \
    for (i64 channel = 0; channel < args[CHANNELS]; channel++, to += WIDTH, in += args[SPAN]) { \
        if (count == WIDTH) __builtin_memcpy(to, in, TILE_BYTES); \
        else for (i64 k = 0; k < WIDTH; k++) to[k] = k < count ? in[k] : (T)0; \
    } \
} \
/* A part of the rows for a tile of positions of an image, whose copy is TILE. */ \
static void pixels_##T##_##I(const i64 *args, i64 image, i64 at, i64 count, i64 begin, i64 end, const T *tile) { \
    enum { LANES = sizeof(T##v) / sizeof(T), WIDTH = TILE_BYTES / sizeof(T) }; \
    const I *pos = (const I *)args[POS]; \
    const i64 span = args[SPAN], vectors = (count + LANES - 1) / LANES; \
    const T *bias = (const T *)args[BIAS]; \
    T sums[WIDTH], last[WIDTH] = {0}; \
    const T *residual = args[RESIDUAL] ? (const T *)args[RESIDUAL] + (image * args[ROWS] + begin) * span + at : 0; \
    for (i64 row = begin; row < end; row++, residual += residual ? span : 0) { \
        const I *crd = (const I *)args[CRD] + pos[row]; \
        const T *values = (const T *)args[VALUES] + pos[row], start = bias ? bias[row] : (T)0, *rest = residual; \
        if (residual) { FETCH(residual + AHEAD * span, TILE_BYTES) } \
        T *out = (T *)args[OUT] + (image * args[ROWS] + row) * span + at, *to = count == WIDTH ? out : sums; \
        for (i64 v = 0; v < vectors;) \
            v += widest_##T(crd, values, pos[row + 1] - pos[row], tile + v * LANES, WIDTH, start, to + v * LANES, \
                            vectors - v); \
        if (residual && to == sums) { \
            for (i64 k = 0; k < count; k++) last[k] = residual[k]; \
            rest = last; \
        } \
        finish_##T##_##I(args, row, to, rest, vectors); \
        for (i64 k = 0; to == sums && k < count; k++) out[k] = sums[k]; \
    } \
} \
static void parts_##T##_##I(i64 worker, i64 end, void *context) { \
    convolution_t *job = context; \
    const job_t rows = {job->args, 0, job->wide, job->parts, 0}; \
    const i64 *args = job->args, width = TILE_BYTES / sizeof(T), units = args[IMAGES] * job->tiles; \
    T *tile = (T *)args[SPACE] + worker * args[CHANNELS] * width; \
    i64 packed = -1; \
    (void)end; \
    for (;;) { \
        const i64 next = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED); \
        const i64 unit = next / job->parts, part = next % job->parts; \
        if (unit >= units) return; \
        if (args[CHANNELS]) { \
            const i64 image = unit / job->tiles, at = unit % job->tiles * width, left = args[SPAN] - at; \
            const i64 count = CLAMP(width, left); \
            if (unit != packed) pack_##T##_##I(args, image, at, count, tile), packed = unit; \
            pixels_##T##_##I(args, image, at, count, first_row(&rows, part), first_row(&rows, part + 1), tile); \
            continue; \
        } \
        part_##T##_##I(job, unit / job->tiles, unit % job->tiles, first_row(&rows, part), \
                       first_row(&rows, part + 1)); \
    } \
} \
i64 scorch_convolve_##T##_##I(i64 *args) { \
    enum { LANES = sizeof(T##v) / sizeof(T) }; \
    const i64 step = args[CHANNELS] ? TILE_BYTES / sizeof(T) : MOST * LANES, tiles = (args[SPAN] + step - 1) / step; \
    const i64 units = tiles * args[IMAGES], threads = args[THREADS], wanted = threads > 1 ? 4 * threads : 1; \
    convolution_t job = {args, tiles, units < wanted ? (wanted + units - 1) / units : 1, 0, sizeof(I) == 8}; \
    if (args[NORMED]) find_norm_##T##_##I(args); \
    if (threads <= 1) parts_##T##_##I(0, 1, &job); \
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, threads, 1, parts_##T##_##I, &job); \
    return 0; \
}
