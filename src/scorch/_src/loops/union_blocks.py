"""Routines that merge two sorted lists of coordinates a block at a time, without a branch in it.

A block has up to 8 coordinates of each list, up to the last one before which both are known. Instructions of
AVX-512 look for the position of each among the others, 8 side by side, and make two masks of these: which of
the at most 16 coordinates of the block the first list has, and which the second. What is stored with the
coordinates of a list is then spread over the lanes of a register as its mask says, with zeros between.

    a 1 4 6      coordinates    1 2 4 6      a_bits 1 0 1 1      a_vals spread   a0  0 a1 a2
    b 2 4                                    b_bits 0 1 1 0      b_vals spread    0 b0 b1  0
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scorch._src.loops.intrinsics import Indexed

LANES = 16  # coordinates that a block may have
EACH = LANES // 2  # coordinates of each list
FACTS = ("a_count", "b_count", "a_bits", "b_bits", "count")  # of a block

HAS_INSTRUCTIONS = "defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__BMI2__)"

_COUNT = """\
    __asm__("vpbroadcastd %[last], %[x]\\n\\t"
            "vpcmpd $5, %[a], %[x], %[bits]%{%[mask]%}"
            : [x] "=&v"(x), [bits] "=Yk"(bits)
            : [last] "r"(last), [a] "m"(*(const i32 (*)[8])LIST), [mask] "Yk"((u16)((1u << LIST_count) - 1)));
    LIST_count = __builtin_popcount(bits);"""

# A binary search of the coordinates of a in those of b, and a bit at the place of each, if those of b that
# are also in a had positions of their own.
UNION_BLOCK = f"""\
static inline i64 union_block_i32(const i32 *restrict a_crd, i64 a_at, i64 a_end, const i32 *restrict b_crd,
                                  i64 b_at, i64 b_end, i64 *restrict block) {{
  const i32 *const a = a_crd + a_at, *const b = b_crd + b_at;
  const i64 a_left = a_end - a_at, b_left = b_end - b_at;
  if (!a_left || !b_left) {{
    const i64 left = a_left + b_left, count = left < 16 ? left : 16;
    block[0] = a_left ? count : 0;
    block[1] = b_left ? count : 0;
    block[2] = (1 << block[0]) - 1;
    block[3] = (1 << block[1]) - 1;
    block[4] = count;
    return 0;
  }}
  i64 a_count = a_left < 8 ? a_left : 8, b_count = b_left < 8 ? b_left : 8;
#if {HAS_INSTRUCTIONS}
  typedef i32 lanes __attribute__((vector_size(32)));
  static const i32 numbers[13] = {{0, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 0x7fffffff}};
  lanes x, y, at, other;
  u16 bits, equal;
  if (a_left > 8 || b_left > 8) {{
    const i32 a_last = a_left > 8 ? a[7] : 0x7fffffff, b_last = b_left > 8 ? b[7] : 0x7fffffff;
    const i32 last = a_last < b_last ? a_last : b_last;
{_COUNT.replace("LIST", "a")}
{_COUNT.replace("LIST", "b")}
  }}
  __asm__("vmovdqu32 %[a], %[x]%{{%[a_mask]%}}%{{z%}}\\n\\t"
          "vpbroadcastd 48(%[numbers]), %[y]\\n\\t"
          "vmovdqu32 %[b], %[y]%{{%[b_mask]%}}\\n\\t"
          "vpbroadcastd 40(%[numbers]), %[other]\\n\\t"
          "vpermd %[y], %[other], %[other]\\n\\t"
          "vpcmpgtd %[other], %[x], %[bits]\\n\\t"
          "vpbroadcastd 44(%[numbers]), %[at]%{{%[bits]%}}%{{z%}}\\n\\t"
          "vpord 32(%[numbers])%{{1to8%}}, %[at], %[other]\\n\\t"
          "vpermd %[y], %[other], %[other]\\n\\t"
          "vpcmpgtd %[other], %[x], %[bits]\\n\\t"
          "vpord 36(%[numbers])%{{1to8%}}, %[at], %[at]%{{%[bits]%}}\\n\\t"
          "vpermd %[y], %[at], %[other]\\n\\t"
          "vpcmpgtd %[other], %[x], %[bits]\\n\\t"
          "vpord 32(%[numbers])%{{1to8%}}, %[at], %[at]%{{%[bits]%}}\\n\\t"
          "vpermd %[y], %[at], %[other]\\n\\t"
          "vpcmpgtd %[other], %[x], %[bits]\\n\\t"
          "vpcmpeqd %[other], %[x], %[equal]%{{%[a_mask]%}}\\n\\t"
          "vpaddd (%[numbers]), %[at], %[at]\\n\\t"
          "vpaddd 32(%[numbers])%{{1to8%}}, %[at], %[at]%{{%[bits]%}}\\n\\t"
          "vpbroadcastd 32(%[numbers]), %[other]\\n\\t"
          "vpsllvd %[at], %[other], %[other]%{{%[a_mask]%}}%{{z%}}\\n\\t"
          "vextracti32x4 $1, %t[other], %x[at]\\n\\t"
          "vpord %x[at], %x[other], %x[other]\\n\\t"
          "vpshufd $0x4e, %x[other], %x[at]\\n\\t"
          "vpord %x[at], %x[other], %x[other]\\n\\t"
          "vpshufd $0xb1, %x[other], %x[at]\\n\\t"
          "vpord %x[at], %x[other], %x[other]"
          : [x] "=&v"(x), [y] "=&v"(y), [at] "=&v"(at), [other] "=&v"(other), [bits] "=&Yk"(bits),
            [equal] "=&Yk"(equal)
          : [a] "m"(*(const i32 (*)[8])a), [b] "m"(*(const i32 (*)[8])b), [numbers] "r"(numbers),
            "m"(numbers), [a_mask] "Yk"((u16)((1u << a_count) - 1)),
            [b_mask] "Yk"((u16)((1u << b_count) - 1)));
  const u32 positions = (u32)other[0], all = (1u << (a_count + b_count)) - 1;
  const u32 shared = __builtin_ia32_pdep_si(equal, positions), kept = all & ~(shared << 1);
  const u32 a_bits = __builtin_ia32_pext_si(positions, kept);
  const u32 b_bits = __builtin_ia32_pext_si((all & ~positions) | shared, kept);
  const i64 count = __builtin_popcount(kept);
#else
  const i32 a_last = a_left > 8 ? a[7] : 0x7fffffff, b_last = b_left > 8 ? b[7] : 0x7fffffff;
  while (a_count && a[a_count - 1] > b_last) a_count--;
  while (b_count && b[b_count - 1] > a_last) b_count--;
  i64 count = 0;
  u32 a_bits = 0, b_bits = 0;
  for (i64 p = 0, q = 0; p < a_count || q < b_count; count++) {{
    const u32 here = q >= b_count || (p < a_count && a[p] <= b[q]);
    const u32 there = p >= a_count || (q < b_count && b[q] <= a[p]);
    a_bits |= here << count;
    b_bits |= there << count;
    p += here;
    q += there;
  }}
#endif
  block[0] = a_count;
  block[1] = b_count;
  block[2] = a_bits;
  block[3] = b_bits;
  block[4] = count;
  return 0;
}}"""

_NARROW = Template("""\
  lanes spread;
  __asm__("vpexpandd %1, %0%{%2%}%{z%}" : "=v"(spread) : "m"(*(const $t (*)[16])from), "Yk"((u16)bits));
  *(lanes *)to = spread;""")

_WIDE = Template("""\
  lanes spread, rest;
  const $t *const behind = from + __builtin_popcount((u32)bits & 255);
  __asm__("vpexpandq %1, %0%{%2%}%{z%}" : "=v"(spread) : "m"(*(const $t (*)[8])from), "Yk"((u16)bits));
  __asm__("vpexpandq %1, %0%{%2%}%{z%}" : "=v"(rest) : "m"(*(const $t (*)[8])behind), "Yk"((u16)(bits >> 8)));
  *(lanes *)to = spread;
  *(lanes *)(to + 8) = rest;""")

_SPREAD = Template("""\
static inline i64 spread_$t($t *restrict to, const $t *restrict list, i64 at, i64 bits) {
  const $t *from = list + at;
#if $has
  typedef $t lanes __attribute__((vector_size(64), aligned($bytes), may_alias));
$instructions
#else
  for (i64 lane = 0; lane < 16; lane++) to[lane] = bits >> lane & 1 ? *from++ : 0;
#endif
  return 0;
}""")

SPREAD_COORDINATES = f"""\
static inline i64 spread_coordinates(i32 *restrict to, const i32 *restrict a_crd, i64 a, i64 a_bits,
                                     const i32 *restrict b_crd, i64 b, i64 b_bits) {{
  const i32 *first = a_crd + a, *second = b_crd + b;
#if {HAS_INSTRUCTIONS}
  typedef i32 lanes __attribute__((vector_size(64), aligned(4), may_alias));
  lanes spread;
  __asm__("vpexpandd %1, %0%{{%3%}}%{{z%}}\\n\\t"
          "vpexpandd %2, %0%{{%4%}}"
          : "=&v"(spread)
          : "m"(*(const i32 (*)[16])first), "m"(*(const i32 (*)[16])second), "Yk"((u16)a_bits),
            "Yk"((u16)b_bits));
  *(lanes *)to = spread;
#else
  for (i64 lane = 0; lane < 16; lane++) {{
    const i64 here = a_bits >> lane & 1, there = b_bits >> lane & 1;
    to[lane] = here ? *first : there ? *second : 0;
    first += here;
    second += there;
  }}
#endif
  return 0;
}}"""

_PUT_NARROW = Template("""\
  __asm__("vmovdqu32 %1, %0%{%2%}"
          : "+m"(*($t (*)[16])into) : "v"(*(const lanes *)from), "Yk"((u16)mask));""")

_PUT_WIDE = Template("""\
  __asm__("vmovdqu64 %1, %0%{%2%}" : "+m"(*($t (*)[8])into) : "v"(*(const lanes *)from), "Yk"((u16)mask));
  __asm__("vmovdqu64 %1, %0%{%2%}"
          : "+m"(*($t (*)[8])(into + 8)) : "v"(*(const lanes *)(from + 8)), "Yk"((u16)(mask >> 8)));""")

_PUT = Template("""\
static inline i64 put_$t($t *restrict to, i64 at, const $t *restrict from, i64 count) {
  $t *const into = to + at;
#if $has
  typedef $t lanes __attribute__((vector_size(64), aligned($bytes), may_alias));
  const u32 mask = (1u << count) - 1;
$instructions
#else
  for (i64 lane = 0; lane < count; lane++) into[lane] = from[lane];
#endif
  return 0;
}""")


def spread_text(t: str, bytes: int) -> str:
    """Return the C text of ``spread`` for elements of type ``t``."""
    instructions = (_NARROW if bytes == 4 else _WIDE).substitute(t=t)
    return _SPREAD.substitute(t=t, bytes=bytes, has=HAS_INSTRUCTIONS, instructions=instructions)


def put_text(t: str, bytes: int) -> str:
    """Return the C text of ``put`` for elements of type ``t``."""
    instructions = (_PUT_NARROW if bytes == 4 else _PUT_WIDE).substitute(t=t)
    return _PUT.substitute(t=t, bytes=bytes, has=HAS_INSTRUCTIONS, instructions=instructions)


def union_block(
    a_crd: Indexed, a: int, a_end: int, b_crd: Indexed, b: int, b_end: int, block: Indexed
) -> int:
    """Find the next coordinates of two lists, and which list has each; ``FACTS`` says what of them."""
    if a == a_end or b == b_end:
        counts = [min(LANES, a_end - a), min(LANES, b_end - b)]
        facts = [*counts, *(2**count - 1 for count in counts), max(counts)]
    else:
        lists = [[crd[p] for p in range(at, min(at + EACH, end))] for crd, at, end in
                 ((a_crd, a, a_end), (b_crd, b, b_end))]  # fmt: skip
        cut = [list[-1] for list, at, end in zip(lists, (a, b), (a_end, b_end), strict=True)
               if end - at > EACH]  # fmt: skip
        lists = [[x for x in list if not cut or x <= min(cut)] for list in lists]
        found = sorted({*lists[0], *lists[1]})
        bits = [sum((x in list) << lane for lane, x in enumerate(found)) for list in lists]
        facts = [*map(len, lists), *bits, len(found)]
    for place, fact in enumerate(facts):
        block[place] = fact
    return 0


def spread(to: Indexed, values: Indexed, at: int, bits: int) -> int:
    """Put the elements from ``at`` on into the lanes that have a bit, and zero into the others."""
    for lane in range(LANES):
        to[lane] = values[at] if bits >> lane & 1 else 0
        at += bits >> lane & 1
    return 0


def spread_coordinates(
    to: Indexed, a_crd: Indexed, a: int, a_bits: int, b_crd: Indexed, b: int, b_bits: int
) -> int:
    """Put the coordinates of a block into the lanes, and zero into those that are left."""
    for lane in range(LANES):
        here, there = a_bits >> lane & 1, b_bits >> lane & 1
        to[lane] = a_crd[a] if here else b_crd[b] if there else 0
        a, b = a + here, b + there
    return 0


def put(to: Indexed, at: int, lanes: Indexed, count: int) -> int:
    """Copy the first ``count`` lanes to ``at`` and the positions after it."""
    for lane in range(count):
        to[at + lane] = lanes[lane]
    return 0
