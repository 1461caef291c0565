/* Loops over the values of a tensor, which are vectorized. */
#define MAP(name, type, absolute)                                                                           \
    static void name(long long code, const type *restrict in, type *restrict out, long long length) {       \
        if (code == 0) for (long long i = 0; i < length; i++) out[i] = in[i] <= 0 ? 0 : in[i];              \
        if (code == 1) for (long long i = 0; i < length; i++) out[i] = -in[i];                              \
        if (code == 2) for (long long i = 0; i < length; i++) out[i] = absolute(in[i]);                     \
    }
#define ADD(name, type)                                                                                     \
    static void name(type *restrict sum, const type *restrict added, long long length) {                    \
        for (long long i = 0; i < length; i++) sum[i] += added[i];                                          \
    }
#define SCALE(name, type)                                                                                   \
    static void name(type factor, const type *restrict in, type *restrict out, long long length) {          \
        for (long long i = 0; i < length; i++) out[i] = in[i] * factor;                                     \
    }
ADD(add_float, float)
ADD(add_double, double)
SCALE(scale_float, float)
SCALE(scale_double, double)
MAP(map_float, float, __builtin_fabsf)
MAP(map_double, double, __builtin_fabs)

#define COMBINE(name, type)                                                                                 \
    static void name(long long code, const type *restrict a, const type *restrict b, type *restrict out,    \
                     long long length) {                                                                    \
        if (code == 0) for (long long i = 0; i < length; i++) out[i] = a[i] + b[i];                         \
        if (code == 1) for (long long i = 0; i < length; i++) out[i] = a[i] - b[i];                         \
        if (code == 2) for (long long i = 0; i < length; i++) out[i] = a[i] * b[i];                         \
    }
COMBINE(combine_float, float)
COMBINE(combine_double, double)

static void narrow(int *restrict out, const long long *restrict in, long long length) {
    for (long long i = 0; i < length; i++) out[i] = (int)in[i];
}

