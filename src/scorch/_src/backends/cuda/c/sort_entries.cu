// Entries in any order, of which some may stand for one place, sorted (``coalesce.cu`` lists the places).
//
// What is sorted are numbers: the coordinates of an entry, the first one highest, above the entry's own position.
// No two are equal, so that there is one order, in whatever order threads come. It is a sample sort (Frazer and
// McKellar, 1970): a sample, sorted, gives splitters; each number goes to the bucket between two of them, and a
// block sorts each bucket. A splitter is the least number of its bucket.

enum { REFUSED, UNSORTED, SPREAD_DONE, SORT_DONE, STATES = 8 };  // behind them come the counts of buckets

struct slots {
  const COLUMN *columns[DIMS];
  i64 sizes[DIMS], shifts[DIMS];  // where the bits of a coordinate begin
  i64 entries;                    // numbers that are sorted
  i64 bits;                       // those of an entry's position
  const u64 *source;              // the numbers; 0 where they are made of coordinates
  u64 *sample;                    // some of them, where blocks do not draw it themselves
  i64 samples, spacing;           // entries for each of them, in 2^-32
  i64 buckets, capacity;
  u64 *splitters;                 // of each bucket, those between left out
  i64 stride;                     // from one splitter to the next
  i64 half, shift;                // half of a power of two from the buckets on; a block keeps a splitter in 2^shift
  u32 *state;
  const u32 *before;              // the state of the sort of the sample, which may be refused; 0 where there is none
  u32 *begins;                    // of each bucket in the order
  u32 *places;                    // the number of the place of each bucket's first entry
  u64 *spread;                    // the numbers in buckets, each with room for capacity
  u64 *sorted;
  i64 *told;                      // for the host: the number of places, 0 if sorted, or IS_REFUSED; 0 for a sample
  INDEX *crd[DIMS];               // of each place
  INDEX *pos;                     // where the list of places begins and ends
  i64 *first, *order;             // where each place begins in the order, and the order; 0 where nobody asks
  const T *values;
  T *sums;                        // 0 where others add up
};

// numbers -----------------------------------------------------------------------------------------------------

static inline u64 number_of(const struct slots a, i64 entry, int *is_outside) {
  if (a.source) return a.source[entry];
  u64 number = (u64)entry;
#pragma unroll
  for (int dim = 0; dim < DIMS; dim++) {
    const i64 coordinate = a.columns[dim][entry];
    *is_outside |= (u64)coordinate >= (u64)a.sizes[dim];
    number |= (u64)coordinate << a.shifts[dim];
  }
  return number;
}

static inline void note(u32 *flag) {
  if (!*flag) *flag = 1;
}

static inline u64 splitter(const struct slots a, i64 bucket) {
  return a.splitters[bucket * a.stride];
}

// A number of each part of the source, at a place that looks random: numbers may come in any order.
static inline u64 draw(const struct slots a, u64 number) {
  const u64 begin = number * (u64)a.spacing >> 32, width = (u64)a.spacing >> 32;
  u32 hash = (u32)number * 2654435761u;
  hash = (hash ^ hash >> 15) * 2246822519u;
  int is_outside = 0;
  return number_of(a, (i64)(begin + ((hash ^ hash >> 13) * width >> 32)), &is_outside);
}

// buckets ----------------------------------------------------------------------------------------------------

static inline u32 count_of(const struct slots a, i64 bucket) {
  return a.state[STATES + bucket * APART];
}

// Of a number for each bucket, ``stride`` apart, the sum over buckets before this one that are a thread's.
static inline u32 part_before(const u32 *numbers, i64 stride, u32 bucket) {
  u32 before = 0;
  for (u32 at = threadIdx.x; at < bucket; at += blockDim.x) before += numbers[at * stride];
  return before;
}

// splitters ---------------------------------------------------------------------------------------------------

static inline void clear(const struct slots a) {
#pragma unroll 1
  for (i64 at = FIRST_UNIT(1); at < STATES + a.buckets * APART; at += UNITS(1)) a.state[at] = 0;
}

