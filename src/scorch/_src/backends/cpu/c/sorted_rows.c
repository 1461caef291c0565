typedef long long i64;
typedef int i32;
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, ROWS, ENTRIES, SIZE, POS, CRD };
typedef struct { const i64 *args; i64 wrong; } check_t;

/* Pointers are checked before what they point to is read. */
#define SORTED_ROWS(I) \
static int is_wrong_##I(const i64 *args, i64 begin, i64 end) { \
    const I *pos = (const I *)args[POS], *crd = (const I *)args[CRD]; \
    const i64 entries = args[ENTRIES], size = args[SIZE]; \
    for (i64 row = begin; row < end; row++) { \
        const i64 first = pos[row], last = pos[row + 1]; \
        if (first < 0 || first > last || last > entries) return 1; \
        if (first == last) continue; \
        int wrong = crd[first] < 0 || crd[last - 1] >= size; \
        for (i64 at = first + 1; at < last; at++) wrong |= crd[at] <= crd[at - 1]; \
        if (wrong) return 1; \
    } \
    return 0; \
} \
static void some_##I(i64 begin, i64 end, void *context) { \
    check_t *check = context; \
    const i64 rows = check->args[ROWS], threads = check->args[THREADS]; \
    if (is_wrong_##I(check->args, rows * begin / threads, rows * end / threads)) \
        __atomic_store_n(&check->wrong, 1, __ATOMIC_RELAXED); \
} \
i64 scorch_sorted_rows_##I(i64 *args) { \
    const I *pos = (const I *)args[POS]; \
    check_t check = {args, 0}; \
    if (pos[0] != 0 || pos[args[ROWS]] != args[ENTRIES]) return 0; \
    if (args[THREADS] <= 1) return !is_wrong_##I(args, 0, args[ROWS]); \
    ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, some_##I, &check); \
    return !check.wrong; \
}

SORTED_ROWS(i32)
SORTED_ROWS(i64)
