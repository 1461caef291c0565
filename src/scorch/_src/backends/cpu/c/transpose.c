typedef struct {
    i64 batch, rows, columns, threads;
    const char *from;
    char *to;
} task_t;

#define WIDTH 128
#define HEIGHT 256
#define LEAST(a, b) ((a) < (b) ? (a) : (b))

/* A part of a matrix becomes columns; all but a few elements in squares of four by four. */
#define TRANSPOSE(T) \
SQUARE(T) \
static void turn_##T(const T *all_from, T *all_to, i64 rows, i64 columns, \
                     i64 top, i64 bottom, i64 left, i64 right) { \
    i64 row = top; \
    for (; row + 4 <= bottom; row += 4) { \
        i64 column = left; \
        for (; column + 4 <= right; column += 4) \
            square_##T(all_from + row * columns + column, columns, all_to + column * rows + row, rows); \
        for (; column < right; column++) \
            for (int k = 0; k < 4; k++) \
                all_to[column * rows + row + k] = all_from[(row + k) * columns + column]; \
    } \
    for (; row < bottom; row++) \
        for (i64 column = left; column < right; column++) \
            all_to[column * rows + row] = all_from[row * columns + column]; \
} \
static void work_##T(i64 begin, i64 end, void *context) { \
    const task_t *task = context; \
    const i64 rows = task->rows, columns = task->columns; \
    const i64 across = (columns + WIDTH - 1) / WIDTH, down = (rows + HEIGHT - 1) / HEIGHT; \
    const i64 all = task->batch * across * down; \
    for (i64 part = all * begin / task->threads; part < all * end / task->threads; part++) { \
        const i64 skip = part / (across * down) * rows * columns; \
        const i64 left = part / down % across * WIDTH, top = part % down * HEIGHT; \
        turn_##T((const T *)task->from + skip, (T *)task->to + skip, rows, columns, \
                 top, LEAST(top + HEIGHT, rows), left, LEAST(left + WIDTH, columns)); \
    } \
} \
i64 scorch_transpose_##T(i64 *args) { \
    task_t task = {args[2], args[3], args[4], args[1], (const char *)args[5], (char *)args[6]}; \
    if (task.threads <= 1) work_##T(0, 1, &task); \
    else ((int (*)(i64, i64, i64, void (*)(i64, i64, void *), void *))args[0]) \
        (0, task.threads, 1, work_##T, &task); \
    return 0; \
}

typedef unsigned char bits8;
typedef unsigned short bits16;
typedef unsigned int bits32;
typedef unsigned long long bits64;
TRANSPOSE(bits8)
TRANSPOSE(bits16)
TRANSPOSE(bits32)
TRANSPOSE(bits64)
