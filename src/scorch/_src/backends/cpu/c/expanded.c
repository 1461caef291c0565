/* Parts of a weight in bf16 as dense tiles, for processors that multiply tiles by one instruction (AMX): STRIP rows
   of the weight are written between zeros, which takes less than to multiply every entry by a large batch. A tile of
   the batch has its numbers by twos, as that instruction takes them: for SIDE rows at a time, numbers 2 * j and
   2 * j + 1 of the first row, of the second and so on. Such products take subnormal numbers for zeros, as dense
   layers in bf16 do. Implicit zeros times inf or nan are none: tiles with such numbers are multiplied entry by entry. */
#if HAS_PAIRS && $VECTOR == 64 && defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_BF16__)
enum { SIDE = 16 /* of a tile of sums */, DEEP = 32 /* numbers in a row of a tile */ };
enum { STRIP = 2 * SIDE, HIGH = 8 * STRIP /* rows of the weight */ };
#define ROUND_UP(n, whole) (((n) + (whole) - 1) / (whole) * (whole))

long syscall(long, ...);

/* The kernel lets a process use tiles when it asks. */
static int may_expand(void) {
    static int known; /* 1: no, 2: yes */
    int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!found) {
        found = syscall(158 /* arch_prctl */, 0x1023L /* ARCH_REQ_XCOMP_PERM */, 18L /* of tiles */) ? 1 : 2;
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found == 2;
}

static void begin_tiles(void) {
    struct { unsigned char palette, rest[15]; unsigned short bytes[16]; unsigned char rows[16]; } shape = {1};
    for (int tile = 0; tile < 8; tile++) shape.bytes[tile] = 2 * DEEP, shape.rows[tile] = SIDE;
    __asm__ volatile("ldtilecfg %0" : : "m"(shape));
}

static void end_tiles(void) { __asm__ volatile("tilerelease"); }

#define CLEAR_TILE(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define LOAD_TILE(tile, from, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"((i64)(stride)) : "memory")
#define STORE_TILE(tile, to, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"((i64)(stride)) : "memory")
#define ADD_TILES(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : :)

/* SUMS, rows of WIDTH, of so many columns of a strip of the weight times COUNT rows of a tile of the batch, whose
   groups of SIDE rows are APART; added to what is there if that IS_PARTIAL. */
static void multiply_strip(const unsigned short *strip, i64 depth, const unsigned *in, i64 apart, i64 count, f32 *sums,
                           i64 width, int is_partial) {
    const i64 stride = depth + DEEP, far = width * sizeof(f32);
    for (i64 b = 0; b < count; b += 2 * SIDE) {
        const unsigned *left = in + b / SIDE * apart, *right = left + apart;
        f32 *low = sums + b, *high = low + SIDE * width;
        if (is_partial) {
            LOAD_TILE(0, low, far);
            LOAD_TILE(1, low + SIDE, far);
            LOAD_TILE(2, high, far);
            LOAD_TILE(3, high + SIDE, far);
        } else {
            CLEAR_TILE(0);
            CLEAR_TILE(1);
            CLEAR_TILE(2);
            CLEAR_TILE(3);
        }
        for (i64 k = 0; k < depth; k += DEEP) {
            LOAD_TILE(4, strip + k, stride * 2);
            LOAD_TILE(6, left + k / 2 * SIDE, 2 * DEEP);
            ADD_TILES(0, 4, 6);
            LOAD_TILE(5, strip + SIDE * stride + k, stride * 2);
            ADD_TILES(2, 5, 6);
            LOAD_TILE(7, right + k / 2 * SIDE, 2 * DEEP);
            ADD_TILES(1, 4, 7);
            ADD_TILES(3, 5, 7);
        }
        STORE_TILE(0, low, far);
        STORE_TILE(1, low + SIDE, far);
        STORE_TILE(2, high, far);
        STORE_TILE(3, high + SIDE, far);
    }
}

static int all_finite(const unsigned short *x, i64 count) {
    unsigned short odd = 0;
    _Pragma("omp simd reduction(|:odd)")
    for (i64 k = 0; k < count; k++) odd |= (x[k] & 0x7f80) == 0x7f80;
    return !odd;
}

/* Elements of so many rows of the batch. */
static i64 expanded_apart(i64 features, i64 width) { return ROUND_UP(features, DEEP) / 2 * width; }

/* The same, and of a strip and of the sums of HIGH rows of the weight. */
static i64 expanded_space(i64 features, i64 rows, i64 block) {
    return expanded_apart(features, rows) + STRIP * (block + DEEP) / 2 + HIGH * rows;
}

