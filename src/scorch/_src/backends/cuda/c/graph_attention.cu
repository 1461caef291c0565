// Attention over the neighbours in a graph, and its gradients.
//
// A warp has a unit: a row, or a part of a row that is long. For numbers of each entry and head, its lanes
// are spread over entries and heads. For features they are spread over entries, heads and runs of features,
// which they read at once. Parts leave what they add up to functions named join, which add in the order of
// parts: no sum depends on which thread is first.
//
// Elements are of a type E, and what is computed of them, by VALUE and back by ELEMENT, of a type T.

struct slots {
  const INDEX *pos, *crd, *places;
  const INDEX *row, *start, *stop;  // of units, if some rows are cut; the parts of long rows come first
  const INDEX *long_row, *long_first;
  i64 units, cut, longs;  // how many units, parts of long rows, and long rows there are
  const E *counts, *x, *sources, *targets, *edges, *grad;
  T *kept, *each;
  E *out, *totals;            // for each row
  T *part_out, *part_totals;  // for each part of a long row
  T *states;                  // of each part at first, then of its row
  double slope, scale;
  u64 below, seed;
};

struct unit { i64 row, begin; int size; };
struct state { T most, sum; };  // of exponentials: the largest exponent, and the sum of all relative to it
struct ALIGNED(RUN * sizeof(E)) run { E at[RUN]; };

#define CHUNK 32  // entries whose numbers are in shared memory at once
#define COLUMNS (HEADS * FEATURES)
#define ENTRIES_AT_ONCE (32 / HEAD_LANES)  // where lanes are spread over entries and heads
#define GROUPS (32 / (FEATURE_LANES * GROUP_HEADS))  // of lanes, with an entry each, for features
#define FEATURE_TURNS ((FEATURES + FEATURE_LANES * RUN - 1) / (FEATURE_LANES * RUN))
#define HEAD_TURNS ((HEADS + GROUP_HEADS - 1) / GROUP_HEADS)
#define TURNS (FEATURE_TURNS * HEAD_TURNS)
#define TURNS_AT_ONCE (TURNS * RUN <= 16 ? TURNS : 16 / RUN)

#define ROWS_AT_ONCE (TURNS * RUN <= 4 ? 4 : TURNS * RUN <= 8 ? 2 : 1)

#define LANE ((int)threadIdx.x % 32)
#define LANE_HEAD (LANE % HEAD_LANES)
#define EACH_PAIR(e, size) \
  if (LANE_HEAD < HEADS) \
    for (int e = LANE / HEAD_LANES; e < size; e += ENTRIES_AT_ONCE)

// As many pairs at once, so that a lane waits for memory once; at the end of a unit the last one comes again.
#define BATCH (HEAD_LANES < 4 ? HEAD_LANES : 4)
#define EACH_BATCH(e, size) \
  if (LANE_HEAD < HEADS) \
    for (int e = LANE / HEAD_LANES; e < size; e += BATCH * ENTRIES_AT_ONCE)
#define UNROLL _Pragma("unroll")
#define EACH(k) UNROLL for (int k = 0; k < BATCH; k++)
#define IS_PAIR(e, k, size) (e + k * ENTRIES_AT_ONCE < size)
#define PAIR(e, k, size) (IS_PAIR(e, k, size) ? e + k * ENTRIES_AT_ONCE : size - 1)

// The head and the first feature of a lane at a turn, and whether there are such.
#define HEAD_AT(turn) (LANE / FEATURE_LANES % GROUP_HEADS + (turn) / FEATURE_TURNS * GROUP_HEADS)
#define FEATURE_AT(turn) ((LANE % FEATURE_LANES + (turn) % FEATURE_TURNS * FEATURE_LANES) * RUN)
#define IS_HEAD(turn) ((HEADS % GROUP_HEADS == 0 && TURNS % TURNS_AT_ONCE == 0) || HEAD_AT(turn) < HEADS)
#define IS_FEATURE(turn) (FEATURES % (FEATURE_LANES * RUN) == 0 || FEATURE_AT(turn) < FEATURES)
#define PLACE_AT(turn) (HEAD_AT(turn) * FEATURES + FEATURE_AT(turn))

