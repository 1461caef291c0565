/* PICKED_T adds the products of values and elements of x from entry e on to sum, as many as it takes in vectors,
   and moves e past them. Columns are unsigned and of 16 bits where there is something to gain. */
#ifdef NARROW
#define COLUMN(I) unsigned short
#else
#define COLUMN(I) I
#endif
#define VECTORS(T, N) \
typedef T T##x##N __attribute__((vector_size(N * sizeof(T)))); \
typedef T T##x##N##_at __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias))
typedef int place;
typedef unsigned bits;
typedef signed char small;
typedef unsigned short column;
/* LOAD takes N values of a weight to a vector of T. */
#if defined(STORED_bf16)
#define AS_NUMBERS(T, N, raw) ((T##x##N)((bits##x##N)(raw) << 16))
#define LOAD(T, N, from) AS_NUMBERS(T, N, __builtin_convertvector(*(const column##x##N##_at *)(from), bits##x##N))
#elif defined(STORED_int8)
#define AS_NUMBERS(T, N, raw) __builtin_convertvector(raw, T##x##N)
#ifdef __AVX2__ /* for which gcc takes elements one by one */
#define LOAD(T, N, from) ({ \
    place##x##N loaded; \
    __asm__("vpmovsxbd %1, %0" : "=v"(loaded) : "m"(*(const small##x##N##_at *)(from))); \
    AS_NUMBERS(T, N, loaded); \
})
#else
#define LOAD(T, N, from) AS_NUMBERS(T, N, __builtin_convertvector(*(const small##x##N##_at *)(from), place##x##N))
#endif
#else
#define LOAD(T, N, from) (*(const T##x##N##_at *)(from))
#endif
/* Four columns are one number of 64 bits, which is cheaper to take apart than to load one by one. */
#if defined(NARROW) && defined(__aarch64__) && $VECTOR == 16
VECTORS(f32, 4);
VECTORS(place, 4);
VECTORS(bits, 4);
VECTORS(small, 4);
VECTORS(column, 4);
#define PICK(q) {x[q & 0xffff], x[q >> 16 & 0xffff], x[q >> 32 & 0xffff], x[q >> 48]}
#define PICKED_f32 \
    f32v low = {0}, high = {0}; \
    for (; e + 8 <= last; e += 8) { \
        u64 q, r; \
        __builtin_memcpy(&q, crd + e, 8), __builtin_memcpy(&r, crd + e + 4, 8); \
        const f32v a = PICK(q), b = PICK(r); \
        low += LOAD(f32, 4, values + e) * a, high += LOAD(f32, 4, values + e + 4) * b; \
    } \
    low += high, sum += (low[0] + low[1]) + (low[2] + low[3]);
#define PICKED_f64
/* Registers are filled from the places that columns list: N elements at once, four registers at a time. */
#elif defined(NARROW) && defined(__AVX2__)
struct any_memory { char bytes[1 << 20]; };
#define READ(array) "m"(*(const struct any_memory *)(array))
#define MULTIPLY(T, N, NAME, SCALE, k) \
    const place##x##N at_##k = __builtin_convertvector(*(const column##x##N##_at *)(crd + e + k * N), place##x##N); \
    T##x##N got_##k = {0}; \
    GATHER(T, N, NAME, SCALE, got_##k, at_##k) \
    sum_##k += LOAD(T, N, values + e + k * N) * got_##k;
#define PICKED(T, N, NAME, SCALE) \
    T##x##N sum_0 = {0}, sum_1 = {0}, sum_2 = {0}, sum_3 = {0}; \
    for (; e + 4 * N <= last; e += 4 * N) { \
        FETCH(values + e + 32 * N, 4 * N * sizeof(*values)) \
        FETCH(crd + e + 64 * N, 4 * N * sizeof(column)) \
        MULTIPLY(T, N, NAME, SCALE, 0) \
        MULTIPLY(T, N, NAME, SCALE, 1) \
        MULTIPLY(T, N, NAME, SCALE, 2) \
        MULTIPLY(T, N, NAME, SCALE, 3) \
    } \
    for (; e + N <= last; e += N) { MULTIPLY(T, N, NAME, SCALE, 0) } \
    REST(T, N, NAME, SCALE) \
    sum_0 += sum_1 + (sum_2 + sum_3); \
    UNROLL for (int half = N / 2; half; half /= 2) \
        UNROLL for (int lane = 0; lane < half; lane++) sum_0[lane] += sum_0[lane + half]; \
    sum += sum_0[0];
#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define GATHER(T, N, NAME, SCALE, got, at) { \
    unsigned short all; \
    __asm__("kxnorw %1, %1, %1\n\t" NAME " (%2,%3," #SCALE "), %0%{%1%}" \
            : "+&v"(got), "=&Yk"(all) : "r"(x), "v"(at), READ(x)); \
}
/* Fewer than N entries that are left: what lies behind them is not read. */
#define REST(T, N, NAME, SCALE) \
    if (e < last) { \
        unsigned short some = (1u << (last - e)) - 1; \
        place##x##N at; \
        T##x##N got = {0}; \
        MOVED(T, N) weights; \
        __asm__("vpmovzxwd (%1), %0%{%2%}%{z%}" : "=v"(at) : "r"(crd + e), "Yk"(some), READ(crd + e)); \
        __asm__(MOVE_##T " (%1), %0%{%2%}%{z%}" : "=v"(weights) : "r"(values + e), "Yk"(some), READ(values + e)); \
        __asm__(NAME " (%2,%3," #SCALE "), %0%{%1%}" : "+&v"(got), "+Yk"(some) : "r"(x), "v"(at), READ(x)); \
        sum_1 += AS_NUMBERS(T, N, weights) * got, e = last; \
    }
#if IS_NARROW_WEIGHT
#define MOVED(T, N) place##x##N
#else
#define MOVED(T, N) T##x##N
#define AS_NUMBERS(T, N, raw) (raw)
#endif
#if defined(STORED_bf16)
#define MOVE_f32 "vpmovzxwd"
#elif defined(STORED_int8)
#define MOVE_f32 "vpmovsxbd"
#else
#define MOVE_f32 "vmovups"
#endif
#define MOVE_f64 "vmovupd"
#define PICKED_f32 PICKED(f32, 16, "vgatherdps", 4)
#define PICKED_f64 PICKED(f64, 8, "vgatherdpd", 8)
VECTORS(f32, 16);
VECTORS(f64, 8);
VECTORS(place, 16);
VECTORS(place, 8);
VECTORS(column, 16);
VECTORS(bits, 16);
VECTORS(small, 16);
VECTORS(column, 8);
VECTORS(bits, 8);
VECTORS(small, 8);
#else
#define GATHER(T, N, NAME, SCALE, got, at) { \
    T##x##N all; \
    __asm__("vpcmpeqd %1, %1, %1\n\t" NAME " %1, (%2,%3," #SCALE "), %0" \
            : "+&x"(got), "=&x"(all) : "r"(x), "x"(at), READ(x)); \
}
#define REST(T, N, NAME, SCALE)
#define PICKED_f32 PICKED(f32, 8, "vgatherdps", 4)
#define PICKED_f64 PICKED(f64, 4, "vgatherdpd", 8)
VECTORS(f32, 8);
VECTORS(f64, 4);
VECTORS(place, 8);
VECTORS(place, 4);
VECTORS(column, 8);
VECTORS(bits, 8);
VECTORS(small, 8);
VECTORS(column, 4);
VECTORS(bits, 4);
VECTORS(small, 4);
#endif
#else
#define PICKED_f32
#define PICKED_f64
#endif
