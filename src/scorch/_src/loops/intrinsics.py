"""Intrinsics, which kernels may ``Call``: searching, sorting and dividing work.

They are written once by hand because their shape never depends on the expression. Each has a C text
for the printer and a Python twin for the interpreter; the twins index arrays only through ``[]``,
so the interpreter passes arrays that check every access.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from string import Template
from typing import Any, Protocol

from scorch._src.dataclass import dataclass
from scorch._src.loops import union_blocks
from scorch._src.loops.types import BOOL, FLOAT32, FLOAT64, INT32, INT64, Type


class Indexed(Protocol):
    """What a Python twin needs of an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


@dataclass(frozen=True)
class Intrinsic:
    """A C function and its Python twin.

    ``arrays`` gives the element type of each array parameter by position; ``writes`` the positions of
    those it changes; ``externs`` the C functions it needs; ``memory``, of one that allocates, how many bytes
    at most, from the numbers among its arguments (arrays count as 0).
    """

    text: str
    twin: Callable[..., Any]
    arrays: dict[int, Type]
    writes: tuple[int, ...] = ()
    externs: tuple[str, ...] = ()
    memory: Callable[..., float] | None = None


_BOUND = Template("""\
static inline i64 ${name}_bound_$t(const $t *restrict crd, i64 lo, i64 hi, i64 c) {
  while (lo < hi) {
    const i64 mid = lo + (hi - lo) / 2;
    if (crd[mid] $before c) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}""")

_BALANCE = Template("""\
static i64 balance_$t(const $t *restrict pos, i64 n, i64 part, i64 parts) {
  if (part <= 0 || part >= parts) return part <= 0 ? 0 : n;
  const i64 total = (i64)pos[n] - pos[0] + n;
  const i64 goal = total / parts * part + total % parts * part / parts;
  i64 lo = 0, hi = n;
  while (lo < hi) {
    const i64 mid = lo + (hi - lo) / 2;
    if ((i64)pos[mid] - pos[0] + mid < goal) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}""")

# Whether more than ``share`` of 100 turns of a merge differ from the last after the same four, in a sample.
_IS_ERRATIC = Template("""\
static i64 is_erratic_${t}_$u(const $t *restrict a_pos, const $t *restrict a_crd, const $u *restrict b_pos,
                              const $u *restrict b_crd, i64 rows, i64 share) {
  u8 last[256] = {0};
  i64 turns = 0, surprises = 0;
  for (i64 part = 0; part < 8; part++) {
    const i64 begin = rows * part / 8, end = rows - begin < 64 ? rows : begin + 64;
    i64 history = 0, left = 64;
    for (i64 row = begin; row < end && left > 0; row++) {
      i64 a = a_pos[row], b = b_pos[row];
      const i64 a_end = a_pos[row + 1], b_end = b_pos[row + 1];
      for (; a < a_end && b < b_end && left > 0; left--, turns++) {
        const i64 here = a_crd[a] <= b_crd[b], there = b_crd[b] <= a_crd[a], turn = here + 2 * there;
        surprises += last[history] != turn;
        last[history] = (u8)turn;
        history = (history * 4 + turn) % 256;
        a += here;
        b += there;
      }
    }
  }
  return surprises * 100 > turns * share;
}""")

_KEPT = Template("""\
static inline $t kept_$t($t x, i64 is_here) {
  union { $t value; $u bits; } y = {x};
  y.bits &= -($u)is_here;
  return y.value;
}""")

# Compilers would make a jump of an expression with a question mark, or of one that they see to be the same.
_CHOSEN = """\
static inline i64 chosen(i64 is_first, i64 a, i64 b) {
#if defined(__x86_64__)
  __asm__("testq %1, %1\\n\\tcmovneq %2, %0" : "+r"(b) : "r"(is_first), "r"(a) : "cc");
  return b;
#else
  return b ^ ((a ^ b) & -is_first);
#endif
}"""

