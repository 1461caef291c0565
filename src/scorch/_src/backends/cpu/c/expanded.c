/* Parts of a weight in bf16 as dense tiles, for processors that multiply tiles by one instruction (AMX): STRIP rows
   of the weight are written between zeros, which takes less than to multiply every entry by a large batch. A tile of
   the batch has its numbers by twos, as that instruction takes them: for SIDE rows at a time, numbers 2 * j and
   2 * j + 1 of the first row, of the second and so on. Such products take subnormal numbers for zeros, as dense
   layers in bf16 do. Implicit zeros times inf or nan are none: tiles with such numbers are multiplied entry by entry. */
#if HAS_PAIRS && $VECTOR == 64 && defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_BF16__)
enum { SIDE = 16 /* of a tile of sums */, DEEP = 32 /* numbers in a row of a tile */, STRIP = 2 * SIDE };
enum { MOST_EXPANDED = 128 /* rows of a tile of the batch */ };
#define ROUND_UP(n, whole) (((n) + (whole) - 1) / (whole) * (whole))
#define STRIDE(features) (ROUND_UP(features, DEEP) + DEEP) /* of a strip, such that its rows are in different sets of a cache */

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

/* SUMS, rows of WIDTH, of a strip of the weight times COUNT rows of a tile of the batch. */
static void multiply_strip(const unsigned short *strip, i64 stride, const unsigned *in, i64 count, f32 *sums, i64 width) {
    const i64 depth = stride - DEEP, apart = depth / 2 * SIDE, far = width * sizeof(f32);
    for (i64 b = 0; b < count; b += 2 * SIDE) {
        const unsigned *left = in + b / SIDE * apart, *right = left + apart;
        f32 *low = sums + b, *high = low + SIDE * width;
        CLEAR_TILE(0);
        CLEAR_TILE(1);
        CLEAR_TILE(2);
        CLEAR_TILE(3);
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

/* The same, and of a strip. */
static i64 expanded_space(i64 features, i64 rows) {
    return expanded_apart(features, rows) + STRIP * STRIDE(features) / 2;
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
            turn_##T((const T *)copied, PACKED, to + b * (depth / 2) + first / 2 * LINES, LINES, LINES, columns / 2, 1); \
        } \
    } \
} \
/* Rows of the weight times the tiles of a panel, which lie one after the other. */ \
static void multiply_expanded_##T##_##I(const i64 *args, T *in, i64 panel, i64 begin, i64 end) { \
    const I *pos = (const I *)args[POS]; \
    const COLUMN(I) *crd = (const COLUMN(I) *)args[CRD]; \
    const unsigned short *values = (const unsigned short *)args[VALUES]; \
    const T *bias = (const T *)args[BIAS]; \
    const i64 width = args[WIDTH], features = args[FEATURES], depth = ROUND_UP(features, DEEP); \
    const i64 first = panel * args[EXPANDS], tiles = CLAMP(first + args[EXPANDS], count_tiles(args[BATCH], width)); \
    const i64 stride = STRIDE(features), apart = expanded_apart(features, width); \
    unsigned short *strip = (unsigned short *)(in + args[EXPANDS] * apart); \
    T sums[STRIP * MOST_EXPANDED] __attribute__((aligned(2 * DEEP))); \
    for (i64 row = begin; row < end; row += STRIP) { \
        const i64 lines = CLAMP((i64)STRIP, end - row); \
        for (i64 line = 0; line < STRIP; line++) { \
            unsigned short *to = strip + line * stride; \
            const i64 last = line < lines ? pos[row + line + 1] : 0; \
            _Pragma("omp simd") \
            for (i64 k = 0; k < depth; k++) to[k] = 0; \
            for (i64 e = line < lines ? pos[row + line] : 0; e < last; e++) to[crd[e]] = values[e]; \
        } \
        for (i64 tile = first; tile < tiles; tile++) { \
            const i64 count = CLAMP(width, args[BATCH] - tile * width); \
            multiply_strip(strip, stride, (const unsigned *)(in + (tile - first) * apart), count, sums, width); \
            for (i64 line = 0; bias && line < lines; line++) \
                _Pragma("omp simd") \
                for (i64 b = 0; b < count; b++) sums[line * width + b] += bias[row + line]; \
            finish_##T(args, tile, row, lines, sums); \
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
