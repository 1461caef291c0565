// The maximum of the rows of a dense matrix that each row of a sparse one picks, and its gradient.
//
// A warp has some columns of a unit: a row, or a part of a row that is long, which functions named join put
// together in the order of parts. Its lanes are spread over entries and runs of columns. Elements are of a type
// E, and what is computed of them, by VALUE and back by ELEMENT, of a type T.

struct slots {
  const INDEX *pos, *crd;
  const INDEX *row, *start, *stop;  // of units, if some rows are cut; the parts of long rows come first
  const INDEX *long_row, *long_first;
  i64 units, cut, longs;  // how many units, parts of long rows, and long rows there are
  i64 width;
  const E *counts, *x, *best, *shared;
  E *out, *ties;
  T *part_out, *part_ties;
};

struct ALIGNED(RUN * sizeof(E)) run { E at[RUN]; };
struct most { T value, ties; };

#define LANE ((int)threadIdx.x % 32)
#define GROUPS (32 / LANES)

// The larger of two, with how many reach it; what is not a number stays.
static inline struct most larger(struct most a, struct most b) {
  if (b.value > a.value || b.value != b.value) return b;
  if (b.value == a.value) a.ties += b.ties;
  return a;
}

static inline void write_most(const struct slots a, struct most m, int is_empty, i64 place) {
  a.out[place] = ELEMENT(is_empty ? 0 : m.value);
  if (a.ties) a.ties[place] = ELEMENT(is_empty ? 1 : m.value == m.value ? m.ties : 0);
}

// Set unit, row, begin and size, and the first column of each lane, at every turn.
#define EACH_TURN(a) \
  const i64 tiles = (a.width + LANES * RUN - 1) / (LANES * RUN); \
  for (i64 turn = FIRST_UNIT(32); turn < a.units * tiles; turn += UNITS(32))
#define UNIT(a) \
  const i64 unit = turn / tiles, column = (turn % tiles * LANES + LANE % LANES) * RUN; \
  const i64 row = a.row ? a.row[unit] : unit, begin = a.row ? a.start[unit] : a.pos[unit]; \
  const int size = (int)((a.row ? a.stop[unit] : a.pos[unit + 1]) - begin), is_there = column < a.width;

KERNEL void scorch_largest(const struct slots a) {
  EACH_TURN(a) {
    UNIT(a)
    struct most most[RUN];
    for (int k = 0; k < RUN; k++) most[k].value = -INFINITE, most[k].ties = 0;
#pragma unroll (RUN > 4 ? 2 : 4)
    for (int e = LANE / LANES; e < (is_there ? size : 0); e += GROUPS) {
      const struct run run = *(const struct run *)(a.x + (i64)a.crd[begin + e] * a.width + column);
      const T times = a.counts ? VALUE(a.counts[begin + e]) : 1;
#pragma unroll
      for (int k = 0; k < RUN; k++) {
        const struct most here = {VALUE(run.at[k]), times};
        most[k] = larger(most[k], here);
      }
    }
#pragma unroll
    for (int k = 0; k < RUN; k++) {
      for (int step = 16; step >= LANES; step /= 2) {
        struct most other;
        other.value = EXCHANGE(most[k].value, step, 32);
        other.ties = EXCHANGE(most[k].ties, step, 32);
        most[k] = larger(most[k], other);
      }
      if (LANE >= LANES || !is_there) continue;
      if (unit < a.cut) {
        a.part_out[unit * a.width + column + k] = most[k].value;
        a.part_ties[unit * a.width + column + k] = most[k].ties;
      } else {
        write_most(a, most[k], !size, row * a.width + column + k);
      }
    }
  }
}

KERNEL void scorch_join_largest(const struct slots a) {
  for (i64 turn = FIRST_UNIT(1); turn < a.longs * a.width; turn += UNITS(1)) {
    const i64 number = turn / a.width, column = turn % a.width;
    struct most most = {-INFINITE, 0};
#pragma unroll 4
    for (i64 part = a.long_first[number]; part < a.long_first[number + 1]; part++) {
      const struct most here = {a.part_out[part * a.width + column], a.part_ties[part * a.width + column]};
      most = larger(most, here);
    }
    write_most(a, most, 0, a.long_row[number] * a.width + column);
  }
}

KERNEL void scorch_share(const struct slots a) {
  EACH_TURN(a) {
    UNIT(a)
    T sums[RUN] = {0};
    struct run own;
    if (is_there) own = *(const struct run *)(a.x + row * a.width + column);
#pragma unroll (RUN > 4 ? 2 : 4)
    for (int e = LANE / LANES; e < (is_there ? size : 0); e += GROUPS) {
      const i64 place = (i64)a.crd[begin + e] * a.width + column;
      const struct run best = *(const struct run *)(a.best + place);
      const struct run flow = *(const struct run *)(a.shared + place);
      const T times = a.counts ? VALUE(a.counts[begin + e]) : 1;
#pragma unroll
      for (int k = 0; k < RUN; k++)
        sums[k] += VALUE(own.at[k]) == VALUE(best.at[k]) ? VALUE(flow.at[k]) * times : 0;
    }
#pragma unroll
    for (int k = 0; k < RUN; k++) {
      for (int step = 16; step >= LANES; step /= 2) sums[k] += EXCHANGE(sums[k], step, 32);
      if (LANE >= LANES || !is_there) continue;
      if (unit < a.cut) a.part_out[unit * a.width + column + k] = sums[k];
      else a.out[row * a.width + column + k] = ELEMENT(sums[k]);
    }
  }
}

KERNEL void scorch_join_shares(const struct slots a) {
  for (i64 turn = FIRST_UNIT(1); turn < a.longs * a.width; turn += UNITS(1)) {
    const i64 number = turn / a.width, column = turn % a.width;
    T sum = 0;
#pragma unroll 4
    for (i64 part = a.long_first[number]; part < a.long_first[number + 1]; part++)
      sum += a.part_out[part * a.width + column];
    a.out[a.long_row[number] * a.width + column] = ELEMENT(sum);
  }
}
