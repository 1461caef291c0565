// Attention by tiles of 64 queries and 64 keys, as flash attention has it (Dao et al., 2022 and 2023).
//
// A block of four warps has 64 queries (or, for the gradients of keys and values, 64 keys) of a head, each warp
// 16 rows; tiles of the other side come into shared memory one after the other, the next while one is computed.
// Products are those of tensor cores, of 16 x 16 by 16 x 8 elements: lane 4 g + t of a warp holds
//
//     of A   rows g and g + 8, columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9
//     of B   the same rows of column g
//     of C   rows g and g + 8, columns 2 t and 2 t + 1
//
// so that two C side by side, rounded, are an A. float32 is split in two parts of 11 bits each, and three of the
// four products of parts are added up. Blocks with many tiles are cut in parts, which another kernel joins.
// Each sum has one order: results have the same bits at every call.

#define ROWS 64
#define THREADS 128
#define DEEP_PITCH (DEEP + 8)
#define WIDE_PITCH (WIDE + 8)
#define STEPS (ROWS / 16)
#ifdef __CUDACC_RTC__
#if T_KIND == 32
#define UNROLL _Pragma("unroll 2")
#else
#define UNROLL _Pragma("unroll")
#endif
#define LIMITS(blocks) __launch_bounds__(THREADS, blocks)
#else
#define LIMITS(blocks)
#define UNROLL
#endif
// Few features leave registers for the rows of a warp, and room for more blocks at a time.
#define IS_SMALL (T_KIND != 32 && DEEP + WIDE <= 128)
#if defined(DROPOUT) || defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define MORE 0
#else
#define MORE 1
#endif

// Copies into shared memory -------------------------------------------------------------------------------

#ifdef __CUDACC_RTC__
static inline u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }
#define COPY(bytes, kind) \
  static inline void copy_##bytes(void *to, const void *from, int is_there) { \
    asm volatile("cp.async." kind ".shared.global [%0], [%1], " #bytes ", %2;" \
                 :: "r"(shared_address(to)), "l"(from), "r"(is_there ? bytes : 0) : "memory"); \
  }
static inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
#define COPY(bytes, kind) \
  static inline void copy_##bytes(void *to, const void *from, int is_there) { \
    for (int i = 0; i < bytes; i++) ((char *)to)[i] = is_there ? ((const char *)from)[i] : 0; \
  }
static inline void wait_for_copies(void) {}
#endif
COPY(4, "ca")
COPY(8, "ca")
COPY(16, "cg")

static inline void copy_rows(T *to, const T *from, i64 step, i64 rows, int width) {
  const int run = 16 / sizeof(T), runs = width / run;
#pragma unroll 1
  for (int c = threadIdx.x; c < ROWS * runs; c += THREADS) {
    const int row = c / runs, at = c % runs * run;
    copy_16(to + row * (width + 8) + at, row < rows ? from + row * step + at : from, row < rows);
  }
}

// Fragments -----------------------------------------------------------------------------------------------

#if T_KIND == 32
#ifdef __CUDACC_RTC__
typedef struct { u32 big[8], small[8]; } frag_a;
typedef struct { u32 big[4], small[4]; } frag_b;
static inline void put(u32 *big, u32 *small, f32 x) {
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(*big) : "f"(x));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(*small) : "f"(x - __uint_as_float(*big)));
}
#define PUT(fragment, number, x) put((fragment)->big + (number), (fragment)->small + (number), x)

