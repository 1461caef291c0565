// Entries that ``sort_entries.cu`` has sorted, listed once for each place, with the sum of their values in the order
// in which they were given. As in ``sum_runs.cu``, a thread adds up those of a place, a warp where they are many.

static inline void list_place(const struct slots a, i64 place, i64 entry, u64 number) {
#pragma unroll
  for (int dim = 0; dim < DIMS; dim++) {
    u64 coordinate = number >> a.shifts[dim];
    if (dim) coordinate &= (1ull << (a.shifts[dim ? dim - 1 : 0] - a.shifts[dim])) - 1;
    a.crd[dim][place] = (INDEX)coordinate;
  }
  if (a.first) a.first[place] = entry;
}

// Add up the values of a place, whose first entry is this one; return whether they are too many for a thread.
static inline int add_few(const struct slots a, i64 place, i64 entry, u64 number) {
  const u64 mask = (1ull << a.bits) - 1;
  T sum = a.values[number & mask];
  for (i64 p = entry + 1; p < a.entries; p++) {
    const u64 other = a.sorted[p];
    if (other >> a.bits != number >> a.bits) break;
    if (p == entry + FEW) return 1;
    sum = (T)(sum + a.values[other & mask]);
  }
  a.sums[place] = sum;
  return 0;
}

// Where the entries of a place end: beyond 1, 2, 4, ... of them, then by bisection.
static inline i64 end_of(const struct slots a, i64 entry) {
  const u64 number = a.sorted[entry] >> a.bits;
  i64 known = entry, step = 1;  // one that is of this place
  while (known + step < a.entries && a.sorted[known + step] >> a.bits == number) known += step, step *= 2;
  for (; step; step /= 2)
    if (known + step < a.entries && a.sorted[known + step] >> a.bits == number) known += step;
  return known + 1;
}

// Add up the values of a place by a warp.
static inline void add_many(const struct slots a, i64 place, i64 begin) {
  const u32 lane = threadIdx.x % 32;
  const u64 mask = (1ull << a.bits) - 1;
  const i64 end = end_of(a, begin);
  T sum = 0;
#pragma unroll 4
  for (i64 p = begin + lane; p < end; p += 32) sum += a.values[a.sorted[p] & mask];
  for (int step = 16; step; step /= 2) sum += EXCHANGE(sum, step, 32);
  if (lane == 0) a.sums[place] = sum;
}

// Add up the values of each place whose first entry a lane of this warp has. Entries count from ``start``, places from
// ``places``. A warp helps with those that have many.
static inline void add_places(
    const struct slots a, int is_first, i64 start, u32 entry, u64 number, i64 places, u32 place) {
  const u32 lane = threadIdx.x % 32;
  const int is_many = is_first && add_few(a, places + place, start + entry, number);
  for (u32 left = sum_of_warp(is_many ? 1u << lane : 0u); left; left &= left - 1) {
    const int is_own = lane + 1 == __ffs(left);
    const u32 many = sum_of_warp(is_own ? place : 0u), begin = sum_of_warp(is_own ? entry : 0u);
    add_many(a, places + many, start + begin);
  }
}

static inline void place_buckets(const struct slots a, int are_many) {
  if (FIRST_UNIT(1) == 0) a.pos[0] = 0, a.pos[1] = (INDEX)a.places[a.buckets] + 1;
  if (a.state[REFUSED] || !a.state[UNSORTED]) return;
  EACH_BLOCK(bucket, a.buckets) {
    const i64 begin = a.begins[bucket], end = begin + count_of(a, bucket);
    i64 place = are_many ? a.places[bucket] : sum_of_block(part_before(a.places, 1, bucket));
    for (i64 start = begin; start < end; start += blockDim.x) {
      const i64 entry = start + threadIdx.x;
      int is_first = 0;
      u64 number = 0;
      if (entry < end) {
        number = a.sorted[entry];
        is_first = !entry || a.sorted[entry - 1] >> a.bits != number >> a.bits;
        if (a.order) a.order[entry] = (i64)(number & ((1ull << a.bits) - 1));
      }
      u32 all;
      const u32 own = is_first && entry > begin, below = sum_below(own, &all);
      if (is_first) list_place(a, place + below + own, entry, number);
      if (a.sums) add_places(a, is_first, start, threadIdx.x, number, place, below + own);
      place += all;
    }
  }
}

KERNEL void scorch_place(const struct slots a) {
  place_buckets(a, 0);
}

KERNEL void scorch_place_many(const struct slots a) {
  place_buckets(a, 1);
}

// All of it by one block, for as many entries as it sorts.
KERNEL void scorch_few(const struct slots a) {
  SHARED(memory);
  u64 *shared = (u64 *)memory;
  const u32 count = (u32)a.entries, first = threadIdx.x * EACH;
  int is_outside = 0;
  for (u32 at = threadIdx.x; at < count; at += blockDim.x) SHARED_AT(at) = number_of(a, at, &is_outside);
  __syncthreads();
  u64 own[EACH];
  u32 unsorted = 0, starts = 0, all;
#pragma unroll
  for (int r = 0; r < EACH; r++) {
    const u32 at = first + r;
    own[r] = at < count ? SHARED_AT(at) : ~0ull;
    if (at && at < count) unsorted |= SHARED_AT(at - 1) >> a.bits >= own[r] >> a.bits;
  }
  const u32 found = sum_of_block((u32)is_outside << 16 | unsorted);
  if (found >> 16 || !found) {
    if (threadIdx.x == 0) tell(a, found >> 16, 0, 0);
    return;
  }
  sort(own, shared, count);
  __syncthreads();
#pragma unroll
  for (int r = 0; r < EACH; r++) SHARED_AT(first + r) = own[r];
  __syncthreads();
  for (u32 at = first; at < first + EACH && at < count; at++) {
    const u64 number = SHARED_AT(at);
    starts += !at || SHARED_AT(at - 1) >> a.bits != number >> a.bits;
    a.sorted[at] = number;
    if (a.order) a.order[at] = (i64)(number & ((1ull << a.bits) - 1));
  }
  u32 place = sum_below(starts, &all);
  if (threadIdx.x == 0) {
    tell(a, 0, 1, all);
    a.pos[0] = 0, a.pos[1] = (INDEX)all;
  }
#pragma unroll 1
  for (u32 at = first; at < first + EACH; at++) {
    const u64 number = at < count ? SHARED_AT(at) : 0;
    const int is_first = at < count && (!at || SHARED_AT(at - 1) >> a.bits != number >> a.bits);
    if (is_first) list_place(a, place, at, number);
    if (a.sums) add_places(a, is_first, 0, at, number, 0, place);
    place += is_first;
  }
}
