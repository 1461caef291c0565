/* Selects values by their ranks, and counts those of each sign, without sorting.

   Values become keys that rise as they do, what is not a number being the largest. Each pass counts how often the next
   DIGIT bits have each value among the keys that begin as the wanted one does, and so finds these bits of it: threads
   share passes, which read the values in order. value_t is the type of values, key_t the unsigned type of its size. */
typedef void (*work_t)(i64, i64, void *);
enum { PARALLEL, THREADS, COUNT, RANKS, VALUES, AT, TABLES, RESULT };
enum { DIGIT = 11, DIGITS = 1 << DIGIT, WIDTH = 8 * sizeof(value_t), SIGNS = 3, LINE = 8 };
typedef struct { const i64 *args; key_t prefix; int known; } pass_t; /* so many bits */
typedef union { value_t value; key_t key; } both_t;
#define TOP ((key_t)1 << (WIDTH - 1))
#define IS_FLOAT ((value_t)0.5 != 0)

static key_t key_of(value_t value) {
    const key_t bits = (both_t){.value = value}.key;
    if (!IS_FLOAT) return (value_t)-1 < 0 ? bits ^ TOP : bits;
    return (bits ^ (-(bits >> (WIDTH - 1)) | TOP)) | -(key_t)(value != value); /* without branches, which are hard to predict */
}

static value_t value_of(key_t key) {
    if (!IS_FLOAT) return (both_t){.key = (value_t)-1 < 0 ? key ^ TOP : key}.value;
    return (both_t){.key = key & TOP ? key ^ TOP : ~key}.value;
}

static i64 share_of(const i64 *args, i64 part) { return args[COUNT] * part / args[THREADS]; }

static void count_share(i64 part, const pass_t *pass) {
    const i64 *args = pass->args, end = share_of(args, part + 1);
    const value_t *values = (const value_t *)args[VALUES];
    const key_t prefix = pass->prefix;
    const int left = WIDTH - pass->known, shift = left > DIGIT ? left - DIGIT : 0;
    i64 *table = (i64 *)args[TABLES] + part * DIGITS;
    for (i64 d = 0; d < DIGITS; d++) table[d] = 0;
    if (!pass->known)
        for (i64 i = share_of(args, part); i < end; i++) table[key_of(values[i]) >> shift]++;
    else {
        const key_t mask = ((key_t)1 << (left - shift)) - 1;
        for (i64 i = share_of(args, part); i < end; i++) {
            const key_t key = key_of(values[i]);
            if (key >> left == prefix) table[key >> shift & mask]++;
        }
    }
}

static void count_shares(i64 begin, i64 end, void *context) {
    for (i64 part = begin; part < end; part++) count_share(part, context);
}

static void shared(work_t work, const i64 *args, void *context) {
    if (args[THREADS] <= 1) work(0, 1, context);
    else ((int (*)(i64, i64, i64, work_t, void *))args[PARALLEL])(0, args[THREADS], 1, work, context);
}

static void count_digits(pass_t *pass, i64 *totals) {
    const i64 *args = pass->args, *tables = (const i64 *)args[TABLES];
    shared(count_shares, args, pass);
    for (i64 d = 0; d < DIGITS; d++) totals[d] = 0;
    for (i64 part = 0; part < args[THREADS]; part++)
        for (i64 d = 0; d < DIGITS; d++) totals[d] += tables[part * DIGITS + d];
}

static i64 digit_of(const i64 *totals, i64 *rank) {
    i64 digit = 0;
    while (*rank >= totals[digit]) *rank -= totals[digit++];
    return digit;
}

i64 scorch_select(i64 *args) {
    i64 first[DIGITS], totals[DIGITS];
    if (args[THREADS] <= 1) args[THREADS] = 1;
    pass_t pass = {args, 0, 0};
    if (args[RANKS]) count_digits(&pass, first);
    for (i64 r = 0; r < args[RANKS]; r++) {
        i64 rank = ((const i64 *)args[AT])[r];
        pass.prefix = (key_t)digit_of(first, &rank);
        for (pass.known = DIGIT; pass.known < WIDTH;) {
            const int left = WIDTH - pass.known, bits = left < DIGIT ? left : DIGIT;
            count_digits(&pass, totals);
            pass.prefix = pass.prefix << bits | (key_t)digit_of(totals, &rank);
            pass.known += bits;
        }
        ((value_t *)args[RESULT])[r] = value_of(pass.prefix);
    }
    return 0;
}

static void count_signs_of_share(i64 part, const i64 *args) {
    const value_t *values = (const value_t *)args[VALUES];
    i64 *found = (i64 *)args[TABLES] + part * LINE, end = share_of(args, part + 1);
    i64 negative = 0, other = 0, unordered = 0;
    for (i64 i = share_of(args, part); i < end; i++) {
        negative += values[i] < 0;
        other += values[i] != 0;
        unordered += values[i] != values[i];
    }
    found[0] = negative, found[1] = other, found[2] = unordered;
}

static void count_signs_of_shares(i64 begin, i64 end, void *context) {
    for (i64 part = begin; part < end; part++) count_signs_of_share(part, context);
}

/* How many are less than zero, not zero, and no number. */
i64 scorch_count_signs(i64 *args) {
    i64 *result = (i64 *)args[RESULT];
    if (args[THREADS] <= 1) args[THREADS] = 1;
    shared(count_signs_of_shares, args, args);
    for (i64 s = 0; s < SIGNS; s++) {
        result[s] = 0;
        for (i64 part = 0; part < args[THREADS]; part++) result[s] += ((const i64 *)args[TABLES])[part * LINE + s];
    }
    return 0;
}
