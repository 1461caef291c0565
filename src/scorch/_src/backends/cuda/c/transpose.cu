// Compressed rows as compressed columns: what comes before a stable sort of their columns, and what after it.

struct slots {
  const INDEX *pos, *crd;
  i64 rows, columns, entries;
  INDEX *row;              // of each entry
  KEY *key;                // its column less BIAS
  const KEY *sorted;       // columns in order
  const i64 *order;        // the entry of each
  INDEX *begins, *lines;   // the columns, compressed
  INDEX *places;           // the entry of each of their values
};

// The row of an entry, which is between two rows, both included.
static inline i64 row_of(const struct slots a, i64 entry, i64 low, i64 high) {
  while (low < high) {
    const i64 middle = (low + high + 1) >> 1;
    if (a.pos[middle] <= entry) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Blocks have as many entries each, however long rows are, and search among the rows of these.
KERNEL void scorch_list_entries(const struct slots a) {
  EACH_BLOCK(chunk, (a.entries + CHUNK - 1) / CHUNK) {
    const i64 start = (i64)chunk * CHUNK, end = start + CHUNK < a.entries ? start + CHUNK : a.entries;
    const i64 low = row_of(a, start, 0, a.rows - 1), high = row_of(a, end - 1, low, a.rows - 1);
#pragma unroll 1
    for (i64 p = start + threadIdx.x; p < end; p += blockDim.x) {
      a.row[p] = (INDEX)row_of(a, p, low, high);
      if (a.key) a.key[p] = (KEY)(a.crd[p] - BIAS);
    }
  }
}

// Where the entries of a column begin in the order.
static inline i64 begin_of(const struct slots a, i64 column) {
  i64 low = 0, high = a.entries;
  while (low < high) {
    const i64 middle = (low + high) >> 1;
    if ((i64)a.sorted[middle] + BIAS < column) low = middle + 1;
    else high = middle;
  }
  return low;
}

KERNEL void scorch_place_entries(const struct slots a) {
  EACH_UNIT(e, 1, a.entries) {
    const i64 p = a.order[e];
    a.lines[e] = a.row[p];
    a.places[e] = (INDEX)p;
  }
  EACH_UNIT(column, 1, a.columns + 1) a.begins[column] = (INDEX)begin_of(a, column);
}