static inline void mma_8(f32 *c, const u32 *a, const u32 *b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static inline void mma(f32 *c, const frag_a *a, const frag_b *b) {
#pragma unroll
  for (int s = 0; s < 2; s++) {
    mma_8(c, a->small + 4 * s, b->big + 2 * s);
    mma_8(c, a->big + 4 * s, b->small + 2 * s);
    mma_8(c, a->big + 4 * s, b->big + 2 * s);
  }
}
#else
typedef struct { f32 at[8]; } frag_a;
typedef struct { f32 at[4]; } frag_b;
#define PUT(fragment, number, x) (fragment)->at[number] = x
#define OF_A(row, k) ((row) / 8 + 2 * ((k) % 2) + 4 * ((k) / 8))
#define OF_B(k) ((k) % 2 + 2 * ((k) / 8))
#define A_VALUE(fragment, row, k) (fragment)->at[OF_A(row, k)]
#define B_VALUE(fragment, k) (fragment)->at[OF_B(k)]
#endif

// Tensor cores take columns t and t + 4 of eight, which are called 2 t and 2 t + 1 here, in A and in B.
static inline void load_a(frag_a *a, const T *tile, int pitch, int lane) {
  const T *at = tile + lane / 4 * pitch + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 8; i++) PUT(a, i, at[i % 2 * 8 * pitch + i / 2 % 2 + i / 4 * 8]);
}
static inline void load_rows(frag_b *b, const T *tile, int pitch, int lane) {
  const T *at = tile + lane / 4 * pitch + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 8; i++) PUT(b + i / 4, i % 4, at[i / 4 * 8 * pitch + i % 2 + i / 2 % 2 * 8]);
}
static inline void load_columns(frag_b *b, const T *tile, int pitch, int lane) {
  const T *at = tile + lane % 4 * 2 * pitch + lane / 4;
#pragma unroll
  for (int i = 0; i < 8; i++) PUT(b + i / 4, i % 4, at[(i % 2 + i / 2 % 2 * 8) * pitch + i / 4 * 8]);
}
static inline void join_c(frag_a *a, const f32 *left, const f32 *right) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int from = i % 2 * 2 + i / 2;
    PUT(a, i, left[from]);
    PUT(a, i + 4, right[from]);
  }
}
#else
typedef struct { u32 at[4]; } frag_a;
typedef struct { u32 at[2]; } frag_b;

#ifdef __CUDACC_RTC__
#if T_KIND == 8
#define KIND "bf16"
#else
#define KIND "f16"
#endif
static inline u32 pair_of(f32 low, f32 high) {
  u32 y;
  asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
static inline void mma(f32 *c, const frag_a *a, const frag_b *b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a->at[0]), "r"(a->at[1]), "r"(a->at[2]), "r"(a->at[3]), "r"(b->at[0]), "r"(b->at[1]));
}
#define LOAD_FOUR(name, kind) \
  static inline void name(u32 *to, const T *tile, int pitch, int lane) { \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" kind ".shared.b16 {%0,%1,%2,%3}, [%4];" \
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) \
                 : "r"(shared_address(tile + lane % 16 * pitch + lane / 16 * 8)) : "memory"); \
  }
LOAD_FOUR(load_four, "")
LOAD_FOUR(load_four_turned, ".trans")
#else
static inline u32 pair_of(f32 low, f32 high) { return as_element(low) | (u32)as_element(high) << 16; }
static inline void load_four(u32 *to, const T *tile, int pitch, int lane) {
  for (int i = 0; i < 4; i++) {
    const T *at = tile + (i % 2 * 8 + lane / 4) * pitch + i / 2 * 8 + lane % 4 * 2;
    to[i] = at[0] | (u32)at[1] << 16;
  }
}
static inline void load_four_turned(u32 *to, const T *tile, int pitch, int lane) {
  for (int i = 0; i < 4; i++) {
    const T *at = tile + (i % 2 * 8 + lane % 4 * 2) * pitch + i / 2 * 8 + lane / 4;
    to[i] = at[0] | (u32)at[pitch] << 16;
  }
}
#define HALF(word, k) value_of((T)((word) >> (k) % 2 * 16))
#define A_VALUE(fragment, row, k) HALF((fragment)->at[(row) / 8 + 2 * ((k) / 8)], k)
#define B_VALUE(fragment, k) HALF((fragment)->at[(k) / 8], k)
#endif

static inline void load_a(frag_a *a, const T *tile, int pitch, int lane) {
  load_four(a->at, tile, pitch, lane);
}
static inline void load_rows(frag_b *b, const T *tile, int pitch, int lane) {
  u32 four[4];
  load_four(four, tile, pitch, lane);
  b[0].at[0] = four[0], b[0].at[1] = four[2], b[1].at[0] = four[1], b[1].at[1] = four[3];
}
static inline void load_columns(frag_b *b, const T *tile, int pitch, int lane) {
  u32 four[4];
  load_four_turned(four, tile, pitch, lane);
  b[0].at[0] = four[0], b[0].at[1] = four[1], b[1].at[0] = four[2], b[1].at[1] = four[3];
}
static inline void join_c(frag_a *a, const f32 *left, const f32 *right) {
  a->at[0] = pair_of(left[0], left[1]), a->at[1] = pair_of(left[2], left[3]);
  a->at[2] = pair_of(right[0], right[1]), a->at[3] = pair_of(right[2], right[3]);
}
#endif

#ifndef __CUDACC_RTC__
static struct { frag_a a; frag_b b; } fragments[2][THREADS];
static u8 fragment_turn[THREADS];
static void mma(f32 *c, const frag_a *a, const frag_b *b) {
  const int lane = threadIdx.x % 32, first = threadIdx.x - lane, turn = fragment_turn[threadIdx.x] ^= 1;
  fragments[turn][threadIdx.x].a = *a, fragments[turn][threadIdx.x].b = *b;
  SYNC_WARP();
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++)
      c[i] += A_VALUE(&fragments[turn][first + row % 8 * 4 + k % 8 / 2].a, row, k) *
              B_VALUE(&fragments[turn][first + column * 4 + k % 8 / 2].b, k);
  }
}
#endif

