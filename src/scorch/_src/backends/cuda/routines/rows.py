"""Facts about the rows of a pattern that kernels on a grid need, worked out once for each array of positions.

The longest row decides whether rows are cut. To know it, and to cut, the host waits for the device: once for
a pattern, and never while a CUDA graph is captured.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch

from scorch._src.backends.cuda.device.streams import check_waiting, settle
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.grad_state import outside_modes, untracked

WHAT = "the lengths of rows, of a pattern that is used for the first time"
MANY_ROWS = 1 << 15  # up to which they are copied to the host: torch would load kernels at their first use
MIN_PART = 64  # entries of a part of a row, at least
MAX_UNCUT = 4  # times as many entries as a part has are a row that is not cut


@dataclass(frozen=True)
class Parts:
    """Rows cut into parts: those of long rows first, one row after the other, then all other rows whole."""

    row: torch.Tensor
    start: torch.Tensor
    stop: torch.Tensor
    long_row: torch.Tensor
    long_first: torch.Tensor
    count: int
    cut: int  # how many parts are of long rows
    long: int  # how many rows are


@dataclass
class _Facts:
    longest: int = -1
    row_of_entry: torch.Tensor | None = None
    parts: dict[tuple[int, bool], Parts | None] = field(default_factory=dict)
    joined: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # by id of rows above


_facts: dict[int, tuple[Callable[[], torch.Tensor | None], _Facts]] = {}  # by the id of an array that lives


def _facts_of(pos: torch.Tensor) -> _Facts:
    number = id(pos)
    known = _facts.get(number)
    if known is not None and known[0]() is pos:
        return known[1]

    def forget(reference: object, known: dict[int, Any] = _facts) -> None:  # its name is gone at exit
        kept = known.get(number)
        if kept is not None and kept[0] is reference:
            del known[number]

    facts = _Facts()
    _facts[number] = weakref.ref(pos, forget), facts
    return facts


def row_of_entry(pos: torch.Tensor) -> torch.Tensor:
    """Return the row of each entry of rows that begin at ``pos``."""
    facts = _facts_of(pos)
    if facts.row_of_entry is None:
        check_waiting(pos.device, WHAT)
        with untracked():
            rows = torch.arange(pos.numel() - 1, dtype=pos.dtype, device=pos.device)
            facts.row_of_entry = torch.repeat_interleave(rows, pos.diff().long())
        settle(pos.device)
    return facts.row_of_entry


def joined_pos(pos: torch.Tensor, below: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return where rows begin in the last of the arrays below them, each of which has rows of the next."""
    for inner in below:
        joined = _facts_of(inner).joined
        if id(pos) not in joined:
            check_waiting(pos.device, WHAT)
            with untracked():
                joined[id(pos)] = pos, inner.index_select(0, pos)  # the array above stays, and its id with it
            settle(pos.device)
        pos = joined[id(pos)][1]
    return pos


def longest_row(pos: torch.Tensor) -> int:
    """Return the number of entries of the longest row."""
    facts = _facts_of(pos)
    if facts.longest < 0:
        check_waiting(pos.device, WHAT)
        rows = pos.to(HOST) if pos.numel() <= MANY_ROWS else pos
        facts.longest = int(rows.diff().max()) if pos.numel() > 1 else 0
    return facts.longest


def know_longest_row(pos: torch.Tensor, longest: int) -> None:
    """Take note of the number of entries of the longest row, so that nobody waits for it."""
    _facts_of(pos).longest = longest


def parts_of(pos: torch.Tensor, threads: int, is_few: bool = False) -> Parts | None:
    """Return the parts of rows that units of ``threads`` add up; None where no row is long.

    ``is_few``: rows are so few that many parts are put together side by side.
    """
    facts, key = _facts_of(pos), (threads, is_few)
    if key not in facts.parts:
        longest = longest_row(pos)
        # A part and the parts of the longest row take about as long, one after the other.
        width = max(MIN_PART, 2 * threads, math.isqrt(longest))
        if is_few:
            width = max(MIN_PART, threads, math.isqrt(longest)) // 2
        facts.parts[key] = None
        if longest > MAX_UNCUT * width:
            facts.parts[key] = _cut(pos, width)
            settle(pos.device)
    return facts.parts[key]


@outside_modes
def _cut(pos: torch.Tensor, width: int) -> Parts:
    start, stop = pos[:-1], pos[1:]
    length = (stop - start).long()
    is_long = length > width
    long_row, other = is_long.nonzero().squeeze(1), (~is_long).nonzero().squeeze(1)
    pieces = (length[long_row] + (width - 1)) // width
    first = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
    cut = int(first[-1])
    number = torch.repeat_interleave(
        torch.arange(long_row.numel(), device=pos.device), pieces, output_size=cut
    )
    row = long_row[number]
    begin = start[row] + (torch.arange(cut, device=pos.device) - first[number]) * width
    end = torch.minimum(begin + width, stop[row].long())
    kind = pos.dtype
    return Parts(
        torch.cat([row, other]).to(kind),
        torch.cat([begin.to(kind), start[other]]),
        torch.cat([end.to(kind), stop[other]]),
        long_row.to(kind),
        first.to(kind),
        cut + other.numel(),
        cut,
        long_row.numel(),
    )