# Least significant digit first. Only bits in which keys differ are sorted by, so a bound is not
# needed; digits are made equally wide, and narrow for short lists, whose histograms would cost more
# than the keys.
_SORT_KEYS = """\
static i64 sort_keys(i64 *restrict key, i64 *restrict perm, i64 n, i64 bound) {
  (void)bound;
  i64 ordered = 1;
  while (ordered < n && key[ordered - 1] <= key[ordered]) ordered++;
  if (ordered >= n) return 0;
  if (n <= 40) {
    for (i64 i = ordered; i < n; i++) {
      const i64 k = key[i], v = perm[i];
      i64 p = i;
      for (; p > 0 && key[p - 1] > k; p--) key[p] = key[p - 1], perm[p] = perm[p - 1];
      key[p] = k;
      perm[p] = v;
    }
    return 0;
  }
  u64 varying = 0;
  for (i64 i = 1; i < n; i++) varying |= (u64)(key[i] ^ key[0]);
  const i64 bits = 64 - __builtin_clzll(varying), widest = n < 1024 ? 8 : 11;
  const i64 digits = (bits + widest - 1) / widest, width = (bits + digits - 1) / digits;
  const i64 buckets = 1LL << width;
  if (n > 0x3ffffffffffffff) return -1;
  i64 *const memory = (i64 *)malloc((usize)(2 * n + buckets) * sizeof(i64));
  if (!memory) return -1;
  i64 *count = memory, *key_from = key, *perm_from = perm, *key_to = memory + buckets, *perm_to = key_to + n;
  for (i64 digit = 0; digit < digits; digit++) {
    const i64 shift = digit * width;
    if ((varying >> shift & (u64)(buckets - 1)) == 0) continue;
    memset(count, 0, (usize)buckets * sizeof(i64));
    for (i64 i = 0; i < n; i++) count[(u64)key_from[i] >> shift & (u64)(buckets - 1)]++;
    for (i64 b = 0, before = 0; b < buckets; b++) {
      const i64 here = count[b];
      count[b] = before;
      before += here;
    }
    for (i64 i = 0; i < n; i++) {
      const i64 p = count[(u64)key_from[i] >> shift & (u64)(buckets - 1)]++;
      key_to[p] = key_from[i];
      perm_to[p] = perm_from[i];
    }
    i64 *swap = key_from;
    key_from = key_to;
    key_to = swap;
    swap = perm_from;
    perm_from = perm_to;
    perm_to = swap;
  }
  if (key_from != key) {
    memcpy(key, key_from, (usize)n * sizeof(i64));
    memcpy(perm, perm_from, (usize)n * sizeof(i64));
  }
  free(memory);
  return 0;
}"""

# Coordinates are distinct, so where they are not too sparse a set of bits sorts them in one sweep.
_SORT_LIST = """\
static i64 sort_list(i64 *restrict list, i64 n, i64 bound) {
  i64 ordered = 1;
  while (ordered < n && list[ordered - 1] <= list[ordered]) ordered++;
  if (ordered >= n) return 0;
  if (n <= 40) {
    for (i64 i = ordered; i < n; i++) {
      const i64 k = list[i];
      i64 p = i;
      for (; p > 0 && list[p - 1] > k; p--) list[p] = list[p - 1];
      list[p] = k;
    }
    return 0;
  }
  if (bound > 0 && bound / 128 <= n) {
    const i64 words = bound / 64 + 1;
    u64 *const set = (u64 *)calloc((usize)words, sizeof(u64));
    if (!set) return -1;
    for (i64 i = 0; i < n; i++) set[list[i] >> 6] |= 1ULL << (list[i] & 63);
    for (i64 w = 0, p = 0; w < words; w++)
      for (u64 left = set[w]; left; left &= left - 1) list[p++] = 64 * w + __builtin_ctzll(left);
    free(set);
    return 0;
  }
  u64 varying = 0;
  for (i64 i = 1; i < n; i++) varying |= (u64)(list[i] ^ list[0]);
  const i64 bits = 64 - __builtin_clzll(varying), widest = n < 1024 ? 8 : 11;
  const i64 digits = (bits + widest - 1) / widest, width = (bits + digits - 1) / digits;
  const i64 buckets = 1LL << width;
  if (n > 0x3ffffffffffffff) return -1;
  i64 *const memory = (i64 *)malloc((usize)(n + buckets) * sizeof(i64));
  if (!memory) return -1;
  i64 *count = memory, *from = list, *to = memory + buckets;
  for (i64 digit = 0; digit < digits; digit++) {
    const i64 shift = digit * width;
    if ((varying >> shift & (u64)(buckets - 1)) == 0) continue;
    memset(count, 0, (usize)buckets * sizeof(i64));
    for (i64 i = 0; i < n; i++) count[(u64)from[i] >> shift & (u64)(buckets - 1)]++;
    for (i64 b = 0, before = 0; b < buckets; b++) {
      const i64 here = count[b];
      count[b] = before;
      before += here;
    }
    for (i64 i = 0; i < n; i++) to[count[(u64)from[i] >> shift & (u64)(buckets - 1)]++] = from[i];
    i64 *const swap = from;
    from = to;
    to = swap;
  }
  if (from != list) memcpy(list, from, (usize)n * sizeof(i64));
  free(memory);
  return 0;
}"""


