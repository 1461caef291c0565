/* The largest or smallest value of each run, from one number of begins to the next; what is not a number wins, and
   an empty run has none of its own. value_t is the type of values. */
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, RUNS, VALUES, BEGINS, RESULT };
enum { WIDE = 16, LANES = WIDE / sizeof(value_t), APART = 4 }; /* vectors at once, so that none waits for another */

typedef value_t lanes __attribute__((vector_size(WIDE)));
typedef value_t lanes_at __attribute__((vector_size(WIDE), aligned(sizeof(value_t)), may_alias));

/* The run that a value belongs to, or the number of runs behind the last one. */
static i64 run_at(const i64 *begins, i64 runs, i64 value) {
    i64 low = 0, high = runs;
    while (low < high) {
        const i64 middle = (low + high) / 2;
        if (begins[middle] < value) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Vectors of a run may overlap: the same value twice changes nothing. */
#define EXTREMES(name, MORE) \
static inline value_t one_##name(value_t a, value_t b) { return a MORE b || a != a ? a : b; } \
static inline lanes each_##name(lanes a, lanes b) { \
    const __typeof__(a MORE b) wins = (a MORE b) | (a != a); \
    return (lanes)(((__typeof__(wins))a & wins) | ((__typeof__(wins))b & ~wins)); \
} \
static value_t of_run_##name(const value_t *values, i64 count) { \
    value_t best = values[0]; \
    if (count < LANES) { \
        for (i64 i = 1; i < count; i++) best = one_##name(values[i], best); \
        return best; \
    } \
    lanes found[APART]; \
    i64 i = 0; \
    for (int k = 0; k < APART; k++) found[k] = *(const lanes_at *)(values + count - LANES); \
    for (; i + APART * LANES <= count; i += APART * LANES) \
        for (int k = 0; k < APART; k++) \
            found[k] = each_##name(*(const lanes_at *)(values + i + k * LANES), found[k]); \
    for (; i + LANES <= count; i += LANES) found[0] = each_##name(*(const lanes_at *)(values + i), found[0]); \
    found[0] = each_##name(each_##name(found[0], found[1]), each_##name(found[2], found[3])); \
    best = found[0][0]; \
    for (int lane = 1; lane < LANES; lane++) best = one_##name(found[0][lane], best); \
    return best; \
} \
static void some_##name(i64 begin, i64 end, void *context) { \
    const i64 *args = context, *begins = (const i64 *)args[BEGINS], runs = args[RUNS], count = begins[runs]; \
    const value_t *values = (const value_t *)args[VALUES]; \
    value_t *result = (value_t *)args[RESULT]; \
    const i64 first = run_at(begins, runs, count * begin / args[THREADS]); \
    const i64 last = end == args[THREADS] ? runs : run_at(begins, runs, count * end / args[THREADS]); \
    for (i64 run = first; run < last; run++) { \
        const i64 length = begins[run + 1] - begins[run]; \
        result[run] = length ? of_run_##name(values + begins[run], length) : 0; \
    } \
} \
i64 scorch_##name(i64 *args) { \
    if (args[THREADS] <= 1) some_##name(0, 1, args); \
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, some_##name, args); \
    return 0; \
}
EXTREMES(largest, >)
EXTREMES(smallest, <)
