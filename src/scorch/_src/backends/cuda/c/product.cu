// The product of two matrices of compressed rows: R[i,k] = sum(j, A[i,j] * B[j,k]).
//
// Threads number the products of a row, in the order of A and B. Rows with few products have a warp each, which
// counts their columns by a hash table in shared memory, and then sorts them by column and number. The others are
// left to blocks of threads, in bins. Where there are far more columns than a row has products, a block does the
// same. The blocks of all other rows
// mark the columns of products as bits in shared memory, for as many columns at once as fit: a tile. One launch
// counts marks, one lists their columns, and one adds up: the marks before a column tell where its sum is. Long
// rows have several blocks, each for some of the columns.
//
// Terms are added in the order of A and B: a sum has the same bits at every call.
//
// A first call waits until NVRTC has compiled each function, side by side. Most of that time goes into loops
// that it unrolls without being told, and into 64-bit arithmetic.

struct product {
  const A_INDEX *A_pos, *A_crd;
  const A_TYPE *A_vals;
  const B_INDEX *B_pos, *B_crd;
  const B_TYPE *B_vals;
  i64 rows, tiles, tile;  // of all rows, how many tiles each has, and which of these a launch is for
  i64 width;              // columns of a tile, or of a block for a long row: a multiple of 1024
  i64 room;               // for sums of a row in shared memory
  i64 most;               // products of a row that a block sorts
  i64 bin;                // which of the rows that are left to blocks a launch is for
  u64 *left;              // how many rows of each bin there are
  u32 *left_rows;         // which: room for all rows in each bin
  i64 cuts;               // blocks of a long row
  u32 *cut_counts;        // how many columns each has
  i64 *counts;            // of each tile of each row
  const i64 *R_pos;       // where each tile of each row begins
  R_INDEX *R_crd;
  T *R_vals;
};

// Products by their numbers --------------------------------------------------------------------------------

// Products of as many entries of A as there are threads, in shared memory.
struct numbered {
  T *factors;
  B_PLACE *begins;  // where the row of B begins that an entry meets, or what of it counts
  B_PLACE *before;  // how many products are before those of an entry
  B_PLACE *totals;  // how many those of each warp are
};

static inline struct numbered numbered_in(void *memory, u32 threads) {
  T *factors = (T *)memory;
  B_PLACE *begins = (B_PLACE *)(factors + threads);
  const struct numbered n = {factors, begins, begins + threads, begins + 2 * threads};
  return n;
}

static inline void *behind(struct numbered n) { return n.totals + 32; }

static inline void sync(u32 threads) {
  if (threads == 32)
    SYNC_WARP();
  else
    __syncthreads();
}

// Return how many there are in the threads of a warp before this one, and make ``number`` how many in all.
static inline B_PLACE count_before(B_PLACE *number) {
  B_PLACE before = 0;
#pragma unroll 1
  for (int step = 1; step < 32; step *= 2) {
    const B_PLACE other = EXCHANGE(*number, step, 32);
    if (threadIdx.x & step) before += other;
    *number += other;
  }
  return before;
}

