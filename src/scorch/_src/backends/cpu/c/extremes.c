/* The extreme of the values of each group, or the place of the first, where those of a group lie anywhere.

   Values are read in order, which memory is fast at, and compared with the best of their group so far. Each thread has
   a share of the values and a best of its own for every group; in the end they are compared in the order of shares,
   so that results do not depend on threads. value_t is the type of values. */
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, COUNT, GROUPS, VALUES, GROUP, BEGINS, BESTS, PLACES, RESULT };
#define IS_FLOAT ((value_t)0.5 != 0)
#define LARGEST (IS_FLOAT ? (value_t)__builtin_inf() : (value_t)-1 > 0 ? (value_t)-1 : (value_t)~(1ull << (8 * sizeof(value_t) - 1)))
#define SMALLEST (IS_FLOAT ? (value_t)-__builtin_inf() : (value_t)-1 > 0 ? (value_t)0 : (value_t)(1ull << (8 * sizeof(value_t) - 1)))
/* What is not a number wins, the first of several. */
#define RISES(a, b) (((a) > (b)) | (((a) != (a)) & ((b) == (b))))
#define FALLS(a, b) (((a) < (b)) | (((a) != (a)) & ((b) == (b))))

static i64 part_of(i64 all, const i64 *args, i64 part) { return all * part / args[THREADS]; }

#define SHARES(name) \
static void shares_of_##name(i64 begin, i64 end, void *context) { \
    for (i64 part = begin; part < end; part++) share_of_##name(part, context); \
} \
static void groups_of_##name(i64 begin, i64 end, void *context) { \
    for (i64 part = begin; part < end; part++) group_of_##name(part, context); \
} \
i64 scorch_##name(i64 *args) { \
    if (args[THREADS] <= 1) { \
        args[THREADS] = 1; \
        shares_of_##name(0, 1, args); \
        groups_of_##name(0, 1, args); \
        return 0; \
    } \
    ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, shares_of_##name, args); \
    ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, groups_of_##name, args); \
    return 0; \
}

#define EXTREME(name, WINS, WORST) \
static void share_of_##name(i64 part, const i64 *args) { \
    const i64 *group = (const i64 *)args[GROUP], groups = args[GROUPS]; \
    const i64 end = part_of(args[COUNT], args, part + 1); \
    const value_t *values = (const value_t *)args[VALUES], worst = WORST; \
    value_t *best = (value_t *)args[BESTS] + part * groups; \
    for (i64 g = 0; g < groups; g++) best[g] = worst; \
    for (i64 e = part_of(args[COUNT], args, part); e < end; e++) { \
        const value_t value = values[e], other = best[group[e]]; \
        best[group[e]] = WINS(value, other) ? value : other; \
    } \
} \
static void group_of_##name(i64 part, const i64 *args) { \
    const i64 *begins = (const i64 *)args[BEGINS], groups = args[GROUPS]; \
    const i64 first = part_of(groups, args, part), end = part_of(groups, args, part + 1); \
    const value_t *bests = (const value_t *)args[BESTS]; \
    value_t *result = (value_t *)args[RESULT]; \
    for (i64 g = first; g < end; g++) result[g] = bests[g]; \
    for (i64 other = 1; other < args[THREADS]; other++) \
        for (i64 g = first; g < end; g++) { \
            const value_t value = bests[other * groups + g]; \
            result[g] = WINS(value, result[g]) ? value : result[g]; \
        } \
    for (i64 g = first; g < end; g++) result[g] = begins[g] < begins[g + 1] ? result[g] : 0; \
} \
SHARES(name)

#define PLACE(name, WINS, WORST) \
static void share_of_##name(i64 part, const i64 *args) { \
    const i64 *group = (const i64 *)args[GROUP], groups = args[GROUPS]; \
    const i64 end = part_of(args[COUNT], args, part + 1); \
    const value_t *values = (const value_t *)args[VALUES], worst = WORST; \
    value_t *best = (value_t *)args[BESTS] + part * groups; \
    int *places = (int *)args[PLACES] + part * groups; \
    for (i64 g = 0; g < groups; g++) best[g] = worst, places[g] = -1; \
    for (i64 e = part_of(args[COUNT], args, part); e < end; e++) { \
        const i64 g = group[e]; \
        const value_t value = values[e], other = best[g]; \
        const int place = places[g], wins = WINS(value, other) | (place < 0); \
        best[g] = wins ? value : other; \
        places[g] = wins ? (int)e : place; \
    } \
} \
static void group_of_##name(i64 part, const i64 *args) { \
    const i64 groups = args[GROUPS], end = part_of(groups, args, part + 1); \
    const value_t *bests = (const value_t *)args[BESTS]; \
    const int *places = (const int *)args[PLACES]; \
    i64 *result = (i64 *)args[RESULT]; \
    for (i64 g = part_of(groups, args, part); g < end; g++) { \
        value_t best = bests[g]; \
        int place = places[g]; \
        for (i64 at = groups + g; at < args[THREADS] * groups; at += groups) { \
            const int wins = (places[at] >= 0) & (WINS(bests[at], best) | (place < 0)); \
            best = wins ? bests[at] : best; \
            place = wins ? places[at] : place; \
        } \
        result[g] = place < 0 ? 0 : place; \
    } \
} \
SHARES(name)

EXTREME(amax, RISES, SMALLEST)
EXTREME(amin, FALLS, LARGEST)
PLACE(argmax, RISES, SMALLEST)
PLACE(argmin, FALLS, LARGEST)
