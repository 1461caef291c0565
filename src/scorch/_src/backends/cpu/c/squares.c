typedef long long i64;

/* Four by four elements become their transpose in registers; rows of FROM and TO are so many elements apart. */
#if defined(__clang__) || __GNUC__ >= 12
#define SQUARE(T) \
typedef T T##x4 __attribute__((vector_size(4 * sizeof(T)))); \
typedef T T##x4_at __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias)); \
static inline void square_##T(const T *from, i64 from_apart, T *to, i64 to_apart) { \
    const T##x4 a = *(T##x4_at *)from, b = *(T##x4_at *)(from + from_apart); \
    const T##x4 c = *(T##x4_at *)(from + 2 * from_apart), d = *(T##x4_at *)(from + 3 * from_apart); \
    const T##x4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5); \
    const T##x4 fg = __builtin_shufflevector(a, b, 2, 6, 3, 7), hi = __builtin_shufflevector(c, d, 2, 6, 3, 7); \
    *(T##x4_at *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5); \
    *(T##x4_at *)(to + to_apart) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7); \
    *(T##x4_at *)(to + 2 * to_apart) = __builtin_shufflevector(fg, hi, 0, 1, 4, 5); \
    *(T##x4_at *)(to + 3 * to_apart) = __builtin_shufflevector(fg, hi, 2, 3, 6, 7); \
}
#else
#define SQUARE(T) \
static inline void square_##T(const T *from, i64 from_apart, T *to, i64 to_apart) { \
    for (int row = 0; row < 4; row++) \
        for (int column = 0; column < 4; column++) to[column * to_apart + row] = from[row * from_apart + column]; \
}
#endif
