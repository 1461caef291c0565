"""The banded level: the coordinates below a position lie side by side, such as around a diagonal.

A band is its first coordinate and its length. ``pos`` has the lengths; kernels get, for each position above,
by how much the first coordinate exceeds the first entry, so that the coordinate of entry e is ``e + crd[p]``
and entries are found without a search. Gaps inside a band are filled up with zeros.
"""

from __future__ import annotations

import torch

from scorch._src.formats.level import Level, LevelArrays
from scorch._src.loops.nodes import Binary, Expr, Load, wide
from scorch._src.loops.types import INT64


class Banded(Level):
    letter, name = "b", "banded"
    is_padded = True

    def coordinate(self, arrays: LevelArrays, position: Expr, parent: Expr) -> Expr:
        return position + wide(Load(arrays.crd, parent))

    def locate(self, arrays: LevelArrays, parent: Expr, coordinate: Expr, start: Expr, stop: Expr) -> Expr:
        place = coordinate - wide(Load(arrays.crd, parent))
        return Binary("min", Binary("max", place, start, INT64), stop, INT64)

    def room(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> int:
        first, last = _ends(pos, crd)
        return int((last - first + 1).sum())

    def complete(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, last = _ends(pos, crd)
        whole = torch.zeros(pos.numel(), dtype=torch.int64, device=pos.device)
        torch.cumsum(last - first + 1, 0, out=whole[1:])
        return whole, _in_bands(whole, first)

    def length(self, parents: int, size: int, entries: int) -> int:
        return parents

    def finish(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> torch.Tensor:
        first, _ = _ends(pos, crd)
        return torch.where(pos.diff() > 0, first - pos[:-1], 0)

    def coordinates(self, pos: torch.Tensor, finished: torch.Tensor, size: int) -> torch.Tensor:
        return _in_bands(pos.long(), finished + pos[:-1])


def _ends(pos: torch.Tensor, crd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the last coordinate below each position; 0 and -1 where there is none."""
    begin, end = pos[:-1].long(), pos[1:].long()
    if not crd.numel():
        return torch.zeros_like(begin), torch.full_like(begin, -1)
    has_any, most = end > begin, crd.numel() - 1
    first, last = crd[begin.clamp(max=most)].long(), crd[(end - 1).clamp(min=0)].long()
    return torch.where(has_any, first, 0), torch.where(has_any, last, -1)


def _in_bands(pos: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """The coordinates of bands that begin at ``first``."""
    entries = torch.arange(int(pos[-1]), device=pos.device)
    return entries + (first - pos[:-1]).repeat_interleave(pos.diff())
