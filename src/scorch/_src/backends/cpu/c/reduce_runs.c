/* Reduces, scans or sorts the values of each run, from one of begins to the next, perhaps in another order; an empty
   run has 0.

   Runs and values in one list, each run ahead of its values, are split in pieces of PIECE, so that threads share the
   work however long runs are. A run that goes on from piece to piece is joined from its parts in order: results do not
   depend on threads. value_t is the type of values, wide_t that of
   cumulative totals; one line that follows says what is compiled. */
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, RUNS, IS_ORDERED, VALUES, BEGINS, ORDER, CARRIED, RESULT };
enum { PIECE = 4096, WIDE = 16, LANES = WIDE / sizeof(value_t), APART = 4 }; /* at once, so that none waits for others */

typedef value_t lanes __attribute__((vector_size(WIDE)));
typedef value_t lanes_at __attribute__((vector_size(WIDE), aligned(sizeof(value_t)), may_alias));

/* The first run that is not ahead of a place in the list, or the number of runs. */
static i64 run_from(const i64 *begins, i64 runs, i64 at) {
    i64 low = 0, high = runs;
    while (low < high) {
        const i64 middle = (low + high) / 2;
        if (begins[middle] + middle < at) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void take(value_t *restrict taken, const value_t *restrict values, const i64 *restrict order, i64 count) {
    for (i64 i = 0; i < count; i++) taken[i] = values[order[i]];
}

/* What is not a number wins. */
#define LARGER(a, b) (((a) > (b)) | ((a) != (a)))
#define SMALLER(a, b) (((a) < (b)) | ((a) != (a)))
#define CHOSEN(wins, a, b) (lanes)(((__typeof__(wins))(a) & (wins)) | ((__typeof__(wins))(b) & ~(wins)))

#define ADDED(a, b) ((a) + (b))
#define MULTIPLIED(a, b) ((a) * (b))
#define LARGEST(a, b) (LARGER(a, b) ? (a) : (b))
#define SMALLEST(a, b) (SMALLER(a, b) ? (a) : (b))
#define LARGEST_OF_EACH(a, b) CHOSEN((a > b) | (a != a), a, b)
#define SMALLEST_OF_EACH(a, b) CHOSEN((a < b) | (a != a), a, b)

/* Functions of values[begin] to values[end - 1], of which there is one: their total; */
#define LOAD(at) (*(const lanes_at *)(values + (at)))
#define TOTAL(name, ONE, EACH) \
static value_t of_##name(const value_t *values, i64 begin, i64 end) { \
    value_t total = values[begin]; \
    i64 i = begin + 1; \
    if (end - begin >= LANES) { \
        lanes part = LOAD(begin); \
        i = begin + LANES; \
        if (end - i >= 2 * APART * LANES) { \
            lanes parts[APART]; \
            for (int k = 0; k < APART; k++, i += LANES) parts[k] = LOAD(i); \
            for (; i + APART * LANES <= end; i += APART * LANES) \
                for (int k = 0; k < APART; k++) { \
                    const lanes more = LOAD(i + k * LANES); \
                    parts[k] = EACH(parts[k], more); \
                } \
            for (int k = 0; k < APART; k++) part = EACH(part, parts[k]); \
        } \
        for (; i + LANES <= end; i += LANES) { \
            const lanes more = LOAD(i); \
            part = EACH(part, more); \
        } \
        total = part[0]; \
        for (int lane = 1; lane < LANES; lane++) total = ONE(total, part[lane]); \
    } \
    for (; i < end; i++) total = ONE(total, values[i]); \
    return total; \
} \
static value_t joined_##name(const value_t *values, value_t a, value_t b) { return ONE(a, b); } \
PIECES(name, value_t, SAME)

/* and the place of the first that wins. */
#define PLACE(name, WINS) \
static i64 of_##name(const value_t *values, i64 begin, i64 end) { \
    i64 place = begin; \
    value_t best = values[begin]; \
    for (i64 i = begin + 1; i < end && best == best; i++) \
        if (WINS(values[i], best)) { \
            best = values[i]; \
            place = i; \
        } \
    return place; \
} \
static i64 joined_##name(const value_t *values, i64 a, i64 b) { \
    return values[a] == values[a] && WINS(values[b], values[a]) ? b : a; \
} \
PIECES(name, i64, PLACED)

#define SAME(order, found) (found)
#define PLACED(order, found) (order ? order[found] : (found))