#define EXPANDED(T, I) \
/* Copy a tile; rows and features behind the last are zeros. */ \
static void pack_expanded_##T(const i64 *args, i64 tile, T *to) { \
    const i64 features = args[FEATURES], depth = ROUND_UP(features, DEEP), width = args[WIDTH], at = tile * width; \
    const i64 count = CLAMP(width, args[BATCH] - at); \
    const unsigned short *x = (const unsigned short *)args[X] + at * features; \
    unsigned short copied[LINES * 2 * PACKED]; \
    for (i64 b = 0; b < ROUND_UP(count, 2 * SIDE); b += LINES) { \
        for (i64 first = 0; first < depth; first += 2 * PACKED) { \
            const i64 used = CLAMP(2 * PACKED, features - first), columns = CLAMP(2 * PACKED, depth - first); \
            for (i64 line = 0; line < LINES; line++) { \
                const i64 full = b + line < count ? used : 0; \
                const unsigned short *from = x + (b + line) * features + first; \
                unsigned short *row = copied + line * 2 * PACKED; \
                _Pragma("omp simd") \
                for (i64 k = 0; k < full; k++) row[k] = from[k]; \
                for (i64 k = full; k < columns; k++) row[k] = 0; \
            } \
            T *place = to + b * (depth / 2) + first / 2 * LINES; \
            turn_##T((const T *)copied, PACKED, place, LINES, LINES, columns / 2, 1); \
        } \
    } \
} \
/* Columns from FROM to TO of a row of the weight between zeros; return the first entry behind them. */ \
static i64 expand_##T##_##I(const i64 *args, i64 row, i64 e, i64 from, i64 to, unsigned short *line) { \
    const COLUMN(I) *crd = (const COLUMN(I) *)args[CRD]; \
    const unsigned short *values = (const unsigned short *)args[VALUES]; \
    const i64 last = ((const I *)args[POS])[row + 1]; \
    _Pragma("omp simd") \
    for (i64 k = 0; k < to - from; k++) line[k] = 0; \
    if (from == 0 && to >= args[FEATURES]) \
        for (; e < last; e++) line[crd[e]] = values[e]; \
    else \
        for (; e < last && (i64)crd[e] < to; e++) line[(i64)crd[e] - from] = values[e]; \
    return e; \
} \
/* Rows of the weight times the tiles of a panel, which lie one after the other. Of long rows, HIGH of them at a time \
   meet so many columns of the panel as stay in the cache. */ \
static void multiply_expanded_##T##_##I(const i64 *args, T *in, i64 panel, i64 begin, i64 end) { \
    const i64 width = args[WIDTH], features = args[FEATURES], depth = ROUND_UP(features, DEEP); \
    const i64 block = args[BLOCK_DEPTH]; \
    const i64 first = panel * args[EXPANDS], tiles = CLAMP(first + args[EXPANDS], count_tiles(args[BATCH], width)); \
    const i64 apart = expanded_apart(features, width), high = block < depth ? HIGH : STRIP; \
    const T *bias = (const T *)args[BIAS]; \
    unsigned short *strip = (unsigned short *)(in + args[EXPANDS] * apart); \
    T *sums = in + args[EXPANDS] * apart + STRIP * (block + DEEP) / 2; \
    i64 at[HIGH]; \
    for (i64 row = begin; row < end; row += high) { \
        const i64 lines = CLAMP(high, end - row), size = ROUND_UP(lines, STRIP) * width; \
        for (i64 line = 0; line < lines; line++) at[line] = ((const I *)args[POS])[row + line]; \
        for (i64 from = 0; from < depth; from += block) { \
            const i64 to = CLAMP(from + block, depth), stride = to - from + DEEP; \
            for (i64 line = 0; line < lines; line += STRIP) { \
                for (i64 k = line; k < CLAMP(line + STRIP, lines); k++) \
                    at[k] = expand_##T##_##I(args, row + k, at[k], from, to, strip + (k - line) * stride); \
                for (i64 tile = first; tile < tiles; tile++) \
                    multiply_strip(strip, to - from, (const unsigned *)(in + (tile - first) * apart) + from / 2 * SIDE, \
                                   depth / 2 * SIDE, CLAMP(width, args[BATCH] - tile * width), \
                                   sums + (tile - first) * size + line * width, width, from > 0); \
            } \
        } \
        for (i64 tile = first; tile < tiles; tile++) \
            for (i64 line = 0; line < lines; line += STRIP) { \
                T *found = sums + (tile - first) * size + line * width; \
                const i64 used = CLAMP((i64)STRIP, lines - line), count = CLAMP(width, args[BATCH] - tile * width); \
                for (i64 k = 0; bias && k < used; k++) \
                    _Pragma("omp simd") \
                    for (i64 b = 0; b < count; b++) found[k * width + b] += bias[row + line + k]; \
                finish_##T(args, tile, row + line, used, found); \
            } \
    } \
}
#else
#define may_expand() 0
#define all_finite(...) 0
#define begin_tiles() ((void)0)
#define end_tiles() ((void)0)
#define expanded_space(...) 0
#define expanded_apart(...) 0
#define EXPANDED(T, I)
#define pack_expanded_f32(...) ((void)0)
#define pack_expanded_f64(...) ((void)0)
#define multiply_expanded_f32_i32(...) ((void)0)
#define multiply_expanded_f32_i64(...) ((void)0)
#define multiply_expanded_f64_i32(...) ((void)0)
#define multiply_expanded_f64_i64(...) ((void)0)
#endif
