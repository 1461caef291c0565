// Whether all of two arrays is finite: a flag, which is 0 before, becomes 1 if not.

struct slots {
  const T *one, *other;
  i64 sizes[2];
  i32 *flag;
};

KERNEL void scorch_find_infinite(const struct slots a) {
  for (i64 e = FIRST_UNIT(1); e < a.sizes[0] + a.sizes[1]; e += UNITS(1)) {
    const T x = e < a.sizes[0] ? a.one[e] : a.other[e - a.sizes[0]];
    if (!(x - x == 0)) *a.flag = 1;
  }
}