// The rows of a warp: in registers if those suffice, else where they are.
#if IS_SMALL
struct deep_rows { frag_a at[DEEP / 16]; };
struct wide_rows { frag_a at[WIDE / 16]; };
#define HOLD(rows, tile, pitch, steps) \
  for (int k_ = 0; k_ < (steps); k_++) load_a((rows).at + k_, (tile) + 16 * k_, pitch, lane)
#define GET(rows, k, pitch) const frag_a left = (rows)->at[k]
#else
struct deep_rows { const T *at; };
struct wide_rows { const T *at; };
#define HOLD(rows, tile, pitch, steps) (rows).at = (tile)
#define GET(rows, k, pitch) \
  frag_a left; \
  load_a(&left, (rows)->at + 16 * (k), pitch, lane)
#endif

// c[16, 16] += rows[16, steps * 16] * b[16, steps * 16].T
#define TIMES_ROWS(name, kind, pitch, steps) \
static inline void name(f32 (*c)[4], const struct kind *rows, const T *b, int lane) { \
  UNROLL for (int k = 0; k < (steps); k++) { \
    GET(rows, k, pitch); \
    frag_b right[2]; \
    load_rows(right, b + 16 * k, pitch, lane); \
    mma(c[0], &left, right); \
    mma(c[1], &left, right + 1); \
  } \
}
TIMES_ROWS(times_deep, deep_rows, DEEP_PITCH, DEEP / 16)
TIMES_ROWS(times_wide, wide_rows, WIDE_PITCH, WIDE / 16)

// c[16, steps * 16] += a[16, 16] * b[16, steps * 16]
static inline void times_columns(f32 (*c)[4], const frag_a *a, const T *b, int pitch, int steps, int lane) {
#pragma unroll
  for (int n = 0; n < steps; n++) {
    frag_b right[2];
    load_columns(right, b + 16 * n, pitch, lane);
    mma(c[2 * n], a, right);
    mma(c[2 * n + 1], a, right + 1);
  }
}

// Store rows g and g + 8 of c, each times a factor of its own.
static inline void store_rows(T *to, f32 (*c)[4], int width, i64 rows, int row, int lane, f32 low, f32 high) {
  for (int half = 0; half < 2; half++) {
    if (row + 8 * half >= rows) continue;
    const f32 by = half ? high : low;
#pragma unroll
    for (int n = 0; n < width / 8; n++) {
      T *at = to + (i64)(row + 8 * half) * width + 8 * n + lane % 4 * 2;
#if T_KIND == 32
      at[0] = c[n][2 * half] * by, at[1] = c[n][2 * half + 1] * by;
#else
      *(u32 *)at = pair_of(c[n][2 * half] * by, c[n][2 * half + 1] * by);
#endif
    }
  }
}
static inline void store_part(f32 *to, f32 (*c)[4], int width, int row, int lane) {
#pragma unroll
  for (int n = 0; n < width / 8; n++)
    for (int i = 0; i < 4; i++)
      to[(row + i / 2 * 8) * width + 8 * n + lane % 4 * 2 + i % 2] = c[n][i];
}