#define PIECES(name, result_t, STORED) \
typedef result_t part_##name __attribute__((may_alias)); \
static void some_##name(i64 thread, i64 end_thread, void *context) { \
    const i64 *args = context, *begins = (const i64 *)args[BEGINS], runs = args[RUNS]; \
    const i64 *order = args[IS_ORDERED] ? (const i64 *)args[ORDER] : 0; \
    const i64 all = begins[runs] + runs, pieces = (all + PIECE - 1) / PIECE, threads = args[THREADS]; \
    result_t *result = (result_t *)args[RESULT]; \
    value_t taken[PIECE]; \
    for (i64 piece = pieces * thread / threads; piece < pieces * end_thread / threads; piece++) { \
        const i64 at = piece * PIECE, to = at + PIECE < all ? at + PIECE : all; \
        i64 run = run_from(begins, runs, at), *carried = (i64 *)args[CARRIED] + 2 * piece; \
        const value_t *values = (const value_t *)args[VALUES]; \
        if (order) { \
            const i64 first = at - run, count = to - run_from(begins, runs, to) - first; \
            take(taken, values, order + first, count); \
            values = taken - first; \
        } \
        const i64 stop = begins[run] < to - run ? begins[run] : to - run; \
        carried[0] = at - run < stop ? run - 1 : -1; \
        if (carried[0] >= 0) { \
            const result_t found = of_##name(values, at - run, stop); \
            *(part_##name *)(carried + 1) = STORED(order, found); \
        } \
        for (; run < runs && begins[run] + run < to; run++) { \
            const i64 end = begins[run + 1] < to - run - 1 ? begins[run + 1] : to - run - 1; \
            const result_t found = begins[run] < end ? of_##name(values, begins[run], end) : 0; \
            result[run] = begins[run] < end ? STORED(order, found) : 0; \
        } \
    } \
} \
i64 scorch_##name(i64 *args) { \
    const i64 *begins = (const i64 *)args[BEGINS], runs = args[RUNS], pieces = (begins[runs] + runs + PIECE - 1) / PIECE; \
    if (args[THREADS] <= 1) { \
        args[THREADS] = 1; \
        some_##name(0, 1, args); \
    } else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, some_##name, args); \
    result_t *result = (result_t *)args[RESULT]; \
    for (i64 piece = 1; piece < pieces; piece++) { \
        const i64 *carried = (const i64 *)args[CARRIED] + 2 * piece, run = carried[0]; \
        if (run < 0) continue; \
        const result_t part = *(const part_##name *)(carried + 1); \
        const int is_first = begins[run] == piece * PIECE - (run + 1); \
        result[run] = is_first ? part : joined_##name((const value_t *)args[VALUES], result[run], part); \
    } \
    return 0; \
}

/* What has a result for each value: threads share the runs. */
#define EACH_RUN(name) \
static void some_##name(i64 thread, i64 end_thread, void *context) { \
    const i64 *args = context, *begins = (const i64 *)args[BEGINS], runs = args[RUNS], threads = args[THREADS]; \
    const i64 *order = args[IS_ORDERED] ? (const i64 *)args[ORDER] : 0, all = begins[runs] + runs; \
    const i64 last = run_from(begins, runs, all * end_thread / threads); \
    for (i64 run = run_from(begins, runs, all * thread / threads); run < last; run++) \
        one_##name(args, (const value_t *)args[VALUES], order, begins[run], begins[run + 1]); \
} \
i64 scorch_##name(i64 *args) { \
    if (args[THREADS] <= 1) { \
        args[THREADS] = 1; \
        some_##name(0, 1, args); \
    } else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, some_##name, args); \
    return 0; \
}

/* The total of each value and those before it in its run, */
#define SCANNED(name, ONE) \
static void one_##name(const i64 *args, const value_t *values, const i64 *order, i64 begin, i64 end) { \
    value_t *result = (value_t *)args[RESULT]; \
    wide_t total = 0; \
    for (i64 i = begin; i < end; i++) { \
        const i64 place = order ? order[i] : i; \
        total = i > begin ? ONE(total, (wide_t)values[place]) : (wide_t)values[place]; \
        result[place] = (value_t)total; \
    } \
} \
EACH_RUN(name)

/* and the places of the values of each run, sorted; those of equal values keep their order. */
enum { SHORT = 12 }; /* values that are sorted by insertion */
typedef struct { value_t value; i64 place; } item;

#define RISES(a, b) ((a) < (b) || ((b) != (b) && (a) == (a)))
#define FALLS(a, b) ((a) > (b) || ((a) != (a) && (b) == (b)))

#define SORTED(name, BEFORE) \
static void one_##name(const i64 *args, const value_t *values, const i64 *order, i64 first, i64 end_of_run) { \
    const i64 count = end_of_run - first; \
    i64 *result = (i64 *)args[RESULT] + first; \
    item *items = (item *)args[CARRIED] + first, *other = items + ((const i64 *)args[BEGINS])[args[RUNS]]; \
    for (i64 i = 0; i < count; i++) { \
        const i64 place = order ? order[first + i] : first + i; \
        items[i] = (item){values[place], place}; \
    } \
    for (i64 begin = 0; begin < count; begin += SHORT) \
        for (i64 i = begin + 1; i < count && i < begin + SHORT; i++) { \
            const item own = items[i]; \
            i64 to = i; \
            for (; to > begin && BEFORE(own.value, items[to - 1].value); to--) items[to] = items[to - 1]; \
            items[to] = own; \
        } \
    for (i64 width = SHORT; width < count; width *= 2) { \
        for (i64 begin = 0; begin < count; begin += 2 * width) { \
            const i64 middle = begin + width < count ? begin + width : count; \
            const i64 end = middle + width < count ? middle + width : count; \
            i64 a = begin, b = middle, to = begin; \
            while (a < middle && b < end) { \
                const int is_second = BEFORE(items[b].value, items[a].value); \
                other[to++] = items[is_second ? b : a]; \
                a += !is_second; \
                b += is_second; \
            } \
            while (a < middle) other[to++] = items[a++]; \
            while (b < end) other[to++] = items[b++]; \
        } \
        item *last = items; \
        items = other; \
        other = last; \
    } \
    for (i64 i = 0; i < count; i++) result[i] = items[i].place; \
} \
EACH_RUN(name)