// Draw a sample that is sorted itself, or too large for each block to draw it.
KERNEL void scorch_sample(const struct slots a) {
  clear(a);
  for (i64 at = FIRST_UNIT(1); at < a.samples; at += UNITS(1)) a.sample[at] = draw(a, at);
}

// Each block has the sample; each warp counts how many of it are below some of it.
KERNEL void scorch_rank(const struct slots a) {
  SHARED(memory);
  u64 *sample = (u64 *)memory;
  const u32 samples = (u32)a.samples, lane = threadIdx.x % 32, each = blockDim.x / 32 * RANKED;
  clear(a);
  if (samples > MAX_DRAWN) {
#pragma unroll 4
    for (u32 at = threadIdx.x; at < samples; at += blockDim.x) sample[at] = a.sample[at];
  } else
    for (u32 at = threadIdx.x; at < samples; at += blockDim.x) sample[at] = draw(a, at);
  __syncthreads();
  EACH_BLOCK(turn, (samples + each - 1) / each) {
    const u32 first = turn * each + threadIdx.x / 32 * RANKED;
    u64 own[RANKED];
    u32 ranks[RANKED];
#pragma unroll
    for (int r = 0; r < RANKED; r++) own[r] = first + r < samples ? sample[first + r] : 0, ranks[r] = 0;
#pragma unroll 4
    for (u32 at = lane; at < samples; at += 32) {
      const u64 other = sample[at];
#pragma unroll
      for (int r = 0; r < RANKED; r++) ranks[r] += other < own[r];
    }
#pragma unroll
    for (int r = 0; r < RANKED; r++) {
      const u32 rank = sum_of_warp(ranks[r]);
      const int is_splitter = first + r < samples && rank % OVERSAMPLING == 0;
      if (lane == 0 && is_splitter) a.splitters[rank / OVERSAMPLING] = own[r];
    }
  }
}

// buckets -----------------------------------------------------------------------------------------------------

// Read the splitters that a block keeps; behind them there is nothing below a number.
static inline void keep_splitters(const struct slots a, u64 *kept) {
  for (i64 at = threadIdx.x; at < 2 * (a.half >> a.shift); at += blockDim.x)
    kept[at] = at << a.shift < a.buckets ? splitter(a, at << a.shift) : ~0ull;
}

static inline void find_buckets(const struct slots a, const u64 *kept, const u64 *numbers, u32 *buckets) {
  const u32 last = (u32)(a.buckets - 1 >> a.shift);
#pragma unroll
  for (int r = 0; r < SPREAD; r++) buckets[r] = 0;
  for (u32 half = (u32)(a.half >> a.shift); half; half /= 2)
#pragma unroll
    for (int r = 0; r < SPREAD; r++)
      if (kept[buckets[r] + half] <= numbers[r]) buckets[r] += half;
#pragma unroll
  for (int r = 0; r < SPREAD; r++) {
    buckets[r] = (buckets[r] < last ? buckets[r] : last) << a.shift;
    for (u32 half = 1u << a.shift >> 1; half; half /= 2)
      if (buckets[r] + half < a.buckets && splitter(a, buckets[r] + half) <= numbers[r]) buckets[r] += half;
  }
}

// Reserve places in buckets for the numbers of a block: threads count together before they add to what all share,
// unless buckets are too many.
static inline void reserve(
    const struct slots a, int are_many, u32 *counted, const u32 *buckets, u32 *places, u32 number) {
  u32 *counts = a.state + STATES;
  if (are_many) {
#pragma unroll
    for (int r = 0; r < SPREAD; r++)
      if (r < number) places[r] = atomicAdd(counts + buckets[r] * APART, 1u);
    return;
  }
  for (u32 at = threadIdx.x; at < a.buckets; at += blockDim.x) counted[at] = 0;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < SPREAD; r++)
    if (r < number) places[r] = atomicAdd(counted + buckets[r], 1u);
  __syncthreads();
  for (u32 at = threadIdx.x; at < a.buckets; at += blockDim.x)
    if (counted[at]) counted[at] = atomicAdd(counts + at * APART, counted[at]);
  __syncthreads();