#define ZERO(c, count) for (int n_ = 0; n_ < (count); n_++) (c)[n_][0] = (c)[n_][1] = (c)[n_][2] = (c)[n_][3] = 0

// Walk along the tiles of a block -------------------------------------------------------------------------

struct stage {
  T *deep, *wide;
  u64 *words;
  f32 *L, *delta;
};

#define STAGE_BYTES (ROWS * ((DEEP_PITCH + WIDE_PITCH) * (int)sizeof(T) + 16))

static inline struct stage stage_of(void *memory, int number) {
  struct stage stage;
  char *at = (char *)memory + number * STAGE_BYTES;
  stage.deep = (T *)at, at += ROWS * DEEP_PITCH * sizeof(T);
  stage.wide = (T *)at, at += ROWS * WIDE_PITCH * sizeof(T);
  stage.words = (u64 *)at, at += ROWS * 8;
  stage.L = (f32 *)at, stage.delta = stage.L + ROWS;
  return stage;
}

struct walk {
  const struct view *deep, *wide;
  const T *deep_at, *wide_at;
  i64 rows;  // of the other side
  const f32 *L, *delta;
};

static inline void fetch(const struct attention *x, const struct walk *walk, struct stage stage, int tile) {
  const i64 first = (i64)(x->across[tile] >> 1) * ROWS, left = walk->rows - first;
  copy_rows(stage.deep, walk->deep_at + first * walk->deep->step, walk->deep->step, left, DEEP);
  copy_rows(stage.wide, walk->wide_at + first * walk->wide->step, walk->wide->step, left, WIDE);
  const int row = threadIdx.x;
  if (row >= ROWS) return;
  copy_8(stage.words + row, x->words + (x->numbers ? x->numbers[tile] : tile) * (i64)ROWS + row, 1);
  if (walk->L) {
    copy_4(stage.L + row, row < left ? walk->L + first + row : walk->L, row < left);
    copy_4(stage.delta + row, row < left ? walk->delta + first + row : walk->delta, row < left);
  }
}

// The stage of each tile in turn, of which STAGES are in memory.
#define EACH_TILE(begin, end) \
  if (STAGES == 2 && (begin) < (end)) fetch(&x, &walk, stage_of(stages, 0), begin); \
  for (int tile = (begin); tile < (end); tile++)
#define TAKE_TILE(begin, end) \
  if (STAGES == 1) { \
    __syncthreads(); \
    fetch(&x, &walk, stage_of(stages, 0), tile); \
  } \
  wait_for_copies(); \
  __syncthreads(); \
  if (STAGES == 2 && tile + 1 < (end)) fetch(&x, &walk, stage_of(stages, (tile + 1 - (begin)) % 2), tile + 1); \
  const struct stage stage = stage_of(stages, STAGES == 2 ? (tile - (begin)) % 2 : 0);

static inline u64 visible_of(const struct attention *x, i64 head, i64 tile) {
  return x->visible ? x->visible[head * ((x->keys + 63) / 64) + tile] : ~0ull;
}

// Forward -------------------------------------------------------------------------------------------------

#define LARGER(a, b) ((a) > (b) ? (a) : (b))

