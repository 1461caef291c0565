"""Build the arrays of a tensor in any format from sorted entries by torch.

Levels are built from the outermost in. A full level computes positions, ``parent * size + coordinate``; any
other numbers the pairs of a parent and a coordinate that occur. Levels of a run of coordinates have the same
entries, so the pairs are those of all their coordinates.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence

import torch

from scorch._src.backends.base import routines_for
from scorch._src.compiler.pipeline import index_type
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.formats import Format
from scorch._src.loops.types import LAST_INT32
from scorch._src.storage.complete_levels import assembled
from scorch._src.storage.storage import Storage


def level_coordinates(form: Format, columns: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute the coordinates of every entry in each level from those in each dimension."""
    crds = []
    for level, dim in enumerate(form.order):
        block, part = form.block(dim), form.part(level)
        column = columns[dim]
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
    listed = _listed(form, shape, crds, values, check)
    if listed is not None:
        return listed
    builder = _Builder(form, shape, crds, values, check)
    level = 0
    while level < len(form):
        level = builder.widen(level) if form.levels[level].is_full else builder.list_entries(level)
    dtype = dtype_of_type(index_type(shape, max(builder.counts, default=0)))
    pos, crd = (
        tuple(a if a is None else a.to(dtype) for a in arrays) for arrays in (builder.pos, builder.crd)
    )
    return assembled(form, shape, pos, crd, builder.counts, builder.placed())


def _listed(
    form: Format,
    shape: tuple[int, ...],
    crds: Sequence[torch.Tensor],
    values: torch.Tensor,
    check: Callable[[int], None],
) -> Storage | None:
    """Build the tensor by a routine, if there is one and all levels below full ones list coordinates."""
    full = form.dense_levels
    if any(level.is_full for level in form.levels[full:]) or full == len(form):
        return None
    sizes = [form.level_size(level, shape) for level in range(full)]
    check(math.prod(sizes) * values.element_size())
    starts = [level for level in range(full, len(form)) if form.starts_run(level)]
    runs = [end - begin for begin, end in itertools.pairwise((*starts, len(form)))]
    index = dtype_of_type(index_type(shape, values.numel()))
    found = routines_for(values).list_levels(sizes, runs, crds, index)
    if found is None:
        return None
    pos = dict(zip(starts, found[0], strict=True))
    crd = (*[None] * full, *found[1])
    counts = [*itertools.accumulate(sizes, operator.mul), *(each.numel() for each in found[1])]
    levels = range(len(form))
    return assembled(form, shape, [pos.get(level) for level in levels], crd, counts, values)


class _Builder:
    """The levels of a tensor so far.

    ``positions`` is how many there are, and ``at`` that of each entry, None for the only one. ``first`` is
    the first entry of each position, where all of them have some.
    """

    def __init__(
        self,
        form: Format,
        shape: tuple[int, ...],
        crds: Sequence[torch.Tensor],
        values: torch.Tensor,
        check: Callable[[int], None],
    ) -> None:
        self.form, self.shape, self.crds, self.values, self.check = form, shape, crds, values, check
        self.entries, self.device = values.numel(), values.device
        self.pos: list[torch.Tensor | None] = [None] * len(form)
        self.crd: list[torch.Tensor | None] = [None] * len(form)
        self.counts: list[int] = []
        self.positions = 1
        self.at: torch.Tensor | None = None
        self.first: torch.Tensor | None = None

    def widen(self, level: int) -> int:
        """Build a full level; return the next."""
        size, crd = self.form.level_size(level, self.shape), self.crds[level]
        self.positions *= size
        self.check(self.positions * self.values.element_size())
        if self.at is None:
            self.at = crd.contiguous()
        else:
            self.at = (self.at.long() if self.positions > LAST_INT32 else self.at) * size + crd
        self.first = None
        self.counts.append(self.positions)
        return level + 1

    def list_entries(self, level: int) -> int:
        """Build a level that lists coordinates, and those of its run; return the next."""
        last = self.form.run_from(level)
        if last == len(self.form):  # entries are distinct
            self.pos[level] = self._begins(None, None)
            self.crd[level:last] = self.crds[level:last]
            self.positions = self.entries
        else:
            is_new = self._are_new(last)
            first, number = is_new.nonzero().squeeze(1), torch.cumsum(is_new, 0) - 1
            self.pos[level] = self._begins(first, number)
            self.crd[level:last] = [crd[first] for crd in self.crds[level:last]]
            self.at, self.first, self.positions = number, first, first.numel()
        self.counts += [self.positions] * (last - level)
        return last

    def _are_new(self, level: int) -> torch.Tensor:
        """Check which entries differ from those before in the coordinates of the levels above ``level``."""
        is_new = torch.zeros(self.entries, dtype=torch.bool, device=self.device)
        is_new[:1] = True
        for crd in self.crds[:level]:
            is_new[1:] |= crd[1:] != crd[:-1]
        return is_new

    def _begins(self, first: torch.Tensor | None, number: torch.Tensor | None) -> torch.Tensor:
        """Return where a level begins below each position, and its end.

        It has the entries ``first``, and each entry is of that with its ``number``; None: it has all entries.
        """
        count = self.entries if first is None else first.numel()
        if self.at is None:
            return torch.tensor([0, count], device=self.device)
        if self.first is not None:
            begins = self.first if number is None else number[self.first]
            return torch.cat([begins, begins.new_full((1,), count)])
        at = self.at if first is None else self.at[first]
        return torch.searchsorted(at, torch.arange(self.positions + 1, dtype=at.dtype, device=self.device))

    def placed(self) -> torch.Tensor:
        """Return the values at all positions."""
        if not self.form.levels[-1].is_full:
            return self.values
        values = torch.zeros(self.positions, dtype=self.values.dtype, device=self.device)
        values[slice(None) if self.at is None else self.at.long()] = self.values
        return values
