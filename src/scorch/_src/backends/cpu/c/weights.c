/* Values of a weight as they are stored: numbers of the type T of all sums, the upper halves of them (bf16), or
   8-bit integers with a scale for each row. */
#if defined(STORED_bf16)
#define WEIGHT(T) unsigned short
static inline f32 widen(unsigned short value) {
    const union { unsigned bits; f32 number; } wide = {(unsigned)value << 16};
    return wide.number;
}
#elif defined(STORED_int8)
#define WEIGHT(T) signed char
#define widen(value) ((f32)(value))
#else
#define WEIGHT(T) T
#define widen(value) (value)
#endif
#ifdef STORED_int8
#define HAS_SCALES 1
#else
#define HAS_SCALES 0
#endif
#if defined(STORED_bf16) || defined(STORED_int8)
#define IS_NARROW_WEIGHT 1
#else
#define IS_NARROW_WEIGHT 0
#endif
