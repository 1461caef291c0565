/* Compressed rows to compressed columns: a counting sort in two steps, whose writes stay in the cache.
 *
 * Columns are grouped into buckets of 1 << SHIFT. Each thread counts how many of its share of the entries lie in
 * each bucket, and puts them there, in order: so few streams are written at a time. Then each bucket, which is small,
 * is sorted by column. Lines that are written are fetched before: they lie in no cache, or in that of another core.
 * Bands and meshes need no buckets: what comes near in their rows lies near in their columns, too.
 * index_t and value_t are the types of indices and of values; key_t has room for a row, in its lower ROW_BITS bits,
 * and for a column of a bucket.
 */
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, ROWS, COLUMNS, ENTRIES, SHIFT, BUCKETS, ROW_BITS, /* then arrays */
       POS, CRD, VALUES, SPREAD, COUNTS, NEW_POS, NEW_CRD, NEW_VALUES, COUNT };
enum { MOST_BUCKETS = 512, TABLES = 4, AHEAD = 8, STEP = 16 }; /* entries */
#define FETCH_TO_WRITE(place) __builtin_prefetch((place), 1)
typedef struct { const i64 *args; i64 next; } job_t;
typedef struct { key_t key; value_t value; } entry_t;

static i64 share_of(const i64 *args, i64 part) { return args[ENTRIES] * part / args[THREADS]; }

/* Neighbours often lie in one bucket: they are counted in several tables, so that none waits for the one before. */
static void count_share(i64 part, const i64 *args) {
    const index_t *crd = (const index_t *)args[CRD];
    const i64 shift = args[SHIFT], buckets = args[BUCKETS], end = share_of(args, part + 1);
    i64 *counts = (i64 *)args[COUNTS] + part * buckets;
    u32 tables[TABLES][MOST_BUCKETS];
    for (i64 t = 0; t < TABLES; t++)
        for (i64 b = 0; b < buckets; b++) tables[t][b] = 0;
    for (i64 b = 0; b < buckets; b++) counts[b] = 0;
    for (i64 from = share_of(args, part); from < end;) {
        const i64 to = from + (1ll << 30) < end ? from + (1ll << 30) : end; /* of which 32 bits are enough */
        i64 e = from;
        for (; e + TABLES <= to; e += TABLES)
            for (i64 t = 0; t < TABLES; t++) tables[t][crd[e + t] >> shift]++;
        for (; e < to; e++) tables[0][crd[e] >> shift]++;
        for (i64 t = 0; t < TABLES; t++)
            for (i64 b = 0; b < buckets; b++) counts[b] += tables[t][b], tables[t][b] = 0;
        from = to;
    }
}

