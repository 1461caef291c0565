// The tiles of masks: blocks of 64 queries by 64 keys that have pairs, with a bit for each pair.
//
// A warp has a block of 64 queries, each of its threads two of them. It walks along all rows at once, from one
// tile that any of them has to the next.

struct mask {
  const INDEX *pos, *crd;
  i64 queries, blocks, all_blocks;  // of one mask, of all
  i64 *counts;                      // tiles of each block
  const i64 *begin;                 // null: only count
  i32 *across;
  u64 *words;
};

#define NO_TILE 0x7fffffff

static inline int tile_at(const struct mask *x, i64 at, i64 end) {
  return at < end ? (int)(x->crd[at] / 64) : NO_TILE;
}

static inline u64 take(const struct mask *x, i64 *at, i64 end, int tile) {
  u64 word = 0;
  for (; *at < end; ++*at) {
    const i64 column = x->crd[*at];
    if ((int)(column / 64) != tile) break;
    word |= 1ull << column % 64;
  }
  return word;
}

KERNEL void scorch_attention_tiles(const struct mask x) {
  const int lane = threadIdx.x % 32;
  for (i64 block = FIRST_UNIT(32); block < x.all_blocks; block += UNITS(32)) {
    const i64 matrix = block / x.blocks, first = block % x.blocks * 64;
    i64 at[2], end[2];
    for (int half = 0; half < 2; half++) {
      const i64 row = first + lane + 32 * half, place = matrix * x.queries + row;
      at[half] = row < x.queries ? x.pos[place] : 0;
      end[half] = row < x.queries ? x.pos[place + 1] : 0;
    }
    i64 count = 0;
    for (;; count++) {
      const int a = tile_at(&x, at[0], end[0]), b = tile_at(&x, at[1], end[1]);
      int tile = a < b ? a : b;
      for (int step = 16; step; step /= 2) {
        const int other = EXCHANGE(tile, step, 32);
        tile = other < tile ? other : tile;
      }
      if (tile == NO_TILE) break;
      const u64 low = take(&x, at, end[0], tile), high = take(&x, at + 1, end[1], tile);
      if (!x.begin) continue;
      int is_full = !~low && !~high;
      for (int step = 16; step; step /= 2) is_full &= EXCHANGE(is_full, step, 32);
      const i64 place = x.begin[block] + count;
      x.words[place * 64 + lane] = low, x.words[place * 64 + lane + 32] = high;
      if (lane == 0) x.across[place] = tile * 2 + is_full;
    }
    if (lane == 0 && !x.begin) x.counts[block] = count;
  }
}
