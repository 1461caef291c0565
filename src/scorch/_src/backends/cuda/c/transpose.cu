// Compressed rows as compressed columns: what comes before a stable sort of their columns, and what after it.

struct slots {
  const INDEX *pos, *crd;
  i64 rows, columns, entries;
  i64 shift;               // 1 << shift threads share a row
  INDEX *row;              // of each entry
  KEY *key;                // its column less BIAS
  const KEY *sorted;       // columns in order
  const i64 *order;        // the entry of each
  INDEX *begins, *lines;   // the columns, compressed
  INDEX *places;           // the entry of each of their values
};

KERNEL void scorch_list_entries(const struct slots a) {
  const i64 threads = 1 << a.shift, thread = FIRST_UNIT(1) & (threads - 1);
  for (i64 row = FIRST_UNIT(1) >> a.shift; row < a.rows; row += UNITS(1) >> a.shift) {
    const i64 end = a.pos[row + 1];
    for (i64 p = a.pos[row] + thread; p < end; p += threads) {
      a.row[p] = (INDEX)row;
      if (a.key) a.key[p] = (KEY)(a.crd[p] - BIAS);
    }
  }
}

// Where the entries of a column begin in the order.
static inline i64 begin_of(const struct slots a, i64 column) {
  i64 low = 0, high = a.entries;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if ((i64)a.sorted[middle] + BIAS < column) low = middle + 1;
    else high = middle;
  }
  return low;
}

KERNEL void scorch_place_entries(const struct slots a) {
  for (i64 e = FIRST_UNIT(1); e < a.entries; e += UNITS(1)) {
    const i64 p = a.order[e];
    a.lines[e] = a.row[p];
    a.places[e] = (INDEX)p;
  }
  for (i64 column = FIRST_UNIT(1); column <= a.columns; column += UNITS(1))
    a.begins[column] = (INDEX)begin_of(a, column);
}
