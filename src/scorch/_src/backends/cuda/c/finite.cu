// Whether two arrays have a number of a kind that is looked for. The host is told 1 if so, else 0.

enum { FOUND, ARRIVED };
enum { ODD = 1, ZERO = 2, NONZERO = 4 };  // kinds: infinite or NaN, zero, anything else than zero
enum { RUN = 4 };                         // numbers that a thread reads before it looks whether it is done

struct slots {
  const T *one, *other;
  i64 sizes[2];
  i64 kinds;   // that are looked for
  u32 *state;  // 0 before and behind
  i64 *told;
};

KERNEL void scorch_find_infinite(const struct slots a) {
  const i64 size = a.sizes[0] + a.sizes[1], step = UNITS(1);
  const int kinds = (int)a.kinds;
  int found = 0;
  for (i64 start = FIRST_UNIT(1); start < size && !found; start += RUN * step) {
    for (int n = 0; n < RUN; n++) {
      const i64 e = start + n * step;
      if (e >= size) continue;
      const T x = e < a.sizes[0] ? a.one[e] : a.other[e - a.sizes[0]];
      found |= kinds & ((x - x == 0 ? 0 : ODD) | (x == 0 ? ZERO : NONZERO));
    }
  }
  if (found) atomicOr(a.state + FOUND, 1u);
  if (!is_last(a.state + ARRIVED) || threadIdx.x) return;
  *a.told = atomicOr(a.state + FOUND, 0u);
  a.state[FOUND] = a.state[ARRIVED] = 0;
}