KERNEL void LIMITS(IS_SMALL ? 3 + MORE : 2) scorch_attention_forward(const struct attention x) {
  SHARED(memory);
  T *Q = (T *)memory;
  void *stages = Q + ROWS * DEEP_PITCH;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16, row = warp_row + lane / 4;
  const f32 factor = (f32)x.factor;
  EACH_TURN {
    const struct unit unit = unit_of(&x, turn);
    const int begin = x.items[4 * unit.item + 1], end = x.items[4 * unit.item + 2];
    const i64 head = unit.head;
    const int slot = x.items[4 * unit.item + 3];
    const i64 first = (i64)x.items[4 * unit.item] * ROWS;
    __syncthreads();
    copy_rows(Q, rows_of(&x, &x.Q, head) + first * x.Q.step, x.Q.step, x.queries - first, DEEP);
    struct walk walk = {&x.K, &x.V, rows_of(&x, &x.K, head), rows_of(&x, &x.V, head), x.keys, 0, 0};
    f32 sums[WIDE / 8][4], top[2] = {-__builtin_inff(), -__builtin_inff()}, total[2] = {0, 0};
    ZERO(sums, WIDE / 8);
#ifdef DROPOUT
    const u32 seeds[2] = {seed_of_row(&x, head, first + row), seed_of_row(&x, head, first + row + 8)};
#endif
    struct deep_rows own;
    EACH_TILE(begin, end) {
      TAKE_TILE(begin, end)
      if (tile == begin) HOLD(own, Q + warp_row * DEEP_PITCH, DEEP_PITCH, DEEP / 16);
      const i64 other = x.across[tile] >> 1;
      f32 S[ROWS / 8][4];
      ZERO(S, ROWS / 8);
#pragma unroll
      for (int k = 0; k < DEEP / 16; k++) {
        GET(&own, k, DEEP_PITCH);
#pragma unroll
        for (int n = 0; n < STEPS; n++) {
          frag_b right[2];
          load_rows(right, stage.deep + 16 * n * DEEP_PITCH + 16 * k, DEEP_PITCH, lane);
          mma(S[2 * n], &left, right);
          mma(S[2 * n + 1], &left, right + 1);
        }
      }
      const int is_full = x.across[tile] & 1 && !x.visible;
      const u64 visible = is_full ? 0 : visible_of(&x, head, other);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        f32 most = top[half];
        const u64 bits = is_full ? 0 : (stage.words[row + 8 * half] & visible) >> lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            f32 s = S[n][2 * half + i] * factor;
            if (!is_full) s = bits >> (8 * n + i) & 1 ? s : -__builtin_inff();
            S[n][2 * half + i] = s;
            most = LARGER(s, most);
          }
        for (int step = 2; step; step /= 2) {
          const f32 theirs = EXCHANGE(most, step, 32);
          most = LARGER(theirs, most);
        }
        const f32 by = most == -__builtin_inff() ? 0 : most, smaller = power(top[half] - by);
        f32 sum = 0;
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const f32 p = power(S[n][2 * half + i] - by);
            sum += p;
#ifdef DROPOUT
            S[n][2 * half + i] = p * kept(&x, seeds[half], other * ROWS + 8 * n + lane % 4 * 2 + i);
#else
            S[n][2 * half + i] = p;
#endif
          }
        total[half] = total[half] * smaller + sum, top[half] = most;
#pragma unroll
        for (int n = 0; n < WIDE / 8; n++) sums[n][2 * half] *= smaller, sums[n][2 * half + 1] *= smaller;
      }
#pragma unroll
      for (int k = 0; k < STEPS; k++) {
        frag_a weights;
        join_c(&weights, S[2 * k], S[2 * k + 1]);
        times_columns(sums, &weights, stage.wide + 16 * k * WIDE_PITCH, WIDE_PITCH, WIDE / 16, lane);
      }
    }
    for (int half = 0; half < 2; half++)
      for (int step = 2; step; step /= 2) total[half] += EXCHANGE(total[half], step, 32);
    if (slot < 0) {
      T *to = x.out + (head * x.queries + first) * WIDE;
      store_rows(to, sums, WIDE, x.queries - first, row, lane, inverse(total[0]), inverse(total[1]));
      for (int half = 0; half < 2; half++)
        if (lane % 4 == 0 && first + row + 8 * half < x.queries)
          x.L[head * x.queries + first + row + 8 * half] = log_of_sum(top[half], total[half]);
    } else {
      f32 *to = x.parts + (head * x.slots + slot) * (ROWS * (WIDE + 2));
      store_part(to, sums, WIDE, row, lane);
      for (int half = 0; half < 2; half++)
        if (lane % 4 == 0)
          to[ROWS * WIDE + row + 8 * half] = top[half], to[ROWS * (WIDE + 1) + row + 8 * half] = total[half];
    }
    wait_for_copies();
  }
}

