typedef long long i64;
typedef unsigned long long u64;
typedef unsigned __int128 u128;
double strtod(const char *, char **);
void *memchr(const void *, int, unsigned long);

enum { NO_TABLE = 1, BLANK = 2 };

typedef struct {
    i64 threads;
    const char *text, *end;
    i64 *first;                /* the rows of each part, later the first of each */
    i64 coordinates, parts;    /* numbers of each kind in a line */
    int whole, narrow, failed; /* whole: values are 64-bit integers; narrow: coordinates have 32 bits */
    int exact;                 /* lines without anything on them are no rows */
    const i64 *sizes;
    char *places;
    u64 *values;
    i64 rows;
    const u64 *powers;
} task_t;

static const double TENS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14,
                              1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static const char *line_end(const char *at, const char *end) {
    const char *found = memchr(at, '\n', (unsigned long)(end - at));
    return found ? found : end;
}

/* Where part number `part` of the text begins: after the end of a line. */
static const char *begin_of(const task_t *task, i64 part) {
    const i64 length = task->end - task->text;
    const char *at = task->text + length / task->threads * part;
    if (part == 0) return task->text;
    if (part == task->threads) return task->end;
    at = line_end(at - 1, task->end);
    return at < task->end ? at + 1 : at;
}

static const char *skip(const char *at, const char *end) {
    while (at < end && (unsigned char)*at <= ' ' && *at != '\n') at++;
    return at;
}

static int is_digit(char c) { return (unsigned char)(c - '0') < 10; }

/* Reads digits, at most 19 of them; 0: there is no number of 64 bits. */
static const char *read_whole(const char *at, const char *end, i64 *out) {
    int negative = 0;
    u64 found = 0;
    const char *first;
    if (at < end && (*at == '-' || *at == '+')) negative = *at++ == '-';
    for (first = at; at < end && is_digit(*at); at++) {
        if (at - first >= 19) return 0;
        found = found * 10 + (u64)(*at - '0');
    }
    if (at == first || found > (u64)0x7fffffffffffffff) return 0;
    *out = negative ? -(i64)found : (i64)found;
    return at;
}

/* w * 10^q, correctly rounded; 0: it has to be found otherwise. */
static int scaled(u64 w, i64 q, const u64 *powers, u64 *bits) {
    union { double number; u64 bits; } exact;
    if (w == 0) { *bits = 0; return 1; }
    if (w <= (u64)1 << 53 && q >= -22 && q <= 22) {
        exact.number = q < 0 ? (double)w / TENS[-q] : (double)w * TENS[q];
        *bits = exact.bits;
        return 1;
    }
    if (q < -342 || q > 308) return 0;
    const int zeros = __builtin_clzll(w);
    const u64 *power = powers + 2 * (q + 342);
    u128 product = (u128)(w << zeros) * power[0];
    u64 high = (u64)(product >> 64), low = (u64)product;
    if ((high & 0x1ff) == 0x1ff) {
        const u64 more = (u64)(((u128)(w << zeros) * power[1]) >> 64);
        low += more;
        if (low < more) high++;
    }
    if (low == ~(u64)0 && (q < -27 || q > 55)) return 0;
    const int upper = (int)(high >> 63), shift = upper + 9;
    u64 mantissa = high >> shift;
    i64 exponent = ((217706 * q) >> 16) + 63 + upper - zeros + 1023;
    if (exponent <= 0) return 0;
    if (low <= 1 && q >= -4 && q <= 23 && (mantissa & 3) == 1 && mantissa << shift == high)
        mantissa &= ~(u64)1; /* halfway: to even */
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    if (mantissa >= (u64)2 << 52) mantissa = (u64)1 << 52, exponent++;
    if (exponent >= 2047) return 0;
    *bits = (mantissa & ~((u64)1 << 52)) | (u64)exponent << 52;
    return 1;
}

