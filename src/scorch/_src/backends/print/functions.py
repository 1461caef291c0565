"""What generated C may call on scalars: helper texts and externs. ``loops.operators`` says which.

Kernels are compiled without any header and linked without any library, which is why they compile in
a tenth of a second. So everything they call is either declared by hand (``EXTERNS``, found in the
running process at load time) or brought along as text (``helpers``), including complex numbers,
whose C11 form would need libgcc. Only what a kernel uses is printed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from string import Template

from scorch._src.backends.print import exponentials
from scorch._src.loops.operators import IN_LOOPS
from scorch._src.loops.types import TYPES, Type

C_NAMES = {t.name: f"{t.kind[0]}{8 * t.bytes}" for t in TYPES.values()}
C_NAMES |= {"bool": "u8", "float16": "u16", "bfloat16": "u16"}  # as they lie in memory

TYPEDEFS = """\
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
typedef struct { f32 re, im; } c64;
typedef struct { f64 re, im; } c128;
typedef __SIZE_TYPE__ usize;"""


def callee(op: str, type: Type) -> str:
    """The C name of unary ``op`` on ``type``; "" if it changes nothing."""
    template = IN_LOOPS[op].c.get("int" if type.kind == "uint" else type.kind)
    assert template is not None, f"{op} is not defined for {type}"
    return Template(template).substitute(n=op, t=C_NAMES[type.name], f="f" if type.bytes == 4 else "")


_ALLOCATION = {
    "malloc": "void *malloc(usize);",
    "calloc": "void *calloc(usize, usize);",
    "realloc": "void *realloc(void *, usize);",
    "free": "void free(void *);",
    "memcpy": "void *memcpy(void *, const void *, usize);",
    "memmove": "void *memmove(void *, const void *, usize);",
    "memset": "void *memset(void *, int, usize);",
    "madvise": "int madvise(void *, usize, int);",
}
_ONE = "fabs exp log sqrt tanh sin cos tan sinh cosh expm1 log1p floor ceil rint trunc erf"
_TWO = "pow hypot atan2 copysign"

EXTERNS: dict[str, str] = dict(_ALLOCATION)
for _t, _f in (("f64", ""), ("f32", "f")):
    EXTERNS |= {f"{name}{_f}": f"{_t} {name}{_f}({_t});" for name in _ONE.split()}
    EXTERNS |= {f"{name}{_f}": f"{_t} {name}{_f}({_t}, {_t});" for name in _TWO.split()}

_SINGLE = {
    "allocate": """\
static inline __attribute__((malloc)) void *allocate(i64 count, i64 size) {
  if (count < 0 || count > 0x3fffffffffffffff / size) return 0;
  return malloc((usize)(count ? count : 1) * (usize)size);
}""",
    "allocate_zero": """\
static inline __attribute__((malloc)) void *allocate_zero(i64 count, i64 size) {
  if (count < 0 || count > 0x3fffffffffffffff / size) return 0;
  return calloc((usize)(count ? count : 1), (usize)size);
}""",
    "resize": """\
static inline void *resize(void *array, i64 count, i64 size) {
  if (count < 0 || count > 0x3fffffffffffffff / size) return 0;
  const usize bytes = (usize)(count ? count : 1) * (usize)size, apart = 1 << 16;
  char *const moved = (char *)realloc(array, bytes);
#ifdef __linux__ /* pages of 4 KB that are touched one by one take longer than what is written to them */
  const usize start = ((usize)moved + apart - 1) & ~(apart - 1);
  if (moved && bytes >= 1 << 22) madvise((void *)start, bytes - apart, 14); /* MADV_HUGEPAGE */
#endif
  return moved;
}""",
    "add_one": """\
static inline i64 add_one(i64 *number) {
#if defined(__aarch64__) && !defined(__ARM_FEATURE_ATOMICS) /* compilers would call into libgcc */
  i64 before, after;
  u32 busy;
  do __asm__ volatile("ldxr %0, [%3]\\n\\tadd %1, %0, 1\\n\\tstxr %w2, %1, [%3]"
                      : "=&r"(before), "=&r"(after), "=&r"(busy) : "r"(number) : "memory");
  while (busy);
  return before;
#else
  return __atomic_fetch_add(number, 1, __ATOMIC_RELAXED);
#endif
}""",
    "set_bits": """\
static inline void set_bits(i64 *number, i64 bits) {
#if defined(__aarch64__) && !defined(__ARM_FEATURE_ATOMICS) /* as above */
  i64 value;
  u32 busy;
  do __asm__ volatile("ldxr %0, [%2]\\n\\torr %0, %0, %3\\n\\tstxr %w1, %0, [%2]"
                      : "=&r"(value), "=&r"(busy) : "r"(number), "r"(bits) : "memory");
  while (busy);
#else
  __atomic_fetch_or(number, bits, __ATOMIC_RELAXED);
#endif
}""",
    "is_over": """\
enum { MOST_SHARES = 32 };

struct line { i64 number, apart[7]; };

