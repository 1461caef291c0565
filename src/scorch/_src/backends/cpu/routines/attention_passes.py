"""The two passes of sparse attention in C, for a block of queries and for one query by itself.

Forward, the softmax is computed as keys come: when a larger maximum is met, what was summed is made smaller.
Backward, the weights P are made again from the maxima and sums, and with D, the gradients of weights,

    delta[q] = sum(e, G[q,e] * O[q,e])        dS[c,q] = P[c,q] * (D[c,q] - delta[q])

are the gradients of the scores, from which those of queries, keys and values are sums.
"""

FORWARD = """
/* The chunk's scores in P become weights relative to the maximum so far */
static void absorb(head_t *h) {
    const i64 count = h->whole;
    for (i64 g = 0; g < R; g += W) {
        const vec before = *(vec_at *)(h->top + g);
        vec top = before;
        for (i64 c = 0; c < count; c++) {
            vec_at *s = (vec_at *)(h->P + c * R + g);
            if (!h->full) *s = pick(seen(h, c, g), *s, (vec){0} + NONE);
            top = pick(*s > top, *s, top);
        }
        const vec by = pick(top == NONE, (vec){0}, top), smaller = power(before - by);
        vec total = *(vec_at *)(h->total + g) * smaller;
        for (i64 c = 0; c < count; c++) {
            vec_at *s = (vec_at *)(h->P + c * R + g);
            vec p = power(*s - by);
            if (!h->full) p = pick(seen(h, c, g), p, (vec){0});
            total += p, *s = p;
        }
        *(vec_at *)(h->top + g) = top, *(vec_at *)(h->total + g) = total;
        int is_same = 1;
        for (int lane = 0; lane < W; lane++) is_same &= before[lane] == top[lane];
        if (!is_same)
            for (i64 e = 0; e < h->width; e++) *(vec_at *)(h->sums + e * R + g) *= smaller;
    }
}

static void forward_block(head_t *h, i64 first, i64 rows, i64 at, i64 end) {
    for (int q = 0; q < R; q++) {
        const T *from = h->q + (first + q) * h->args[Q_STEP];
        for (i64 e = 0; e < h->depth; e++) h->packed_q[e * R + q] = q < rows ? h->factor * from[e] : 0;
        h->top[q] = NONE, h->total[q] = 0;
        begin_row(h, first + q, q);
    }
    for (i64 i = 0; i < R * h->width; i++) h->sums[i] = 0;
    while (next_keys(h, &at, end)) {
        scores(h->P, h->keys, h->whole, h->packed_q, h->depth);
        absorb(h);
        if (h->args[DROPPED])
            for (i64 c = 0; c < h->count; c++)
                for (int q = 0; q < R; q++) h->P[c * R + q] *= dropped(h, h->seeds[q], h->which[c]);
        gather(h->sums, h->values, h->count, h->P, h->width);
    }
    for (int q = 0; q < rows; q++) {
        const T by = h->total[q] > 0 || h->total[q] != h->total[q] ? 1 / h->total[q] : 0;
        T *to = h->to + (first + q) * h->width;
        for (i64 e = 0; e < h->width; e++) to[e] = h->sums[e * R + q] * by;
        h->state[2 * (first + q)] = h->top[q] == NONE ? 0 : h->top[q], h->state[2 * (first + q) + 1] = by;
    }
}

static void forward_row(head_t *h, i64 row, i64 at, i64 end) {
    const T *from = h->q + row * h->args[Q_STEP];
    T top = NONE, total = 0, *to = h->to + row * h->width;
    for (i64 e = 0; e < h->depth; e++) h->rows_q[e] = h->factor * from[e];
    for (i64 e = 0; e < h->width; e++) h->sums[e] = 0;
    begin_row(h, row, 0);
    while (next_entries(h, &at, end)) {
        const T before = top;
        dots(h->P, h->keys, h->count, h->rows_q, h->depth);
        for (i64 c = 0; c < h->count; c++) top = h->P[c] > top ? h->P[c] : top;
        const T by = top == NONE ? 0 : top, smaller = power((vec){0} + (before - by))[0];
        for (i64 c = 0; c < h->count; c += W) *(vec_at *)(h->P + c) = power(*(vec_at *)(h->P + c) - by);
        total *= smaller;
        for (i64 c = 0; c < h->count; c++) total += h->P[c];
        if (before != top)
            for (i64 e = 0; e < h->width; e++) h->sums[e] *= smaller;
        if (h->args[DROPPED])
            for (i64 c = 0; c < h->count; c++) h->P[c] *= dropped(h, h->seeds[0], h->which[c]);
        sum_rows(h->sums, h->values, h->count, h->P, h->width);
    }
    const T by = total > 0 || total != total ? 1 / total : 0;
    for (i64 e = 0; e < h->width; e++) to[e] = h->sums[e] * by;
    h->state[2 * row] = top == NONE ? 0 : top, h->state[2 * row + 1] = by;
}
"""