/* The first row that ends behind an entry */
static i64 row_of(i64 entry, const i64 *args) {
    const index_t *pos = (const index_t *)args[POS];
    i64 low = 0, high = args[ROWS];
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        if (pos[middle + 1] <= entry) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void spread_share(i64 part, const i64 *args) {
    const index_t *pos = (const index_t *)args[POS], *crd = (const index_t *)args[CRD];
    const value_t *values = (const value_t *)args[VALUES];
    entry_t *spread = (entry_t *)args[SPREAD];
    const i64 shift = args[SHIFT], end = share_of(args, part + 1), mask = (1ll << shift) - 1;
    i64 *next = (i64 *)args[COUNTS] + part * args[BUCKETS], entry = share_of(args, part);
    /* not where a stretch is so short that the lines would be those of the next thread */
    const i64 ahead = args[ENTRIES] / (args[THREADS] * args[BUCKETS]) >= 8 * AHEAD ? AHEAD : 0;
    for (i64 row = row_of(entry, args); entry < end; row++) {
        const i64 stop = pos[row + 1] < end ? pos[row + 1] : end;
        for (; entry < stop; entry++) {
            const i64 column = crd[entry], at = next[column >> shift]++;
            FETCH_TO_WRITE(spread + at + ahead);
            spread[at].key = (key_t)(column & mask) << args[ROW_BITS] | (key_t)row;
            spread[at].value = values[entry];
        }
    }
}

static void sort_bucket(i64 bucket, const i64 *args) {
    const i64 *begins = (const i64 *)args[COUNTS] + args[THREADS] * args[BUCKETS];
    const i64 first = bucket << args[SHIFT], behind = (bucket + 1) << args[SHIFT];
    const i64 columns = (behind < args[COLUMNS] ? behind : args[COLUMNS]) - first;
    const entry_t *spread = (const entry_t *)args[SPREAD];
    const int bits = (int)args[ROW_BITS];
    const key_t mask = ((key_t)1 << bits) - 1;
    index_t *next = (index_t *)args[NEW_POS] + first + 1, *crd = (index_t *)args[NEW_CRD];
    value_t *values = (value_t *)args[NEW_VALUES];
    const i64 begin = begins[bucket], end = begins[bucket + 1];
    i64 sum = begin;
    for (i64 c = 0; c < columns; c++) next[c] = 0;
    for (i64 from = begin; from < end; from += STEP) { /* columns begin and end where their bucket does */
        const i64 to = from + STEP < end ? from + STEP : end;
        FETCH_TO_WRITE(crd + from);
        FETCH_TO_WRITE(values + from);
        if (sizeof(value_t) > 4 || sizeof(index_t) > 4) {
            FETCH_TO_WRITE(crd + from + STEP / 2);
            FETCH_TO_WRITE(values + from + STEP / 2);
        }
        for (i64 e = from; e < to; e++) next[spread[e].key >> bits]++;
    }
    for (i64 c = 0; c < columns; c++) {
        const i64 own = next[c];
        next[c] = (index_t)sum;
        sum += own;
    }
    for (i64 e = begin; e < end; e++) { /* in the end each has where the next one begins */
        const i64 at = next[spread[e].key >> bits]++;
        crd[at] = (index_t)(spread[e].key & mask);
        values[at] = spread[e].value;
    }
}

static void count_shares(i64 begin, i64 end, void *context) {
    for (i64 part = begin; part < end; part++) count_share(part, ((job_t *)context)->args);
}

static void spread_shares(i64 begin, i64 end, void *context) {
    for (i64 part = begin; part < end; part++) spread_share(part, ((job_t *)context)->args);
}

static void sort_buckets(i64 begin, i64 end, void *context) {
    job_t *job = context;
    (void)begin, (void)end;
    for (;;) {
        const i64 bucket = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (bucket >= job->args[BUCKETS]) return;
        sort_bucket(bucket, job->args);
    }
}

/* How many of some entries have a column that one before has; columns that share a bit are taken for one. */
static i64 count_again(const index_t *crd, i64 begin, i64 end) {
    enum { BITS = 18, WORD = 64 };
    unsigned long long seen[(1 << BITS) / WORD] = {0};
    i64 again = 0;
    for (i64 e = begin; e < end; e++) {
        const u32 at = (u32)crd[e] * 2654435769u >> (32 - BITS);
        again += seen[at / WORD] >> at % WORD & 1;
        seen[at / WORD] |= 1ull << at % WORD;
    }
    return again;
}

/* Bands and meshes, where the share of each thread has few columns, which come again soon: each counts its entries in
   all of these, learns where its part of each column begins, and puts entries where they belong. The counts lie
   where others spread entries; before them, for each part, whether it is so, its first column and the one behind its last,
   and how many of its entries are in each block of columns, of which there are as many as parts. */
enum { IS_NEAR, LOW, HIGH, IN_BLOCK };
static i64 *facts_of(const i64 *args, i64 part) { return (i64 *)args[COUNTS] + part * (IN_BLOCK + args[THREADS]); }
static index_t *table_of(const i64 *args, i64 part) { return (index_t *)args[SPREAD] + part * args[COLUMNS]; }
static i64 block_begin(const i64 *args, i64 block) { return args[COLUMNS] * block / args[THREADS]; }

static void count_near_share(i64 part, const i64 *args) {
    enum { LENGTH = 1 << 12 };
    const index_t *crd = (const index_t *)args[CRD];
    const i64 begin = share_of(args, part), end = share_of(args, part + 1), columns = args[COLUMNS];
    const i64 looked = begin + LENGTH < end ? begin + LENGTH : end;
    i64 *facts = facts_of(args, part);
    index_t *counts = table_of(args, part), low = (index_t)(columns - 1), high = 0;
    if (!(facts[IS_NEAR] = 2 * count_again(crd, begin, looked) >= looked - begin)) return;
    for (i64 e = begin; e < end; e++) {
        low = crd[e] < low ? crd[e] : low;
        high = crd[e] > high ? crd[e] : high;
    }
    facts[LOW] = low, facts[HIGH] = begin < end ? high + (i64)1 : low;
    const i64 span = facts[HIGH] - facts[LOW];
    if (!(facts[IS_NEAR] = span * args[THREADS] <= 3 * columns && 4 * span <= 3 * columns)) return;
    for (i64 c = facts[LOW]; c < facts[HIGH]; c++) counts[c] = 0;
    for (i64 e = begin; e < end; e++) counts[crd[e]]++;
    for (i64 block = 0; block < args[THREADS]; block++) {
        const i64 first = block_begin(args, block), behind = block_begin(args, block + 1);
        i64 sum = 0;
        for (i64 c = first > facts[LOW] ? first : facts[LOW]; c < behind && c < facts[HIGH]; c++) sum += counts[c];
        facts[IN_BLOCK + block] = sum;
    }
}

static int is_near(const i64 *args) {
    for (i64 part = 0; part < args[THREADS]; part++)
        if (!facts_of(args, part)[IS_NEAR]) return 0;
    return 1;
}

/* Where the part of each share of each column of a block begins, in place of the counts */
static void place_block(i64 block, const i64 *args) {
    index_t *begins = (index_t *)args[NEW_POS];
    i64 sum = 0;
    for (i64 before = 0; before < block; before++)
        for (i64 part = 0; part < args[THREADS]; part++) sum += facts_of(args, part)[IN_BLOCK + before];
    for (i64 c = block_begin(args, block); c < block_begin(args, block + 1); c++) {
        for (i64 part = 0; part < args[THREADS]; part++) {
            const i64 *facts = facts_of(args, part);
            if (c < facts[LOW] || c >= facts[HIGH]) continue;
            const i64 own = table_of(args, part)[c];
            table_of(args, part)[c] = (index_t)sum;
            sum += own;
        }
        begins[c + 1] = (index_t)sum;
    }
}

static void move_near_share(i64 part, const i64 *args) {
    const index_t *pos = (const index_t *)args[POS], *crd = (const index_t *)args[CRD];
    const value_t *values = (const value_t *)args[VALUES];
    index_t *next = table_of(args, part), *new_crd = (index_t *)args[NEW_CRD];
    value_t *new_values = (value_t *)args[NEW_VALUES];
    i64 entry = share_of(args, part);
    const i64 end = share_of(args, part + 1);
    for (i64 row = row_of(entry, args); entry < end; row++) {
        const i64 stop = pos[row + 1] < end ? pos[row + 1] : end;
        for (; entry < stop; entry++) {
            const i64 at = next[crd[entry]]++;
            new_crd[at] = (index_t)row;
            new_values[at] = values[entry];
        }
    }
}

static void count_near_shares(i64 begin, i64 end, void *context) {
    for (i64 part = begin; part < end; part++) count_near_share(part, ((job_t *)context)->args);
}

static void place_blocks(i64 begin, i64 end, void *context) {
    for (i64 part = begin; part < end; part++) place_block(part, ((job_t *)context)->args);
}

static void move_near_shares(i64 begin, i64 end, void *context) {
    for (i64 part = begin; part < end; part++) move_near_share(part, ((job_t *)context)->args);
}

static void shared(work_t work, job_t *job) {
    const i64 threads = job->args[THREADS];
    if (threads <= 1) work(0, 1, job);
    else ((int (*)(i64, i64, i64, work_t, void *))job->args[PARALLEL])(0, threads, 1, work, job);
}

/* Whether most columns come again soon, as in bands and meshes: what is written then stays in the cache, for one thread.
   Looks at a few stretches of entries. */
static int come_again(const i64 *args) {
    enum { STRETCHES = 4, LENGTH = 1 << 14 };
    const index_t *crd = (const index_t *)args[CRD];
    const i64 last = args[ENTRIES] - LENGTH;
    i64 again = 0;
    if (last < 0) return 0;
    for (i64 stretch = 0; stretch < STRETCHES; stretch++) {
        const i64 begin = last / (STRETCHES - 1) * stretch;
        again += count_again(crd, begin, begin + LENGTH);
    }
    return again > STRETCHES * LENGTH / 2;
}

/* What is written to stays in the cache: entries go where they belong at once. */
static void sort_at_once(const i64 *args) {
    const index_t *pos = (const index_t *)args[POS], *crd = (const index_t *)args[CRD];
    const value_t *values = (const value_t *)args[VALUES];
    index_t *next = (index_t *)args[NEW_POS] + 1, *new_crd = (index_t *)args[NEW_CRD];
    value_t *new_values = (value_t *)args[NEW_VALUES];
    i64 sum = 0;
    for (i64 c = 0; c < args[COLUMNS]; c++) next[c] = 0;
    for (i64 e = 0; e < args[ENTRIES]; e++) next[crd[e]]++;
    for (i64 c = 0; c < args[COLUMNS]; c++) {
        const i64 own = next[c];
        next[c] = (index_t)sum;
        sum += own;
    }
    for (i64 row = 0; row < args[ROWS]; row++)
        for (i64 e = pos[row], stop = pos[row + 1]; e < stop; e++) {
            const i64 at = next[crd[e]]++;
            new_crd[at] = (index_t)row;
            new_values[at] = values[e];
        }
}

i64 scorch_transpose_rows(i64 *args) {
    job_t job = {args, 0};
    args[COUNT] = args[ENTRIES];
    ((index_t *)args[NEW_POS])[0] = 0;
    if (args[THREADS] <= 1 && (args[BUCKETS] == 1 || come_again(args))) {
        sort_at_once(args);
        return 0;
    }
    if (args[THREADS] > 1 && args[THREADS] * args[COLUMNS] <= args[ENTRIES] * (i64)(sizeof(entry_t) / sizeof(index_t))) {
        shared(count_near_shares, &job);
        if (is_near(args)) {
            shared(place_blocks, &job);
            shared(move_near_shares, &job);
            return 0;
        }
    }
    shared(count_shares, &job);
    sum_counts((i64 *)args[COUNTS], args[BUCKETS], args[THREADS]);
    shared(spread_shares, &job);
    shared(sort_buckets, &job);
    return 0;
}
