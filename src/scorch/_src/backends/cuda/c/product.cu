// The product of two matrices of compressed rows: R[i,k] = sum(j, A[i,j] * B[j,k]).
//
// Rows with few products have a warp each, which lists the products in shared memory and compares all with all.
// The others are left to blocks of threads. Where there are many more columns than a row has products, these
// find the columns of products in a hash table in shared memory: one launch counts them, one sorts them and adds
// up. The blocks of all other rows mark columns as bits in shared memory, for as many columns at once as fit: a
// tile. One launch counts marks, one lists their columns, and one adds up: the marks before a column tell where
// its sum is.
//
// Threads share the entries of B that meet one entry of A or, where many entries meet few each, numbered
// products. Either way terms are added in the order of A and B: a sum has the same bits at every call.
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
  i64 most;               // products of a row whose columns are hashed
  i64 bin;                // which of the rows that are left to blocks a launch is for
  u64 *left;              // how many rows of each bin there are
  u32 *left_rows;         // which: room for all rows in each bin
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

// Return which bin of rows a row belongs to that has more than FEW products.
static inline int bin_of(const struct product x, i64 row, int lane) {
  const A_PLACE begin = x.A_pos[row], end = x.A_pos[row + 1];
  int products = 0;
#pragma unroll 1
  for (A_PLACE start = begin; start < end && products <= x.most; start += 32) {
    int more = 0;
    if (end - start > lane) {
      const A_INDEX j = x.A_crd[start + lane];
      const B_PLACE length = x.B_pos[j + 1] - x.B_pos[j];
      more = length > MORE ? MORE + 1 : (int)length;
    }
    for (int step = 16; step; step /= 2) more += EXCHANGE(more, step, 32);
    products += more;
  }
  if (products <= x.most) return products <= SOME ? BIN_SOME : BIN_MORE;
  return end - begin < LONG_ROW ? BIN_MANY : BIN_LONG;
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
      const int bin = bin_of(x, row, lane);
      if (lane == 0) x.left_rows[bin * x.rows + (i64)atomicAdd(x.left + bin, 1ull)] = (u32)row;
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

// Products by their numbers --------------------------------------------------------------------------------

// Products of as many entries of A as there are threads, in shared memory.
struct numbered {
  T *factors;
  B_PLACE *begins;  // where the row of B begins that an entry meets
  B_PLACE *before;  // how many products are before those of an entry
};

static inline struct numbered numbered_in(void *memory) {
  T *factors = (T *)memory;
  B_PLACE *begins = (B_PLACE *)(factors + blockDim.x);
  const struct numbered n = {factors, begins, begins + blockDim.x};
  return n;
}

static inline void *behind(struct numbered n) { return n.before + blockDim.x; }

// Number the products of the entries of a row from one on; return how many they are.
static inline B_PLACE number_products(const struct product x, A_PLACE start, A_PLACE end, struct numbered n) {
  const u32 own = threadIdx.x;
  B_PLACE length = 0;
  __syncthreads();  // until nobody needs the last ones
  if (end - start > own) {
    const A_INDEX j = x.A_crd[start + own];
    const B_PLACE begin = x.B_pos[j];
    length = x.B_pos[j + 1] - begin;
    n.begins[own] = begin, n.factors[own] = A_VALUE(x.A_vals[start + own]);
  }
  n.before[own] = length;
  __syncthreads();
#pragma unroll 1
  for (u32 step = 1; step < blockDim.x; step *= 2) {
    const B_PLACE lower = own >= step ? n.before[own - step] : 0;
    __syncthreads();
    n.before[own] += lower;
    __syncthreads();
  }
  const B_PLACE number = n.before[blockDim.x - 1], last = n.before[own];
  __syncthreads();
  n.before[own] = last - length;
  __syncthreads();
  return number;
}

// Return the entry that a product is of: the last one that has no more before it.
static inline u32 entry_of(struct numbered n, B_PLACE product) {
  u32 entry = 0;
#pragma unroll 1
  for (u32 step = blockDim.x / 2; step; step /= 2)
    if (n.before[entry + step] <= product) entry += step;
  return entry;
}

#define ENTRIES_OF_ROW(start, end, row) \
  A_PLACE start = x.A_pos[row], end = x.A_pos[row + 1]; start < end; start += blockDim.x

// Whose turn it is to add to a sum: of the threads that want to, the first one has the largest ticket.
struct turns {
  u32 *tickets;
  u32 mask, number;  // how many sums have a ticket of their own, less one; how many turns there were
};

static inline void begin_turns(struct turns *turns) {
#pragma unroll 1
  for (u32 t = threadIdx.x; t <= turns->mask; t += blockDim.x) turns->tickets[t] = 0;
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
    if (is_waiting) atomicMax(turns->tickets + (place & turns->mask), ticket);
    __syncthreads();
    if (is_waiting && turns->tickets[place & turns->mask] == ticket) {
      sums[place] = ADD(sums[place], term);
      is_waiting = 0;
    }
  } while (__syncthreads_or(is_waiting));
}

// Rows with some products: a hash table -------------------------------------------------------------------

