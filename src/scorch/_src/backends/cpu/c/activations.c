/* What follows a layer, in place. Both ways of a choice are computed, so that loops become vectors. */
enum { NO_ACTIVATION, RELU, GELU, GELU_TANH, SILU };
#define HALF_ROOT 0.70710678118654752440
#define TANH_SLOPE 1.59576912160573071 /* 2 sqrt(2 / pi) */

double exp(double), erf(double);
static inline f64 exp_f64(f64 x) { return exp(x); }
static inline f64 erf_f64(f64 x) { return erf(x); }

/* 2^n times a polynomial on [-log(2) / 2, log(2) / 2], as Cephes has it. */
static inline f32 exp_f32(f32 x) {
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.7228f ? 88.7228f : x;
    const f32 n = x * 1.44269504f + 12582912.0f - 12582912.0f; /* the nearest integer */
    const f32 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    f32 p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f, p = p * r + 8.3334519073e-3f, p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f, p = p * r + 5.0000001201e-1f;
    const union { i32 bits; f32 number; } power = {((i32)n + 127) << 23};
    return (p * r * r + r + 1.0f) * power.number;
}

/* An odd polynomial near zero, 1 - exp(polynomial) elsewhere: within one unit in the last place (N. Juffa). */
static inline f32 erf_f32(f32 x) {
    const f32 t = x < 0 ? -x : x, s = x * x;
    f32 far = -1.72853470e-5f * t + 3.83197126e-4f;
    far = far * s + (-3.88396438e-3f * t + 2.42546219e-2f);
    far = far * t - 1.06777877e-1f, far = far * t - 6.34846687e-1f, far = far * t - 1.28717512e-1f;
    far = 1.0f - exp_f32(far * t - t);
    f32 near = -5.96761703e-4f;
    near = near * s + 4.99119423e-3f, near = near * s - 2.67681349e-2f, near = near * s + 1.12819925e-1f;
    near = near * s - 3.76125336e-1f, near = near * s + 1.28379166e-1f;
    near = near * x + x;
    return t > 0.927734375f ? (x < 0 ? -far : far) : near;
}

#define EACH(T, result) \
    _Pragma("omp simd") for (i64 k = 0; k < n; k++) { const T x = values[k]; values[k] = result; } \
    return;
#define ACTIVATIONS(T) \
static void activate_##T(i64 activation, T *values, i64 n) { \
    switch (activation) { \
    case RELU: EACH(T, x < 0 ? (T)0 : x) \
    case GELU: EACH(T, x * (T)0.5 * (1 + erf_##T(x * (T)HALF_ROOT))) \
    case GELU_TANH: EACH(T, x / (1 + exp_##T((T)-TANH_SLOPE * (x + (T)0.044715 * x * x * x)))) \
    case SILU: EACH(T, x / (1 + exp_##T(-x))) \
    } \
}
