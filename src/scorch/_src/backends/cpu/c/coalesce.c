/* Entries in any order sorted by their coordinates, and those that repeat added up.
 *
 * All coordinates of an entry and its number make one key of 64 bits. Threads spread the keys over buckets by their
 * upper bits, then sort each bucket, which is small, digit by digit. Numbers keep those that repeat in their order.
 * Lines are fetched before they are written, where they are not neighbours: they lie in no cache, or in that of another
 * core. given_t and index_t are the types of coordinates as they come and as they are stored, number_t of one value.
 */
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, DIMS, ENTRIES, NUMBER_BITS, SHIFT, BUCKETS, WIDTH, /* then arrays */
       GIVEN, SIZES, NEW, VALUES, NEW_VALUES, KEYS, OTHER, COUNTS };
enum { DIGIT = 11, MOST_DIGITS = 1 << DIGIT, FEW = 24, BLOCK = 1024, AHEAD = 16, LINE = 8 };
enum { SHORT = 1024, SHORT_DIGIT = 8 }; /* for a bucket with fewer keys than DIGIT has counts */
enum { SORTED, UNSORTED, OUTSIDE };
typedef struct { i64 *args; i64 next, state; } job_t;

static i64 share_of(const i64 *args, i64 part) { return args[ENTRIES] * part / args[THREADS]; }

static i64 *begins_of(const i64 *args) { return (i64 *)args[COUNTS] + args[THREADS] * args[BUCKETS]; }

static i64 *places_of(const i64 *args) { return begins_of(args) + args[BUCKETS] + 1; }

static int bits_of(i64 size) { return size > 1 ? 64 - __builtin_clzll((u64)size - 1) : 0; }

/* Copy the coordinates of a share as they are stored; check that they lie inside, and whether they rise. */
static i64 copy_share(i64 part, const i64 *args) {
    const given_t *const *given = (const given_t *const *)args[GIVEN];
    index_t *const *new = (index_t *const *)args[NEW];
    const i64 *sizes = (const i64 *)args[SIZES], begin = share_of(args, part), end = share_of(args, part + 1);
    i64 e = begin > 1 ? begin : 1, outside = 0, falls = 0;
    for (i64 dim = 0; dim < args[DIMS]; dim++) {
        const given_t *from = given[dim];
        index_t *to = new[dim];
        const u64 size = (u64)sizes[dim];
        for (i64 n = begin; n < end; n++) {
            outside |= (u64)from[n] >= size;
            to[n] = (index_t)from[n];
        }
    }
    if (outside) return OUTSIDE;
    if (args[DIMS] == 2) {
        const given_t *x = given[0], *y = given[1];
        for (; e < end && !falls; e++) falls = x[e] < x[e - 1] || (x[e] == x[e - 1] && y[e] <= y[e - 1]);
        return falls ? UNSORTED : SORTED;
    }
    for (; e < end; e++) {
        i64 dim = 0;
        while (dim < args[DIMS] && given[dim][e] == given[dim][e - 1]) dim++;
        if (dim == args[DIMS] || given[dim][e] < given[dim][e - 1]) return UNSORTED;
    }
    return SORTED;
}

static void make_keys(const i64 *args, i64 begin, i64 end) {
    const i64 *sizes = (const i64 *)args[SIZES], dims = args[DIMS];
    index_t *const *columns = (index_t *const *)args[NEW];
    u64 *keys = (u64 *)args[OTHER];
    const int low = (int)args[NUMBER_BITS];
    if (dims == 2) {
        const index_t *x = columns[0], *y = columns[1];
        const int bits = bits_of(sizes[1]);
        for (i64 e = begin; e < end; e++) keys[e] = ((u64)x[e] << bits | (u64)y[e]) << low | (u64)e;
        return;
    }
    for (i64 e = begin; e < end; e++) keys[e] = 0;
    for (i64 dim = 0; dim < dims; dim++) {
        const index_t *column = columns[dim];
        const int bits = bits_of(sizes[dim]);
        for (i64 e = begin; e < end; e++) keys[e] = keys[e] << bits | (u64)column[e];
    }
    for (i64 e = begin; e < end; e++) keys[e] = keys[e] << low | (u64)e;
}