// Return the first place of a sorted row of B from which on columns are no smaller than one.
static inline B_PLACE first_from(const struct product x, B_PLACE begin, B_PLACE end, i64 column) {
#pragma unroll 1
  while (begin < end) {
    const B_PLACE middle = begin + (end - begin) / 2;
    if (x.B_crd[middle] < column)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

// Number the products of some entries of A, from one on, that are in columns from ``first`` on, if not all count;
// return how many they are. Each thread has an entry; nobody needs the last ones.
static inline B_PLACE number_products(
  const struct product x, A_PLACE start, A_PLACE end, struct numbered n, u32 own, u32 threads, i64 first
) {
  B_PLACE length = 0;
  if (end - start > own) {
    const A_INDEX j = x.A_crd[start + own];
    B_PLACE begin = x.B_pos[j], last = x.B_pos[j + 1];
    if (first >= 0) {
      begin = first_from(x, begin, last, first);
      last = first_from(x, begin, last, first + x.width);
    }
    length = last - begin;
    n.begins[own] = begin, n.factors[own] = A_VALUE(x.A_vals[start + own]);
  }
  B_PLACE number = length, before = count_before(&number);
  if (threads > 32) {
    if (own % 32 == 0) n.totals[own / 32] = number;
    __syncthreads();
    number = 0;
#pragma unroll 1
    for (u32 warp = 0; warp < threads / 32; warp++) {
      if (warp == own / 32) before += number;
      number += n.totals[warp];
    }
  }
  n.before[own] = before;
  sync(threads);
  return number;
}

// Return the entry that a product is of: the last one that has no more before it.
static inline u32 entry_of(struct numbered n, B_PLACE product, u32 threads) {
  u32 entry = 0;
#pragma unroll 1
  for (u32 step = threads / 2; step; step /= 2)
    if (n.before[entry + step] <= product) entry += step;
  return entry;
}

// Where a product is in B.
#define PLACE_OF(n, product, entry) (n.begins[entry] + ((product) - n.before[entry]))

// Columns in a hash table ---------------------------------------------------------------------------------

#define EMPTY ((R_KEY)-1)

// Insert a column into a table; return whether it is a new one.
static inline int insert(R_KEY *keys, u32 mask, R_KEY column) {
  u32 slot = (u32)column * 0x9e3779b9u;
  slot ^= slot >> 15;
#pragma unroll 1
  for (;; slot++) {
    R_KEY seen = keys[slot & mask];
    if (seen == EMPTY) seen = atomicCAS(keys + (slot & mask), EMPTY, column);
    if (seen == EMPTY) return 1;
    if (seen == column) return 0;
  }
}

static inline void clear_table(R_KEY *keys, u32 size, u32 own, u32 threads) {
#pragma unroll 1
  for (u32 t = own; t < size; t += threads) keys[t] = EMPTY;
}

// Insert the columns of a row into an empty table; return how many new ones a thread has found. There are -1 if
// more than ``most`` products are in the row.
static inline int insert_columns(
  const struct product x, i64 row, struct numbered n, u32 own, u32 threads, u32 most, R_KEY *keys
) {
  const A_PLACE end = x.A_pos[row + 1];
  u32 number = 0;
  int found = 0;
#pragma unroll 1
  for (A_PLACE start = x.A_pos[row]; start < end; start += threads) {
    const B_PLACE more = number_products(x, start, end, n, own, threads, -1);
    if (more > most - number) return -1;
#pragma unroll 1
    for (u32 product = own; product < (u32)more; product += threads) {
      const u32 entry = entry_of(n, product, threads);
      found += insert(keys, 2 * most - 1, (R_KEY)x.B_crd[PLACE_OF(n, product, entry)]);
    }
    sync(threads);
    number += (u32)more;
  }
  return found;
}

// Rows whose products are sorted --------------------------------------------------------------------------

// List the products of a row, and keys: their columns before ``bits`` of their numbers. Return how many there are,
// or -1 if the bits are too few.
static inline int list_products(
  const struct product x, i64 row, struct numbered n, u32 own, u32 threads, int bits, u64 *keys, T *products
) {
  const A_PLACE end = x.A_pos[row + 1];
  u32 number = 0;
#pragma unroll 1
  for (A_PLACE start = x.A_pos[row]; start < end; start += threads) {
    const B_PLACE more = number_products(x, start, end, n, own, threads, -1);
    if (more > (1u << bits) - number) return -1;
#pragma unroll 1
    for (u32 product = own; product < (u32)more; product += threads) {
      const u32 entry = entry_of(n, product, threads);
      const B_PLACE q = PLACE_OF(n, product, entry);
      keys[number + product] = (u64)x.B_crd[q] << bits | (number + product);
      if (products) products[number + product] = MUL(n.factors[entry], B_VALUE(x.B_vals[q]));
    }
    sync(threads);
    number += (u32)more;
  }
  return (int)number;
}

// Sort keys; those behind them, up to a power of two, are overwritten.
static inline void sort(u64 *keys, u32 number, u32 own, u32 threads) {
  u32 count = 2;
#pragma unroll 1
  while (count < number) count *= 2;
#pragma unroll 1
  for (u32 t = number + own; t < count; t += threads) keys[t] = ~0ull;
  sync(threads);
#pragma unroll 1
  for (u32 size = 2; size <= count; size *= 2)
#pragma unroll 1
    for (u32 step = size / 2; step; step /= 2) {
#pragma unroll 1
      for (u32 pair = own; pair < count / 2; pair += threads) {
        const u32 low = 2 * pair - (pair & (step - 1)), high = low + step;
        const u64 a = keys[low], b = keys[high];
        if ((a > b) == !(low & size)) keys[low] = b, keys[high] = a;
      }
      sync(threads);
    }
}

static inline int is_first(const u64 *keys, u32 at, int bits) {
  return at == 0 || keys[at - 1] >> bits != keys[at] >> bits;
}

// Add up sorted products of the same column, and write the sums. ``before``: a number for each 32 of them, where
// there are several warps.
static inline void add_sorted(
  const struct product x, i64 begin, const u64 *keys, u32 number, const T *products, u32 *before, u32 own,
  u32 threads, int bits
) {
  const u32 words = (number + 31) / 32;
  u32 sum = 0;  // of those before a word
  if (threads > 32) {
#pragma unroll 1
    for (u32 word = own / 32; word < words; word += threads / 32) {
      const u32 at = word * 32 + own % 32;
      B_PLACE found = at < number && is_first(keys, at, bits);
      count_before(&found);
      if (own % 32 == 0) before[word] = (u32)found;
    }
    __syncthreads();
  }
#pragma unroll 1
  for (u32 word = own / 32, passed = 0; word < words; word += threads / 32) {
    if (threads > 32)
#pragma unroll 1
      for (; passed < word; passed++) sum += before[passed];
    const u32 at = word * 32 + own % 32;
    const int is_own = at < number && is_first(keys, at, bits);
    B_PLACE all = is_own;
    const u32 place = sum + (u32)count_before(&all);
    if (threads == 32) sum += (u32)all;
    if (!is_own) continue;
    const u64 column = keys[at] >> bits, last = (1u << bits) - 1;
    T total = products[keys[at] & last];
#pragma unroll 1
    for (u32 next = at + 1; next < number && keys[next] >> bits == column; next++)
      total = ADD(total, products[keys[next] & last]);
    x.R_crd[begin + place] = (R_INDEX)column;
    x.R_vals[begin + place] = total;
  }
  sync(threads);
}

// Return which bin of rows a row belongs to that has more than FEW products.
static inline int bin_of(const struct product x, i64 row, int lane) {
  const A_PLACE begin = x.A_pos[row], end = x.A_pos[row + 1], entries = end - begin;
  int products = 0, of_first = 0;
#pragma unroll 1
  for (A_PLACE start = begin; start == begin || (start < end && products <= x.most); start += 32) {
    int more = 0;
    if (end - start > lane) {
      const A_INDEX j = x.A_crd[start + lane];
      const B_PLACE length = x.B_pos[j + 1] - x.B_pos[j];
      more = length > MORE ? MORE + 1 : (int)length;
    }
#pragma unroll 1
    for (int step = 16; step; step /= 2) more += EXCHANGE(more, step, 32);
    products += more;
    if (start == begin) of_first = more;
  }
  if (products <= x.most) return products <= SOME ? BIN_SOME : BIN_MORE;
  if (entries >= (of_first < 32 * SHORT ? LONG_ROW : LONGER_ROW)) return BIN_LONG;
  return BIN_MANY;
}

#define NUMBERED_OF_WARP(name) \
  STATIC_SHARED T factors[WARPS][32]; \
  STATIC_SHARED B_PLACE places[WARPS][2][32]; \
  const struct numbered name = {factors[warp], places[warp][0], places[warp][1], 0}

KERNEL void scorch_count_few(const struct product x) {
  STATIC_SHARED R_KEY keys[WARPS][2 * FEW];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  NUMBERED_OF_WARP(n);
#pragma unroll 1
  for (i64 row = (i64)blockIdx.x * WARPS + warp; row < x.rows; row += (i64)gridDim.x * WARPS) {
    clear_table(keys[warp], 2 * FEW, lane, 32);
    SYNC_WARP();
    int found = insert_columns(x, row, n, lane, 32, FEW, keys[warp]);
    if (found < 0) {
      const int bin = bin_of(x, row, lane);
      if (lane == 0) x.left_rows[bin * x.rows + (i64)atomicAdd(x.left + bin, 1ull)] = (u32)row;
    } else {
      for (int step = 16; step; step /= 2) found += EXCHANGE(found, step, 32);
      if (lane == 0) x.counts[row * x.tiles] = found;
    }
    SYNC_WARP();
  }
}

KERNEL void scorch_fill_few(const struct product x) {
  STATIC_SHARED u64 keys[WARPS][FEW];
  STATIC_SHARED T products[WARPS][FEW];
  STATIC_SHARED u32 before[WARPS][FEW / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  NUMBERED_OF_WARP(n);
#pragma unroll 1
  for (i64 row = (i64)blockIdx.x * WARPS + warp; row < x.rows; row += (i64)gridDim.x * WARPS) {
    const int number = list_products(x, row, n, lane, 32, FEW_BITS, keys[warp], products[warp]);
    if (number >= 0) {
      sort(keys[warp], number, lane, 32);
      const i64 begin = x.R_pos[row * x.tiles];
      add_sorted(x, begin, keys[warp], number, products[warp], before[warp], lane, 32, FEW_BITS);
    }
    SYNC_WARP();
  }
}

KERNEL void scorch_count_some(const struct product x) {
  SHARED(memory);
  const struct numbered n = numbered_in(memory, blockDim.x);
  R_KEY *keys = (R_KEY *)behind(n);
  const u32 most = x.bin == BIN_SOME ? SOME : MORE;
  u32 *total = (u32 *)(keys + 2 * most);
  const i64 left = (i64)x.left[x.bin];
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number];
    clear_table(keys, 2 * most, threadIdx.x, blockDim.x);
    if (threadIdx.x == 0) *total = 0;
    __syncthreads();
    const int found = insert_columns(x, row, n, threadIdx.x, blockDim.x, most, keys);
    if (found) atomicAdd(total, (u32)found);
    __syncthreads();
    if (threadIdx.x == 0) x.counts[row * x.tiles] = *total;
    __syncthreads();
  }
}

KERNEL void scorch_fill_some(const struct product x) {
  SHARED(memory);
  const struct numbered n = numbered_in(memory, blockDim.x);
  const int bits = x.bin == BIN_SOME ? SOME_BITS : MORE_BITS, most = 1 << bits;
  T *products = (T *)behind(n);
  u64 *keys = (u64 *)(products + most);
  u32 *before = (u32 *)(keys + most);
  const i64 left = (i64)x.left[x.bin];
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number];
    const int listed = list_products(x, row, n, threadIdx.x, blockDim.x, bits, keys, products);
    sort(keys, listed, threadIdx.x, blockDim.x);
    add_sorted(x, x.R_pos[row * x.tiles], keys, listed, products, before, threadIdx.x, blockDim.x, bits);
  }
}