#pragma unroll
  for (int r = 0; r < SPREAD; r++)
    if (r < number) places[r] += counted[buckets[r]];
  __syncthreads();
}

static inline void spread(const struct slots a, int are_many) {
  STATIC_SHARED u32 counted[MAX_COUNTED];
  SHARED(memory);
  u64 *kept = (u64 *)memory;
  keep_splitters(a, kept);
  __syncthreads();
  const i64 each = SPREAD * (i64)blockDim.x;
  int is_outside = a.before && a.before[REFUSED], is_unsorted = a.source != 0;
  for (i64 start = blockIdx.x * each; start < a.entries; start += gridDim.x * each) {
    u64 numbers[SPREAD];
    u32 buckets[SPREAD], places[SPREAD], number = 0;
#pragma unroll
    for (int r = 0; r < SPREAD; r++) {
      const i64 entry = start + r * (i64)blockDim.x + threadIdx.x;
      numbers[r] = 0;
      if (entry >= a.entries) continue;
      numbers[r] = number_of(a, entry, &is_outside), number = r + 1;
      const u64 before = a.source || !entry ? 0 : number_of(a, entry - 1, &is_outside);
      if (entry && before >> a.bits >= numbers[r] >> a.bits) is_unsorted = 1;
    }
    find_buckets(a, kept, numbers, buckets);
    reserve(a, are_many, counted, buckets, places, number);
#pragma unroll
    for (int r = 0; r < SPREAD; r++) {
      if (r >= number) continue;
      if (places[r] < a.capacity) a.spread[buckets[r] * a.capacity + places[r]] = numbers[r];
      else is_outside = 1;
    }
  }
  if (is_outside) note(a.state + REFUSED);
  if (is_unsorted) note(a.state + UNSORTED);
  if (are_many && is_last(a.state + SPREAD_DONE)) add_up(a.state + STATES, APART, a.begins, a.buckets);
}

KERNEL void scorch_spread(const struct slots a) {
  spread(a, 0);
}

KERNEL void scorch_spread_many(const struct slots a) {
  spread(a, 1);
}

#define SHARED_AT(i) shared[(i) + (i) / EACH]  // so that threads of a warp need few numbers of one bank

static inline void put_in_order(u64 *low, u64 *high) {
  const u64 one = *low, other = *high;
  const int is_wrong = other < one;
  *low = is_wrong ? other : one, *high = is_wrong ? one : other;
}

// Sort the numbers of a thread by the network of an odd-even merge sort (Batcher, 1968): 19 comparisons of eight.
static inline void sort_own(u64 *own) {
#pragma unroll
  for (int run = 1; run < EACH; run *= 2)
#pragma unroll
    for (int step = run; step; step /= 2)
#pragma unroll
      for (int r = step % run; r < EACH - step; r++) {
        const int is_second = (r - step % run) / step % 2, is_last = r / (2 * run) != (r + step) / (2 * run);
        if (!is_second && !is_last) put_in_order(own + r, own + r + step);
      }
}

