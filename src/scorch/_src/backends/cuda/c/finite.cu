// Whether all of two arrays is finite. The host is told 1 if not, else 0.

enum { ODD, ARRIVED };

struct slots {
  const T *one, *other;
  i64 sizes[2];
  u32 *state;  // 0 before and behind
  i64 *told;
};

KERNEL void scorch_find_infinite(const struct slots a) {
  int is_odd = 0;
  for (i64 e = FIRST_UNIT(1); e < a.sizes[0] + a.sizes[1]; e += UNITS(1)) {
    const T x = e < a.sizes[0] ? a.one[e] : a.other[e - a.sizes[0]];
    is_odd |= !(x - x == 0);
  }
  if (is_odd) atomicOr(a.state + ODD, 1u);
  if (!is_last(a.state + ARRIVED) || threadIdx.x) return;
  *a.told = atomicOr(a.state + ODD, 0u);
  a.state[ODD] = a.state[ARRIVED] = 0;
}