// Rows with many ------------------------------------------------------------------------------------------

static inline void mark_column(const struct product x, B_INDEX column, u32 *bits, u32 *touched) {
  if (column < 0 || column >= (B_INDEX)x.width) return;
  const u32 k = (u32)column, bit = 1u << (k & 31);
  if (bits[k >> 5] & bit) return;
  atomicOr(bits + (k >> 5), bit);
  atomicOr(touched + (k >> 10), 1u << (k >> 5 & 31));
}

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
        mark_column(x, columns[0], bits, touched);
#pragma unroll
        for (int r = 1; r < AT_ONCE; r++) columns[r - 1] = columns[r];
      }
    }
  }
}

// The same for a long row, in whose columns a block has a part.
static inline void mark_numbered(
  const struct product x, i64 row, B_INDEX first, struct numbered n, u32 *bits, u32 *touched
) {
  const A_PLACE end = x.A_pos[row + 1];
#pragma unroll 1
  for (A_PLACE start = x.A_pos[row]; start < end; start += blockDim.x) {
    const B_PLACE products = number_products(x, start, end, n, threadIdx.x, blockDim.x, x.cuts > 1 ? first : -1);
#pragma unroll 1
    for (B_PLACE product = threadIdx.x; product < products; product += AT_ONCE * blockDim.x) {
      B_INDEX columns[AT_ONCE];
#pragma unroll
      for (int r = 0; r < AT_ONCE; r++) {
        const B_PLACE other = product + r * blockDim.x;
        columns[r] = -1;
        if (other >= products) continue;
        const u32 entry = entry_of(n, other, blockDim.x);
        columns[r] = x.B_crd[PLACE_OF(n, other, entry)] - first;
      }
#pragma unroll
      for (int r = 0; r < AT_ONCE; r++) mark_column(x, columns[r], bits, touched);
    }
    __syncthreads();
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

static inline void count_rows(const struct product x, int is_long) {
  SHARED(memory);
  const struct numbered n = numbered_in(memory, blockDim.x);
  u32 *bits = is_long ? (u32 *)behind(n) : memory;
  const int words = (int)(x.width >> 5), parts = words >> 5;
  u32 *touched = bits + words, *total = touched + parts;
  const i64 cuts = is_long ? x.cuts : 1, left = (i64)x.left[x.bin] * cuts;
  if (blockIdx.x >= left) return;
#pragma unroll 1
  for (int t = threadIdx.x; t < words + parts + 1; t += blockDim.x) bits[t] = 0;
  __syncthreads();
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number / cuts];
    if (is_long)
      mark_numbered(x, row, (B_INDEX)(number % cuts * x.width), n, bits, touched);
    else
      mark(x, row, (B_INDEX)(x.tile * x.width), bits, touched);
    __syncthreads();
    const u32 found = count_marks(bits, touched, threadIdx.x, parts, blockDim.x);
    if (found) atomicAdd(total, found);
    __syncthreads();
    if (threadIdx.x == 0) {
      if (is_long) {
        x.cut_counts[number] = *total;
        atomicAdd((u64 *)x.counts + row * x.tiles, (u64)*total);
      } else {
        x.counts[row * x.tiles + x.tile] = *total;
      }
      *total = 0;
    }
    clear(bits, touched, parts);
    __syncthreads();
  }
}

