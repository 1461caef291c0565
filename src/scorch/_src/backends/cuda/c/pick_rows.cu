// Rows of a compressed matrix, picked by their numbers: counted by one launch, copied by the next.
//
// Picked rows come in tiles. Where a row ends is known within its tile first, and how many entries the tiles before
// have when all blocks are done.

struct slots {
  const INDEX *pos, *crd;
  const VALUE *values;
  const PICKED *picked;
  i64 rows, count;
  i64 least;         // number of a row: those below 0 count from the end
  i64 *shift;        // from entries of a picked row, in its tile, to those that are given
  i64 *end;          // of each picked row, in its tile
  i64 *before;       // entries of the tiles before each, and of all
  i64 *longest;      // row of each tile
  u32 *arrived;      // blocks: 0 between calls
  i64 *told;         // for the host: whether a number is out of range, the longest row, and the number of entries
  INDEX *new_pos, *new_crd;
  VALUE *new_values;
  i64 entries;
};

#define MISSING (1ll << 62)  // the length of a row that is not there

// The largest number that a thread of the block has, for the first thread.
static inline i64 largest_of_block(i64 own) {
  STATIC_SHARED i64 of_warps[32];
  for (int step = 16; step; step /= 2) {
    const i64 other = EXCHANGE(own, step, 32);
    own = other > own ? other : own;
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x == 0)
    for (u32 warp = 1; warp < blockDim.x / 32; warp++) own = of_warps[warp] > own ? of_warps[warp] : own;
  __syncthreads();
  return own;
}

static inline void count_tile(const struct slots a, i64 tile) {
  i64 longest = 0, before = 0, all;
  for (i64 start = 0; start < TILE; start += blockDim.x, before += all) {
    const i64 at = tile * TILE + start + threadIdx.x;
    i64 begin = 0, length = 0;
    if (at < a.count) {
      const i64 number = a.picked[at], row = number < 0 ? number + a.rows : number;
      if (number < a.least || row >= a.rows) longest = MISSING;
      else begin = a.pos[row], length = a.pos[row + 1] - begin;
    }
    longest = length > longest ? length : longest;
    const i64 below = before + sum_below(length, &all);
    if (at < a.count) a.shift[at] = begin - below, a.end[at] = below + length;
  }
  longest = largest_of_block(longest);
  if (threadIdx.x == 0) a.before[tile] = before, a.longest[tile] = longest;
}

KERNEL void scorch_count_rows(const struct slots a) {
  const i64 tiles = (a.count + TILE - 1) / TILE;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) count_tile(a, tile);
  if (!is_last(a.arrived)) return;
  i64 longest = 0;
  for (i64 tile = threadIdx.x; tile < tiles; tile += blockDim.x)
    longest = a.longest[tile] > longest ? a.longest[tile] : longest;
  longest = largest_of_block(longest);
  add_up(a.before, 1, a.before, tiles);
  if (threadIdx.x) return;
  *a.arrived = 0;
  a.told[0] = longest == MISSING, a.told[1] = longest;
  __threadfence_system();
  a.told[2] = a.before[tiles];  // which the host waits for
}

static inline i64 end_of(const struct slots a, i64 row) { return a.before[(u64)row / TILE] + a.end[row]; }

// The first row, of two and those between, that ends behind an entry. All lanes of a warp search together.
static inline i64 row_by_warp(const struct slots a, i64 entry, i64 low, i64 high) {
  const i64 lane = threadIdx.x % 32;
  while (low < high) {
    const i64 step = (high - low + 31) / 32, probe = low + (lane + 1) * step - 1;
    low += step * sum_of_warp(probe < high && end_of(a, probe) <= entry);
    high = low + step - 1 < high ? low + step - 1 : high;
  }
  return low;
}

// The same for each thread; ends, if there are any, are those of all these rows, counted from start.
static inline i64 row_of(const struct slots a, i64 entry, i64 low, i64 high, const u32 *ends, i64 start) {
  const i64 first = low;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if ((ends ? start + ends[middle - first] : end_of(a, middle)) <= entry) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Blocks have as many entries each, however long rows are, and search among the rows of these.
KERNEL void scorch_copy_rows(const struct slots a) {
  STATIC_SHARED u32 ends[KEPT];
  if (FIRST_UNIT(1) == 0) a.new_pos[0] = 0;
  for (i64 row = FIRST_UNIT(1); row < a.count; row += UNITS(1)) a.new_pos[row + 1] = (INDEX)end_of(a, row);
  const i64 chunk = (i64)EACH * blockDim.x;
  for (i64 start = blockIdx.x * chunk; start < a.entries; start += gridDim.x * chunk) {
    const i64 stop = start + chunk < a.entries ? start + chunk : a.entries;
    const i64 low = row_by_warp(a, start, 0, a.count - 1), high = row_by_warp(a, stop - 1, low, a.count - 1);
    const int is_kept = high - low <= KEPT;
    if (is_kept)
      for (i64 row = low + threadIdx.x; row < high; row += blockDim.x) ends[row - low] = (u32)(end_of(a, row) - start);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const i64 entry = start + k * (i64)blockDim.x + threadIdx.x;
      if (entry >= stop) continue;
      const i64 row = row_of(a, entry, low, high, is_kept ? ends : 0, start);
      const i64 from = entry - a.before[(u64)row / TILE] + a.shift[row];
      a.new_crd[entry] = a.crd[from];
      a.new_values[entry] = a.values[from];
    }
    __syncthreads();
  }
}