static const char *read_number(const char *at, const char *end, const u64 *powers, u64 *out) {
    const char *begin = at, *first;
    u64 w = 0, negative = 0;
    i64 q = 0, digits = 0, seen = 0;
    if (at < end && (*at == '-' || *at == '+')) negative = *at++ == '-';
    for (; at < end && is_digit(*at); at++, seen++) {
        w = w * 10 + (u64)(*at - '0');
        digits += digits || *at != '0';
    }
    if (at < end && *at == '.')
        for (at++; at < end && is_digit(*at); at++, seen++, q--) {
            w = w * 10 + (u64)(*at - '0');
            digits += digits || *at != '0';
        }
    if (seen && at < end && (*at | 32) == 'e') {
        int down = 0;
        i64 power = 0;
        at++;
        if (at < end && (*at == '-' || *at == '+')) down = *at++ == '-';
        for (first = at; at < end && is_digit(*at); at++)
            if (power < 100000) power = power * 10 + (*at - '0');
        if (at == first) return 0;
        q += down ? -power : power;
    }
    if (seen && digits <= 19 && scaled(w, q, powers, out)) {
        *out |= negative << 63;
        return at;
    }
    const char letter = at < end ? *at | 32 : 0;
    if (seen || letter == 'i' || letter == 'n') {
        union { double number; u64 bits; } slow;
        char *stop;
        slow.number = strtod(begin, &stop);
        *out = slow.bits;
        return stop > begin && (!seen || stop == at) ? stop : 0;
    }
    return 0;
}

/* Reads one row; where its line ends, or 0 if it is none. */
static const char *read_row(const task_t *task, const char *at, const char *end, i64 row) {
    for (i64 number = 0; number < task->coordinates; number++) {
        i64 found;
        at = read_whole(skip(at, end), end, &found);
        if (!at || (at < end && (unsigned char)*at > ' ')) return 0;
        if (found < 1 || found > task->sizes[number]) return 0;
        const i64 place = number * task->rows + row;
        if (task->narrow) ((int *)task->places)[place] = (int)(found - 1);
        else ((i64 *)task->places)[place] = found - 1;
    }
    for (i64 number = 0; number < task->parts; number++) {
        u64 *out = task->values + row * task->parts + number;
        at = skip(at, end);
        at = task->whole ? read_whole(at, end, (i64 *)out) : read_number(at, end, task->powers, out);
        if (!at || (at < end && (unsigned char)*at > ' ')) return 0;
    }
    at = skip(at, end);
    return at == end || *at == '\n' ? at : 0;
}

/* How many lines each part has; where `exact`, how many with anything on them. */
static void count(i64 begin, i64 end, void *context) {
    const task_t *task = context;
    for (i64 part = begin; part < end; part++) {
        i64 rows = 0;
        const char *at = begin_of(task, part), *stop = begin_of(task, part + 1);
        if (!task->exact) {
            for (const char *c = at; c < stop; c++) rows += *c == '\n';
            rows += at < stop && stop[-1] != '\n';
        } else
            for (const char *next; at < stop; at = next + 1) {
                next = line_end(at, stop);
                rows += skip(at, next) < next;
            }
        task->first[part] = rows;
    }
}

static void read(i64 begin, i64 end, void *context) {
    task_t *task = context;
    for (i64 part = begin; part < end; part++) {
        i64 row = task->first[part];
        const char *stop = begin_of(task, part + 1);
        for (const char *at = begin_of(task, part); at < stop && !task->failed; at++) {
            at = skip(at, stop);
            if (at == stop || *at == '\n') {
                if (!task->exact) task->failed = BLANK;
            } else if (!(at = read_row(task, at, stop, row++))) {
                task->failed = NO_TABLE;
                return;
            }
        }
    }
}

typedef int (*parallel_t)(i64, i64, i64, void (*)(i64, i64, void *), void *);

static void share(i64 parallel, task_t *task, void (*work)(i64, i64, void *)) {
    if (task->threads <= 1) work(0, 1, task);
    else ((parallel_t)parallel)(0, task->threads, 1, work, task);
}

/* (parallel, threads, text, end, rows of each part, exact); returns how many rows there are */
i64 scorch_count_rows(i64 *args) {
    task_t task = {.threads = args[1], .text = (const char *)args[2], .end = (const char *)args[3],
                   .first = (i64 *)args[4], .exact = (int)args[5]};
    i64 rows = 0;
    share(args[0], &task, count);
    for (i64 part = 0; part < task.threads; part++) {
        const i64 own = task.first[part];
        task.first[part] = rows;
        rows += own;
    }
    return rows;
}

/* (the same, and numbers of each kind, whole, narrow, sizes, coordinates, values, rows, powers);
   returns 0, NO_TABLE, or BLANK: rows have to be counted exactly */
i64 scorch_read_rows(i64 *args) {
    task_t task = {.threads = args[1], .text = (const char *)args[2], .end = (const char *)args[3],
                   .first = (i64 *)args[4], .exact = (int)args[5], .coordinates = args[6], .parts = args[7],
                   .whole = (int)args[8], .narrow = (int)args[9], .sizes = (const i64 *)args[10],
                   .places = (char *)args[11], .values = (u64 *)args[12], .rows = args[13],
                   .powers = (const u64 *)args[14]};
    share(args[0], &task, read);
    return task.failed;
}