# Places are marked in a bitmap, a second bitmap says which of its words are in use, and both are read
# back bit by bit, which also clears them: a sort in two passes. Each place of a short list goes where as many
# others are smaller, sixteen counted side by side, and nothing has to be foretold. Most words have one or two
# bits, which are read without a branch; a place behind the list may be written to.
_SORT_PLACES = """\
static __attribute__((noinline)) i64
sort_places(i32 *restrict list, i64 n, i64 *restrict bits, i64 *restrict tops, i64 words) {
  i64 ordered = 1;
  while (ordered < n && list[ordered - 1] < list[ordered]) ordered++;
  if (ordered >= n) return 0;
  if (n <= 48) {
    i32 own[48] = {0}, rank[48];
    for (i64 i = 0; i < n; i++) own[i] = list[i];
    for (i64 first = 0; first < n; first += 16) {
#pragma omp simd
      for (i64 lane = 0; lane < 16; lane++) {
        i32 before = 0;
        for (i64 i = 0; i < n; i++) before += own[i] < own[first + lane];
        rank[first + lane] = before;
      }
    }
    for (i64 i = 0; i < n; i++) list[rank[i]] = own[i];
    return 0;
  }
  for (i64 i = 0; i < n; i++) {
    const u32 place = (u32)list[i];
    bits[place >> 6] |= (i64)(1ull << (place & 63));
    tops[place >> 12] |= (i64)(1ull << (place >> 6 & 63));
  }
  for (i64 t = 0, e = 0; t < words && e < n; t++) {
    for (u64 top = (u64)tops[t]; top; top &= top - 1) {
      const i64 w = t * 64 + __builtin_ctzll(top);
      u64 word = (u64)bits[w];
      bits[w] = 0;
      list[e++] = (i32)(w * 64 + __builtin_ctzll(word));
      word &= word - 1;
      list[e] = (i32)(w * 64 + __builtin_ctzll(word | 1ull << 63));
      e += word != 0;
      for (word &= word - 1; word; word &= word - 1) list[e++] = (i32)(w * 64 + __builtin_ctzll(word));
    }
    tops[t] = 0;
  }
  return 0;
}"""

# The coordinates that are marked, in order, without a branch that depends on them.
_LIST_USED = """\
static __attribute__((noinline)) i64
list_used(i32 *restrict list, const u8 *restrict used, i64 low, i64 high) {
  i64 n = 0;
  for (i64 place = low; place <= high; place++) {
    list[n] = (i32)place;
    n += used[place];
  }
  return n;
}"""

_MARK_PLACE = """\
static inline i64 mark_place(i64 *restrict bits, i64 place) {
  bits[place >> 6] |= (i64)(1ull << (place & 63));
  return 0;
}"""

# Most words have one bit or none: the first is listed without asking, as the bit 63 if there is none.
_LIST_MARKED = """\
static __attribute__((noinline)) i64
list_marked(i32 *restrict list, i64 *restrict bits, i64 low, i64 high) {
  i64 n = 0;
  for (i64 w = low >> 6, last = high >> 6; w <= last; w++) {
    u64 word = (u64)bits[w];
    bits[w] = 0;
    list[n] = (i32)(w * 64 + __builtin_ctzll(word | 1ull << 63));
    n += word != 0;
    for (word &= word - 1; word; word &= word - 1) list[n++] = (i32)(w * 64 + __builtin_ctzll(word));
  }
  return n;
}"""