static void count_share(i64 part, const i64 *args) {
    const i64 shift = args[SHIFT], end = share_of(args, part + 1);
    i64 *counts = (i64 *)args[COUNTS] + part * args[BUCKETS];
    const u64 *keys = (const u64 *)args[OTHER];
    for (i64 b = 0; b < args[BUCKETS]; b++) counts[b] = 0;
    for (i64 begin = share_of(args, part), stop; begin < end; begin = stop) {
        stop = begin + BLOCK < end ? begin + BLOCK : end; /* keys that are still in the cache */
        make_keys(args, begin, stop);
        for (i64 e = begin; e < stop; e++) counts[keys[e] >> shift]++;
    }
}

static void spread_share(i64 part, const i64 *args) {
    const u64 *from = (const u64 *)args[OTHER];
    u64 *to = (u64 *)args[KEYS];
    const i64 shift = args[SHIFT], end = share_of(args, part + 1);
    i64 *next = (i64 *)args[COUNTS] + part * args[BUCKETS];
    /* not where a stretch is so short that the line would be that of the next thread */
    const i64 ahead = args[ENTRIES] / (args[THREADS] * args[BUCKETS]) >= 8 * LINE ? LINE : 0;
    for (i64 e = share_of(args, part); e < end; e++) {
        u64 *place = to + next[from[e] >> shift]++;
        __builtin_prefetch(place + ahead, 1);
        *place = from[e];
    }
}

static void insert_all(u64 *keys, i64 count) {
    for (i64 n = 1; n < count; n++) {
        const u64 key = keys[n];
        i64 at = n;
        for (; at > 0 && keys[at - 1] > key; at--) keys[at] = keys[at - 1];
        keys[at] = key;
    }
}

/* One stable pass over the digit of ``bits`` bits above ``shift``. */
static void sort_digit(const u64 *from, u64 *to, i64 count, int shift, int bits) {
    const u64 mask = ((u64)1 << bits) - 1;
    u32 next[MOST_DIGITS], sum = 0;
    for (u64 d = 0; d <= mask; d++) next[d] = 0;
    for (i64 n = 0; n < count; n++) next[from[n] >> shift & mask]++;
    for (u64 d = 0; d <= mask; d++) {
        const u32 own = next[d];
        next[d] = sum;
        sum += own;
    }
    for (i64 n = 0; n < count; n++) to[next[from[n] >> shift & mask]++] = from[n];
}

/* Sort the keys of a bucket, in place, and count their places. */
static void sort_bucket(i64 bucket, const i64 *args) {
    const i64 *begins = begins_of(args), count = begins[bucket + 1] - begins[bucket];
    const int low = (int)args[NUMBER_BITS], all = (int)args[SHIFT] - low, digit = count < SHORT ? SHORT_DIGIT : DIGIT;
    const int passes = (all + digit - 1) / digit;
    u64 *keys = (u64 *)args[KEYS] + begins[bucket], *from = keys, *to = (u64 *)args[OTHER] + begins[bucket];
    i64 places = count > 0;
    if (count <= FEW) insert_all(keys, count);
    else
        for (int pass = 0; pass < passes; pass++) {
            const int first = all * pass / passes, behind = all * (pass + 1) / passes;
            u64 *last = from;
            sort_digit(from, to, count, low + first, behind - first);
            from = to, to = last;
        }
    if (from != keys)
        for (i64 n = 0; n < count; n++) keys[n] = from[n];
    for (i64 n = 1; n < count; n++) places += keys[n] >> low != keys[n - 1] >> low;
    places_of(args)[bucket] = places;
}

/* Write the coordinates of a place. */
static void write_place(const i64 *args, u64 place, i64 at) {
    const i64 *sizes = (const i64 *)args[SIZES];
    index_t *const *columns = (index_t *const *)args[NEW];
    for (i64 dim = args[DIMS] - 1; dim > 0; dim--) {
        const int bits = bits_of(sizes[dim]);
        columns[dim][at] = (index_t)(place & (((u64)1 << bits) - 1));
        place >>= bits;
    }
    columns[0][at] = (index_t)place;
}

