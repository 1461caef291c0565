// The product of two matrices of compressed rows, R[i,k] = sum(j, A[i,j] * B[j,k]), where A has few rows, all of
// them long, and R few columns: rows are cut into parts, and a block has all columns of a part.
//
// Entries of a part are shared by groups of threads with sums of their own, which are added up in the order of
// groups, as those of parts are later: a sum has the same bits at every call.

struct product {
  const A_INDEX *A_pos, *A_crd;
  const A_TYPE *A_vals;
  const B_INDEX *B_pos, *B_crd;
  const B_TYPE *B_vals;
  i64 rows, columns, parts;
  i64 lanes;               // threads of a group
  T *sums;                 // of each column of each part
  u32 *part_bits;          // which columns a part has
  u32 *bits;               // which a row has
  u64 *counts;             // how many
  const i64 *R_pos;
  R_INDEX *R_crd;
  T *R_vals;
};

static inline int words_of(const struct product x) { return (int)((x.columns + 31) / 32); }

KERNEL void scorch_add_parts(const struct product x) {
  SHARED(memory);
  const int lanes = (int)x.lanes, groups = blockDim.x / lanes, group = threadIdx.x / lanes;
  const int columns = (int)x.columns, words = words_of(x);
  // Threads that add at once do so in other banks: those of other groups, or at other columns.
  const int column_step = lanes == 1 ? groups : 1, group_step = lanes == 1 ? 1 : columns;
  T *sums = (T *)memory;
  u32 *bits = (u32 *)(sums + columns * groups);
  for (i64 turn = blockIdx.x; turn < x.rows * x.parts; turn += gridDim.x) {
    for (int t = threadIdx.x; t < columns * groups; t += blockDim.x) sums[t] = ZERO;
    for (int t = threadIdx.x; t < words; t += blockDim.x) bits[t] = 0;
    __syncthreads();
    const i64 row = turn / x.parts, part = turn % x.parts, start = x.A_pos[row];
    const i64 length = x.A_pos[row + 1] - start;
    const i64 end = start + length * (part + 1) / x.parts;
    for (i64 first = start + length * part / x.parts; first < end; first += groups) {
      const i64 p = first + group;
      if (p < end) {
        const i64 j = x.A_crd[p], stop = x.B_pos[j + 1];
        const T a = A_VALUE(x.A_vals[p]);
        for (i64 q = x.B_pos[j] + threadIdx.x % lanes; q < stop; q += lanes) {
          const int k = (int)x.B_crd[q], place = k * column_step + group * group_step;
          const u32 bit = 1u << (k & 31);
          sums[place] = ADD(sums[place], MUL(a, B_VALUE(x.B_vals[q])));
          if (!(bits[k >> 5] & bit)) atomicOr(bits + (k >> 5), bit);
        }
      }
      if (lanes > 1) SYNC_WARP();
    }
    __syncthreads();
    for (int k = threadIdx.x; k < columns; k += blockDim.x) {
      T sum = ZERO;
      for (int other = 0; other < groups; other++)
        sum = ADD(sum, sums[k * column_step + ((other + k) & (groups - 1)) * group_step]);
      x.sums[turn * columns + k] = sum;
    }
    for (int t = threadIdx.x; t < words; t += blockDim.x) x.part_bits[turn * words + t] = bits[t];
    __syncthreads();
  }
}

KERNEL void scorch_count_parts(const struct product x) {
  const int words = words_of(x);
  for (i64 turn = FIRST_UNIT(1); turn < x.rows * words; turn += UNITS(1)) {
    const i64 row = turn / words, word = turn % words;
    u32 bits = 0;
    for (i64 part = 0; part < x.parts; part++) bits |= x.part_bits[(row * x.parts + part) * words + word];
    x.bits[turn] = bits;
    if (bits) atomicAdd(x.counts + row, (u64)__popc((int)bits));
  }
}

KERNEL void scorch_fill_parts(const struct product x) {
  const int words = words_of(x);
  for (i64 turn = FIRST_UNIT(1); turn < x.rows * x.columns; turn += UNITS(1)) {
    const i64 row = turn / x.columns, k = turn % x.columns;
    const u32 *bits = x.bits + row * words, own = 1u << (k & 31);
    if (!(bits[k >> 5] & own)) continue;
    i64 place = x.R_pos[row] + __popc((int)(bits[k >> 5] & (own - 1)));
    for (i64 word = 0; word < k >> 5; word++) place += __popc((int)bits[word]);
    T sum = ZERO;
#pragma unroll 8
    for (i64 part = 0; part < x.parts; part++)
      sum = ADD(sum, x.sums[(row * x.parts + part) * x.columns + k]);
    x.R_crd[place] = (R_INDEX)k;
    x.R_vals[place] = sum;
  }
}
