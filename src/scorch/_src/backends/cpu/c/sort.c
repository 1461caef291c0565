typedef struct { i64 count, dims; const INDEX *const *columns; const i64 *sizes; } INDEX##_list;

/* Negative, zero or positive, as entry a comes before, with or after entry b. */
static int compare_INDEX(const INDEX##_list *list, i64 a, i64 b) {
    for (i64 dim = 0; dim < list->dims; dim++) {
        const INDEX x = list->columns[dim][a], y = list->columns[dim][b];
        if (x != y) return x < y ? -1 : 1;
    }
    return 0;
}

/* One stable pass over the digit of ``bits`` bits above ``shift``. */
static void pass_INDEX(const INDEX *column, i64 count, int shift, int bits,
                       const u32 *from, u32 *to, u32 *begins) {
    const i64 mask = ((i64)1 << bits) - 1;
    u32 sum = 0;
    for (i64 digit = 0; digit <= mask; digit++) begins[digit] = 0;
    for (i64 n = 0; n < count; n++) begins[column[n] >> shift & mask]++;
    for (i64 digit = 0; digit <= mask; digit++) {
        const u32 own = begins[digit];
        begins[digit] = sum;
        sum += own;
    }
    for (i64 n = 0; n < count; n++) to[begins[column[from[n]] >> shift & mask]++] = from[n];
}

/* All passes over one column; returns the order they end with. */
static u32 *passes_INDEX(const INDEX *column, i64 size, i64 count, u32 *order, u32 *other, u32 *begins) {
    int all = 1, passes;
    while (all < 63 && size > (i64)1 << all) all++;
    passes = (all + 15) / 16;
    for (int done = 0; done < passes; done++) {
        const int shift = all * done / passes, bits = all * (done + 1) / passes - shift;
        u32 *last = order;
        pass_INDEX(column, count, shift, bits, order, other, begins);
        order = other, other = last;
    }
    return order;
}

/* -1, 0 or 1: some entries are out of order, repeat, or neither. */
static int is_sorted_INDEX(const INDEX##_list *list, const u32 *order) {
    int found = 1;
    for (i64 n = 1; n < list->count; n++) {
        const int now = compare_INDEX(list, order[n - 1], order[n]);
        if (now > 0) return -1;
        if (now == 0) found = 0;
    }
    return found;
}

/* (count, dims, columns, sizes, order, another order, new columns,
   65,536 numbers) -> 0: all is in order as it is, 1: order and the new columns are to be
   taken, 2: entries repeat */
i64 scorch_sort_INDEX(i64 *args) {
    const INDEX##_list list = {args[0], args[1], (const INDEX *const *)args[2], (const i64 *)args[3]};
    u32 *order = (u32 *)args[4], *other = (u32 *)args[5], *from = order, *begins = (u32 *)args[7];
    INDEX *const *moved = (INDEX *const *)args[6];
    i64 n = 1;
    int state = -1;
    while (n < list.count && compare_INDEX(&list, n - 1, n) < 0) n++;
    if (n >= list.count) return 0;
    for (n = 0; n < list.count; n++) order[n] = (u32)n;
    if (list.dims == 2) {
        from = passes_INDEX(list.columns[0], list.sizes[0], list.count, order, other, begins);
        state = is_sorted_INDEX(&list, from);
    }
    if (state < 0) {
        from = order;
        for (n = 0; n < list.count; n++) order[n] = (u32)n;
        for (i64 dim = list.dims - 1; dim >= 0; dim--)
            from = passes_INDEX(list.columns[dim], list.sizes[dim], list.count, from,
                                from == order ? other : order, begins);
        state = is_sorted_INDEX(&list, from);
    }
    if (!state) return 2;
    if (from != order)
        for (n = 0; n < list.count; n++) order[n] = from[n];
    for (i64 dim = 0; dim < list.dims; dim++)
        for (n = 0; n < list.count; n++) moved[dim][n] = list.columns[dim][order[n]];
    return 1;
}
