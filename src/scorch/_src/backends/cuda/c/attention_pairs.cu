// Attention pair by pair, where tiles would be nearly empty: a warp has a query (or, for the gradients of keys
// and values, a key), and eight lanes of it every fourth pair, an eighth of the features each. A few pairs are
// loaded at once, so that one does not wait for the other.

#define FEW (DEEP + WIDE <= 128 ? 4 : 2)
#define UNITS_OF_WARP 4

struct ALIGNED(K_ALIGN) some_deep { T at[DEEP / 8]; };

struct few_pairs {
  int other[FEW], is_there[FEW];
  struct some_deep deep[FEW];
  struct some_wide wide[FEW];
};

static inline struct some_deep load_deep(const T *row, int lane) {
  return *(const struct some_deep *)(row + lane % 8 * (DEEP / 8));
}
static inline struct some_wide load_wide(const T *row, int lane) {
  return *(const struct some_wide *)(row + lane % 8 * (WIDE / 8));
}

// Load pairs from first on, without those of keys that are skipped.
static inline void load_few(struct few_pairs *few, const struct attention *x, i64 first, i64 end, const u8 *skipped,
                            const T *deep, i64 deep_step, const T *wide, i64 wide_step, int lane) {
#pragma unroll
  for (int n = 0; n < FEW; n++) {
    const i64 at = first + UNITS_OF_WARP * n + lane / 8;
    few->other[n] = at < end ? (int)x->crd[at] : 0;
    few->is_there[n] = at < end;
  }
#pragma unroll
  for (int n = 0; n < FEW; n++) {
    if (skipped && few->is_there[n]) few->is_there[n] = !skipped[few->other[n]];
    for (int e = 0; e < DEEP / 8; e++) few->deep[n].at[e] = 0;
    for (int e = 0; e < WIDE / 8; e++) few->wide[n].at[e] = 0;
    if (few->is_there[n]) {
      few->deep[n] = load_deep(deep + few->other[n] * deep_step, lane);
      few->wide[n] = load_wide(wide + few->other[n] * wide_step, lane);
    }
  }
}

static inline void store_some(T *row, const f32 *from, int count, int lane, f32 by) {
  if (lane >= 8) return;
  for (int e = 0; e < count; e++) row[lane * count + e] = as_element(from[e] * by);
}
static inline f32 dot(const T *a, const T *b, int count) {
  f32 sum = 0;
#pragma unroll
  for (int e = 0; e < count; e++) sum += value_of(a[e]) * value_of(b[e]);
  for (int step = 4; step; step /= 2) sum += EXCHANGE(sum, step, 32);
  return sum;
}
static inline void add(f32 *to, const T *from, int count, f32 by) {
#pragma unroll
  for (int e = 0; e < count; e++) to[e] += by * value_of(from[e]);
}
static inline void add_units(f32 *sums, int count) {
  for (int step = 8; step < 32; step *= 2)
#pragma unroll
    for (int e = 0; e < count; e++) sums[e] += EXCHANGE(sums[e], step, 32);
}

#define EACH_ROW for (i64 turn = FIRST_UNIT(32); turn < x.turns; turn += UNITS(32))
// Pairs come few at a time; all lanes of a warp take as many turns.
#define EACH_FEW(place) \
  for (i64 first = x.pos[place], end = x.pos[(place) + 1]; first < end; first += UNITS_OF_WARP * FEW)
#define EACH_PAIR for (int n = 0; n < FEW && first + UNITS_OF_WARP * n < end; n++)
#define DEEP_OF(name) few.deep[n].at, name.at, DEEP / 8
#define WIDE_OF(name) few.wide[n].at, name.at, WIDE / 8

static inline i64 place_of(const struct attention *x, i64 head, i64 row, i64 rows) {
  return (x->masks ? x->masks[head] : 0) * rows + row;
}

KERNEL void scorch_attention_forward(const struct attention x) {
  const int lane = threadIdx.x % 32;
  const f32 factor = (f32)x.factor;
  EACH_ROW {
    const i64 head = turn / x.queries, query = turn % x.queries, place = place_of(&x, head, query, x.queries);
    const T *K = rows_of(&x, &x.K, head), *V = rows_of(&x, &x.V, head);
    const u8 *skipped = x.skipped ? x.skipped + head * x.keys : 0;
    const struct some_deep q = load_deep(rows_of(&x, &x.Q, head) + query * x.Q.step, lane);
    f32 sums[WIDE / 8], top = -__builtin_inff(), total = 0;
    for (int e = 0; e < WIDE / 8; e++) sums[e] = 0;
#ifdef DROPOUT
    const u32 seed = seed_of_row(&x, head, query);
#endif
    EACH_FEW(place) {
      struct few_pairs few;
      load_few(&few, &x, first, end, skipped, K, x.K.step, V, x.V.step, lane);
#pragma unroll
      EACH_PAIR {
        const f32 product = dot(DEEP_OF(q)) * factor, score = few.is_there[n] ? product : -__builtin_inff();
        if (score > top) {
          const f32 smaller = power(top - score);
          total *= smaller, top = score;
#pragma unroll
          for (int e = 0; e < WIDE / 8; e++) sums[e] *= smaller;
        }
        f32 p = power(score - (top == -__builtin_inff() ? 0 : top));
        total += p;
#ifdef DROPOUT
        p *= kept(&x, seed, few.other[n]);
#endif
        add(sums, few.wide[n].at, WIDE / 8, p);
      }
    }
    for (int step = 8; step < 32; step *= 2) {
      const f32 theirs = EXCHANGE(top, step, 32), most = theirs > top ? theirs : top;
      const f32 smaller = power(top - (most == -__builtin_inff() ? 0 : most));
      total *= smaller, top = most;
#pragma unroll
      for (int e = 0; e < WIDE / 8; e++) {
        sums[e] *= smaller;
        sums[e] += EXCHANGE(sums[e], step, 32);
      }
      total += EXCHANGE(total, step, 32);
    }
    store_some(x.out + turn * WIDE, sums, WIDE / 8, lane, inverse(total));
    if (lane == 0) x.L[turn] = log_of_sum(top, total);
  }
}

