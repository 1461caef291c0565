// The product of two matrices of compressed rows: R[i,k] = sum(j, A[i,j] * B[j,k]).
//
// Rows with few products have a warp each, which lists the products in shared memory and compares all with all.
// The others are left to blocks of threads, which mark the columns that products have as bits in shared memory,
// for as many columns at once as fit: a tile. A first launch counts marks, a second one lists their columns, and
// a third one adds up: the marks before a column tell where its sum is. Either way terms are added in the order
// of A and B: a sum has the same bits at every call.
//
// A first call waits until NVRTC has compiled each function, side by side. Most of that time goes into loops
// that it unrolls without being told, and into 64-bit arithmetic.

struct product {
  const A_INDEX *A_pos, *A_crd;
  const A_TYPE *A_vals;
  const B_INDEX *B_pos, *B_crd;
  const B_TYPE *B_vals;
  i64 rows, tiles, tile;  // of all rows, how many tiles each has, and which of these a launch is for
  i64 width;              // columns of a tile: a multiple of 1024
  i64 room;               // for sums of a row in shared memory
  u64 *left;              // how many rows are left to blocks, and which
  i64 *counts;            // of each tile of each row
  const i64 *R_pos;       // where each tile of each row begins
  R_INDEX *R_crd;
  T *R_vals;
};

// Rows with few products ----------------------------------------------------------------------------------

// List the columns, and products, of a row; return their number, or -1 if there are more than FEW.
static inline int list_products(const struct product x, i64 row, int lane, R_INDEX *columns, T *products) {
  int number = 0;
#pragma unroll 1
  for (A_PLACE p = x.A_pos[row]; p < (A_PLACE)x.A_pos[row + 1]; p++) {
    const A_INDEX j = x.A_crd[p];
    const B_PLACE begin = x.B_pos[j], length = x.B_pos[j + 1] - begin;
    if (length > FEW - number) return -1;
#pragma unroll 1
    for (int q = lane; q < (int)length; q += 32) {
      columns[number + q] = (R_INDEX)x.B_crd[begin + q];
      if (products) products[number + q] = MUL(A_VALUE(x.A_vals[p]), B_VALUE(x.B_vals[begin + q]));
    }
    number += (int)length;
  }
  return number;
}

// Mark, in is_first, the products that are the first of their column; return how many of them a thread has.
static inline int mark_first(int number, int lane, const R_INDEX *columns, u8 *is_first) {
  int found = 0;
#pragma unroll 1
  for (int e = lane; e < number; e += 32) {
    int before = 0;
#pragma unroll 1
    for (int group = 0; group < e; group += AT_ONCE)
#pragma unroll
      for (int other = group; other < group + AT_ONCE; other++)
        before |= (columns[other] == columns[e]) & (other < e);
    is_first[e] = !before;
    found += !before;
  }
  return found;
}

KERNEL void scorch_count_few(const struct product x) {
  STATIC_SHARED R_INDEX columns[WARPS][FEW];
  STATIC_SHARED u8 is_first[WARPS][FEW];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (i64 row = (i64)blockIdx.x * WARPS + warp; row < x.rows; row += (i64)gridDim.x * WARPS) {
    const int number = list_products(x, row, lane, columns[warp], 0);
    SYNC_WARP();
    if (number < 0) {
      if (lane == 0) x.left[1 + atomicAdd(x.left, 1ull)] = (u64)row;
      continue;
    }
    int found = mark_first(number, lane, columns[warp], is_first[warp]);
    for (int step = 16; step; step /= 2) found += EXCHANGE(found, step, 32);
    if (lane == 0) x.counts[row * x.tiles] = found;
    SYNC_WARP();
  }
}

KERNEL void scorch_fill_few(const struct product x) {
  STATIC_SHARED R_INDEX columns[WARPS][FEW];
  STATIC_SHARED u8 is_first[WARPS][FEW];
  STATIC_SHARED T products[WARPS][FEW];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (i64 row = (i64)blockIdx.x * WARPS + warp; row < x.rows; row += (i64)gridDim.x * WARPS) {
    const int number = list_products(x, row, lane, columns[warp], products[warp]);
    SYNC_WARP();
    if (number < 0) continue;
    mark_first(number, lane, columns[warp], is_first[warp]);
    SYNC_WARP();
    const i64 begin = x.R_pos[row * x.tiles];
#pragma unroll 1
    for (int e = lane; e < number; e += 32) {
      if (!is_first[warp][e]) continue;
      const R_INDEX column = columns[warp][e];
      T sum = ZERO;
      int place = 0;
#pragma unroll 1
      for (int group = 0; group < number; group += AT_ONCE)
#pragma unroll
        for (int other = group; other < group + AT_ONCE; other++) {
          if (other >= number) continue;
          place += is_first[warp][other] && columns[warp][other] < column;
          if (columns[warp][other] == column) sum = ADD(sum, products[warp][other]);
        }
      x.R_crd[begin + place] = (R_INDEX)column;
      x.R_vals[begin + place] = sum;
    }
    SYNC_WARP();
  }
}

