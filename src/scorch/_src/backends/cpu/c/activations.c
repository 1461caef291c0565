/* What follows a layer, in place: in vectors for f32, by functions of the C library for f64. */
enum { NO_ACTIVATION, RELU, GELU, GELU_TANH, SILU };
#define HALF_ROOT 0.70710678118654752440
#define TANH_SLOPE 1.59576912160573071 /* 2 sqrt(2 / pi) */

double exp(double), erf(double);
typedef f64 f64e; /* what is computed at a time */
typedef f32v f32e;
static inline f64 exp_f64(f64 x) { return exp(x); }
static inline f64 gelu_f64(f64 x) { return 0.5 * x * (1 + erf(x * HALF_ROOT)); }
static inline f64 relu_f64(f64 x) { return x < 0 ? 0 : x; }

static inline f32v select_f32(f32m mask, f32v yes, f32v no) {
    return (f32v)((mask & (f32m)yes) | (~mask & (f32m)no));
}
/* 1 / x to the last bit or two, of large numbers to 14: a division takes as long as much of an activation. */
#if $VECTOR == 64 && defined(__AVX512F__)
static inline f32v invert_f32(f32v x) {
    f32v near;
    __asm__("vrcp14ps %1, %0" : "=v"(near) : "v"(x));
    return select_f32(x < 1e37f, near * (2.0f - x * near), near); /* of infinity as it is, 0 */
}
#else
static inline f32v invert_f32(f32v x) { return 1.0f / x; }
#endif
static inline f64 invert_f64(f64 x) { return 1 / x; }
static inline f32v relu_f32(f32v x) { return select_f32(x < 0, (f32v){0}, x); }

/* 2^n times a polynomial on [-log(2) / 2, log(2) / 2], as Cephes has it. */
static inline f32v exp_f32(f32v x) {
    const f32v least = (f32v){0} - 87.3f, most = (f32v){0} + 88.7228f;
    x = select_f32(x < least, least, x);
    x = select_f32(x > most, most, x);
    const f32v n = x * 1.44269504f + 12582912.0f - 12582912.0f; /* the nearest integer */
    const f32v r = x - n * 0.693359375f + n * 2.12194440e-4f;
    f32v p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f, p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f, p = p * r + 5.0000001201e-1f;
    return (p * r * r + r + 1.0f) * (f32v)((__builtin_convertvector(n, f32m) + 127) << 23);
}

/* x times the normal distribution, which is 1/2 + x P(x^2) / Q(x^2) between bounds, as Eigen has erf: within 2.5e-7
   of the distribution (torch's own formula in vectors: 3.6e-7). */
static inline f32v gelu_f32(f32v x) {
    const f32v least = (f32v){0} - 5.6568542f, most = -least;
    f32v y = select_f32(x < least, least, x);
    y = select_f32(y > most, most, y);
    const f32v t = y * y;
    f32v p = t * 1.055746660e-10f - 2.145990475e-8f, q = t * 6.382026949e-5f + 1.869768302e-3f;
    p = p * t + 3.254634398e-6f, q = q * t + 2.949277530e-2f;
    p = p * t + 1.763618782e-4f, q = q * t + 2.584459884e-1f;
    p = p * t + 4.554209307e-3f, q = q * t + 1.0f;
    p = p * t + 3.661506798e-2f, p = p * t + 3.989422545e-1f;
    const f32v inside = y * p * invert_f32(q) + 0.5f;
    return x * select_f32(x < -5.5f, (f32v){0}, inside);
}

#define EACH(T, result) \
    for (; k + LANES <= n; k += LANES) { \
        T##e x; \
        __builtin_memcpy(&x, values + k, sizeof(x)); \
        x = result; \
        __builtin_memcpy(values + k, &x, sizeof(x)); \
    } \
    break;
#define ACTIVATIONS(T) \
static void activate_##T(i64 activation, T *values, i64 n) { \
    enum { LANES = sizeof(T##e) / sizeof(T) }; \
    i64 k = 0; \
    switch (activation) { \
    case NO_ACTIVATION: return; \
    case RELU: EACH(T, relu_##T(x)) \
    case GELU: EACH(T, gelu_##T(x)) \
    case GELU_TANH: EACH(T, x * invert_##T(1 + exp_##T((T)-TANH_SLOPE * (x + (T)0.044715 * x * x * x)))) \
    case SILU: EACH(T, x * invert_##T(1 + exp_##T(-x))) \
    } \
    if (k == n) return; \
    T rest[LANES] = {0}; \
    for (i64 i = k; i < n; i++) rest[i - k] = values[i]; \
    activate_##T(activation, rest, LANES); \
    for (i64 i = k; i < n; i++) values[i] = rest[i - k]; \
}
