// Entries in any order, of which some may stand for one place: numbered by their places, and after a stable sort
// of these numbers listed once each, with the sum of their values in the order in which they were given.

enum { OUTSIDE, UNSORTED, LONG, PLACES };

struct slots {
  const COLUMN *columns[DIMS];
  i64 sizes[DIMS], entries;
  u64 *found;              // whether a coordinate is outside, entries are unsorted, some repeat more than FEW
                           // times; and the number of places
  KEY *keys;
  const KEY *sorted;       // the keys in order
  const i64 *order;        // the entry of each
  i64 chunk, chunks;
  u32 *counts;             // of the places that begin in each chunk
  INDEX *crd[DIMS];        // of each place
  INDEX *pos;              // where the list of places begins and ends
  i64 *first;              // where the entries of each place begin in the order; 0 where nobody asks
  const T *values;
  T *sums;                 // 0 where others add up
};

static inline KEY key_of(const struct slots a, i64 entry, int *is_outside) {
  KEY key = 0;
#pragma unroll
  for (int dim = 0; dim < DIMS; dim++) {
    const i64 coordinate = a.columns[dim][entry];
    const int is_inside = coordinate >= 0 && coordinate < a.sizes[dim];
    if (!is_inside) *is_outside = 1;
    key = (KEY)(key * (KEY)a.sizes[dim] + (is_inside ? (KEY)coordinate : 0));
  }
  return key;
}

static inline void note(u64 *flag) {
  if (!*flag) *flag = 1;
}

KERNEL void scorch_number(const struct slots a) {
  for (i64 e = FIRST_UNIT(1); e < a.entries; e += UNITS(1)) {
    int is_outside = 0;
    const KEY key = key_of(a, e, &is_outside);
    a.keys[e] = key;
    if (e && key_of(a, e - 1, &is_outside) >= key) note(a.found + UNSORTED);
    if (is_outside) note(a.found + OUTSIDE);
  }
}

static inline int is_first(const struct slots a, i64 e) {
  return e == 0 || a.sorted[e - 1] != a.sorted[e];
}

static inline i64 end_of(const struct slots a, i64 chunk) {
  const i64 end = (chunk + 1) * a.chunk;
  return end < a.entries ? end : a.entries;
}

KERNEL void scorch_count(const struct slots a) {
  STATIC_SHARED u32 total;
  for (i64 chunk = blockIdx.x; chunk < a.chunks; chunk += gridDim.x) {
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    u32 number = 0;
    for (i64 e = chunk * a.chunk + threadIdx.x; e < end_of(a, chunk); e += blockDim.x) {
      number += is_first(a, e);
      if (e >= FEW && a.sorted[e - FEW] == a.sorted[e]) note(a.found + LONG);
    }
    for (int step = 16; step; step /= 2) number += EXCHANGE(number, step, 32);
    if (threadIdx.x % 32 == 0) atomicAdd(&total, number);
    __syncthreads();
    if (threadIdx.x == 0) {
      a.counts[chunk] = total;
      atomicAdd(a.found + PLACES, (u64)total);
    }
    __syncthreads();
  }
}

static inline void list_place(const struct slots a, i64 place, i64 e) {
  KEY key = a.sorted[e], left = key;
#pragma unroll
  for (int dim = DIMS - 1; dim >= 0; dim--) {
    const KEY size = (KEY)a.sizes[dim];
    a.crd[dim][place] = (INDEX)(left % size);
    left /= size;
  }
  if (a.first) a.first[place] = e;
  if (!a.sums) return;
  T sum = a.values[a.order[e]];
  for (i64 p = e + 1; p < a.entries && a.sorted[p] == key; p++) sum = (T)(sum + a.values[a.order[p]]);
  a.sums[place] = sum;
}

KERNEL void scorch_place(const struct slots a) {
  STATIC_SHARED u32 totals[WARPS], before;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (FIRST_UNIT(1) == 0) a.pos[0] = 0, a.pos[1] = (INDEX)a.found[PLACES];
  for (i64 chunk = blockIdx.x; chunk < a.chunks; chunk += gridDim.x) {
    if (threadIdx.x == 0) before = 0;
    __syncthreads();
    u32 number = 0;
    for (i64 other = threadIdx.x; other < chunk; other += blockDim.x) number += a.counts[other];
    if (number) atomicAdd(&before, number);
    __syncthreads();
    i64 place = before;
    for (i64 start = chunk * a.chunk; start < end_of(a, chunk); start += blockDim.x) {
      const i64 e = start + threadIdx.x;
      const int begins = e < end_of(a, chunk) && is_first(a, e);
      u32 total = begins, lower = 0;  // of the lanes of this one's group, and of those below it
      for (int step = 1; step < 32; step *= 2) {
        const u32 others = EXCHANGE(total, step, 32);
        if (lane & step) lower += others;
        total += others;
      }
      if (lane == 0) totals[warp] = total;
      __syncthreads();
      i64 own = place + lower;
      for (int other = 0; other < WARPS; other++) {
        if (other < warp) own += totals[other];
        place += totals[other];
      }
      if (begins) list_place(a, own, e);
      __syncthreads();
    }
  }
}
