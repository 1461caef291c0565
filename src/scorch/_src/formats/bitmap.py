"""The bitmap level: a bit for every coordinate below every position says which are there.

Bits are kept in words of 32, each behind the number of entries before it, so that one look says whether a
coordinate is there and which entry it is. Kernels never walk the entries: they visit every coordinate, or
those of another operand, and look. That pays where a good part of the coordinates is there.
"""

from __future__ import annotations

from string import Template

import torch

from scorch._src.formats.level import Level, LevelArrays, suffix
from scorch._src.loops.intrinsics import INTRINSICS, Indexed, Intrinsic
from scorch._src.loops.nodes import Call, Expr
from scorch._src.loops.types import INT32, INT64

BITS = 32


class Bitmap(Level):
    letter, name = "m", "bitmap"
    is_iterable = False

    def locate(self, arrays: LevelArrays, parent: Expr, coordinate: Expr, start: Expr, stop: Expr) -> Expr:
        return _call("bits_before", arrays, parent, coordinate)

    def is_stored(
        self, arrays: LevelArrays, parent: Expr, coordinate: Expr, position: Expr, stop: Expr
    ) -> Expr:
        return _call("bit_at", arrays, parent, coordinate).differs(0)

    def length(self, parents: int, size: int, entries: int) -> int:
        return 2 * (parents * size // BITS + 1)

    def finish(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> torch.Tensor:
        parents = pos.numel() - 1
        places = crd + size * torch.arange(parents, device=crd.device).repeat_interleave(pos.diff())
        words = parents * size // BITS + 1
        counts_and_bits = torch.zeros(words, 2, dtype=torch.int64, device=crd.device)
        filled = torch.bincount(places // BITS, minlength=words)
        counts_and_bits[1:, 0] = torch.cumsum(filled, 0)[:-1]
        counts_and_bits[:, 1].index_add_(0, places // BITS, 1 << places % BITS)
        counts_and_bits[:, 1] -= (
            counts_and_bits[:, 1] >> (BITS - 1) << BITS
        )  # the last bit of a word is its sign
        return counts_and_bits.reshape(-1)

    def coordinates(self, pos: torch.Tensor, finished: torch.Tensor, size: int) -> torch.Tensor:
        bits = finished[1::2].long().unsqueeze(1) >> torch.arange(BITS, device=finished.device) & 1
        return bits.reshape(-1).nonzero()[:, 0] % max(size, 1)


def _call(name: str, arrays: LevelArrays, parent: Expr, coordinate: Expr) -> Expr:
    return Call(f"{name}_{suffix(arrays.crd.element)}", (arrays.crd, parent * arrays.size + coordinate))


_BITS_BEFORE = Template("""\
static inline i64 bits_before_$t(const $t *restrict words, i64 place) {
  const i64 w = place / 32 * 2;
  u32 before = (u32)words[w + 1] & ((1u << place % 32) - 1);
#if defined(__x86_64__) && !defined(__POPCNT__)  // the builtin would call a function of libgcc
  before -= before >> 1 & 0x55555555u;
  before = (before & 0x33333333u) + (before >> 2 & 0x33333333u);
  before = (before + (before >> 4)) & 0x0f0f0f0fu;
  return words[w] + (before * 0x01010101u >> 24);
#else
  return words[w] + __builtin_popcount(before);
#endif
}""")

_BIT_AT = Template("""\
static inline i64 bit_at_$t(const $t *restrict words, i64 place) {
  return (u32)words[place / 32 * 2 + 1] >> place % 32 & 1;
}""")


def bits_before(words: Indexed, place: int) -> int:
    """How many entries lie before ``place``."""
    word, bit = divmod(place, BITS)
    return int(words[2 * word]) + (int(words[2 * word + 1]) & (1 << bit) - 1).bit_count()


def bit_at(words: Indexed, place: int) -> int:
    """Whether there is an entry at ``place``."""
    word, bit = divmod(place, BITS)
    return int(words[2 * word + 1]) >> bit & 1


for _type, _t in ((INT32, "i32"), (INT64, "i64")):
    INTRINSICS[f"bits_before_{_t}"] = Intrinsic(_BITS_BEFORE.substitute(t=_t), bits_before, {0: _type})
    INTRINSICS[f"bit_at_{_t}"] = Intrinsic(_BIT_AT.substitute(t=_t), bit_at, {0: _type})
