typedef long long i64;
typedef int i32;
typedef unsigned short u16;
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, ROWS, ENTRIES, SIZE, POS, CRD, /* and the copies, if any */ NEW_POS, NEW_CRD, COUNT };
typedef struct { const i64 *args; i64 wrong; } check_t;

/* Pointers are checked before what they point to is read. Then all coordinates are compared with the one before
   them, however long rows are: where one does not rise, a row must begin. What is checked may be copied on the way,
   from pointers P and coordinates I to integers T that hold all in SIZE. */
#define CHECK(P, I, U, LAST, T) \
static inline __attribute__((always_inline)) int is_wrong_##I##_##T(const i64 *args, i64 begin, i64 end, int copies) { \
    const P *pos = (const P *)args[POS]; \
    const I *crd = (const I *)args[CRD]; \
    T *restrict new_pos = copies ? (T *)args[NEW_POS] : 0, *restrict new_crd = copies ? (T *)args[NEW_CRD] : 0; \
    const U size = args[SIZE] > LAST ? (U)LAST + 1 : (U)args[SIZE]; \
    const i64 first = pos[begin], last = pos[end]; \
    U wrong = first < 0 || last > args[ENTRIES], falls = 0; \
    for (i64 row = begin; row < end; row++) { \
        wrong |= pos[row + 1] < pos[row]; \
        if (copies) new_pos[row + 1] = (T)pos[row + 1]; \
    } \
    if (wrong) return 1; \
    if (first < last) wrong = (U)crd[first] >= size; \
    if (first < last && copies) new_crd[first] = (T)crd[first]; \
    for (i64 at = first + 1; at < last; at++) { \
        wrong |= (U)crd[at] >= size; \
        falls += crd[at] <= crd[at - 1]; \
        if (copies) new_crd[at] = (T)crd[at]; \
    } \
    for (i64 row = begin + 1; row < end && falls; row++) { \
        const i64 at = pos[row]; \
        if (at > first && at < pos[row + 1]) falls -= crd[at] <= crd[at - 1]; \
    } \
    return wrong || falls; \
}
#define SHARED(NAME, P, I, T, COPIES) \
static void some_##NAME##_##I##_##T(i64 begin, i64 end, void *context) { \
    check_t *check = context; \
    const i64 rows = check->args[ROWS], threads = check->args[THREADS]; \
    if (is_wrong_##I##_##T(check->args, rows * begin / threads, rows * end / threads, COPIES)) \
        __atomic_store_n(&check->wrong, 1, __ATOMIC_RELAXED); \
} \
static int are_right_##NAME##_##I##_##T(i64 *args) { \
    const P *pos = (const P *)args[POS]; \
    check_t check = {args, 0}; \
    if (pos[0] != 0 || pos[args[ROWS]] != args[ENTRIES]) return 0; \
    if (args[THREADS] <= 1) args[THREADS] = 1, some_##NAME##_##I##_##T(0, 1, &check); \
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, some_##NAME##_##I##_##T, &check); \
    return !check.wrong; \
}
#define SORTED_ROWS(I) \
SHARED(checked, I, I, I, 0) \
i64 scorch_sorted_rows_##I(i64 *args) { return are_right_checked_##I##_##I(args); }

/* COUNT: how many coordinates there are, or 0 where something is wrong */
#define OWN_ROWS(P, I, T) \
SHARED(copied, P, I, T, 1) \
i64 scorch_own_rows_##I##_##T(i64 *args) { \
    ((T *)args[NEW_POS])[0] = 0; \
    args[COUNT] = are_right_copied_##I##_##T(args) ? args[ENTRIES] : 0; \
    return 0; \
}

CHECK(i32, i32, unsigned, 0x7fffffffll, i32)
CHECK(i32, i32, unsigned, 0x7fffffffll, i64)
CHECK(i64, i64, unsigned long long, 0x7fffffffffffffffll, i32)
CHECK(i64, i64, unsigned long long, 0x7fffffffffffffffll, i64)
CHECK(i32, u16, unsigned, 0xffffll, i32)
SORTED_ROWS(i32)
SORTED_ROWS(i64)
OWN_ROWS(i32, i32, i32)
OWN_ROWS(i32, i32, i64)
OWN_ROWS(i64, i64, i32)
OWN_ROWS(i64, i64, i64)
OWN_ROWS(i32, u16, i32)

/* The sum of all numbers, each times an odd one that its place is scrambled to, modulo 2^32. */
#define HASH(I, HIGH_BITS) \
i64 scorch_hash_##I(i64 *args) { \
    const I *numbers = (const I *)args[0]; \
    unsigned sum = 0; \
    for (i64 at = 0; at < args[1]; at++) { \
        const unsigned factor = (unsigned)at * 0x9e3779b1u; \
        sum += (unsigned)(numbers[at] ^ HIGH_BITS) * (factor ^ factor >> 15 | 1); \
    } \
    return sum; \
}

HASH(i32, 0)
HASH(i64, numbers[at] >> 32)
