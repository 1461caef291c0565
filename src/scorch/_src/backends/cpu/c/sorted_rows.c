typedef long long i64;
typedef int i32;
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, ROWS, ENTRIES, SIZE, POS, CRD };
typedef struct { const i64 *args; i64 wrong; } check_t;

/* Pointers are checked before what they point to is read. Then all coordinates are compared with the one before
   them, however long rows are: where one does not rise, a row must begin. */
#define SORTED_ROWS(I, U, LAST) \
static int is_wrong_##I(const i64 *args, i64 begin, i64 end) { \
    const I *pos = (const I *)args[POS], *crd = (const I *)args[CRD]; \
    const U size = args[SIZE] > LAST ? (U)LAST + 1 : (U)args[SIZE]; \
    const i64 first = pos[begin], last = pos[end]; \
    U wrong = first < 0 || last > args[ENTRIES], falls = 0; \
    for (i64 row = begin; row < end; row++) wrong |= pos[row + 1] < pos[row]; \
    if (wrong) return 1; \
    if (first < last) wrong = (U)crd[first] >= size; \
    for (i64 at = first + 1; at < last; at++) { \
        wrong |= (U)crd[at] >= size; \
        falls += crd[at] <= crd[at - 1]; \
    } \
    for (i64 row = begin + 1; row < end && falls; row++) { \
        const i64 at = pos[row]; \
        if (at > first && at < pos[row + 1]) falls -= crd[at] <= crd[at - 1]; \
    } \
    return wrong || falls; \
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

SORTED_ROWS(i32, unsigned, 0x7fffffffll)
SORTED_ROWS(i64, unsigned long long, 0x7fffffffffffffffll)