BACKWARD = """
/* The gradient of the scores is P (D - delta), where D is that of the weights */
static void backward_block(head_t *h, i64 first, i64 rows, i64 at, i64 end) {
    for (int q = 0; q < R; q++) {
        const T *from = h->q + (first + q) * h->args[Q_STEP], *out = h->to + (first + q) * h->width;
        const T *g = h->g + (first + q) * h->width;
        h->delta[q] = h->top[q] = h->total[q] = 0;
        for (i64 e = 0; e < h->depth; e++) {
            const T x = q < rows ? from[e] : 0;
            h->packed_q[e * R + q] = h->factor * x, h->rows_q[q * h->deep + e] = h->scale * x;
        }
        for (i64 e = 0; e < h->width; e++) {
            const T x = q < rows ? g[e] : 0;
            h->packed_g[e * R + q] = h->rows_g[q * h->wide + e] = x;
            if (q < rows) h->delta[q] += x * out[e];
        }
        for (i64 e = h->depth; e < h->deep; e++) h->rows_q[q * h->deep + e] = 0;
        for (i64 e = h->width; e < h->wide; e++) h->rows_g[q * h->wide + e] = 0;
        if (q < rows) h->top[q] = h->state[2 * (first + q)], h->total[q] = h->state[2 * (first + q) + 1];
        begin_row(h, first + q, q);
    }
    for (i64 i = 0; i < R * h->depth; i++) h->sums[i] = 0;
    while (next_keys(h, &at, end)) {
        scores(h->P, h->keys, h->whole, h->packed_q, h->depth);
        scores(h->D, h->values, h->whole, h->packed_g, h->width);
        for (i64 c = 0; c < h->whole; c++)
            for (i64 g = 0; g < R; g += W) {
                vec_at *p = (vec_at *)(h->P + c * R + g), *d = (vec_at *)(h->D + c * R + g);
                vec x = power(*p - *(vec_at *)(h->top + g)) * *(vec_at *)(h->total + g);
                if (!h->full) x = pick(seen(h, c, g), x, (vec){0});
                if (h->args[DROPPED]) {
                    vec kept;
                    for (int lane = 0; lane < W; lane++)
                        kept[lane] = dropped(h, h->seeds[g + lane], h->which[c]);
                    *p = x * kept, *d = x * (*d * kept - *(vec_at *)(h->delta + g));
                } else *p = x, *d = x * (*d - *(vec_at *)(h->delta + g));
            }
        scatter(h->to_values, h->whole, h->P, h->rows_g, h->wide);
        scatter(h->to_keys, h->whole, h->D, h->rows_q, h->deep);
        gather(h->sums, h->keys, h->count, h->D, h->depth);
    }
    for (int q = 0; q < rows; q++)
        for (i64 e = 0; e < h->depth; e++) h->dq[(first + q) * h->depth + e] = h->scale * h->sums[e * R + q];
}

static void backward_row(head_t *h, i64 row, i64 at, i64 end) {
    const T *from = h->q + row * h->args[Q_STEP], *out = h->to + row * h->width, *g = h->g + row * h->width;
    const T top = h->state[2 * row], by = h->state[2 * row + 1];
    T delta = 0, *scaled = h->rows_q + h->deep;
    for (i64 e = 0; e < h->deep; e++) {
        const T x = e < h->depth ? from[e] : 0;
        h->rows_q[e] = h->factor * x, scaled[e] = h->scale * x, h->sums[e] = 0;
    }
    for (i64 e = 0; e < h->wide; e++) {
        h->rows_g[e] = e < h->width ? g[e] : 0;
        if (e < h->width) delta += g[e] * out[e];
    }
    begin_row(h, row, 0);
    while (next_entries(h, &at, end)) {
        dots(h->P, h->keys, h->count, h->rows_q, h->depth);
        dots(h->D, h->values, h->count, h->rows_g, h->width);
        for (i64 c = 0; c < h->count; c += W) *(vec_at *)(h->P + c) = power(*(vec_at *)(h->P + c) - top) * by;
        for (i64 c = 0; c < h->count; c++) {
            const T kept = h->args[DROPPED] ? dropped(h, h->seeds[0], h->which[c]) : 1;
            h->D[c] = h->P[c] * (h->D[c] * kept - delta), h->P[c] *= kept;
        }
        add_rows(h->to_values, h->count, h->P, h->rows_g, h->wide);
        add_rows(h->to_keys, h->count, h->D, scaled, h->deep);
        sum_rows(h->sums, h->keys, h->count, h->D, h->depth);
    }
    for (i64 e = 0; e < h->depth; e++) h->dq[row * h->depth + e] = h->scale * h->sums[e];
}
"""