// Items are blocks that were cut, their first part and its number of parts.
KERNEL void scorch_attention_forward_join(const struct attention x) {
  const i64 size = ROWS * (WIDE + 2);
  EACH_TURN {
    const struct unit unit = unit_of(&x, turn);
    const i32 *item = x.items + 4 * unit.item;
    const f32 *from = x.parts + (unit.head * x.slots + item[1]) * size;
    const i64 first = (i64)item[0] * ROWS;
    for (int e = threadIdx.x; e < ROWS * WIDE; e += THREADS) {
      const int row = e / WIDE;
      if (first + row >= x.queries) continue;
      f32 top = -__builtin_inff(), total = 0, sum = 0;
      for (int part = 0; part < item[2]; part++)
        top = LARGER(from[part * size + ROWS * WIDE + row], top);
      const f32 by = top == -__builtin_inff() ? 0 : top;
      for (int part = 0; part < item[2]; part++) {
        const f32 smaller = power(from[part * size + ROWS * WIDE + row] - by);
        total += from[part * size + ROWS * (WIDE + 1) + row] * smaller, sum += from[part * size + e] * smaller;
      }
      const i64 place = unit.head * x.queries + first + row;
      x.out[place * WIDE + e % WIDE] = as_element(sum * inverse(total));
      if (e % WIDE == 0) x.L[place] = log_of_sum(top, total);
    }
  }
}

// Backward ------------------------------------------------------------------------------------------------

KERNEL void LIMITS(IS_SMALL ? 2 + MORE : (T_KIND == 32 ? 1 : 2)) scorch_attention_queries(const struct attention x) {
  SHARED(memory);
  T *Q = (T *)memory, *G = Q + ROWS * DEEP_PITCH;
  void *stages = G + ROWS * WIDE_PITCH;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16, row = warp_row + lane / 4;
  const f32 factor = (f32)x.factor;
  EACH_TURN {
    const struct unit unit = unit_of(&x, turn);
    const int begin = x.items[4 * unit.item + 1], end = x.items[4 * unit.item + 2];
    const i64 head = unit.head;
    const int slot = x.items[4 * unit.item + 3];
    const i64 first = (i64)x.items[4 * unit.item] * ROWS;
    __syncthreads();
    copy_rows(Q, rows_of(&x, &x.Q, head) + first * x.Q.step, x.Q.step, x.queries - first, DEEP);
    copy_rows(G, rows_of(&x, &x.G, head) + first * x.G.step, x.G.step, x.queries - first, WIDE);
    struct walk walk = {&x.K, &x.V, rows_of(&x, &x.K, head), rows_of(&x, &x.V, head), x.keys, 0, 0};
    f32 sums[DEEP / 8][4], L[2], delta[2];
    ZERO(sums, DEEP / 8);
    for (int half = 0; half < 2; half++) {
      const i64 query = first + row + 8 * half;
      L[half] = query < x.queries ? x.L[head * x.queries + query] : 0;
      delta[half] = query < x.queries ? x.delta[head * x.queries + query] : 0;
    }
#ifdef DROPOUT
    const u32 seeds[2] = {seed_of_row(&x, head, first + row), seed_of_row(&x, head, first + row + 8)};
#endif
    struct deep_rows own_Q;
    struct wide_rows own_G;
    EACH_TILE(begin, end) {
      TAKE_TILE(begin, end)
      if (tile == begin) {
        HOLD(own_Q, Q + warp_row * DEEP_PITCH, DEEP_PITCH, DEEP / 16);
        HOLD(own_G, G + warp_row * WIDE_PITCH, WIDE_PITCH, WIDE / 16);
      }
      const i64 other = x.across[tile] >> 1;
      const int is_full = x.across[tile] & 1 && !x.visible;
      const u64 visible = is_full ? 0 : visible_of(&x, head, other);
      u64 bits[2] = {0, 0};
      if (!is_full) {
        bits[0] = (stage.words[row] & visible) >> lane % 4 * 2;
        bits[1] = (stage.words[row + 8] & visible) >> lane % 4 * 2;
      }
#pragma unroll 1
      for (int n = 0; n < STEPS; n++) {
        f32 S[2][4], D[2][4];
        ZERO(S, 2);
        ZERO(D, 2);
        times_deep(S, &own_Q, stage.deep + 16 * n * DEEP_PITCH, lane);
        times_wide(D, &own_G, stage.wide + 16 * n * WIDE_PITCH, lane);
#pragma unroll
        for (int e = 0; e < 8; e++) {
          const int j = e / 4, i = e % 4, half = i / 2, column = 16 * n + 8 * j + i % 2;
          f32 p = power(S[j][i] * factor - L[half]);
          if (!is_full) p = bits[half] >> column & 1 ? p : 0;
#ifdef DROPOUT
          D[j][i] *= kept(&x, seeds[half], other * ROWS + column + lane % 4 * 2);
#endif
          S[j][i] = p * (D[j][i] - delta[half]);
        }
        frag_a changes;
        join_c(&changes, S[0], S[1]);
        times_columns(sums, &changes, stage.deep + 16 * n * DEEP_PITCH, DEEP_PITCH, DEEP / 16, lane);
      }
    }
    const f32 scale = (f32)x.scale;
    if (slot < 0) {
      T *to = x.dQ + (head * x.queries + first) * DEEP;
      store_rows(to, sums, DEEP, x.queries - first, row, lane, scale, scale);
    } else store_part(x.parts + (head * x.slots + slot) * (ROWS * DEEP), sums, DEEP, row, lane);
    wait_for_copies();
  }
}

