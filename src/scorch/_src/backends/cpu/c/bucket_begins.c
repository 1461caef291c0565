/* From how many entries of each bucket each of several threads has, a row of counts for each thread, to where these
 * begin; behind the counts, where each bucket begins, and the end of the last. */
static void sum_counts(i64 *counts, i64 buckets, i64 threads) {
    i64 *begins = counts + threads * buckets, sum = 0;
    for (i64 b = 0; b < buckets; b++) {
        begins[b] = sum;
        for (i64 part = 0; part < threads; part++) {
            const i64 own = counts[part * buckets + b];
            counts[part * buckets + b] = sum;
            sum += own;
        }
    }
    begins[buckets] = sum;
}

