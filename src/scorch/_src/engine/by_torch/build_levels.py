"""Build the arrays of a tensor in any format from sorted entries by torch.

Levels are built from the outermost in. A full level computes positions, ``parent * size + coordinate``; any
other numbers the pairs of a parent and a coordinate that occur. Levels of a run of coordinates have the same
entries, so the pairs are those of all their coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from scorch._src.compiler.pipeline import index_type
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.formats import Format
from scorch._src.storage.complete_levels import assembled
from scorch._src.storage.storage import Storage


def level_coordinates(form: Format, columns: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute the coordinates of every entry in each level from those in each dimension."""
    crds = []
    for level, dim in enumerate(form.order):
        block, part = form.block(dim), form.part(level)
        column = columns[dim].to(torch.int64)
        if block is None or part == "whole":
            crds.append(column)
        else:
            crds.append(column.div(block, rounding_mode="floor") if part == "outer" else column % block)
    return crds


def pack(
    form: Format,
    shape: tuple[int, ...],
    columns: Sequence[torch.Tensor],
    values: torch.Tensor,
    check: Callable[[int], None],
) -> Storage:
    """Build the tensor with these entries, which are in the order of the levels and distinct.

    ``check`` is called with the bytes that full levels need, before they are allocated.
    """
    crds = level_coordinates(form, columns)
    entries = values.numel()
    at = torch.zeros(entries, dtype=torch.int64, device=values.device)  # of each entry in the level above
    positions, level = 1, 0
    pos: list[torch.Tensor | None] = [None] * len(form)
    crd: list[torch.Tensor | None] = [None] * len(form)
    counts: list[int] = []
    while level < len(form):
        if form.levels[level].is_full:
            size = form.level_size(level, shape)
            positions *= size
            check(positions * values.element_size())
            at = at * size + crds[level]
            counts.append(positions)
            level += 1
            continue
        last = form.run_from(level) - 1
        run = range(level, last + 1)
        numbers = torch.arange(positions + 1, device=values.device)
        first = None if last == len(form) - 1 else _first_of_each(at, [crds[each] for each in run])
        if first is None:  # entries are distinct
            pos[level] = torch.searchsorted(at, numbers)
            at, positions = torch.arange(entries, device=values.device), entries
        else:
            pos[level] = torch.searchsorted(at[first], numbers)
            at, positions = _numbered(first, entries), first.numel()
        for each in run:
            crd[each] = crds[each] if first is None else crds[each][first]
        counts += [positions] * len(run)
        level = last + 1
    dtype = dtype_of_type(index_type(shape, max(counts, default=0)))
    placed = values
    if form.levels[-1].is_full:
        placed = torch.zeros(positions, dtype=values.dtype, device=values.device)
        placed[at] = values
    narrow_pos, narrow_crd = (tuple(a if a is None else a.to(dtype) for a in arrays) for arrays in (pos, crd))
    return assembled(form, shape, narrow_pos, narrow_crd, counts, placed)


def _first_of_each(at: torch.Tensor, crds: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the first of the entries that have one position above, and the same coordinates."""
    is_new = torch.ones(at.numel(), dtype=torch.bool, device=at.device)
    if at.numel():
        is_new[1:] = at[1:] != at[:-1]
        for crd in crds:
            is_new[1:] |= crd[1:] != crd[:-1]
    return is_new.nonzero().squeeze(1)


def _numbered(first: torch.Tensor, entries: int) -> torch.Tensor:
    """Return for each entry which of ``first`` it belongs to."""
    is_new = torch.zeros(entries, dtype=torch.int64, device=first.device)
    is_new[first] = 1
    return torch.cumsum(is_new, 0) - 1