KERNEL void scorch_count_many(const struct product x) {
  count_rows(x, 0);
}

KERNEL void scorch_count_long(const struct product x) {
  count_rows(x, 1);
}

// Return where the columns begin that a block has of a long row.
static inline i64 begin_of_cut(const struct product x, i64 number) {
  i64 begin = x.R_pos[x.left_rows[x.bin * x.rows + number / x.cuts] * x.tiles];
#pragma unroll 1
  for (i64 other = number - number % x.cuts; other < number; other++) begin += x.cut_counts[other];
  return begin;
}

// List the columns of a row in order. A thread lists those of some words, behind those of all threads before it.
static inline void list_rows(const struct product x, int is_long) {
  SHARED(memory);
  const struct numbered n = numbered_in(memory, blockDim.x);
  u32 *bits = is_long ? (u32 *)behind(n) : memory;
  const int words = (int)(x.width >> 5), parts = words >> 5;
  u32 *touched = bits + words, *sums = touched + parts;
  const i64 cuts = is_long ? x.cuts : 1, left = (i64)x.left[x.bin] * cuts;
  if (blockIdx.x >= left) return;
#pragma unroll 1
  for (int t = threadIdx.x; t < words + parts; t += blockDim.x) bits[t] = 0;
  __syncthreads();
  const int each = (parts + (int)blockDim.x - 1) / (int)blockDim.x, from = threadIdx.x * each;
  const int to = from + each < parts ? from + each : parts;
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number / cuts];
    const i64 first = (is_long ? number % cuts : x.tile) * x.width;
    const i64 begin = is_long ? begin_of_cut(x, number) : x.R_pos[row * x.tiles + x.tile];
    if (is_long)
      mark_numbered(x, row, (B_INDEX)first, n, bits, touched);
    else
      mark(x, row, (B_INDEX)first, bits, touched);
    __syncthreads();
    const u32 found = count_marks(bits, touched, from, to, 1);
    sums[threadIdx.x] = found;
    __syncthreads();