#define EMPTY ((R_KEY)-1)

static inline void clear_table(R_KEY *keys, u32 size) {
#pragma unroll 1
  for (u32 t = threadIdx.x; t < size; t += blockDim.x) keys[t] = EMPTY;
}

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

// Sort columns, a power of two of them.
static inline void sort(R_KEY *columns, u32 count) {
#pragma unroll 1
  for (u32 size = 2; size <= count; size *= 2)
#pragma unroll 1
    for (u32 step = size / 2; step; step /= 2) {
#pragma unroll 1
      for (u32 pair = threadIdx.x; pair < count / 2; pair += blockDim.x) {
        const u32 low = 2 * pair - (pair & (step - 1)), high = low + step;
        const R_KEY a = columns[low], b = columns[high];
        if ((a > b) == !(low & size)) columns[low] = b, columns[high] = a;
      }
      __syncthreads();
    }
}

KERNEL void scorch_count_some(const struct product x) {
  SHARED(memory);
  const struct numbered n = numbered_in(memory);
  R_KEY *keys = (R_KEY *)behind(n);
  const u32 size = 2 * (x.bin == BIN_SOME ? SOME : MORE);
  u32 *total = (u32 *)(keys + size);
  const i64 left = (i64)x.left[x.bin];
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number];
    clear_table(keys, size);
    if (threadIdx.x == 0) *total = 0;
    u32 found = 0;
#pragma unroll 1
    for (ENTRIES_OF_ROW(start, end, row)) {
      const B_PLACE products = number_products(x, start, end, n);
#pragma unroll 1
      for (B_PLACE product = threadIdx.x; product < products; product += blockDim.x) {
        const u32 entry = entry_of(n, product);
        found += insert(keys, size - 1, (R_KEY)x.B_crd[n.begins[entry] + (product - n.before[entry])]);
      }
    }
    if (found) atomicAdd(total, found);
    __syncthreads();
    if (threadIdx.x == 0) x.counts[row * x.tiles] = *total;
    __syncthreads();
  }
}

// Return where a column is among sorted ones, a power of two of them.
static inline u32 place_of(const R_KEY *columns, u32 count, R_KEY column) {
  u32 place = 0;
#pragma unroll 1
  for (u32 step = count / 2; step; step /= 2)
    if (columns[place + step] <= column) place += step;
  return place;
}

KERNEL void scorch_fill_some(const struct product x) {
  SHARED(memory);
  const struct numbered n = numbered_in(memory);
  const u32 most = x.bin == BIN_SOME ? SOME : MORE;
  R_KEY *columns = (R_KEY *)behind(n), *keys = columns + most;
  T *sums = (T *)keys;  // once columns are sorted
  struct turns turns = {(u32 *)(sums + most)};
  u32 *listed = sizeof(T) + 4 > 2 * sizeof(R_KEY) ? turns.tickets + most : (u32 *)(keys + 2 * most);
  const i64 left = (i64)x.left[x.bin];
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number], begin = x.R_pos[row * x.tiles];
    const u32 count = (u32)(x.R_pos[row * x.tiles + 1] - begin);
    u32 size = 64;
    while (size < 2 * count) size *= 2;
    clear_table(keys, size);
    if (threadIdx.x == 0) *listed = 0;
#pragma unroll 1
    for (ENTRIES_OF_ROW(start, end, row)) {
      const B_PLACE products = number_products(x, start, end, n);
#pragma unroll 1
      for (B_PLACE product = threadIdx.x; product < products; product += blockDim.x) {
        const u32 entry = entry_of(n, product);
        const R_KEY column = (R_KEY)x.B_crd[n.begins[entry] + (product - n.before[entry])];
        if (insert(keys, size - 1, column)) columns[atomicAdd(listed, 1u)] = column;
      }
    }
    for (u32 t = count + threadIdx.x; t < size / 2; t += blockDim.x) columns[t] = EMPTY;
    __syncthreads();
    sort(columns, size / 2);
    for (u32 t = threadIdx.x; t < count; t += blockDim.x) {
      x.R_crd[begin + t] = (R_INDEX)columns[t];
      sums[t] = ZERO;
    }
    turns.mask = size / 2 - 1;
    begin_turns(&turns);
#pragma unroll 1
    for (ENTRIES_OF_ROW(start, end, row)) {
      const B_PLACE products = number_products(x, start, end, n);
#pragma unroll 1
      for (B_PLACE first = 0; first < products; first += blockDim.x) {
        const B_PLACE product = first + threadIdx.x;
        i64 place = -1;
        T term = ZERO;
        if (product < products) {
          const u32 entry = entry_of(n, product);
          const B_PLACE q = n.begins[entry] + (product - n.before[entry]);
          place = place_of(columns, size / 2, (R_KEY)x.B_crd[q]);
          term = MUL(n.factors[entry], B_VALUE(x.B_vals[q]));
        }
        add_in_turns(&turns, sums, place, term);
      }
    }
    for (u32 t = threadIdx.x; t < count; t += blockDim.x) x.R_vals[begin + t] = sums[t];
    __syncthreads();
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

