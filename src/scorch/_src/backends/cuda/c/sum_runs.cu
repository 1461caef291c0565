// Sums of the values of entries that stand for one place, in their order.
//
// A thread adds up those of a place, a warp where they are many.

struct slots {
  const T *values;        // of entries, ``width`` each
  const i64 *order;
  const i64 *first;       // where the entries of each place begin
  i64 places, entries, width;
  T *sums;
  i64 *large;             // how many sums are left to warps, and which
};

static inline i64 end_of(const struct slots a, i64 place) {
  return place + 1 < a.places ? a.first[place + 1] : a.entries;
}

KERNEL void scorch_sum_few(const struct slots a) {
  for (i64 turn = FIRST_UNIT(1); turn < a.places * a.width; turn += UNITS(1)) {
    const i64 place = turn / a.width, column = turn % a.width;
    const i64 begin = a.first[place], end = end_of(a, place);
    if (end - begin > FEW) {
      a.large[1 + atomicAdd((u64 *)a.large, 1ull)] = turn;
      continue;
    }
    T sum = a.values[a.order[begin] * a.width + column];
    for (i64 p = begin + 1; p < end; p++) sum += a.values[a.order[p] * a.width + column];
    a.sums[turn] = sum;
  }
}

KERNEL void scorch_sum_many(const struct slots a) {
  const int lane = threadIdx.x % 32;
  for (i64 number = FIRST_UNIT(32); number < a.large[0]; number += UNITS(32)) {
    const i64 turn = a.large[1 + number], place = turn / a.width, column = turn % a.width;
    const i64 begin = a.first[place], end = end_of(a, place);
    T sum = 0;
#pragma unroll 4
    for (i64 p = begin + lane; p < end; p += 32) sum += a.values[a.order[p] * a.width + column];
    for (int step = 16; step; step /= 2) sum += EXCHANGE(sum, step, 32);
    if (lane == 0) a.sums[turn] = sum;
  }
}
