/* index_t and value_t are the types of indices, and of what has the size of values. Threads share the rows that are
 * asked for: each adds up the lengths of its rows, then writes where they begin, and copies them.
 */
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, ROWS, ASKED, LEAST, PICKED, POS, CRD, VALUES, NEW_POS, COUNT,
       DISCARD = NEW_POS + 6, NEW_CRD, NEW_VALUES };
enum { MOST_THREADS = 256, AHEAD = 8, TOGETHER = 8, MISSING = -1 };
/* As they lie in memory: for loads and stores only, never by value. */
typedef index_t indices_at __attribute__((vector_size(TOGETHER * sizeof(index_t)), aligned(sizeof(index_t)), may_alias));
typedef value_t values_at __attribute__((vector_size(TOGETHER * sizeof(value_t)), aligned(sizeof(value_t)), may_alias));
typedef struct { i64 *args, totals[MOST_THREADS]; } job_t;

static i64 share_of(const i64 *args, i64 part) { return args[ASKED] * part / args[THREADS]; }

/* Rows may be counted from the end, unless the least number is 0. */
static i64 row_of(const i64 *args, i64 i) {
    const i64 row = ((const i64 *)args[PICKED])[i];
    return row < args[LEAST] ? MISSING : row < 0 ? row + args[ROWS] : row;
}

static void add_lengths(i64 begin, i64 end, void *context) {
    job_t *job = context;
    const i64 *args = job->args, rows = args[ROWS];
    const index_t *pos = (const index_t *)args[POS];
    for (i64 part = begin; part < end; part++) {
        i64 total = 0;
        for (i64 i = share_of(args, part); i < share_of(args, part + 1); i++) {
            const i64 row = row_of(args, i);
            if (row < 0 || row >= rows) {
                total = MISSING;
                break;
            }
            total += pos[row + 1] - pos[row];
        }
        job->totals[part] = total;
    }
}

static void write_begins(i64 begin, i64 end, void *context) {
    job_t *job = context;
    const i64 *args = job->args;
    const index_t *pos = (const index_t *)args[POS];
    i64 *begins = (i64 *)args[NEW_POS];
    for (i64 part = begin; part < end; part++) {
        i64 at = job->totals[part];
        for (i64 i = share_of(args, part); i < share_of(args, part + 1); i++) {
            const i64 row = row_of(args, i);
            begins[i] = at;
            at += pos[row + 1] - pos[row];
        }
    }
}

/* Several entries at a time, also past the end of a row, where what follows is written later and memory goes on. */
static void copy_rows(i64 begin, i64 end, void *context) {
    const i64 *args = ((job_t *)context)->args, *begins = (const i64 *)args[NEW_POS];
    const index_t *pos = (const index_t *)args[POS], *restrict crd = (const index_t *)args[CRD];
    const value_t *restrict values = (const value_t *)args[VALUES];
    index_t *restrict new_crd = (index_t *)args[NEW_CRD];
    value_t *restrict new_values = (value_t *)args[NEW_VALUES];
    const i64 last = share_of(args, end), limit = begins[last] - TOGETHER, entries = pos[args[ROWS]] - TOGETHER;
    for (i64 i = share_of(args, begin); i < last; i++) {
        const i64 from = pos[row_of(args, i)], to = begins[i], length = begins[i + 1] - to;
        if (i + AHEAD < last) {
            const i64 later = pos[row_of(args, i + AHEAD)];
            __builtin_prefetch(crd + later);
            __builtin_prefetch(values + later);
        }
        if (to + length <= limit && from + length <= entries)
            for (i64 k = 0; k < length; k += TOGETHER) {
                *(indices_at *)(new_crd + to + k) = *(const indices_at *)(crd + from + k);
                *(values_at *)(new_values + to + k) = *(const values_at *)(values + from + k);
            }
        else
            for (i64 k = 0; k < length; k++) {
                new_crd[to + k] = crd[from + k];
                new_values[to + k] = values[from + k];
            }
    }
}

static void shared(work_t work, job_t *job) {
    const i64 threads = job->args[THREADS];
    if (threads <= 1) work(0, 1, job);
    else ((int (*)(i64, i64, i64, work_t, void *))job->args[PARALLEL])(0, threads, 1, work, job);
}

/* Where each picked row begins; 1 if one is not there. */
i64 scorch_count_rows(i64 *args) {
    job_t job;
    i64 sum = 0;
    job.args = args;
    shared(add_lengths, &job);
    for (i64 part = 0; part < args[THREADS]; part++) {
        const i64 own = job.totals[part];
        if (own == MISSING) return 1;
        job.totals[part] = sum;
        sum += own;
    }
    shared(write_begins, &job);
    ((i64 *)args[NEW_POS])[args[ASKED]] = args[COUNT] = sum;
    return 0;
}

i64 scorch_copy_rows(i64 *args) {
    job_t job;
    job.args = args;
    if (!args[DISCARD]) shared(copy_rows, &job);
    return 0;
}