// Rows with many ------------------------------------------------------------------------------------------

// Mark the columns of a row as bits. A thread reads AT_ONCE of them before it marks the first.
static inline void mark(const struct product x, i64 row, B_INDEX first, u32 *bits, u32 *touched) {
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (A_PLACE p = x.A_pos[row] + warp; p < (A_PLACE)x.A_pos[row + 1]; p += warps) {
    const A_INDEX j = x.A_crd[p];
    const B_PLACE end = x.B_pos[j + 1];
#pragma unroll 1
    for (B_PLACE start = x.B_pos[j] + lane; start < end; start += 32 * AT_ONCE) {
      B_INDEX columns[AT_ONCE];
#pragma unroll
      for (int r = 0; r < AT_ONCE; r++) columns[r] = start + 32 * r < end ? x.B_crd[start + 32 * r] - first : -1;
#pragma unroll 1
      for (B_PLACE q = start; q < end && q < start + 32 * AT_ONCE; q += 32) {
        const B_INDEX column = columns[0];
#pragma unroll
        for (int r = 1; r < AT_ONCE; r++) columns[r - 1] = columns[r];
        if (column < 0 || column >= (B_INDEX)x.width) continue;
        const u32 k = (u32)column, bit = 1u << (k & 31);
        if (bits[k >> 5] & bit) continue;
        atomicOr(bits + (k >> 5), bit);
        atomicOr(touched + (k >> 10), 1u << (k >> 5 & 31));
      }
    }
  }
}

// Return how many marks words have that belong to parts between two, each step-th of them.
static inline u32 count_marks(const u32 *bits, const u32 *touched, int from, int to, int step) {
  u32 number = 0;
#pragma unroll 1
  for (int t = from; t < to; t += step)
#pragma unroll 1
    for (u32 left = touched[t]; left; left &= left - 1)
      number += (u32)__popc((int)bits[t * 32 + __ffs((int)left) - 1]);
  return number;
}

static inline void clear(u32 *bits, u32 *touched, int parts) {
#pragma unroll 1
  for (int t = threadIdx.x; t < parts; t += blockDim.x) {
#pragma unroll 1
    for (u32 left = touched[t]; left; left &= left - 1) bits[t * 32 + __ffs((int)left) - 1] = 0;
    touched[t] = 0;
  }
}

KERNEL void scorch_count_many(const struct product x) {
  SHARED(bits);
  const int words = (int)(x.width >> 5), parts = words >> 5;
  u32 *touched = bits + words, *total = touched + parts;
  const i64 left = (i64)x.left[0];
  if (blockIdx.x >= left) return;
#pragma unroll 1
  for (int t = threadIdx.x; t < words + parts + 1; t += blockDim.x) bits[t] = 0;
  __syncthreads();
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = (i64)x.left[1 + number];
    mark(x, row, (B_INDEX)(x.tile * x.width), bits, touched);
    __syncthreads();
    const u32 found = count_marks(bits, touched, threadIdx.x, parts, THREADS);
    if (found) atomicAdd(total, found);
    __syncthreads();
    if (threadIdx.x == 0) {
      x.counts[row * x.tiles + x.tile] = *total;
      *total = 0;
    }
    clear(bits, touched, parts);
    __syncthreads();
  }
}

// List the columns of a row in order. A thread lists those of some words, behind those of all threads before it.
KERNEL void scorch_list_many(const struct product x) {
  SHARED(bits);
  const int words = (int)(x.width >> 5), parts = words >> 5;
  u32 *touched = bits + words, *sums = touched + parts;
  const i64 left = (i64)x.left[0], first = x.tile * x.width;
  if (blockIdx.x >= left) return;
#pragma unroll 1
  for (int t = threadIdx.x; t < words + parts; t += blockDim.x) bits[t] = 0;
  __syncthreads();
  const int each = (parts + THREADS - 1) / THREADS, from = threadIdx.x * each;
  const int to = from + each < parts ? from + each : parts;
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = (i64)x.left[1 + number];
    mark(x, row, (B_INDEX)first, bits, touched);
    __syncthreads();
    const u32 found = count_marks(bits, touched, from, to, 1);
    sums[threadIdx.x] = found;
    __syncthreads();
#pragma unroll 1
    for (int step = 1; step < THREADS; step *= 2) {
      const u32 lower = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
      __syncthreads();
      sums[threadIdx.x] += lower;
      __syncthreads();
    }
    R_INDEX *column = x.R_crd + x.R_pos[row * x.tiles + x.tile] + (sums[threadIdx.x] - found);
#pragma unroll 1
    for (int t = from; t < to; t++)
#pragma unroll 1
      for (u32 some = touched[t]; some; some &= some - 1) {
        const int word = t * 32 + __ffs((int)some) - 1;
#pragma unroll 1
        for (u32 marks = bits[word]; marks; marks &= marks - 1)
          *column++ = (R_INDEX)(first + word * 32 + __ffs((int)marks) - 1);
      }
    __syncthreads();
    clear(bits, touched, parts);
    __syncthreads();
  }
}

