// The product of two matrices of compressed rows: R[i,k] = sum(j, A[i,j] * B[j,k]).
//
// Rows with few products have a warp each, which lists the products in shared memory and compares all with all.
// The others are left to blocks of threads, which mark the columns that products have as bits in shared memory,
// for as many columns at once as fit, and count marks up to give each product its place. Either way a first
// launch counts and a second one fills, and terms are added in the order of A and B: a sum has the same bits at
// every call.

struct product {
  const A_INDEX *A_pos, *A_crd;
  const A_TYPE *A_vals;
  const B_INDEX *B_pos, *B_crd;
  const B_TYPE *B_vals;
  i64 rows, tiles, width;  // columns of a tile: a multiple of 1024
  i64 room;                // for sums of a row in shared memory
  u64 *left;               // how many rows are left to blocks, and which
  i64 *counts;             // of each tile of each row
  const i64 *R_pos;        // where each tile of each row begins
  R_INDEX *R_crd;
  T *R_vals;
};

// Rows with few products ----------------------------------------------------------------------------------

// List the columns, and products, of a row; return their number, or -1 if there are more than FEW.
static inline int list_products(const struct product x, i64 row, int lane, R_INDEX *columns, T *products) {
  int number = 0;
  for (i64 p = x.A_pos[row]; p < x.A_pos[row + 1]; p++) {
    const i64 j = x.A_crd[p], begin = x.B_pos[j], length = x.B_pos[j + 1] - begin;
    if (length > FEW - number) return -1;
    for (i64 q = lane; q < length; q += 32) {
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
  for (int e = lane; e < number; e += 32) {
    int before = 0;
    for (int other = 0; other < e; other++) before |= columns[other] == columns[e];
    is_first[e] = !before;
    found += !before;
  }
  return found;
}

KERNEL void scorch_count_few(const struct product x) {
  STATIC_SHARED R_INDEX columns[WARPS][FEW];
  STATIC_SHARED u8 is_first[WARPS][FEW];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
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
  for (i64 row = (i64)blockIdx.x * WARPS + warp; row < x.rows; row += (i64)gridDim.x * WARPS) {
    const int number = list_products(x, row, lane, columns[warp], products[warp]);
    SYNC_WARP();
    if (number < 0) continue;
    mark_first(number, lane, columns[warp], is_first[warp]);
    SYNC_WARP();
    const i64 begin = x.R_pos[row * x.tiles];
    for (int e = lane; e < number; e += 32) {
      if (!is_first[warp][e]) continue;
      const R_INDEX column = columns[warp][e];
      T sum = ZERO;
      int place = 0;
      for (int other = 0; other < number; other++) {
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

static inline void mark(const struct product x, i64 row, i64 first, u32 *bits, u32 *touched) {
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  for (i64 p = x.A_pos[row] + warp; p < x.A_pos[row + 1]; p += warps) {
    const i64 j = x.A_crd[p];
    for (i64 q = x.B_pos[j] + lane; q < x.B_pos[j + 1]; q += 32) {
      const i64 k = x.B_crd[q] - first;
      if (k < 0 || k >= x.width) continue;
      const u32 bit = 1u << (k & 31);
      if (bits[k >> 5] & bit) continue;
      atomicOr(bits + (k >> 5), bit);
      atomicOr(touched + (k >> 10), 1u << (k >> 5 & 31));
    }
  }
}

static inline void clear(u32 *bits, u32 *touched, int parts) {
  for (int t = threadIdx.x; t < parts; t += blockDim.x) {
    for (u32 left = touched[t]; left; left &= left - 1) bits[t * 32 + __ffs((int)left) - 1] = 0;
    touched[t] = 0;
  }
}

KERNEL void scorch_count_many(const struct product x) {
  SHARED(bits);
  const int words = (int)(x.width / 32), parts = words / 32;
  u32 *touched = bits + words, *total = touched + parts;
  for (int t = threadIdx.x; t < words + parts + 1; t += blockDim.x) bits[t] = 0;
  __syncthreads();
  const i64 turns = (i64)x.left[0] * x.tiles;
  for (i64 turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const i64 row = (i64)x.left[1 + turn / x.tiles], tile = turn % x.tiles;
    mark(x, row, tile * x.width, bits, touched);
    __syncthreads();
    u32 number = 0;
    for (int t = threadIdx.x; t < parts; t += blockDim.x)
      for (u32 left = touched[t]; left; left &= left - 1)
        number += (u32)__popc((int)bits[t * 32 + __ffs((int)left) - 1]);
    if (number) atomicAdd(total, number);
    __syncthreads();
    if (threadIdx.x == 0) {
      x.counts[row * x.tiles + tile] = *total;
      *total = 0;
    }
    clear(bits, touched, parts);
    __syncthreads();
  }
}

struct marks {
  i64 first, width;        // columns of the tile
  const u32 *bits, *before_part;
  const u16 *before_word;  // marks before each word, in its part
};

// Add a term to the sum of its column.
static inline void add_term(const struct marks *m, T *sums, i64 column, T term) {
  const i64 k = column - m->first;
  if (k < 0 || k >= m->width) return;
  const int word = (int)(k >> 5);
  const u32 lower = (u32)__popc((int)(m->bits[word] & ((1u << (k & 31)) - 1)));
  T *sum = sums + m->before_part[word / 32] + m->before_word[word] + lower;
  *sum = ADD(*sum, term);
}

// Add up the products of a row, one entry of A after the other. Threads read where the rows of B begin for many
// entries at once, and columns and values for AHEAD of them.
static inline void add_products(const struct product x, i64 row, const struct marks *m, T *sums) {
  STATIC_SHARED B_INDEX begins[32 * WARPS], ends[32 * WARPS];
  STATIC_SHARED T factors[32 * WARPS];
  const i64 end = x.A_pos[row + 1];
  for (i64 start = x.A_pos[row]; start < end; start += blockDim.x) {
    const int entries = (int)(end - start < blockDim.x ? end - start : blockDim.x);
    if (threadIdx.x < entries) {
      const i64 j = x.A_crd[start + threadIdx.x];
      begins[threadIdx.x] = x.B_pos[j], ends[threadIdx.x] = x.B_pos[j + 1];
      factors[threadIdx.x] = A_VALUE(x.A_vals[start + threadIdx.x]);
    }
    __syncthreads();
    for (int first = 0; first < entries; first += AHEAD) {
      B_INDEX columns[AHEAD];
      T terms[AHEAD];
#pragma unroll
      for (int r = 0; r < AHEAD; r++) {
        const i64 q = first + r < entries ? begins[first + r] + (i64)threadIdx.x : 0;
        columns[r] = -1;
        if (first + r >= entries || q >= ends[first + r]) continue;
        columns[r] = x.B_crd[q], terms[r] = MUL(factors[first + r], B_VALUE(x.B_vals[q]));
      }
#pragma unroll
      for (int r = 0; r < AHEAD; r++) {
        if (first + r >= entries) continue;
        if (columns[r] >= 0) add_term(m, sums, columns[r], terms[r]);
        for (i64 q = begins[first + r] + (i64)threadIdx.x + blockDim.x; q < ends[first + r]; q += blockDim.x)
          add_term(m, sums, x.B_crd[q], MUL(factors[first + r], B_VALUE(x.B_vals[q])));
        __syncthreads();
      }
    }
  }
}

KERNEL void scorch_fill_many(const struct product x) {
  SHARED(memory);
  T *own_sums = (T *)memory;
  u32 *bits = (u32 *)(own_sums + x.room);
  const int words = (int)(x.width / 32), parts = words / 32;
  u32 *touched = bits + words, *before_part = touched + parts, *sums = before_part + parts;
  u16 *before_word = (u16 *)(sums + blockDim.x);
  for (int t = threadIdx.x; t < words + parts; t += blockDim.x) bits[t] = 0;
  __syncthreads();
  const i64 turns = (i64)x.left[0] * x.tiles;
  for (i64 turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const i64 row = (i64)x.left[1 + turn / x.tiles], tile = turn % x.tiles, first = tile * x.width;
    const i64 begin = x.R_pos[row * x.tiles + tile], number_of_sums = x.R_pos[row * x.tiles + tile + 1] - begin;
    const struct marks marks = {first, x.width, bits, before_part, before_word};
    T *sums_of_row = number_of_sums <= x.room ? own_sums : x.R_vals + begin;
    mark(x, row, first, bits, touched);
    __syncthreads();
    const int each = (parts + blockDim.x - 1) / blockDim.x, from = threadIdx.x * each;
    const int to = from + each < parts ? from + each : parts;
    u32 number = 0;
    for (int t = from; t < to; t++) {
      before_part[t] = number;
      const u32 start = number;
      for (u32 left = touched[t]; left; left &= left - 1) {
        const int word = t * 32 + __ffs((int)left) - 1;
        before_word[word] = (u16)(number - start);
        number += (u32)__popc((int)bits[word]);
      }
    }
    sums[threadIdx.x] = number;
    __syncthreads();
    for (int step = 1; step < blockDim.x; step *= 2) {
      const u32 lower = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
      __syncthreads();
      sums[threadIdx.x] += lower;
      __syncthreads();
    }
    const u32 offset = sums[threadIdx.x] - number;
    for (int t = from; t < to; t++) {
      i64 place = before_part[t] += offset;
      for (u32 some = touched[t]; some; some &= some - 1) {
        const int word = t * 32 + __ffs((int)some) - 1;
        for (u32 left = bits[word]; left; left &= left - 1, place++) {
          x.R_crd[begin + place] = (R_INDEX)(first + word * 32 + __ffs((int)left) - 1);
          sums_of_row[place] = ZERO;
        }
      }
    }
    __syncthreads();
    add_products(x, row, &marks, sums_of_row);
    if (sums_of_row == own_sums)
      for (i64 at = threadIdx.x; at < number_of_sums; at += blockDim.x) x.R_vals[begin + at] = own_sums[at];
    clear(bits, touched, parts);
    __syncthreads();
  }
}
