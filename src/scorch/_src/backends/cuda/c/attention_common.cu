// What kernels of attention share. Features are padded to DEEP (queries, keys) and WIDE (values), multiples of 16.

struct view {  // rows of a head, which may lie anywhere
  const T *at;
  i64 step, jump[3];
};

struct attention {
  struct view Q, K, V, G;  // G: gradients of the result
  T *out, *dQ, *dK, *dV;
  f32 *L, *delta;  // of each query: log2 of the sum of its weights; the product of its result and gradient
  i64 size[3], heads, queries, keys;
  f64 factor, scale, kept;  // of scores in base 2; of scores; of what dropout keeps
  u64 seed, head_seed, dropped;
  i64 turns;
  const i32 *units;  // head and item of each turn; null: all heads have the same mask
  // Tiles
  const i32 *items;    // block, begin and end of its tiles, and where parts of a block that is cut go, or -1
  const i32 *across;   // of each tile: the other block, and in the lowest bit whether it is full
  const i32 *numbers;  // of tiles among words; null: as they come
  const u64 *words;    // a bit for each pair
  const u64 *visible;  // a bit for each key of each head, or null
  f32 *parts;
  i64 slots;  // parts of a head
  // Pairs
  const i32 *masks;  // of each head, or null
  const u8 *skipped;
  const INDEX *pos, *crd;
};

#ifndef __CUDACC_RTC__
float exp2f(float);
float log2f(float);
#endif

static inline f32 power(f32 x) {
#ifdef __CUDACC_RTC__
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

static inline const T *rows_of(const struct attention *x, const struct view *view, i64 head) {
  const T *at = view->at;
  at += head % x->size[2] * view->jump[2], head /= x->size[2];
  at += head % x->size[1] * view->jump[1], head /= x->size[1];
  return at + head * view->jump[0];
}

static inline u32 mixed(u32 x) {
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

static inline u32 seed_of_row(const struct attention *x, i64 head, i64 row) {
  return mixed(mixed((u32)row ^ (u32)x->seed) + mixed((u32)head ^ (u32)x->head_seed));
}

static inline f32 kept(const struct attention *x, u32 seed, i64 column) {
  return (u64)mixed(seed ^ (u32)column * 0x9e3779b1u) >= x->dropped ? (f32)x->kept : 0;
}

static inline f32 log_of_sum(f32 top, f32 total) {
  return total > 0 || total != total ? top + log2f(total) : __builtin_inff();  // no keys: all weights are 0
}

static inline f32 inverse(f32 total) { return total > 0 || total != total ? 1 / total : 0; }

#define EACH_TURN for (i64 turn = blockIdx.x; turn < x.turns; turn += gridDim.x)

struct unit { i64 head, item; };

static inline struct unit unit_of(const struct attention *x, i64 turn) {
  struct unit unit;
  unit.head = x->units ? x->units[2 * turn] : turn % x->heads;
  unit.item = x->units ? x->units[2 * turn + 1] : turn / x->heads;
  return unit;
}

// Elements ------------------------------------------------------------------------------------------------

#if T_KIND == 32
static inline f32 value_of(T x) { return x; }
static inline T as_element(f32 x) { return x; }
#else
static inline f32 value_of(T x) {
#if T_KIND == 8
  return from_bf16(x);
#elif defined(__CUDACC_RTC__)
  f32 y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
#else
  return from_f16(x);
#endif
}

static inline T as_element(f32 x) {
#if defined(__CUDACC_RTC__) && T_KIND == 8
  T y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
#elif defined(__CUDACC_RTC__)
  T y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
#else
  union { f32 value; u32 bits; } y;
  y.value = x;
  const u32 sign = y.bits >> 16 & 0x8000u, bits = y.bits & 0x7fffffffu;
#if T_KIND == 8
  return (T)(sign | (bits > 0x7f800000u ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16));
#else
  if (bits > 0x7f800000u) return (T)(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return (T)(sign | 0x7c00u);
  if (bits < 0x38800000u) return (T)(sign | (u32)rintf(fabsf(x) * 16777216.0f));
  return (T)(sign | (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13);
#endif
#endif
}
#endif

// The gradient of a score is P (D - delta), where P is the weight and D the gradient of the weight ----------

struct ALIGNED(V_ALIGN) some_wide { T at[WIDE / 8]; };

KERNEL void scorch_attention_delta(const struct attention x) {
  const int lane = threadIdx.x % 8;
  for (i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 8; row < x.turns;
       row += (i64)gridDim.x * blockDim.x / 8) {
    const i64 head = row / x.queries;
    const T *g = rows_of(&x, &x.G, head) + row % x.queries * x.G.step + lane * (WIDE / 8);
    const struct some_wide a = *(const struct some_wide *)g;
    const struct some_wide b = *(const struct some_wide *)(x.out + row * WIDE + lane * (WIDE / 8));
    f32 sum = 0;
    for (int e = 0; e < WIDE / 8; e++) sum += value_of(a.at[e]) * value_of(b.at[e]);
    for (int step = 4; step; step /= 2) sum += EXCHANGE(sum, step, 8);
    if (lane == 0) x.delta[row] = sum;
  }
}
