// Sums over the threads of a block, in any type that is called SUM, and over the blocks of a grid.

// The sum over the lanes of a warp.
static inline SUM sum_of_warp(SUM own) {
#ifdef ADD_IN_WARP
  if (sizeof(SUM) == 4) return ADD_IN_WARP(own);
#endif
  for (int step = 16; step; step /= 2) own += EXCHANGE(own, step, 32);
  return own;
}

// The sum over the threads of a block.
static inline SUM sum_of_block(SUM own) {
  STATIC_SHARED SUM sums[32];
  const u32 lane = threadIdx.x % 32;
  own = sum_of_warp(own);
  if (lane == 0) sums[threadIdx.x / 32] = own;
  __syncthreads();
  own = sum_of_warp(lane < blockDim.x / 32 ? sums[lane] : 0);
  __syncthreads();
  return own;
}

// The sum of what threads below have, and of what all have.
static inline SUM sum_below(SUM own, SUM *all) {
  STATIC_SHARED SUM totals[32];
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  SUM total = own, below = 0;  // of the lanes of this one's group, and of those below it
  for (int step = 1; step < 32; step *= 2) {
    const SUM others = EXCHANGE(total, step, 32);
    if (lane & step) below += others;
    total += others;
  }
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  const SUM other = lane < blockDim.x / 32 ? totals[lane] : 0;
  *all = sum_of_warp(other);
  below += sum_of_warp(lane < warp ? other : 0);
  __syncthreads();
  return below;
}

// Whether this is the last block to arrive, which sees what the first threads of others wrote, and atomics.
static inline int is_last(u32 *arrived) {
  STATIC_SHARED u32 turn;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    turn = atomicAdd(arrived, 1u);
    __threadfence();
  }
  __syncthreads();
  return turn + 1 == gridDim.x;
}

// The sum of counts before each, and of all behind the last.
static inline void add_up(const SUM *counts, i64 stride, SUM *sums, i64 number) {
  SUM before = 0, all;
  for (i64 start = 0; start < number; start += blockDim.x) {
    const i64 at = start + threadIdx.x;
    const SUM below = sum_below(at < number ? counts[at * stride] : 0, &all);
    if (at < number) sums[at] = before + below;
    before += all;
  }
  if (threadIdx.x == 0) sums[number] = before;
}