// The same for a long row.
static inline void mark_numbered(
  const struct product x, i64 row, B_INDEX first, struct numbered n, u32 *bits, u32 *touched
) {
#pragma unroll 1
  for (ENTRIES_OF_ROW(start, end, row)) {
    const B_PLACE products = number_products(x, start, end, n);
#pragma unroll 1
    for (B_PLACE product = threadIdx.x; product < products; product += AT_ONCE * blockDim.x) {
      B_INDEX columns[AT_ONCE];
#pragma unroll
      for (int r = 0; r < AT_ONCE; r++) {
        const B_PLACE own = product + r * blockDim.x;
        columns[r] = -1;
        if (own >= products) continue;
        const u32 entry = entry_of(n, own);
        columns[r] = x.B_crd[n.begins[entry] + (own - n.before[entry])] - first;
      }
#pragma unroll 1
      for (int r = 0; r < AT_ONCE; r++) {
        mark_column(x, columns[0], bits, touched);
#pragma unroll
        for (int other = 1; other < AT_ONCE; other++) columns[other - 1] = columns[other];
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

static inline void count_rows(const struct product x, int is_long) {
  SHARED(memory);
  const struct numbered n = numbered_in(memory);
  u32 *bits = is_long ? (u32 *)behind(n) : memory;
  const int words = (int)(x.width >> 5), parts = words >> 5;
  u32 *touched = bits + words, *total = touched + parts;
  const i64 left = (i64)x.left[x.bin];
  if (blockIdx.x >= left) return;
#pragma unroll 1
  for (int t = threadIdx.x; t < words + parts + 1; t += blockDim.x) bits[t] = 0;
  __syncthreads();
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number];
    if (is_long)
      mark_numbered(x, row, (B_INDEX)(x.tile * x.width), n, bits, touched);
    else
      mark(x, row, (B_INDEX)(x.tile * x.width), bits, touched);
    __syncthreads();
    const u32 found = count_marks(bits, touched, threadIdx.x, parts, blockDim.x);
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

KERNEL void scorch_count_many(const struct product x) {
  count_rows(x, 0);
}

KERNEL void scorch_count_long(const struct product x) {
  count_rows(x, 1);
}

// List the columns of a row in order. A thread lists those of some words, behind those of all threads before it.
static inline void list_rows(const struct product x, int is_long) {
  SHARED(memory);
  const struct numbered n = numbered_in(memory);
  u32 *bits = is_long ? (u32 *)behind(n) : memory;
  const int words = (int)(x.width >> 5), parts = words >> 5;
  u32 *touched = bits + words, *sums = touched + parts;
  const i64 left = (i64)x.left[x.bin], first = x.tile * x.width;
  if (blockIdx.x >= left) return;
#pragma unroll 1
  for (int t = threadIdx.x; t < words + parts; t += blockDim.x) bits[t] = 0;
  __syncthreads();
  const int each = (parts + (int)blockDim.x - 1) / (int)blockDim.x, from = threadIdx.x * each;
  const int to = from + each < parts ? from + each : parts;
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number];
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

// The same for a long row, in the order of its products.
static inline void add_numbered(
  const struct product x, i64 row, const struct marks *m, struct numbered n, struct turns *turns, T *sums
) {
#pragma unroll 1
  for (ENTRIES_OF_ROW(start, end, row)) {
    const B_PLACE products = number_products(x, start, end, n);
#pragma unroll 1
    for (B_PLACE first = 0; first < products; first += blockDim.x) {
      const B_PLACE product = first + threadIdx.x;
      i64 place = -1;
      T term = ZERO;
      if (product < products) {
        const u32 entry = entry_of(n, product);
        const B_PLACE q = n.begins[entry] + (product - n.before[entry]);
        place = sum_of(m, x.B_crd[q]);
        term = MUL(n.factors[entry], B_VALUE(x.B_vals[q]));
      }
      add_in_turns(turns, sums, place, term);
    }
  }
}

static inline void add_rows(const struct product x, int is_long) {
  SHARED(memory);
  T *own_sums = (T *)memory;
  const struct numbered n = numbered_in(own_sums + x.room);
  struct turns turns = {(u32 *)behind(n), TICKETS - 1};
  u32 *bits = is_long ? turns.tickets + TICKETS : (u32 *)(own_sums + x.room);
  const int words = (int)(x.width >> 5);
  u32 *before_part = bits + words;
  u16 *before_word = (u16 *)(before_part + (words >> 5));
  const i64 left = (i64)x.left[x.bin], first = x.tile * x.width;
  if (blockIdx.x >= left) return;
#pragma unroll 1
  for (int t = threadIdx.x; t < words; t += blockDim.x) bits[t] = 0;
  __syncthreads();
#pragma unroll 1
  for (i64 number = blockIdx.x; number < left; number += gridDim.x) {
    const i64 row = x.left_rows[x.bin * x.rows + number], begin = x.R_pos[row * x.tiles + x.tile];
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
    if (is_long) {
      begin_turns(&turns);
      add_numbered(x, row, &marks, n, &turns, sums);
    } else {
      add_products(x, row, &marks, sums);
    }
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