/* Write the coordinates and values of a bucket to where its places begin. */
static void write_bucket(i64 bucket, const i64 *args) {
    const i64 begin = begins_of(args)[bucket], end = begins_of(args)[bucket + 1], width = args[WIDTH];
    const u64 *keys = (const u64 *)args[KEYS];
    const number_t *values = (const number_t *)args[VALUES];
    number_t *new_values = (number_t *)args[NEW_VALUES];
    const int low = (int)args[NUMBER_BITS];
    const u64 mask = ((u64)1 << low) - 1;
    i64 at = places_of(args)[bucket];
    if (args[DIMS] == 2 && width == 1) { /* the usual case */
        index_t *x = ((index_t *const *)args[NEW])[0], *y = ((index_t *const *)args[NEW])[1];
        const int bits = bits_of(((const i64 *)args[SIZES])[1]);
        const u64 column = ((u64)1 << bits) - 1;
        u64 last = ~(u64)0; /* no place: its upper bits are those of no key */
        for (i64 n = begin; n < end; n++) {
            const u64 place = keys[n] >> low;
            if (n + AHEAD < end) __builtin_prefetch(values + (keys[n + AHEAD] & mask));
            const number_t value = values[keys[n] & mask];
            at += place != last;
            x[at - 1] = (index_t)(place >> bits);
            y[at - 1] = (index_t)(place & column);
            new_values[at - 1] = place == last ? new_values[at - 1] + value : value;
            last = place;
        }
        return;
    }
    for (i64 n = begin; n < end; n++) {
        const number_t *value = values + (i64)(keys[n] & mask) * width;
        const int repeats = n > begin && keys[n] >> low == keys[n - 1] >> low;
        if (!repeats) write_place(args, keys[n] >> low, at++);
        number_t *to = new_values + (at - 1) * width;
        for (i64 w = 0; w < width; w++) to[w] = repeats ? to[w] + value[w] : value[w];
    }
}

#define SHARES(what) \
static void what##_shares(i64 begin, i64 end, void *context) { \
    for (i64 part = begin; part < end; part++) what##_share(part, ((job_t *)context)->args); \
}
#define BUCKETS_IN_TURNS(what) \
static void what##_buckets(i64 begin, i64 end, void *context) { \
    job_t *job = context; \
    i64 bucket; \
    (void)begin, (void)end; \
    while ((bucket = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED)) < job->args[BUCKETS]) \
        what##_bucket(bucket, job->args); \
}
SHARES(count)
SHARES(spread)
BUCKETS_IN_TURNS(sort)
BUCKETS_IN_TURNS(write)

static void copy_shares(i64 begin, i64 end, void *context) {
    job_t *job = context;
    for (i64 part = begin; part < end; part++) {
        const i64 found = copy_share(part, job->args);
        i64 before = __atomic_load_n(&job->state, __ATOMIC_RELAXED);
        while (found > before && !__atomic_compare_exchange_n(&job->state, &before, found, 1, __ATOMIC_RELAXED,
                                                              __ATOMIC_RELAXED)) {
        }
    }
}

static void shared(work_t work, job_t *job) {
    const i64 threads = job->args[THREADS];
    job->next = 0;
    if (threads <= 1) work(0, 1, job);
    else ((int (*)(i64, i64, i64, work_t, void *))job->args[PARALLEL])(0, threads, 1, work, job);
}

/* Copies the coordinates as they are stored; returns what state they are in. */
i64 scorch_copy_columns(i64 *args) {
    job_t job = {args, 0, SORTED};
    shared(copy_shares, &job);
    return job.state;
}

/* Sorts what was copied; returns the number of places. */
i64 scorch_coalesce(i64 *args) {
    job_t job = {args, 0, UNSORTED};
    i64 *places = places_of(args), sum = 0;
    shared(count_shares, &job);
    sum_counts((i64 *)args[COUNTS], args[BUCKETS], args[THREADS]);
    shared(spread_shares, &job);
    shared(sort_buckets, &job);
    for (i64 b = 0; b < args[BUCKETS]; b++) {
        const i64 own = places[b];
        places[b] = sum;
        sum += own;
    }
    shared(write_buckets, &job);
    return sum;
}
