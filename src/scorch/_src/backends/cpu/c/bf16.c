/* Numbers of 16 bits: the upper halves of floats. */
static inline float widen_bf16(unsigned short x) {
    const union { unsigned bits; float number; } wide = {(unsigned)x << 16};
    return wide.number;
}
/* The nearest, of two as near the even one, as torch rounds. */
static inline unsigned short narrow_bf16(float x) {
    const union { float number; unsigned bits; } wide = {x};
    return x != x ? 0x7fc0 : (unsigned short)((wide.bits + 0x7fff + (wide.bits >> 16 & 1)) >> 16);
}
