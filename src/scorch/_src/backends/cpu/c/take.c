/* The values at places, both in one dimension; value_t has the size of one. */
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, COUNT, VALUES, PLACES, TAKEN };

static void take_shares(i64 begin, i64 end, void *context) {
    const i64 *args = context, *places = (const i64 *)args[PLACES];
    const i64 last = args[COUNT] * end / args[THREADS];
    const value_t *restrict values = (const value_t *)args[VALUES];
    value_t *restrict taken = (value_t *)args[TAKEN];
    for (i64 i = args[COUNT] * begin / args[THREADS]; i < last; i++) taken[i] = values[places[i]];
}

i64 scorch_take(i64 *args) {
    if (args[THREADS] <= 1) take_shares(0, 1, args);
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, take_shares, args);
    return 0;
}
