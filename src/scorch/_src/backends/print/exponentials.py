"""``exp``, ``expm1`` and ``tanh`` as C without branches or calls, so that loops over them run in vectors.

    x = n ln 2 + r, |r| <= ln 2 / 2          exp(x) = 2^n exp(r)        exp(r) by its series

``n`` is rounded by adding a number so large that it has no digits after the point; its last bits are then the
integer. Powers of two are built from their bits, in two halves, so that none overflows before the result.
Results are within one unit in the last place for ``exp``, two for ``expm1`` and three for ``tanh``.
"""

from __future__ import annotations

import math
from string import Template

_TEXT = Template("""\
static inline $t power_$t($i n) { /* 2^n */
  const $u bits = ($u)(n + $bias) << $digits;
  $t found;
  __builtin_memcpy(&found, &bits, sizeof found);
  return found;
}
static inline $t rounded_$t($t x, $i *n) { /* n, and what is left of x */
  const $t shifted = x * $log2e + $large;
  const $t whole = shifted - $large;
  $u bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  *n = ($i)(bits - $large_bits);
  return x - whole * $high - whole * $low;
}
static inline $t series_$t($t r) { /* exp(r) - 1 */
  $t p = $first;
$terms
  return p * r;
}
static inline $t exp_$t($t x) {
  const $t above = x < -$most ? -$most : x;
  $i n;
  const $t r = rounded_$t(above > $most ? $most : above, &n);
  const $i half = n >> 1;
  return (series_$t(r) + 1) * power_$t(half) * power_$t(n - half);
}
static inline $t expm1_$t($t x) {
  const $t above = x < -$least ? -$least : x;
  $i n;
  const $t r = rounded_$t(above > $most ? $most : above, &n);
  const $i half = n >> 1;
  const $t a = power_$t(half), b = power_$t(n - half);
  const $t found = b * (a * series_$t(r) + (a - power_$t(half - n)));
  return x == 0 ? x : found;
}
static inline $t tanh_$t($t x) {
  const $t above = x < -$flat ? -$flat : x;
  const $t e = expm1_$t(2 * (above > $flat ? $flat : above));
  return x == 0 ? x : e / (e + 2);
}""")


_NUMBERS = {  # for 32 and for 64 bits
    "bias": ("127", "1023"),
    "digits": ("23", "52"),
    "log2e": ("1.44269504089f", "1.44269504088896338700"),
    "large": ("12582912.0f", "6755399441055744.0"),
    "large_bits": ("0x4b400000u", "0x4338000000000000u"),
    "high": ("0.693359375f", "0.693147180369123816490"),
    "low": ("-2.12194440e-4f", "1.90821492927058770002e-10"),
    "most": ("110", "800"),
    "least": ("20", "40"),
    "flat": ("10", "20"),
}


def _text(bits: int) -> str:
    f, order = ("f", 7) if bits == 32 else ("", 13)
    factors = [f"{1 / math.factorial(k)!r}{f}" for k in range(order, 0, -1)]
    terms = "\n".join(f"  p = p * r + {factor};" for factor in factors[1:])
    numbers = {name: texts[bits == 64] for name, texts in _NUMBERS.items()}
    types = {"t": f"f{bits}", "i": f"i{bits}", "u": f"u{bits}"}
    return _TEXT.substitute(numbers, first=factors[0], terms=terms, **types)


def texts() -> list[str]:
    """All helpers, for both widths, each after those it calls."""
    return [_text(32), _text(64)]