struct turns {
  i64 count, shares, apart[6];
  struct line over; /* a bit for each share without turns left, if shares have several */
  struct line taken[MOST_SHARES];
};

static i64 is_over(const struct turns *turns, i64 share) {
  if (turns->count > turns->shares)
    return __atomic_load_n(&turns->over.number, __ATOMIC_RELAXED) >> share & 1;
  const i64 begin = turns->count * share / turns->shares, end = turns->count * (share + 1) / turns->shares;
  return begin + __atomic_load_n(&turns->taken[share].number, __ATOMIC_RELAXED) >= end;
}""",
    "take_turn": """\
static i64 take_turn(struct turns *turns, i64 first, i64 *passed) {
  for (; *passed < turns->shares; ++*passed) {
    const i64 share = (first + *passed) % turns->shares;
    const i64 begin = turns->count * share / turns->shares, end = turns->count * (share + 1) / turns->shares;
    if (begin == end || (*passed && is_over(turns, share))) continue;
    const i64 turn = begin + add_one(&turns->taken[share].number);
    if (turn + 1 >= end && turns->count > turns->shares) set_bits(&turns->over.number, (i64)1 << share);
    if (turn < end) return turn;
  }
  return -1;
}""",
    "next_turn": """\
static i64 next_turn(struct turns *turns, i64 first, i64 end, i64 *passed) {
  if (turns->count > turns->shares) return take_turn(turns, first, passed);
  const i64 turn = first + (*passed)++; /* each share is a turn, and these are those of this thread */
  return turn < end && turn < turns->count ? turn : -1;
}""",
    "has_turns": """\
static i64 has_turns(const struct turns *turns) {
  for (i64 share = 0; share < turns->shares; share++)
    if (!is_over(turns, share)) return 1;
  return 0;
}""",
    "never": "static inline u8 never(i64 x) { (void)x; return 0; }",
    "from_bf16": """\
static inline f32 from_bf16(u16 h) {
  union { u32 bits; f32 value; } x;
  x.bits = (u32)h << 16;
  return x.value;
}""",
    "from_f16": """\
#ifdef __CUDACC_RTC__
static inline f32 from_f16(u16 h) {
  f32 x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}
#else
static inline f32 from_f16(u16 h) {
  const u32 sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 1023u;
  union { u32 bits; f32 value; } x;
  if (exponent == 0) x.value = (f32)fraction * 5.9604644775390625e-8f; /* 2^-24: subnormal */
  else x.bits = (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  x.bits |= sign;
  return x.value;
}
#endif""",
    "to_bf16": """\
static inline u16 to_bf16(f32 x) {
  union { f32 value; u32 bits; } y = {x};
  if (x != x) return 0x7fc0;
  return (u16)((y.bits + 0x7fffu + (y.bits >> 16 & 1u)) >> 16);
}""",
    "to_f16": """\
#ifdef __CUDACC_RTC__
static inline u16 to_f16(f32 x) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
#else
static inline u16 to_f16(f32 x) {
  union { _Float16 value; u16 bits; } y = {(_Float16)x};
  return y.bits;
}
#endif""",
    "cast_c64": "static inline c64 cast_c64(c128 x) { c64 y = {(f32)x.re, (f32)x.im}; return y; }",
    "cast_c128": "static inline c128 cast_c128(c64 x) { c128 y = {x.re, x.im}; return y; }",
}

_INTEGER = """\
static inline $t max_$t($t a, $t b) { return a > b ? a : b; }
static inline $t min_$t($t a, $t b) { return a < b ? a : b; }
static inline $t abs_$t($t x) { return ($t)(x < 0 ? -x : x); }
static inline $t relu_$t($t x) { return x < 0 ? 0 : x; }
static inline $t sign_$t($t x) { return ($t)((x > 0) - (x < 0)); }
static inline $t square_$t($t x) { return ($t)(x * x); }
static inline $t pow_$t($t base, $t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == ($t)-1 ? ($t)(exponent & 1 ? -1 : 1) : 0;
  $t result = 1;
  for (; exponent; exponent = ($t)(exponent >> 1), base = ($t)(base * base))
    if (exponent & 1) result = ($t)(result * base);
  return result;
}"""

_FLOAT = """\
static inline $t max_$t($t a, $t b) { return a > b || a != a ? a : b; }
static inline $t min_$t($t a, $t b) { return a < b || a != a ? a : b; }
static inline $t relu_$t($t x) { return x < 0 ? 0 : x; }
static inline $t sign_$t($t x) { return ($t)((x > 0) - (x < 0)); }
static inline $t square_$t($t x) { return x * x; }
static inline $t reciprocal_$t($t x) { return 1 / x; }
static inline $t where_$t(u8 choice, $t a, $t b) { return choice ? a : b; }
static inline $t sigmoid_$t($t x) { return 1 / (1 + exp_$t(-x)); }
static inline u8 isnan_$t($t x) { return x != x; }"""