#pragma unroll 1
    for (int step = 1; step < blockDim.x; step *= 2) {
      const u32 lower = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
      __syncthreads();
      sums[threadIdx.x] += lower;
      __syncthreads();
    }
    R_INDEX *column = x.R_crd + begin + (sums[threadIdx.x] - found);
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

KERNEL void scorch_list_many(const struct product x) {
  list_rows(x, 0);
}

KERNEL void scorch_list_long(const struct product x) {
  list_rows(x, 1);
}

struct marks {
  B_INDEX first, width;    // columns of the tile
  const u32 *bits, *before_part;
  const u16 *before_word;  // how many marks are before each word, their last 16 bits
};

// Return which sum is that of a column; -1 if the column is not in the tile.
static inline i64 sum_of(const struct marks *m, B_INDEX column) {
  const B_INDEX k = column - m->first;
  if (k < 0 || k >= m->width) return -1;
  const u32 word = (u32)k >> 5, before = m->before_part[word >> 5];
  const u32 lower = (u32)__popc((int)(m->bits[word] & ((1u << (k & 31)) - 1)));
  return before + (u16)(m->before_word[word] - before) + lower;
}

// Add a term to the sum of its column.
static inline void add_term(const struct marks *m, T *sums, B_INDEX column, T term) {
  const i64 place = sum_of(m, column);
  if (place >= 0) sums[place] = ADD(sums[place], term);
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

// Whose turn it is to add to a sum: of the threads that want to, the first one has the largest ticket.
struct turns {
  u32 *tickets;
  u32 number;  // how many turns there were
};

static inline void begin_turns(struct turns *turns) {
#pragma unroll 1
  for (u32 t = threadIdx.x; t < TICKETS; t += blockDim.x) turns->tickets[t] = 0;
  turns->number = 0;
}

// Add terms to sums, those of earlier threads first. A thread without one takes part, too.
static inline void add_in_turns(struct turns *turns, T *sums, i64 place, T term) {
  int is_waiting = place >= 0;
  do {
    if (++turns->number == 1u << 22) {
      begin_turns(turns);
      turns->number = 1;
      __syncthreads();
    }
    const u32 ticket = turns->number << 10 | (1023 - threadIdx.x);
    if (is_waiting) atomicMax(turns->tickets + (place & (TICKETS - 1)), ticket);
    __syncthreads();
    if (is_waiting && turns->tickets[place & (TICKETS - 1)] == ticket) {
      sums[place] = ADD(sums[place], term);
      is_waiting = 0;
    }
  } while (__syncthreads_or(is_waiting));
}

// The same for a long row, in the order of its products.
static inline void add_numbered(
  const struct product x, i64 row, const struct marks *m, struct numbered n, struct turns *turns, T *sums
) {
  const A_PLACE end = x.A_pos[row + 1];
#pragma unroll 1
  for (A_PLACE start = x.A_pos[row]; start < end; start += blockDim.x) {
    const B_PLACE products =
      number_products(x, start, end, n, threadIdx.x, blockDim.x, x.cuts > 1 ? m->first : -1);
#pragma unroll 1
    for (B_PLACE first = 0; first < products; first += blockDim.x) {
      const B_PLACE product = first + threadIdx.x;
      i64 place = -1;
      T term = ZERO;
      if (product < products) {
        const u32 entry = entry_of(n, product, blockDim.x);
        const B_PLACE q = PLACE_OF(n, product, entry);
        place = sum_of(m, x.B_crd[q]);
        term = MUL(n.factors[entry], B_VALUE(x.B_vals[q]));
      }
      add_in_turns(turns, sums, place, term);
    }
    __syncthreads();
  }
}

static inline void add_rows(const struct product x, int is_long) {
  SHARED(memory);
  T *own_sums = (T *)memory;
  const struct numbered n = numbered_in(own_sums + x.room, blockDim.x);
  struct turns turns = {(u32 *)behind(n)};
  u32 *bits = is_long ? turns.tickets + TICKETS : (u32 *)(own_sums + x.room);
  const int words = (int)(x.width >> 5);
  u32 *before_part = bits + words;
  u16 *before_word = (u16 *)(before_part + (words >> 5));
  const i64 cuts = is_long ? x.cuts : 1, left = (i64)x.left[x.bin] * cuts;
  if (blockIdx.x >= left) return;
#pragma unroll 1
  for (int t = threadIdx.x; t < words; t += blockDim.x) bits[t] = 0;
  __syncthreads();
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number / cuts];
    const i64 first = (is_long ? number % cuts : x.tile) * x.width;
    const i64 *place = x.R_pos + row * x.tiles + x.tile;
    const i64 begin = is_long ? begin_of_cut(x, number) : place[0];
    const int columns = is_long ? (int)x.cut_counts[number] : (int)(place[1] - begin);
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
    if (is_long) begin_turns(&turns);
    __syncthreads();
    if (is_long)
      add_numbered(x, row, &marks, n, &turns, sums);
    else
      add_products(x, row, &marks, sums);
#pragma unroll 1
    for (int at = threadIdx.x; at < columns; at += blockDim.x) {
      if (sums == own_sums) x.R_vals[begin + at] = own_sums[at];
      bits[(int)(listed[at] - first) >> 5] = 0;
    }
    __syncthreads();
  }
}

KERNEL void scorch_add_many(const struct product x) {
  add_rows(x, 0);
}

KERNEL void scorch_add_long(const struct product x) {
  add_rows(x, 1);
}
