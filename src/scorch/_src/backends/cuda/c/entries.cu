// Entries sorted by buckets, their rows or columns, and within each by another coordinate.
//
// Entries are counted in each bucket and moved there in any order. Then a warp sorts those of a bucket in shared
// memory, or a block if they are many. No two have the same key, so that the order is always the same one.

struct slots {
  const INDEX *bucket, *minor;  // of each entry; without the latter, entries stay in order
  const INDEX *pos;             // where rows begin; none if the row of each entry is not asked for
  i64 entries, buckets, rows, largest;
  i32 *flags, *counts, *rank;
  const i32 *begins;
  i32 *order, *large;  // how many buckets are left to blocks, and which
  INDEX *row;
  u8 *is_first;
};

#define UNSORTED 1
#define TOO_LARGE 2

static inline void set_flag(i32 *flags, i32 flag) {
  if (!(*(volatile i32 *)flags & flag)) atomicOr(flags, flag);
}

KERNEL void scorch_count(const struct slots a) {
  for (i64 e = FIRST_UNIT(1); e < a.entries; e += UNITS(1)) {
    const INDEX bucket = a.bucket[e];
    if (a.minor && e) {
      const INDEX before = a.bucket[e - 1];
      if (before > bucket || (before == bucket && a.minor[e - 1] >= a.minor[e])) set_flag(a.flags, UNSORTED);
    }
    const i32 rank = atomicAdd(a.counts + bucket, 1);
    a.rank[e] = rank;
    if (rank >= a.largest) set_flag(a.flags, TOO_LARGE);
  }
}

KERNEL void scorch_scatter(const struct slots a) {
  for (i64 e = FIRST_UNIT(1); e < a.entries; e += UNITS(1)) a.order[a.begins[a.bucket[e]] + a.rank[e]] = (i32)e;
}

static inline u64 key_of(const struct slots a, i32 entry) {
  return (a.minor ? (u64)(u32)a.minor[entry] << 32 : 0) | (u32)entry;
}

// The last row that begins at an entry or before.
static inline i64 row_of(const struct slots a, i32 entry) {
  i64 low = 0, high = a.rows;
  while (low + 1 < high) {
    const i64 middle = (low + high) / 2;
    if (a.pos[middle] <= entry) low = middle; else high = middle;
  }
  return low;
}

static inline void load_keys(const struct slots a, u64 *keys, i32 begin, i32 size, i32 width, int thread, int threads) {
  for (i32 k = thread; k < width; k += threads) keys[k] = k < size ? key_of(a, a.order[begin + k]) : ~0ull;
}

// One step of a bitonic sort: pairs at a distance are put in order, which changes from run to run.
static inline void exchange_keys(u64 *keys, i32 width, i32 run, i32 distance, int thread, int threads) {
  for (i32 k = thread; k < width / 2; k += threads) {
    const i32 first = 2 * distance * (k / distance) + k % distance, second = first + distance;
    const u64 one = keys[first], other = keys[second];
    if ((one > other) == !(first & run)) keys[first] = other, keys[second] = one;
  }
}

static inline void store_keys(const struct slots a, const u64 *keys, i32 begin, i32 size, int thread, int threads) {
  for (i32 k = thread; k < size; k += threads) {
    const i32 entry = (i32)(u32)keys[k];
    a.order[begin + k] = entry;
    if (a.row) a.row[begin + k] = (INDEX)row_of(a, entry);
  }
}

static inline i32 power_from(i32 size) {
  i32 width = 1;
  while (width < size) width *= 2;
  return width;
}

KERNEL void scorch_sort_few(const struct slots a) {
  STATIC_SHARED u64 all_keys[WARPS][FEW];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u64 *keys = all_keys[warp];
  for (i64 bucket = (i64)blockIdx.x * WARPS + warp; bucket < a.buckets; bucket += (i64)gridDim.x * WARPS) {
    const i32 begin = a.begins[bucket], size = a.begins[bucket + 1] - begin, width = power_from(size);
    if (size > FEW) {
      if (lane == 0) a.large[1 + atomicAdd(a.large, 1)] = (i32)bucket;
      continue;
    }
    load_keys(a, keys, begin, size, width, lane, 32);
    SYNC_WARP();
    for (i32 run = 2; run <= width; run *= 2)
      for (i32 distance = run / 2; distance; distance /= 2) {
        exchange_keys(keys, width, run, distance, lane, 32);
        SYNC_WARP();
      }
    store_keys(a, keys, begin, size, lane, 32);
    SYNC_WARP();
  }
}

KERNEL void scorch_sort_many(const struct slots a) {
  SHARED(memory);
  u64 *keys = (u64 *)memory;
  const int thread = threadIdx.x, threads = blockDim.x;
  for (i64 number = blockIdx.x; number < a.large[0]; number += gridDim.x) {
    const i32 bucket = a.large[1 + number], begin = a.begins[bucket], size = a.begins[bucket + 1] - begin;
    const i32 width = power_from(size);
    load_keys(a, keys, begin, size, width, thread, threads);
    __syncthreads();
    for (i32 run = 2; run <= width; run *= 2)
      for (i32 distance = run / 2; distance; distance /= 2) {
        exchange_keys(keys, width, run, distance, thread, threads);
        __syncthreads();
      }
    store_keys(a, keys, begin, size, thread, threads);
    __syncthreads();
  }
}

// Mark the first entry of each place.
KERNEL void scorch_mark(const struct slots a) {
  for (i64 p = FIRST_UNIT(1); p < a.entries; p += UNITS(1)) {
    const i32 here = a.order[p], before = p ? a.order[p - 1] : here;
    a.is_first[p] = !p || a.bucket[here] != a.bucket[before] || a.minor[here] != a.minor[before];
  }
}
