typedef long long i64;
typedef int i32;
typedef unsigned short u16;
enum { R = ROWS };
enum { PARALLEL, THREADS, MATRICES, QUERIES, KEYS, POS, CRD, SEEN, LIST, ALONE, COSTS,
       BEGIN, COLUMNS, MASKS };

/* Keys in the order in which the queries name them; how many */
#define BLOCKS(T) \
static i64 listed_##T(const i64 *args, i64 first, i64 rows, u16 *seen, i32 *list) { \
    const T *pos = (const T *)args[POS], *crd = (const T *)args[CRD]; \
    i64 count = 0; \
    for (i64 q = 0; q < rows; q++) \
        for (i64 at = pos[first + q]; at < pos[first + q + 1]; at++) { \
            const i64 key = crd[at]; \
            if (!seen[key]) list[count++] = (i32)key; \
            seen[key] |= (u16)(1u << q); \
        } \
    return count; \
} \
static void some_##T(i64 begin, i64 end, void *context) { \
    const i64 *args = context, queries = args[QUERIES], each = (queries + R - 1) / R; \
    const i64 all = args[MATRICES] * each, threads = args[THREADS], alone = args[ALONE]; \
    const T *pos = (const T *)args[POS]; \
    for (i64 thread = begin; thread < end; thread++) { \
        u16 *seen = (u16 *)args[SEEN] + thread * args[KEYS]; \
        i32 *list = (i32 *)args[LIST] + thread * args[KEYS]; \
        for (i64 block = all * thread / threads; block < all * (thread + 1) / threads; block++) { \
            const i64 row = block % each * R, rows = queries - row < R ? queries - row : R; \
            const i64 first = block / each * queries + row, entries = pos[first + rows] - pos[first]; \
            const i64 *places = (const i64 *)args[BEGIN]; \
            if (places && places[block] == places[block + 1]) continue; \
            const i64 count = listed_##T(args, first, rows, seen, list); \
            const int is_shared = R * count < alone * entries; \
            if (!places) { \
                ((i64 *)args[COSTS])[2 * block] = is_shared ? count : 0; \
                ((i64 *)args[COSTS])[2 * block + 1] = (is_shared ? R * count : alone * entries) + R; \
            } \
            for (i64 i = 0; i < count; i++) { \
                if (places) { \
                    ((i32 *)args[COLUMNS])[places[block] + i] = list[i]; \
                    ((u16 *)args[MASKS])[places[block] + i] = seen[list[i]]; \
                } \
                seen[list[i]] = 0; \
            } \
        } \
    } \
} \
i64 scorch_blocks_##T(i64 *args) { \
    if (args[THREADS] <= 1) some_##T(0, 1, args); \
    else ((int (*)(i64, i64, i64, void (*)(i64, i64, void *), void *))args[PARALLEL]) \
        (0, args[THREADS], 1, some_##T, args); \
    return 0; \
}
BLOCKS(i32)
BLOCKS(i64)
