// Entries that ``sort_entries.cu`` has sorted, listed once for each place, with the sum of their values in the order
// in which they were given.

static inline void list_place(const struct slots a, i64 place, i64 entry) {
  const u64 number = a.sorted[entry], mask = (1ull << a.bits) - 1;
#pragma unroll
  for (int dim = 0; dim < DIMS; dim++) {
    u64 coordinate = number >> a.shifts[dim];
    if (dim) coordinate &= (1ull << (a.shifts[dim ? dim - 1 : 0] - a.shifts[dim])) - 1;
    a.crd[dim][place] = (INDEX)coordinate;
  }
  if (a.first) a.first[place] = entry;
  if (!a.sums || a.state[LONG]) return;
  T sum = a.values[number & mask];
  for (i64 p = entry + 1; p < a.entries && a.sorted[p] >> a.bits == number >> a.bits; p++)
    sum = (T)(sum + a.values[a.sorted[p] & mask]);
  a.sums[place] = sum;
}

KERNEL void scorch_place(const struct slots a) {
  if (FIRST_UNIT(1) == 0) a.pos[0] = 0, a.pos[1] = (INDEX)a.places[a.buckets] + 1;
  if (a.state[REFUSED] || !a.state[UNSORTED]) return;
  for (i64 bucket = blockIdx.x; bucket < a.buckets; bucket += gridDim.x) {
    const i64 begin = begin_of(a, bucket), end = begin + count_of(a, bucket);
    i64 place = a.places[bucket];
    for (i64 start = begin; start < end; start += blockDim.x) {
      const i64 entry = start + threadIdx.x;
      int is_first = 0;
      if (entry < end) {
        const u64 number = a.sorted[entry];
        is_first = !entry || a.sorted[entry - 1] >> a.bits != number >> a.bits;
        if (a.order) a.order[entry] = (i64)(number & ((1ull << a.bits) - 1));
      }
      u32 all;
      const u32 own = is_first && entry > begin, below = sum_below(own, &all);
      if (is_first) list_place(a, place + below + own, entry);
      place += all;
    }
  }
}
