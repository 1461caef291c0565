"""Assemble the arrays of a tensor from appended entries.

Kernels, torch and slices of other tensors return the entries of a result as ``pos`` and ``crd`` of each
level. A level may store more than that (``Level.complete``): then the levels below are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.formats import Format, Level
from scorch._src.grad_state import untracked
from scorch._src.loops.types import LAST_INT32
from scorch._src.storage.budget import UNCHECKED_BYTES, check_budget
from scorch._src.storage.storage import Pattern, Storage

Array = torch.Tensor | None


def assembled(
    form: Format,
    shape: tuple[int, ...],
    pos: Sequence[Array],
    crd: Sequence[Array],
    counts: Sequence[int],
    values: torch.Tensor,
) -> Storage:
    """Build the tensor with these entries and values, all levels finished."""
    if not form.is_finished:
        return Storage(Pattern(form, shape, tuple(pos), tuple(crd), tuple(counts)), values)
    _check_memory(form, shape, counts, values.device)
    entries = Pattern(form, shape, tuple(pos), tuple(crd), tuple(counts))
    pattern, places = completed(entries)
    pattern.forget_coordinates()
    if places is None:
        return Storage(pattern, values)
    return Storage(pattern, values.new_zeros(pattern.size).index_copy(0, places, values))


def completed(entries: Pattern) -> tuple[Pattern, torch.Tensor | None]:
    """Add to ``entries`` all that its levels store besides, and return where values go (None: unchanged)."""
    if not any(kind.is_padded for kind in entries.format.levels):
        return entries, None
    with untracked():
        return _Completion(entries).run()


class _Completion:
    """A walk down the levels of ``entries``; ``places`` are the new positions of those of a level."""

    def __init__(self, entries: Pattern) -> None:
        self.entries = entries
        self.pos, self.crd, self.counts = list(entries.pos), list(entries.crd), list(entries.counts)
        self.places: torch.Tensor | None = None

    def run(self) -> tuple[Pattern, torch.Tensor | None]:
        form, shape = self.entries.format, self.entries.shape
        for level, kind in enumerate(form.levels):
            size = form.level_size(level, shape)
            if kind.is_full:
                self._widen(level, size)
            elif form.starts_run(level):
                self._fill(level, kind, size)
            elif level:
                self.counts[level] = self.counts[level - 1]
        if self.places is None and tuple(self.counts) == self.entries.counts:
            return self.entries, None
        index = torch.int64 if max(self.counts) > LAST_INT32 else self.entries.index_dtype
        pos, crd = (
            tuple(None if array is None else array.to(index) for array in arrays)
            for arrays in (self.pos, self.crd)
        )
        return Pattern(form, shape, pos, crd, tuple(self.counts)), self.places

    def _widen(self, level: int, size: int) -> None:
        """Make room in a full level, below all positions above."""
        if self.places is not None:
            inner = torch.arange(size, device=self.places.device)
            self.places = (self.places.unsqueeze(1) * size + inner).reshape(-1)
            self.counts[level] = (self.counts[level - 1] if level else 1) * size

    def _fill(self, level: int, kind: Level, size: int) -> None:
        """Move the entries of a level below moved positions, and add those that it stores besides."""
        pos, crd = self.pos[level], self.crd[level]
        assert pos is not None and crd is not None
        if self.places is not None:
            pos = self.pos[level] = _spread(pos, self.places, self.counts[level - 1])
            self.places = None
        room = kind.room(pos, crd, size)
        if room == crd.numel():
            return
        if 8 * room > UNCHECKED_BYTES:
            what = f"a tensor of shape {self.entries.shape} in format {self.entries.format}"
            check_budget(8 * room, crd.device, what, "use a format without padding, such as 'csr'")
        whole, listed = kind.complete(pos, crd, size)
        self.places = _places(pos, crd, whole, listed, size)
        self.pos[level], self.crd[level], self.counts[level] = whole, listed, room


def _spread(pointers: torch.Tensor, places: torch.Tensor, parents: int) -> torch.Tensor:
    """Return ``pointers`` to the same entries, whose parents moved to ``places`` of ``parents``."""
    lengths = torch.zeros(parents + 1, dtype=torch.int64, device=pointers.device)
    lengths[places + 1] = pointers.diff().long()
    return torch.cumsum(lengths, 0).to(pointers.dtype)


def _places(
    pos: torch.Tensor, crd: torch.Tensor, whole: torch.Tensor, listed: torch.Tensor, size: int
) -> torch.Tensor:
    """Find the position of each entry among all that are stored."""
    parents = torch.arange(pos.numel() - 1, device=pos.device) * size
    wanted = parents.repeat_interleave(pos.diff()) + crd
    return torch.searchsorted(parents.repeat_interleave(whole.diff()) + listed, wanted)


def _check_memory(form: Format, shape: tuple[int, ...], counts: Sequence[int], device: torch.device) -> None:
    """Raise if the array of a level is beyond the budget."""
    parents = 1
    for level, kind in enumerate(form.levels):
        if not kind.is_full:
            length = kind.length(parents, form.level_size(level, shape), counts[level])
            if 8 * length > UNCHECKED_BYTES:
                what = f"a tensor of shape {shape} in format {form}"
                check_budget(8 * length, device, what, "use a sparser format such as 'coo' or 'dcsr'")
        parents = counts[level]
