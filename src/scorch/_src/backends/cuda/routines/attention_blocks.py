"""The tiles of a mask of attention on CUDA devices, found once for a mask: ``c/attention_tiles.cu``.

A tile is 64 queries by 64 keys with any pair, and has a bit for each. Where tiles would be nearly empty,
pairs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from typing import Any

import torch

from scorch._src.backends.by_torch.rows import rows_of
from scorch._src.backends.cuda.device.streams import check_waiting, settle
from scorch._src.bounded import BoundedCache
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.grad_state import cached_outside_modes, outside_modes
from scorch._src.torch_internals import row_pointers_of

Tensor = torch.Tensor

ROWS = 64  # queries or keys of a block
MIN_PAIRS = 1  # of a row of a tile, on average: with fewer, to load each pair by itself takes less
MIN_CUT = 16  # tiles of a block that is cut in parts
MAX_PLANS = 64  # of launches for a mask
FEW_CUT = 2  # times the average: a block with fewer tiles is not cut


@dataclass(frozen=True)
class Work:
    """The blocks of all masks, with their tiles in the order of ``across``, ``numbers`` and ``items``.

    ``items``, the longest of each mask first, are a block, where its tiles begin and end, and where a part of
    a block that is cut goes, or -1. ``cut`` has such a block, its first part and their number.
    """

    across: Tensor  # the other block of each tile, and in the lowest bit whether it is full
    numbers: Tensor | None  # of each tile among ``words``
    items: Tensor
    cut: Tensor
    item_ranges: list[int]  # of each mask
    cut_ranges: list[int]
    slots: int  # parts of a head, at most


@dataclass(frozen=True)
class CudaBlocks:
    """Masks of one shape: tiles with a bit for each pair, or without ``words`` pairs alone."""

    queries: int
    keys: int
    matrices: int
    pos: Tensor
    crd: Tensor
    words: Tensor | None = None
    begin: Tensor | None = None  # of the tiles of each block of queries
    of_queries: Work | None = None
    known: dict[Hashable, Any] = field(default_factory=dict, compare=False)
    # The launches for tensors of a form.
    plans: BoundedCache[Hashable, Any] = field(default_factory=lambda: BoundedCache(MAX_PLANS), compare=False)

    @cached_outside_modes
    def of_keys(self) -> Work:
        """The tiles of each block of keys."""
        assert self.begin is not None and self.of_queries is not None
        across, each = self.of_queries.across, -(-self.queries // ROWS)
        block = rows_of(self.begin, across.numel())
        blocks = -(-self.keys // ROWS)
        wanted = block // each * blocks + (across >> 1)
        order = torch.argsort(wanted, stable=True)
        turned = (block % each)[order].to(torch.int32) * 2 + (across & 1)[order]
        begin = row_pointers_of(wanted[order], self.matrices * blocks, out_int32=False)
        return make_work(begin, self.matrices, turned, order.to(torch.int32))

    @cached_outside_modes
    def pairs_of_keys(self) -> tuple[Tensor, Tensor]:
        """The transposed masks, as ``pos`` and ``crd``."""
        row = rows_of(self.pos, self.crd.numel())
        wanted = row // max(1, self.queries) * self.keys + self.crd
        order = torch.argsort(wanted, stable=True)
        pos = row_pointers_of(wanted[order], self.matrices * self.keys, out_int32=False)
        pairs = pos.to(self.pos.dtype), (row % max(1, self.queries))[order].to(self.crd.dtype)
        check_waiting(pos.device, "the transposed mask")
        settle(pos.device)
        return pairs

    def remembered(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what belongs to ``key``, created on first use."""
        if key not in self.known:
            self.known[key] = outside_modes(make)()
        return self.known[key]

    def masks_of(self, masks: Sequence[int]) -> Tensor | None:
        """Return the mask of each head; None where there is only one."""
        if self.matrices == 1:
            return None

        def make() -> Tensor:
            return _on(self.pos.device, torch.tensor(masks, dtype=torch.int32, device=HOST))

        of_heads: Tensor = self.remembered(("masks", *masks), make)
        return of_heads

    def units_of(self, side: str, masks: Sequence[int]) -> tuple[Tensor | None, int, Tensor | None, int]:
        """Return head and item of each turn, None with one mask, and how many; then those of what is cut."""
        work = self.of_queries if side == "queries" else self.of_keys
        assert work is not None
        if self.matrices == 1:
            return None, len(masks) * work.item_ranges[1], None, len(masks) * work.cut_ranges[1]

        def make() -> tuple[Tensor, int, Tensor, int]:
            items, cut = (_units(ranges, masks) for ranges in (work.item_ranges, work.cut_ranges))
            device = self.pos.device
            return _on(device, items), items.shape[0], _on(device, cut), cut.shape[0]

        units: tuple[Tensor, int, Tensor, int] = self.remembered((side, *masks), make)
        return units


def _units(ranges: Sequence[int], masks: Sequence[int]) -> Tensor:
    """Return head and item of each turn."""
    parts = []
    for head, mask in enumerate(masks):
        items = torch.arange(ranges[mask], ranges[mask + 1], dtype=torch.int32, device=HOST)
        parts.append(torch.stack([torch.full_like(items, head), items], 1))
    return torch.cat(parts) if parts else torch.empty(0, 2, dtype=torch.int32, device=HOST)


def _on(device: torch.device, tensor: Tensor) -> Tensor:
    return tensor.contiguous().to(device)


def make_work(begin: Tensor, matrices: int, across: Tensor, numbers: Tensor | None) -> Work:
    """Cut blocks whose tiles begin at ``begin`` where they have many; the host waits for the device."""
    device, bounds = begin.device, begin.to(HOST)
    blocks = (bounds.numel() - 1) // max(1, matrices)
    tiles = bounds.diff()
    most = max(MIN_CUT, FEW_CUT * -(-int(bounds[-1]) // max(1, tiles.numel())))
    parts = (-(-tiles // most)).clamp(min=1)
    before = torch.cat([parts.new_zeros(1), parts.cumsum(0)])
    count = int(before[-1])
    block = torch.arange(tiles.numel(), device=HOST).repeat_interleave(parts)
    number = torch.arange(count, device=HOST) - before[block]
    width = -(-tiles // parts)
    start = torch.minimum(bounds[block] + number * width[block], bounds[block + 1])
    stop = torch.minimum(start + width[block], bounds[block + 1])
    mask, is_cut = block // max(1, blocks), parts[block] > 1
    cut_before = torch.cat([parts.new_zeros(1), is_cut.cumsum(0)])
    mask_begin = before[torch.arange(matrices + 1, device=HOST) * blocks]
    slot = cut_before[:-1] - cut_before[mask_begin][mask]
    columns = [block % max(1, blocks), start, stop, torch.where(is_cut, slot, -1)]
    length = stop - start
    longest = int(length.max()) if count else 0
    order = torch.argsort(mask * (longest + 1) + longest - length, stable=True)
    items = torch.stack(columns, 1)[order]
    is_first = is_cut & (number == 0)
    cut = torch.stack([columns[0], slot, parts[block], torch.zeros_like(block)], 1)[is_first]
    cut_ranges = torch.cat([parts.new_zeros(1), is_first.cumsum(0)])[mask_begin].tolist()
    slots = int(cut_before[mask_begin].diff().max()) if matrices else 0
    items, cut = (_on(device, some.to(torch.int32)) for some in (items, cut))
    return Work(across, numbers, items, cut, mask_begin.tolist(), cut_ranges, slots)