def lower_bound(crd: Indexed, lo: int, hi: int, c: int) -> int:
    """The first position in ``lo..hi`` whose coordinate is at least ``c``."""
    return bisect.bisect_left(crd, c, lo, hi)


def upper_bound(crd: Indexed, lo: int, hi: int, c: int) -> int:
    """The first position in ``lo..hi`` whose coordinate is more than ``c``."""
    return bisect.bisect_right(crd, c, lo, hi)


def balance(pos: Indexed, n: int, part: int, parts: int) -> int:
    """The first row before which lie ``part/parts`` of all rows and entries together."""
    first = int(pos[0])
    goal = (int(pos[n]) - first + n) * part // parts
    return bisect.bisect_left(range(n), goal, key=lambda row: int(pos[row]) - first + row)


def sort_keys(key: Indexed, perm: Indexed, n: int, bound: int) -> int:
    """Sort ``key[:n]`` ascending, stably, and carry ``perm`` along."""
    pairs = sorted(((key[i], perm[i]) for i in range(n)), key=lambda pair: pair[0])
    for i, (k, v) in enumerate(pairs):
        assert bound <= 0 or 0 <= k < bound, f"sort_keys: key {k} is outside 0..{bound - 1}"
        key[i], perm[i] = k, v
    return 0


def sort_list(values: Indexed, n: int, bound: int) -> int:
    """Sort the distinct coordinates ``values[:n]`` ascending."""
    ordered = sorted(values[i] for i in range(n))
    assert len(set(ordered)) == n, "sort_list: coordinates are not distinct"
    for i, value in enumerate(ordered):
        assert bound <= 0 or 0 <= value < bound, f"sort_list: {value} is outside 0..{bound - 1}"
        values[i] = value
    return 0