// Return how many of the first numbers that two sorted runs have together, ``ahead``, are from the first run.
static inline u32 split(const u64 *shared, u32 one, u32 length, u32 other, u32 other_length, u32 ahead) {
  u32 low = ahead > other_length ? ahead - other_length : 0, high = ahead < length ? ahead : length;
  while (low < high) {
    const u32 middle = (low + high) / 2;
    if (SHARED_AT(one + middle) < SHARED_AT(other + ahead - 1 - middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Wait for the threads that have runs in common: those of a warp, or of the block.
static inline void wait_for(u32 run) {
  if (run < 32 * EACH) SYNC_WARP();
  else __syncthreads();
}

// A merge sort of as many numbers, of which each thread has EACH that follow each other: two runs become one, and
// a thread finds the part of both that is its own (Odeh et al., 2012: merge path).
static inline void sort(u64 *own, u64 *shared, u32 number) {
  const u32 first = threadIdx.x * EACH;
  sort_own(own);
  for (u32 run = EACH; run < number; run *= 2) {
    wait_for(run / 2);
    if (first < number)
#pragma unroll
      for (int r = 0; r < EACH; r++) SHARED_AT(first + r) = own[r];
    wait_for(run);
    if (first >= number) continue;
    const u32 one = first & ~(2 * run - 1), other = one + run < number ? one + run : number;
    const u32 end = other + run < number ? other + run : number, ahead = first - one;
    u32 at = split(shared, one, other - one, other, end - other, ahead), next = other + ahead - at;
    at += one;
    u64 here = at < other ? SHARED_AT(at) : ~0ull, there = next < end ? SHARED_AT(next) : ~0ull;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
      const int is_here = here < there;
      own[r] = is_here ? here : there;
      const u32 following = (is_here ? at : next) + 1, last = is_here ? other : end;
      const u64 found = following < last ? SHARED_AT(following) : ~0ull;
      if (is_here) at = following, here = found;
      else next = following, there = found;
    }
  }
}

static inline void tell(const struct slots a, u32 is_refused, u32 is_unsorted, u32 places) {
  if (a.told) *a.told = is_refused ? IS_REFUSED : is_unsorted ? (i64)places : 0;
}

// So many blocks with so many threads run on a multiprocessor at once; from sm_100 on registers would spill.
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ < 1000
#define LIMITS(threads, blocks) __launch_bounds__(threads, blocks)
#else
#define LIMITS(threads, blocks)
#endif

static inline void sort_buckets(const struct slots a, int are_many) {
  SHARED(memory);
  u64 *shared = (u64 *)memory;
  if (a.state[REFUSED] || !a.state[UNSORTED]) {
    if (FIRST_UNIT(1) == 0) tell(a, a.state[REFUSED], 0, 0);
    return;
  }
  EACH_BLOCK(bucket, a.buckets) {
    const u32 count = count_of(a, bucket);
    const u32 before = are_many ? a.begins[bucket] : part_before(a.state + STATES, APART, bucket);
    const u64 *given = a.spread + bucket * a.capacity;
    for (u32 at = threadIdx.x; at < count; at += blockDim.x) SHARED_AT(at) = given[at];
    __syncthreads();
    u64 own[EACH];
#pragma unroll
    for (u32 r = 0; r < EACH; r++) own[r] = threadIdx.x * EACH + r < count ? SHARED_AT(threadIdx.x * EACH + r) : ~0ull;
    sort(own, shared, count);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < EACH; r++) SHARED_AT(threadIdx.x * EACH + r) = own[r];
    u32 begin = before;
    if (are_many) __syncthreads();
    else begin = sum_of_block(before);
    const int has_next = bucket + 1 < a.buckets;
    const u64 next_bucket = has_next ? splitter(a, bucket + 1) : 0;
    u32 starts = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
      const u64 here = SHARED_AT(i);
      a.sorted[begin + i] = here;
      const u64 next = i + 1 < count ? SHARED_AT(i + 1) : has_next ? next_bucket : here;
      starts += next >> a.bits != here >> a.bits;
    }
    starts = sum_of_block(starts);
    if (threadIdx.x == 0) {
      a.begins[bucket] = begin;
      a.places[bucket] = starts;  // those that begin behind its first entry, the next bucket's too
    }
  }
  if (!is_last(a.state + SORT_DONE)) return;
  if (are_many) add_up(a.places, 1, a.places, a.buckets);
  const u32 all = are_many ? a.places[a.buckets] : sum_of_block(part_before(a.places, 1, (u32)a.buckets));
  if (threadIdx.x == 0) {
    a.places[a.buckets] = all;
    tell(a, 0, 1, all + 1);
  }
}

KERNEL void LIMITS(1024, 2) scorch_sort(const struct slots a) {
  sort_buckets(a, 0);
}

KERNEL void LIMITS(1024, 2) scorch_sort_many(const struct slots a) {
  sort_buckets(a, 1);
}