KERNEL void scorch_attention_queries(const struct attention x) {
  const int lane = threadIdx.x % 32;
  const f32 factor = (f32)x.factor;
  EACH_ROW {
    const i64 head = turn / x.queries, query = turn % x.queries, place = place_of(&x, head, query, x.queries);
    const T *K = rows_of(&x, &x.K, head), *V = rows_of(&x, &x.V, head);
    const u8 *skipped = x.skipped ? x.skipped + head * x.keys : 0;
    const f32 L = x.L[turn], delta = x.delta[turn];
    const struct some_deep q = load_deep(rows_of(&x, &x.Q, head) + query * x.Q.step, lane);
    const struct some_wide g = load_wide(rows_of(&x, &x.G, head) + query * x.G.step, lane);
    f32 sums[DEEP / 8];
    for (int e = 0; e < DEEP / 8; e++) sums[e] = 0;
#ifdef DROPOUT
    const u32 seed = seed_of_row(&x, head, query);
#endif
    EACH_FEW(place) {
      struct few_pairs few;
      load_few(&few, &x, first, end, skipped, K, x.K.step, V, x.V.step, lane);
#pragma unroll
      EACH_PAIR {
        const f32 p = power(dot(DEEP_OF(q)) * factor - L);
        f32 flow = dot(WIDE_OF(g));
#ifdef DROPOUT
        flow *= kept(&x, seed, few.other[n]);
#endif
        add(sums, few.deep[n].at, DEEP / 8, few.is_there[n] ? p * (flow - delta) : 0);
      }
    }
    add_units(sums, DEEP / 8);
    store_some(x.dQ + turn * DEEP, sums, DEEP / 8, lane, (f32)x.scale);
  }
}

// Pairs are those of keys here.
KERNEL void scorch_attention_keys(const struct attention x) {
  const int lane = threadIdx.x % 32;
  const f32 factor = (f32)x.factor;
  EACH_ROW {
    const i64 head = turn / x.keys, key = turn % x.keys, place = place_of(&x, head, key, x.keys);
    const T *Q = rows_of(&x, &x.Q, head), *G = rows_of(&x, &x.G, head);
    const f32 *L = x.L + head * x.queries, *delta = x.delta + head * x.queries;
    const int is_skipped = x.skipped && x.skipped[head * x.keys + key];
    const struct some_deep k = load_deep(rows_of(&x, &x.K, head) + key * x.K.step, lane);
    const struct some_wide v = load_wide(rows_of(&x, &x.V, head) + key * x.V.step, lane);
    f32 to_key[DEEP / 8], to_value[WIDE / 8];
    for (int e = 0; e < DEEP / 8; e++) to_key[e] = 0;
    for (int e = 0; e < WIDE / 8; e++) to_value[e] = 0;
    EACH_FEW(place) {
      if (is_skipped) break;
      struct few_pairs few;
      load_few(&few, &x, first, end, 0, Q, x.Q.step, G, x.G.step, lane);
#pragma unroll
      EACH_PAIR {
        const f32 product = dot(DEEP_OF(k)) * factor, flow = dot(WIDE_OF(v));
        if (!few.is_there[n]) continue;
        const int query = few.other[n];
        const f32 p = power(product - L[query]);
#ifdef DROPOUT
        const f32 by = kept(&x, seed_of_row(&x, head, query), key);
#else
        const f32 by = 1;
#endif
        add(to_key, few.deep[n].at, DEEP / 8, p * (flow * by - delta[query]));
        add(to_value, few.wide[n].at, WIDE / 8, p * by);
      }
    }
    add_units(to_key, DEEP / 8);
    add_units(to_value, WIDE / 8);
    store_some(x.dK + turn * DEEP, to_key, DEEP / 8, lane, (f32)x.scale);
    store_some(x.dV + turn * WIDE, to_value, WIDE / 8, lane, 1);
  }
}