KERNEL void LIMITS(IS_SMALL ? 2 + MORE : (T_KIND == 32 ? 1 : 2)) scorch_attention_keys(const struct attention x) {
  SHARED(memory);
  T *K = (T *)memory, *V = K + ROWS * DEEP_PITCH;
  void *stages = V + ROWS * WIDE_PITCH;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16, row = warp_row + lane / 4;
  const f32 factor = (f32)x.factor;
  EACH_TURN {
    const struct unit unit = unit_of(&x, turn);
    const int begin = x.items[4 * unit.item + 1], end = x.items[4 * unit.item + 2];
    const i64 head = unit.head;
    const int slot = x.items[4 * unit.item + 3];
    const i64 block = x.items[4 * unit.item], first = block * ROWS;
    __syncthreads();
    copy_rows(K, rows_of(&x, &x.K, head) + first * x.K.step, x.K.step, x.keys - first, DEEP);
    copy_rows(V, rows_of(&x, &x.V, head) + first * x.V.step, x.V.step, x.keys - first, WIDE);
    struct walk walk = {&x.Q, &x.G, rows_of(&x, &x.Q, head), rows_of(&x, &x.G, head), x.queries,
                        x.L + head * x.queries, x.delta + head * x.queries};
    f32 to_keys[DEEP / 8][4], to_values[WIDE / 8][4];
    ZERO(to_keys, DEEP / 8);
    ZERO(to_values, WIDE / 8);
    const u64 visible = visible_of(&x, head, block);
    struct deep_rows own_K;
    struct wide_rows own_V;
    EACH_TILE(begin, end) {
      TAKE_TILE(begin, end)
      if (tile == begin) {
        HOLD(own_K, K + warp_row * DEEP_PITCH, DEEP_PITCH, DEEP / 16);
        HOLD(own_V, V + warp_row * WIDE_PITCH, WIDE_PITCH, WIDE / 16);
      }
      const int is_full = x.across[tile] & 1 && !x.visible;
#pragma unroll 1
      for (int n = 0; n < STEPS; n++) {
        f32 S[2][4], D[2][4];
        ZERO(S, 2);
        ZERO(D, 2);
        times_deep(S, &own_K, stage.deep + 16 * n * DEEP_PITCH, lane);
        times_wide(D, &own_V, stage.wide + 16 * n * WIDE_PITCH, lane);
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int j = e / 2, query = 16 * n + 8 * j + lane % 4 * 2 + e % 2;
          const f32 L = stage.L[query], delta = stage.delta[query];
          const u64 bits = is_full ? 0 : (stage.words[query] & visible) >> row;
#ifdef DROPOUT
          const u32 seed = seed_of_row(&x, head, (i64)(x.across[tile] >> 1) * ROWS + query);
#endif
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int i = e % 2 + 2 * half;
            f32 p = power(S[j][i] * factor - L);
            if (!is_full) p = bits >> 8 * half & 1 ? p : 0;
#ifdef DROPOUT
            const f32 by = kept(&x, seed, first + row + 8 * half);
            D[j][i] = p * (D[j][i] * by - delta), S[j][i] = p * by;
#else
            D[j][i] = p * (D[j][i] - delta), S[j][i] = p;
#endif
          }
        }
        frag_a weights, changes;
        join_c(&weights, S[0], S[1]);
        times_columns(to_values, &weights, stage.wide + 16 * n * WIDE_PITCH, WIDE_PITCH, WIDE / 16, lane);
        join_c(&changes, D[0], D[1]);
        times_columns(to_keys, &changes, stage.deep + 16 * n * DEEP_PITCH, DEEP_PITCH, DEEP / 16, lane);
      }
    }
    const f32 scale = (f32)x.scale;
    if (slot < 0) {
      const i64 place = head * x.keys + first, left = x.keys - first;
      store_rows(x.dK + place * DEEP, to_keys, DEEP, left, row, lane, scale, scale);
      store_rows(x.dV + place * WIDE, to_values, WIDE, left, row, lane, 1, 1);
    } else {
      f32 *to = x.parts + (head * x.slots + slot) * (ROWS * (DEEP + WIDE));
      store_part(to, to_keys, DEEP, row, lane);
      store_part(to + ROWS * DEEP, to_values, WIDE, row, lane);
    }
    wait_for_copies();
  }
}