def sort_places(places: Indexed, n: int, bits: Indexed, tops: Indexed, words: int) -> int:
    """Sort the distinct ``places[:n]`` ascending; the bitmaps are clear before and after."""
    ordered = sorted(places[i] for i in range(n))
    assert len(set(ordered)) == n, "sort_places: places are not distinct"
    for i, place in enumerate(ordered):
        assert 0 <= place < words * 4096, f"sort_places: {place} is outside 0..{words * 4096 - 1}"
        assert not bits[place // 64] and not tops[place // 4096], "sort_places: a bitmap is not clear"
        places[i] = place
    return 0


def list_used(places: Indexed, used: Indexed, low: int, high: int) -> int:
    """List the coordinates in ``low..high`` that are used, ascending, and return how many they are."""
    found = [place for place in range(low, high + 1) if used[place]]
    for n, place in enumerate(found):
        places[n] = place
    return len(found)


def mark_place(bits: Indexed, place: int) -> int:
    """Set the bit of ``place``."""
    word = bits[place // 64] % 2**64 | 1 << place % 64
    bits[place // 64] = (word + 2**63) % 2**64 - 2**63
    return 0


def list_marked(places: Indexed, bits: Indexed, low: int, high: int) -> int:
    """List the coordinates in ``low..high`` that are marked, ascending, clear them and return how many."""
    n = 0
    for word in range(low // 64, high // 64 + 1):
        marked = [64 * word + bit for bit in range(64) if bits[word] >> bit & 1]
        for place in marked:
            assert low <= place <= high, f"list_marked: {place} is outside {low}..{high}"
            places[n] = place
            n += 1
        bits[word] = 0
    return n


def is_erratic(a_pos: Indexed, a_crd: Indexed, b_pos: Indexed, b_crd: Indexed, rows: int, share: int) -> int:
    """Whether nobody could foretell ``share`` of 100 turns of a merge, in a sample of all."""
    last: dict[int, int] = {}
    turns = surprises = 0
    for part in range(8):
        history, left, begin = 0, 64, rows * part // 8
        for row in range(begin, min(begin + 64, rows)):
            a, b = a_pos[row], b_pos[row]
            while a < a_pos[row + 1] and b < b_pos[row + 1] and left > 0:
                turn = int(a_crd[a] <= b_crd[b]) + 2 * int(b_crd[b] <= a_crd[a])
                surprises += last.get(history, 0) != turn
                last[history] = turn
                history = (history * 4 + turn) % 256
                a, b, left, turns = a + (turn & 1), b + (turn >> 1), left - 1, turns + 1
    return int(surprises * 100 > turns * share)


def _kept(x: Any, is_here: int) -> Any:
    return x if is_here else type(x)(0)


def _memory_of_keys(key: float, perm: float, n: float, bound: float) -> float:
    """Keys and positions once more, and the histogram of a digit."""
    return 8 * (2 * n + _MAX_BUCKETS)


def _memory_of_list(values: float, n: float, bound: float) -> float:
    """A set of bits; or the list once more, if that is shorter, and the histogram of a digit."""
    return 8 * max(bound // 64 + 1, min(n, bound // 128) + _MAX_BUCKETS)


_MAX_BUCKETS = 2**11
_MEMORY = ("malloc", "free", "memset", "memcpy")

INTRINSICS: dict[str, Intrinsic] = {
    "sort_keys": Intrinsic(_SORT_KEYS, sort_keys, {0: INT64, 1: INT64}, (0, 1), _MEMORY, _memory_of_keys),
    "sort_places": Intrinsic(_SORT_PLACES, sort_places, {0: INT32, 2: INT64, 3: INT64}, (0, 2, 3)),
    "list_used": Intrinsic(_LIST_USED, list_used, {0: INT32, 1: BOOL}, (0,)),
    "mark_place": Intrinsic(_MARK_PLACE, mark_place, {0: INT64}, (0,)),
    "list_marked": Intrinsic(_LIST_MARKED, list_marked, {0: INT32, 1: INT64}, (0, 1)),
    "sort_list": Intrinsic(_SORT_LIST, sort_list, {0: INT64}, (0,), (*_MEMORY, "calloc"), _memory_of_list),
}
for _type, _t in ((INT32, "i32"), (INT64, "i64")):
    for _name, _before, _twin in (("lower", "<", lower_bound), ("upper", "<=", upper_bound)):
        _text = _BOUND.substitute(name=_name, t=_t, before=_before)
        INTRINSICS[f"{_name}_bound_{_t}"] = Intrinsic(_text, _twin, {0: _type})
    INTRINSICS[f"balance_{_t}"] = Intrinsic(_BALANCE.substitute(t=_t), balance, {0: _type})
    for _other, _u in ((INT32, "i32"), (INT64, "i64")):
        INTRINSICS[f"is_erratic_{_t}_{_u}"] = Intrinsic(
            _IS_ERRATIC.substitute(t=_t, u=_u), is_erratic, {0: _type, 1: _type, 2: _other, 3: _other}
        )
INTRINSICS["chosen"] = Intrinsic(_CHOSEN, lambda is_first, a, b: a if is_first else b, {})
INTRINSICS["union_block_i32"] = Intrinsic(
    union_blocks.UNION_BLOCK, union_blocks.union_block, {0: INT32, 3: INT32, 6: INT64}, (6,)
)
INTRINSICS["spread_coordinates"] = Intrinsic(
    union_blocks.SPREAD_COORDINATES, union_blocks.spread_coordinates, {0: INT32, 1: INT32, 4: INT32}, (0,)
)
for _type, _t in ((FLOAT32, "f32"), (FLOAT64, "f64"), (INT32, "i32"), (INT64, "i64")):
    INTRINSICS[f"kept_{_t}"] = Intrinsic(_KEPT.substitute(t=_t, u=f"u{8 * _type.bytes}"), _kept, {})
    INTRINSICS[f"spread_{_t}"] = Intrinsic(
        union_blocks.spread_text(_t, _type.bytes), union_blocks.spread, {0: _type, 1: _type}, (0,)
    )
    INTRINSICS[f"put_{_t}"] = Intrinsic(
        union_blocks.put_text(_t, _type.bytes), union_blocks.put, {0: _type, 2: _type}, (0,)
    )
