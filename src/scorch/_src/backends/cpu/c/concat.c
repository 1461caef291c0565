typedef long long i64;
typedef int i32;
void *memcpy(void *, const void *, unsigned long);

/* args: how many arrays, bytes of an element; the length of each and what is added; addresses; result */
#define MOVED(T) \
static void moved_##T(T *to, const T *from, i64 count, T by) { \
    for (i64 i = 0; i < count; i++) to[i] = from[i] + by; \
}
MOVED(i32)
MOVED(i64)

i64 scorch_concat(i64 *args) {
    const i64 count = args[0], bytes = args[1], *part = args + 2, *from = part + 2 * count;
    char *to = (char *)from[count];
    for (i64 i = 0; i < count; i++) {
        const i64 length = part[2 * i], by = part[2 * i + 1];
        if (!by) memcpy(to, (const void *)from[i], (unsigned long)(length * bytes));
        else if (bytes == 4) moved_i32((i32 *)to, (const i32 *)from[i], length, (i32)by);
        else moved_i64((i64 *)to, (const i64 *)from[i], length, by);
        to += length * bytes;
    }
    return 0;
}
