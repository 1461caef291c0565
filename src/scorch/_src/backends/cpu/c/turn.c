/* Columns of up to LINES rows become rows, which have room for LINES elements if IS_PADDED. */
#define TURN(T) \
static void turn_##T(const T *from, i64 from_apart, T *to, i64 to_apart, i64 height, i64 width, int is_padded) { \
    const i64 high = height / 4 * 4, wide = width / 4 * 4; \
    i64 first = 0; \
    for (; SIDE_##T && (is_padded || height == SIDE_##T) && first + SIDE_##T <= width; first += SIDE_##T) \
        wide_square_##T(from + first, from_apart, to + first * to_apart, to_apart, height); \
    for (i64 column = first; column < wide; column += 4) \
        for (i64 row = 0; row < high; row += 4) \
            square_##T(from + row * from_apart + column, from_apart, to + column * to_apart + row, to_apart); \
    for (i64 column = first; column < width; column++) \
        for (i64 row = column < wide ? high : 0; row < height; row++) \
            to[column * to_apart + row] = from[row * from_apart + column]; \
}
