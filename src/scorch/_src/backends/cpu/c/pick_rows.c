typedef long long i64;
enum { ROWS, ASKED, INDEX_BYTES, VALUE_BYTES, PICKED, POS, CRD, VALUES, NEW_POS, COUNT,
       DISCARD = NEW_POS + 6, NEW_CRD, NEW_VALUES };

#define POINTER(args, i) \
    ((args)[INDEX_BYTES] == 4 ? ((const int *)(args)[POS])[i] : ((const i64 *)(args)[POS])[i])

/* Where each picked row begins; 1 if one is not there. Rows may be counted from the end. */
i64 scorch_count_rows(i64 *args) {
    const i64 *picked = (const i64 *)args[PICKED];
    i64 *pos = (i64 *)args[NEW_POS], count = 0;
    for (i64 i = 0; i < args[ASKED]; i++) {
        i64 row = picked[i] < 0 ? picked[i] + args[ROWS] : picked[i];
        if (row < 0 || row >= args[ROWS]) return 1;
        pos[i] = count;
        count += POINTER(args, row + 1) - POINTER(args, row);
    }
    pos[args[ASKED]] = args[COUNT] = count;
    return 0;
}

#define COPY(T) static void copy_##T(i64 *args, const T *from, T *to) { \
    const i64 *picked = (const i64 *)args[PICKED], *begin = (const i64 *)args[NEW_POS]; \
    for (i64 i = 0; i < args[ASKED]; i++) { \
        const i64 row = picked[i] < 0 ? picked[i] + args[ROWS] : picked[i]; \
        const i64 count = begin[i + 1] - begin[i]; \
        const T *source = from + POINTER(args, row); \
        T *target = to + begin[i]; \
        for (i64 k = 0; k < count; k++) target[k] = source[k]; \
    } \
}
typedef unsigned char bits8;
typedef unsigned short bits16;
typedef unsigned int bits32;
typedef unsigned long long bits64;
COPY(bits8)
COPY(bits16)
COPY(bits32)
COPY(bits64)

static void copy(i64 *args, i64 bytes, i64 from, i64 to) {
    if (bytes == 1) copy_bits8(args, (const bits8 *)from, (bits8 *)to);
    if (bytes == 2) copy_bits16(args, (const bits16 *)from, (bits16 *)to);
    if (bytes == 4) copy_bits32(args, (const bits32 *)from, (bits32 *)to);
    if (bytes == 8) copy_bits64(args, (const bits64 *)from, (bits64 *)to);
}

i64 scorch_copy_rows(i64 *args) {
    if (args[DISCARD]) return 0;
    copy(args, args[INDEX_BYTES], args[CRD], args[NEW_CRD]);
    copy(args, args[VALUE_BYTES], args[VALUES], args[NEW_VALUES]);
    return 0;
}