_COMPLEX = """\
static inline $t make_$t($r re, $r im) { $t x = {re, im}; return x; }
static inline $t add_$t($t a, $t b) { return make_$t(a.re + b.re, a.im + b.im); }
static inline $t sub_$t($t a, $t b) { return make_$t(a.re - b.re, a.im - b.im); }
static inline $t mul_$t($t a, $t b) {
  return make_$t(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
}
static inline $t div_$t($t a, $t b) { /* Smith's algorithm: no overflow in |b|^2 */
  if (fabs$f(b.re) >= fabs$f(b.im)) {
    if (b.re == 0 && b.im == 0) return make_$t(a.re / fabs$f(b.re), a.im / fabs$f(b.im));
    const $r q = b.im / b.re, d = 1 / (b.re + b.im * q);
    return make_$t((a.re + a.im * q) * d, (a.im - a.re * q) * d);
  }
  const $r q = b.re / b.im, d = 1 / (b.re * q + b.im);
  return make_$t((a.re * q + a.im) * d, (a.im * q - a.re) * d);
}
static inline u8 eq_$t($t a, $t b) { return a.re == b.re && a.im == b.im; }
static inline u8 zero_$t($t x) { return x.re == 0 && x.im == 0; }
static inline u8 isnan_$t($t x) { return x.re != x.re || x.im != x.im; }
static inline $t neg_$t($t x) { return make_$t(-x.re, -x.im); }
static inline $t conj_$t($t x) { return make_$t(x.re, -x.im); }
static inline $r real_$t($t x) { return x.re; }
static inline $r abs_$t($t x) { return hypot$f(x.re, x.im); }
static inline $t square_$t($t x) { return mul_$t(x, x); }
static inline $t reciprocal_$t($t x) { return div_$t(make_$t(1, 0), x); }
static inline $t exp_$t($t x) {
  const $r e = exp$f(x.re);
  return x.im == 0 ? make_$t(e, x.im) : make_$t(e * cos$f(x.im), e * sin$f(x.im));
}
static inline $t log_$t($t x) { return make_$t(log$f(hypot$f(x.re, x.im)), atan2$f(x.im, x.re)); }
static inline $t sqrt_$t($t x) {
  const $r t = sqrt$f((fabs$f(x.re) + hypot$f(x.re, x.im)) / 2);
  if (t == 0) return make_$t(0, x.im);
  return x.re >= 0 ? make_$t(t, x.im / (2 * t)) : make_$t(fabs$f(x.im) / (2 * t), copysign$f(t, x.im));
}
static inline $t tanh_$t($t x) { /* Kahan's formula; beyond 20 the real part has rounded to 1 */
  if (fabs$f(x.re) > 20)
    return make_$t(copysign$f(1, x.re), 4 * sin$f(x.im) * cos$f(x.im) * exp$f(-2 * fabs$f(x.re)));
  const $r t = tan$f(x.im), b = 1 + t * t, s = sinh$f(x.re), d = 1 + b * s * s;
  return make_$t(b * sqrt$f(1 + s * s) * s / d, t / d);
}
static inline $t sigmoid_$t($t x) {
  const $t e = exp_$t(neg_$t(x));
  return reciprocal_$t(make_$t(1 + e.re, e.im));
}
static inline $t sin_$t($t x) {
  return make_$t(sin$f(x.re) * cosh$f(x.im), cos$f(x.re) * sinh$f(x.im));
}
static inline $t cos_$t($t x) {
  return make_$t(cos$f(x.re) * cosh$f(x.im), -sin$f(x.re) * sinh$f(x.im));
}"""


def helpers() -> dict[str, str]:
    """The text of every helper by name, an order in which each follows those it calls."""
    return _helpers(len(IN_LOOPS))


@lru_cache(maxsize=8)
def _helpers(operators: int) -> dict[str, str]:
    """The helpers while there are so many operators."""
    texts = dict(_SINGLE)
    for text in exponentials.texts():
        texts |= _by_name(text)
    done = set()
    for type in TYPES.values():
        group = {"int": _INTEGER, "uint": _INTEGER, "float": _FLOAT, "complex": _COMPLEX}.get(type.kind)
        t = C_NAMES[type.name]
        if group is None or t == "u16" or t in done:
            continue
        done.add(t)
        half = type.bytes // 2 if type.kind == "complex" else type.bytes
        kind = "int" if type.kind == "uint" else type.kind
        own = [entry.helpers[kind] for entry in IN_LOOPS.values() if kind in entry.helpers]
        for text in (group, *own):
            texts |= _by_name(Template(text).substitute(t=t, r=f"f{8 * half}", f="f" if half == 4 else ""))
    return texts


def _by_name(text: str) -> dict[str, str]:
    """Return the functions of ``text``, each by its name."""
    functions = {}
    for part in re.split(r"\n(?=static)", text):
        name = re.match(r"static inline \w+ (\w+)\(", part)
        assert name is not None
        functions[name[1]] = part
    return functions


def needed_by(text: str) -> set[str]:
    """Helpers and externs that a helper's own ``text`` calls."""
    return {name for name in re.findall(r"\b(\w+)\(", text) if name in helpers() or name in EXTERNS}