struct marks {
  B_INDEX first, width;    // columns of the tile
  const u32 *bits, *before_part;
  const u16 *before_word;  // how many marks are before each word, their last 16 bits
};

// Add a term to the sum of its column.
static inline void add_term(const struct marks *m, T *sums, B_INDEX column, T term) {
  const B_INDEX k = column - m->first;
  if (k < 0 || k >= m->width) return;
  const u32 word = (u32)k >> 5, before = m->before_part[word >> 5];
  const u32 lower = (u32)__popc((int)(m->bits[word] & ((1u << (k & 31)) - 1)));
  T *sum = sums + before + (u16)(m->before_word[word] - before) + lower;
  *sum = ADD(*sum, term);
}

// Add up the products of a row, one entry of A after the other. Threads read where the rows of B begin for many
// entries at once, and columns and values for AHEAD of them.
static inline void add_products(const struct product x, i64 row, const struct marks *m, T *sums) {
  STATIC_SHARED B_PLACE begins[THREADS], ends[THREADS];
  STATIC_SHARED T factors[THREADS];
  const A_PLACE begin = x.A_pos[row], length = x.A_pos[row + 1] - begin;
#pragma unroll 1
  for (A_PLACE start = 0; start < length; start += THREADS) {
    const int entries = length - start < THREADS ? (int)(length - start) : THREADS;
    begins[threadIdx.x] = ends[threadIdx.x] = 0;
    if (threadIdx.x < entries) {
      const A_PLACE p = begin + start + threadIdx.x;
      const A_INDEX j = x.A_crd[p];
      begins[threadIdx.x] = x.B_pos[j], ends[threadIdx.x] = x.B_pos[j + 1];
      factors[threadIdx.x] = A_VALUE(x.A_vals[p]);
    }
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < entries; first += AHEAD) {
      B_INDEX columns[AHEAD];
      T terms[AHEAD];
#pragma unroll
      for (int r = 0; r < AHEAD; r++) {
        const B_PLACE q = begins[first + r] + threadIdx.x;
        columns[r] = -1;
        if (q >= ends[first + r]) continue;
        columns[r] = x.B_crd[q], terms[r] = MUL(factors[first + r], B_VALUE(x.B_vals[q]));
      }
#pragma unroll 1
      for (int e = first; e < entries && e < first + AHEAD; e++) {
#pragma unroll 1
        for (B_PLACE q = begins[e] + threadIdx.x; columns[0] >= 0;) {
          add_term(m, sums, columns[0], terms[0]);
          columns[0] = -1, q += THREADS;
          if (q < ends[e]) columns[0] = x.B_crd[q], terms[0] = MUL(factors[e], B_VALUE(x.B_vals[q]));
        }
#pragma unroll
        for (int r = 1; r < AHEAD; r++) columns[r - 1] = columns[r], terms[r - 1] = terms[r];
        __syncthreads();
      }
    }
  }
}

KERNEL void scorch_add_many(const struct product x) {
  SHARED(memory);
  T *own_sums = (T *)memory;
  u32 *bits = (u32 *)(own_sums + x.room);
  const int words = (int)(x.width >> 5);
  u32 *before_part = bits + words;
  u16 *before_word = (u16 *)(before_part + (words >> 5));
  const i64 left = (i64)x.left[0], first = x.tile * x.width;
  if (blockIdx.x >= left) return;
#pragma unroll 1
  for (int t = threadIdx.x; t < words; t += blockDim.x) bits[t] = 0;
  __syncthreads();
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = (i64)x.left[1 + number], begin = x.R_pos[row * x.tiles + x.tile];
    const int columns = (int)(x.R_pos[row * x.tiles + x.tile + 1] - begin);
    const R_INDEX *listed = x.R_crd + begin;
    const struct marks marks = {(B_INDEX)first, (B_INDEX)x.width, bits, before_part, before_word};
    T *sums = columns <= x.room ? own_sums : x.R_vals + begin;
#pragma unroll 1
    for (int at = threadIdx.x; at < columns; at += blockDim.x) {
      const int k = (int)(listed[at] - first), last = at ? (int)(listed[at - 1] - first) : -1;
      atomicOr(bits + (k >> 5), 1u << (k & 31));
      if (k >> 5 != last >> 5) before_word[k >> 5] = (u16)at;
      if (k >> 10 != last >> 10) before_part[k >> 10] = at;
      sums[at] = ZERO;
    }
    __syncthreads();
    add_products(x, row, &marks, sums);
#pragma unroll 1
    for (int at = threadIdx.x; at < columns; at += blockDim.x) {
      if (sums == own_sums) x.R_vals[begin + at] = own_sums[at];
      bits[(int)(listed[at] - first) >> 5] = 0;
    }
    __syncthreads();
  }
}
