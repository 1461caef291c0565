/* SIDE_T columns of HEIGHT rows, no more than these, become rows of as many elements, zeros behind the last: vectors
   of the first half are interleaved with those of the second, again and again. SIDE_T is 0 where there is no gain. */
#if $VECTOR == 64 && (defined(__clang__) || __GNUC__ >= 12)
enum { SIDE_f32 = 16, SIDE_f64 = 0 };
#define LOW_HALVES(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_HALVES(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define INTERLEAVE(from, to) \
    UNROLL for (int r = 0; r < 8; r++) \
        to[2 * r] = LOW_HALVES(from[r], from[r + 8]), to[2 * r + 1] = HIGH_HALVES(from[r], from[r + 8]);
static void wide_square_f32(const f32 *from, i64 from_apart, f32 *to, i64 to_apart, i64 height) {
    f32v a[16], b[16];
    UNROLL for (int r = 0; r < 16; r++) {
        a[r] = (f32v){0};
        if (r < height) a[r] = *(const f32v_at *)(from + r * from_apart);
    }
    INTERLEAVE(a, b) INTERLEAVE(b, a) INTERLEAVE(a, b) INTERLEAVE(b, a)
    UNROLL for (int r = 0; r < 16; r++) *(f32v_at *)(to + r * to_apart) = a[r];
}
#else
enum { SIDE_f32 = 0, SIDE_f64 = 0 };
#define wide_square_f32(...) ((void)0)
#endif
#define wide_square_f64(...) ((void)0)