static inline struct unit unit_at(const struct slots a, i64 number) {
  if (!a.row) {
    const struct unit whole = {number, a.pos[number], (int)(a.pos[number + 1] - a.pos[number])};
    return whole;
  }
  const struct unit part = {a.row[number], a.start[number], (int)(a.stop[number] - a.start[number])};
  return part;
}

// The sum over lanes that have the same head.
static inline T sum_of_head(T sum) {
  for (int step = 16; step >= HEAD_LANES; step /= 2) sum += EXCHANGE(sum, step, 32);
  return sum;
}

static inline struct state with(struct state s, T exponent, T times) {
  const T most = exponent > s.most ? exponent : s.most;
  s.sum = s.sum * EXP(s.most - most) + times * EXP(exponent - most);
  s.most = most;
  return s;
}

static inline struct state state_of_head(struct state s) {
  T most = s.most;
  for (int step = 16; step >= HEAD_LANES; step /= 2) {
    const T other = EXCHANGE(most, step, 32);
    most = other > most ? other : most;
  }
  const struct state all = {most, sum_of_head(s.sum * EXP(s.most - most))};
  return all;
}

// Random bits for draw n: those of splitmix64.
static inline u64 draw(u64 seed, u64 n) {
  u64 z = seed + (n + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return (z ^ (z >> 31)) >> 32;
}

static inline T target_of(const struct slots a, i64 row) {
  return LANE_HEAD < HEADS ? VALUE(a.targets[row * HEADS + LANE_HEAD]) : 0;
}

// The sums of scores of a batch of entries, for the head of a lane.
static inline void scores_of(const struct slots a, i64 begin, int e, int size, T target, T *scores) {
  INDEX columns[BATCH];
  EACH(k) columns[k] = a.crd[begin + PAIR(e, k, size)];
  EACH(k) scores[k] = VALUE(a.sources[(i64)columns[k] * HEADS + LANE_HEAD]) + target;
  if (a.edges) EACH(k) scores[k] += VALUE(a.edges[(begin + PAIR(e, k, size)) * HEADS + LANE_HEAD]);
}

static inline void exponents_of(const struct slots a, i64 begin, int e, int size, T target, T *exponents) {
  scores_of(a, begin, e, size, target, exponents);
  EACH(k) if (!(exponents[k] > 0)) exponents[k] *= (T)a.slope;
}

static inline struct state state_of_unit(const struct slots a, struct unit u, T target, T *exponents) {
  struct state s = {LOWEST, 0};
  EACH_BATCH(e, u.size) {
    T some[BATCH];
    exponents_of(a, u.begin, e, u.size, target, some);
    EACH(k) if (IS_PAIR(e, k, u.size)) {
      const int own = e + k * ENTRIES_AT_ONCE;
      if (exponents && u.size <= CHUNK) exponents[own * HEADS + LANE_HEAD] = some[k];
      s = with(s, some[k], a.counts ? VALUE(a.counts[u.begin + own]) : 1);
    }
  }
  return state_of_head(s);
}

// Add the rows of x at columns times their weights, for some turns.
static inline void add_rows(const E *x, const INDEX *columns, const T *weights, int size, int first,
                            T (*sums)[RUN]) {
#pragma unroll (TURNS_AT_ONCE * RUN <= 8 ? 4 : 2)
  for (int e = LANE / (FEATURE_LANES * GROUP_HEADS); e < size; e += GROUPS) {
    const E *from = x + (i64)columns[e] * COLUMNS;
    UNROLL for (int turn = 0; turn < TURNS_AT_ONCE; turn++) {
      if (!IS_HEAD(first + turn) || !IS_FEATURE(first + turn)) continue;
      const struct run run = *(const struct run *)(from + PLACE_AT(first + turn));
      const T weight = weights[e * HEADS + HEAD_AT(first + turn)];
      UNROLL for (int k = 0; k < RUN; k++) sums[turn][k] += weight * VALUE(run.at[k]);
    }
  }
}

// Put the sums of all groups of lanes together, and write them: those of a unit, which may be a part.
static inline void write_rows(const struct slots a, i64 number, i64 row, int first, T (*sums)[RUN]) {
  UNROLL for (int turn = 0; turn < TURNS_AT_ONCE; turn++) {
    T all[RUN];
    UNROLL for (int k = 0; k < RUN; k++) {
      all[k] = sums[turn][k];
      for (int step = 16; step >= FEATURE_LANES * GROUP_HEADS; step /= 2) all[k] += EXCHANGE(all[k], step, 32);
      all[k] *= (T)a.scale;
    }
    if (LANE >= FEATURE_LANES * GROUP_HEADS || !IS_HEAD(first + turn) || !IS_FEATURE(first + turn)) continue;
    if (number < a.cut) {
      UNROLL for (int k = 0; k < RUN; k++) a.part_out[number * COLUMNS + PLACE_AT(first + turn) + k] = all[k];
    } else {
      struct run run;
      UNROLL for (int k = 0; k < RUN; k++) run.at[k] = ELEMENT(all[k]);
      *(struct run *)(a.out + row * COLUMNS + PLACE_AT(first + turn)) = run;
    }
  }
}

static inline void write_total(const struct slots a, i64 number, i64 row, T total) {
  total = sum_of_head(total);
  if (LANE >= HEADS) return;
  if (number < a.cut) a.part_totals[number * HEADS + LANE] = total;
  else a.totals[row * HEADS + LANE] = ELEMENT(total);
}

// Forward -------------------------------------------------------------------------------------------------

KERNEL void scorch_states(const struct slots a) {
  for (i64 number = FIRST_UNIT(32); number < a.cut; number += UNITS(32)) {
    const struct unit u = unit_at(a, number);
    const struct state s = state_of_unit(a, u, target_of(a, u.row), 0);
    if (LANE < HEADS) {
      a.states[2 * number * HEADS + LANE] = s.most;
      a.states[(2 * number + 1) * HEADS + LANE] = s.sum;
    }
  }
}

KERNEL void scorch_join_states(const struct slots a) {
  for (i64 number = FIRST_UNIT(32); number < a.longs; number += UNITS(32)) {
    const int parts = (int)(a.long_first[number + 1] - a.long_first[number]);
    T *states = a.states + 2 * (i64)a.long_first[number] * HEADS + LANE_HEAD;
    struct state s = {LOWEST, 0};
    EACH_PAIR(part, parts) s = with(s, states[2 * part * HEADS], states[(2 * part + 1) * HEADS]);
    s = state_of_head(s);
    EACH_PAIR(part, parts) states[2 * part * HEADS] = s.most, states[(2 * part + 1) * HEADS] = s.sum;
  }
}

KERNEL void scorch_attend(const struct slots a) {
  STATIC_SHARED T of_warps[WARPS][CHUNK * HEADS];
  T *weights = of_warps[threadIdx.x / 32];
  for (i64 number = FIRST_UNIT(32); number < a.units; number += UNITS(32)) {
    const struct unit u = unit_at(a, number);
    const int is_part = number < a.cut, is_known = !is_part && u.size <= CHUNK;
    const T target = target_of(a, u.row);
    struct state s = {0, 1};
    if (!is_part)
      s = state_of_unit(a, u, target, weights);
    else if (LANE_HEAD < HEADS) {
      s.most = a.states[2 * number * HEADS + LANE_HEAD];
      s.sum = a.states[(2 * number + 1) * HEADS + LANE_HEAD];
    }
    const T share = 1 / s.sum;
    for (int first = 0; first < TURNS; first += TURNS_AT_ONCE) {
      T sums[TURNS_AT_ONCE][RUN] = {{0}};
      for (int done = 0; done < u.size; done += CHUNK) {
        const int size = u.size - done < CHUNK ? u.size - done : CHUNK;
        const i64 begin = u.begin + done;
        if (first == 0 || u.size > CHUNK) EACH_BATCH(e, size) {
          T some[BATCH];
          if (is_known)
            EACH(k) some[k] = IS_PAIR(e, k, size) ? weights[(e + k * ENTRIES_AT_ONCE) * HEADS + LANE_HEAD] : 0;
          else
            exponents_of(a, begin, e, size, target, some);
          EACH(k) if (IS_PAIR(e, k, size)) {
            const int own = e + k * ENTRIES_AT_ONCE;
            const i64 place = (begin + own) * HEADS + LANE_HEAD;
            T p = EXP(some[k] - s.most) * share;
            if (a.counts) p *= VALUE(a.counts[begin + own]);
            if (a.below && draw(a.seed, (u64)place) < a.below) p = -p;
            if (a.kept && first == 0) a.kept[place] = p;
            weights[own * HEADS + LANE_HEAD] = p < 0 ? 0 : p;
          }
        }
        SYNC_WARP();
        add_rows(a.x, a.crd + begin, weights, size, first, sums);
        SYNC_WARP();
      }
      write_rows(a, number, u.row, first, sums);
    }
  }
}

// Backward ------------------------------------------------------------------------------------------------

// Compute the inner products of a gradient and the rows of x at columns, for each head.
#if TURNS * RUN <= 16
static inline void multiply_rows(const E *x, const INDEX *columns, const E *grad, int size, T *products) {
  const int group = LANE / (FEATURE_LANES * GROUP_HEADS);
  struct run held[TURNS];
  UNROLL for (int turn = 0; turn < TURNS; turn++)
    if (IS_HEAD(turn) && IS_FEATURE(turn)) held[turn] = *(const struct run *)(grad + PLACE_AT(turn));
  for (int done = group; done - group < size; done += GROUPS * ROWS_AT_ONCE) {
    struct run runs[ROWS_AT_ONCE][TURNS];
    UNROLL for (int r = 0; r < ROWS_AT_ONCE; r++) {
      const int own = done + r * GROUPS;
      const E *from = x + (i64)columns[own < size ? own : size - 1] * COLUMNS;
      UNROLL for (int turn = 0; turn < TURNS; turn++)
        if (IS_HEAD(turn) && IS_FEATURE(turn)) runs[r][turn] = *(const struct run *)(from + PLACE_AT(turn));
    }
    UNROLL for (int r = 0; r < ROWS_AT_ONCE; r++)
      UNROLL for (int h = 0; h < HEAD_TURNS; h++) {
        T product = 0;
        UNROLL for (int turn = h * FEATURE_TURNS; turn < (h + 1) * FEATURE_TURNS; turn++)
          if (IS_HEAD(turn) && IS_FEATURE(turn))
            UNROLL for (int k = 0; k < RUN; k++) product += VALUE(held[turn].at[k]) * VALUE(runs[r][turn].at[k]);
        for (int step = FEATURE_LANES / 2; step; step /= 2) product += EXCHANGE(product, step, 32);
        if (LANE % FEATURE_LANES == 0 && done + r * GROUPS < size && IS_HEAD(h * FEATURE_TURNS))
          products[(done + r * GROUPS) * HEADS + HEAD_AT(h * FEATURE_TURNS)] = product;
      }
  }
}
#else
static inline void multiply_rows(const E *x, const INDEX *columns, const E *grad, int size, T *products) {
  const int group = LANE / (FEATURE_LANES * GROUP_HEADS);
  for (int own = group; own - group < size; own += GROUPS) {
    const E *from = x + (i64)columns[own < size ? own : size - 1] * COLUMNS;
#pragma unroll 2
    for (int h = 0; h < HEAD_TURNS; h++) {
      T product = 0;
#pragma unroll 4
      for (int turn = h * FEATURE_TURNS; turn < (h + 1) * FEATURE_TURNS; turn++) {
        if (!IS_HEAD(turn) || !IS_FEATURE(turn)) continue;
        const struct run run = *(const struct run *)(from + PLACE_AT(turn));
        const struct run flow = *(const struct run *)(grad + PLACE_AT(turn));
        UNROLL for (int k = 0; k < RUN; k++) product += VALUE(flow.at[k]) * VALUE(run.at[k]);
      }
      for (int step = FEATURE_LANES / 2; step; step /= 2) product += EXCHANGE(product, step, 32);
      if (LANE % FEATURE_LANES == 0 && own < size && IS_HEAD(h * FEATURE_TURNS))
        products[own * HEADS + HEAD_AT(h * FEATURE_TURNS)] = product;
    }
  }
}
#endif

// Compute how the result depends on the probabilities of a unit; return the mean for the head of a lane.
// These are in shared memory, and where they do not fit or is_part they are in each.
static inline T depend(const struct slots a, struct unit u, int is_part, T *products) {
  T mean = 0;
  for (int done = 0; done < u.size; done += CHUNK) {
    const int size = u.size - done < CHUNK ? u.size - done : CHUNK;
    const i64 begin = u.begin + done;
    multiply_rows(a.x, a.crd + begin, a.grad + u.row * COLUMNS, size, products);
    SYNC_WARP();
    EACH_BATCH(e, size) {
      T p[BATCH];
      EACH(k) p[k] = a.kept[(begin + PAIR(e, k, size)) * HEADS + LANE_HEAD];
      EACH(k) if (IS_PAIR(e, k, size)) {
        const int own = e + k * ENTRIES_AT_ONCE;
        const T flow = COPYSIGN((T)1, p[k]) < 0 ? 0 : products[own * HEADS + LANE_HEAD] * (T)a.scale;
        mean += p[k] * flow;
        if (is_part || u.size > CHUNK)
          a.each[(begin + own) * HEADS + LANE_HEAD] = flow;
        else
          products[own * HEADS + LANE_HEAD] = flow;
      }
    }
    SYNC_WARP();
  }
  return sum_of_head(mean);
}

KERNEL void scorch_means(const struct slots a) {
  STATIC_SHARED T of_warps[WARPS][CHUNK * HEADS];
  for (i64 number = FIRST_UNIT(32); number < a.cut; number += UNITS(32)) {
    const T mean = depend(a, unit_at(a, number), 1, of_warps[threadIdx.x / 32]);
    if (LANE < HEADS) a.states[number * HEADS + LANE] = mean;
  }
}

KERNEL void scorch_join_means(const struct slots a) {
  for (i64 number = FIRST_UNIT(32); number < a.longs; number += UNITS(32)) {
    const int parts = (int)(a.long_first[number + 1] - a.long_first[number]);
    T *means = a.states + (i64)a.long_first[number] * HEADS + LANE_HEAD, mean = 0;
    EACH_PAIR(part, parts) mean += means[part * HEADS];
    mean = sum_of_head(mean);
    EACH_PAIR(part, parts) means[part * HEADS] = mean;
  }
}

KERNEL void scorch_scores(const struct slots a) {
  STATIC_SHARED T of_warps[WARPS][CHUNK * HEADS];
  T *flows = of_warps[threadIdx.x / 32];
  for (i64 number = FIRST_UNIT(32); number < a.units; number += UNITS(32)) {
    const struct unit u = unit_at(a, number);
    const int is_part = number < a.cut, is_known = !is_part && u.size <= CHUNK;
    const T target = target_of(a, u.row);
    T mean = 0, total = 0;
    if (!is_part)
      mean = depend(a, u, 0, flows);
    else if (LANE_HEAD < HEADS)
      mean = a.states[number * HEADS + LANE_HEAD];
    EACH_BATCH(e, u.size) {
      T scores[BATCH], p[BATCH], flow[BATCH];
      EACH(k) p[k] = a.kept[(u.begin + PAIR(e, k, u.size)) * HEADS + LANE_HEAD];
      if (is_known)
        EACH(k) flow[k] = flows[PAIR(e, k, u.size) * HEADS + LANE_HEAD];
      else
        EACH(k) flow[k] = a.each[(u.begin + PAIR(e, k, u.size)) * HEADS + LANE_HEAD];
      scores_of(a, u.begin, e, u.size, target, scores);
      EACH(k) if (IS_PAIR(e, k, u.size)) {
        const T change = (flow[k] - mean) * COPYSIGN(p[k], (T)1);
        const T down = scores[k] > 0 ? change : change * (T)a.slope;
        a.each[(u.begin + e + k * ENTRIES_AT_ONCE) * HEADS + LANE_HEAD] = down;
        total += down;
      }
    }
    write_total(a, number, u.row, total);
    SYNC_WARP();
  }
}

KERNEL void scorch_features(const struct slots a) {
  STATIC_SHARED T of_warps[WARPS][CHUNK * HEADS];
  T *weights = of_warps[threadIdx.x / 32];
  for (i64 number = FIRST_UNIT(32); number < a.units; number += UNITS(32)) {
    const struct unit u = unit_at(a, number);
    T total = 0;
    for (int first = 0; first < TURNS; first += TURNS_AT_ONCE) {
      T sums[TURNS_AT_ONCE][RUN] = {{0}};
      for (int done = 0; done < u.size; done += CHUNK) {
        const int size = u.size - done < CHUNK ? u.size - done : CHUNK;
        const i64 begin = u.begin + done;
        if (first == 0 || u.size > CHUNK) EACH_BATCH(e, size) {
          INDEX places[BATCH];
          T p[BATCH], each[BATCH];
          EACH(k) places[k] = a.places[begin + PAIR(e, k, size)];
          EACH(k) p[k] = a.kept[(i64)places[k] * HEADS + LANE_HEAD];
          EACH(k) each[k] = a.each[(i64)places[k] * HEADS + LANE_HEAD];
          EACH(k) if (IS_PAIR(e, k, size)) {
            weights[(e + k * ENTRIES_AT_ONCE) * HEADS + LANE_HEAD] = p[k] < 0 ? 0 : p[k];
            if (first == 0) total += each[k];
          }
        }
        SYNC_WARP();
        add_rows(a.grad, a.crd + begin, weights, size, first, sums);
        SYNC_WARP();
      }
      write_rows(a, number, u.row, first, sums);
    }
    write_total(a, number, u.row, total);
  }
}

// Long rows -----------------------------------------------------------------------------------------------

static inline void join(const struct slots a, i64 number, const T *parts, E *rows, i64 width, i64 column) {
  T sum = 0;
#pragma unroll 4
  for (i64 part = a.long_first[number]; part < a.long_first[number + 1]; part++)
    sum += parts[part * width + column];
  rows[a.long_row[number] * width + column] = ELEMENT(sum);
}

KERNEL void scorch_join(const struct slots a) {
  const i64 width = COLUMNS + HEADS;
  for (i64 turn = FIRST_UNIT(1); turn < a.longs * width; turn += UNITS(1)) {
    const i64 number = turn / width, column = turn % width;
    if (column >= COLUMNS && a.totals) join(a, number, a.part_totals, a.totals, HEADS, column - COLUMNS);
    if (column < COLUMNS && a.out) join(a, number, a.part_out, a.out, COLUMNS, column);
  }
}