static inline f32 sum_of_parts(const f32 *from, i64 size, int parts) {
  f32 sum = 0;
  for (int part = 0; part < parts; part++) sum += from[part * size];
  return sum;
}

KERNEL void scorch_attention_queries_join(const struct attention x) {
  const i64 size = ROWS * DEEP;
  EACH_TURN {
    const struct unit unit = unit_of(&x, turn);
    const i32 *item = x.items + 4 * unit.item;
    const f32 *from = x.parts + (unit.head * x.slots + item[1]) * size;
    const i64 first = (i64)item[0] * ROWS;
    for (int e = threadIdx.x; e < size && first + e / DEEP < x.queries; e += THREADS)
      x.dQ[(unit.head * x.queries + first) * DEEP + e] =
          as_element(sum_of_parts(from + e, size, item[2]) * (f32)x.scale);
  }
}

KERNEL void scorch_attention_keys_join(const struct attention x) {
  const i64 size = ROWS * (DEEP + WIDE);
  EACH_TURN {
    const struct unit unit = unit_of(&x, turn);
    const i32 *item = x.items + 4 * unit.item;
    const f32 *from = x.parts + (unit.head * x.slots + item[1]) * size;
    const i64 first = (i64)item[0] * ROWS, place = unit.head * x.keys + first;
    for (int e = threadIdx.x; e < ROWS * DEEP && first + e / DEEP < x.keys; e += THREADS)
      x.dK[place * DEEP + e] = as_element(sum_of_parts(from + e, size, item[2]) * (f32)x.scale);
    for (int e = threadIdx.x; e < ROWS * WIDE && first + e / WIDE < x.keys; e += THREADS)
      x.dV[place * WIDE + e] = as_element(sum_of_parts(from + ROWS * DEEP + e, size, item[2]));
  }
}
