"""Routines on the index arrays of storage, and on values that move with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from scorch._src.backends.by_torch.rows import Matrix, Tensor, rows_of
from scorch._src.backends.sort_entries import (
    MAX_KEYS,
    Sorted,
    sorted_by_columns,
    sorted_by_keys,
    stable_sort,
    sum_runs,
)
from scorch._src.loops.types import LAST_INT32
from scorch._src.torch_internals import row_pointers_of

_LOW_BITS = 2**32 - 1


def do_nothing() -> None:
    """Do nothing, where callers have nothing to do while a device works."""


class IndexRoutines:
    """Check, sort, transpose, select and concatenate index arrays."""

    run_dtypes: tuple[torch.dtype, ...] = ()  # of ``reduce_runs``

    def copy_indices(self, array: Tensor, dtype: torch.dtype) -> Tensor:
        """Copy an index array, without gaps, as ``dtype``."""
        return array.to(dtype, copy=True, memory_format=torch.contiguous_format)

    def has_sorted_rows(self, pos: Tensor, crd: Tensor, size: int) -> bool:
        """Check that pointers rise from 0 to the number of entries, and that the coordinates below each are
        sorted, differ and lie in ``size``; a device is asked once.
        """
        entries = crd.numel()
        is_right = (pos[0] == 0) & (pos[-1] == entries) & (pos[1:] >= pos[:-1]).all()
        if entries:
            rises = torch.ones(entries + 1, dtype=torch.bool, device=crd.device)
            torch.gt(crd[1:], crd[:-1], out=rises[1:-1])
            rises.index_fill_(0, pos.long().clamp(0, entries), True)  # the first follows nothing
            last = min(size - 1, torch.iinfo(crd.dtype).max)  # a larger number would wrap around
            is_right = is_right & rises.all() & (crd >= 0).all() & (crd <= last).all()
        return bool(is_right)

    def own_rows(
        self, pos: Tensor, crd: Tensor, size: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """Copy, as ``dtype``, arrays that ``has_sorted_rows``; None where they have not.

        Coordinates may be of ``torch.uint16``, which few PyTorch functions take.
        """
        crd = crd.to(dtype) if crd.dtype == torch.uint16 else crd
        if not self.has_sorted_rows(pos, crd, size):
            return None
        return self.copy_indices(pos, dtype), self.copy_indices(crd, dtype)

    def hash_indices(self, array: Tensor) -> int:
        """Return a number that differs, almost certainly, for other indices or another order of them.

        It is the same for both dtypes: the sum of all indices modulo 2**32, each times a factor of its place.
        """
        factors = torch.arange(array.numel(), device=array.device).mul_(0x9E3779B1).bitwise_and_(_LOW_BITS)
        factors.bitwise_xor_(factors >> 15).bitwise_or_(1)
        numbers = array.long()
        return int(factors.mul_(numbers ^ numbers >> 32).sum()) & _LOW_BITS

    def row_pointers(self, rows: Tensor, count: int) -> Tensor:
        """Compute where each of ``count`` rows begins among entries of the sorted ``rows``, and the end."""
        return row_pointers_of(rows, count, out_int32=rows.dtype == torch.int32)

    def row_numbers(self, pos: Tensor, crd: Tensor) -> tuple[Tensor, Tensor]:
        """Compute where the list of all entries begins and ends, and the row of each entry ``crd``."""
        ends = torch.tensor([0, crd.numel()], dtype=pos.dtype, device=pos.device)
        return ends, rows_of(pos, crd.numel()).to(pos.dtype)

    def coalesce(
        self,
        columns: Sequence[Tensor],
        sizes: Sequence[int],
        values: Tensor,
        index: torch.dtype,
        meanwhile: Callable[[], object] = do_nothing,
    ) -> tuple[Sequence[Tensor], Tensor, Tensor | None] | None:
        """Sort entries with any coordinates and add up those that repeat, all at once.

        Return new arrays of coordinates of dtype ``index``, the values, and where the list begins and ends.
        None where coordinates have to be checked, then sorted by ``sort_entries`` and added up by
        ``sum_entries``, one after the other. ``meanwhile`` is called before the host waits, if it does.
        """
        del columns, sizes, values, index, meanwhile
        return None

    def sort_entries(self, columns: Sequence[Tensor], sizes: Sequence[int]) -> Sorted | bool:
        """Sort entries by their coordinates, and find those that repeat.

        True where they are sorted and none repeats. False where some repeat and a kernel adds them up.
        """
        if columns[0].numel() < 2:
            return True
        is_numbered = math.prod(sizes) <= MAX_KEYS
        found = sorted_by_keys(columns, sizes) if is_numbered else sorted_by_columns(columns)
        if found is None:
            return True
        order, first = found
        if first.numel() == order.numel():
            return Sorted(order, [column[order] for column in columns])
        return Sorted(order, [column[order[first]] for column in columns], first)

    def sum_entries(self, found: Sorted, values: Tensor) -> Tensor:
        """Compute the value of each place, the sum of those of its entries."""
        ordered = values[found.order]
        return ordered if found.first is None else sum_runs(ordered, found.first)

    def list_levels(
        self, sizes: Sequence[int], runs: Sequence[int], crds: Sequence[Tensor], index: torch.dtype
    ) -> tuple[list[Tensor], list[Tensor]] | None:
        """Build the levels of entries that are sorted and distinct, with ``crds`` in each level.

        Full levels have ``sizes``; below them are ``runs``, by their lengths, that list coordinates. Return
        ``pos`` of each run and ``crd`` of each level in them, of dtype ``index``; None without a kernel.
        """
        del sizes, runs, crds, index
        return None

    def transpose_rows(self, pos: Tensor, crd: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Transpose compressed rows; return where columns begin, their rows, and the entry of each."""
        lines = torch.arange(pos.numel() - 1, dtype=crd.dtype, device=crd.device)
        line = lines.repeat_interleave(pos.diff(), output_size=crd.numel())
        across, order = stable_sort(crd)
        return self.row_pointers(across, columns).to(pos.dtype), line[order], order

    def transpose_places(
        self, pos: Tensor, crd: Tensor, columns: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return what ``transpose_rows`` does; None where a kernel that moves values is faster."""
        del pos, crd, columns
        return None

    def transpose_matrix(self, matrix: Matrix, columns: int) -> Matrix | None:
        """Transpose compressed rows of ``columns`` columns; None where a kernel does it as well."""
        del matrix, columns
        return None

    def transposition_bytes(self, entries: int) -> int:
        """Return the most bytes that it takes besides its result to transpose a matrix."""
        del entries
        return 0

    def take(self, values: Tensor, places: Tensor) -> Tensor:
        """Return the values at ``places``, along the first dimension."""
        return values.index_select(0, places)

    def reduce_runs(
        self, values: Tensor, begins: Tensor, how: str, order: Tensor | None = None
    ) -> Tensor | None:
        """Reduce the values, perhaps in another order, from each of ``begins`` to the next.

        ``how``: ``sum``, ``prod``, ``amax`` or ``amin``; or ``argmax`` or ``argmin``, the number of the first
        extreme among the values. It is 0 where there are none. ``cumsum`` and ``cumprod`` have a result for
        each value; ``ascending`` and ``descending`` are the numbers of the values, each run sorted. None
        where PyTorch's operators do it as well, as for dtypes that are not ``run_dtypes``.
        """
        del values, begins, how, order
        return None

    def scattered_extremes(self, values: Tensor, group: Tensor, begins: Tensor, how: str) -> Tensor | None:
        """Find ``amax``, ``amin``, ``argmax`` or ``argmin`` of each group, as ``reduce_runs`` does.

        Each value has the number of its ``group``, whose lengths follow from ``begins``. None where their
        values are better gathered first.
        """
        del values, group, begins, how
        return None

    def count_signs(self, values: Tensor) -> tuple[int, int, int]:
        """Count the values that are less than zero, not zero, and no numbers; a device is asked once."""
        counts = torch.stack([torch.count_nonzero(which) for which in (values < 0, values, values.isnan())])
        negatives, nonzeros, nans = counts.tolist()
        return negatives, nonzeros, nans

    def select(self, values: Tensor, ranks: Sequence[int]) -> Tensor:
        """Return the values of increasing ``ranks`` among all in ascending order, NaN being the largest."""
        ordered = torch.sort(values)[0]
        return ordered[torch.tensor(ranks, dtype=torch.int64, device=values.device)]

    def pick_rows(
        self, pos: Tensor, crd: Tensor, values: Tensor, picked: Tensor, from_end: bool = True
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Select ``pos``, ``crd`` and ``values`` of the rows ``picked``; None where one is out of range.

        Numbers below 0 count ``from_end``, or are out of range.
        """
        rows = pos.numel() - 1
        if bool(((picked < (-rows if from_end else 0)) | (picked >= rows)).any()):
            return None
        picked = torch.where(picked < 0, picked + rows, picked)
        begin, counts = pos[picked].long(), pos.diff()[picked].long()
        new = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        entries = int(new[-1])
        index = torch.int64 if entries > LAST_INT32 else pos.dtype  # rows may be picked repeatedly
        row = rows_of(new, entries)
        source = begin[row] + torch.arange(row.numel(), device=row.device) - new[row]
        return new.to(index), crd[source].to(index), values[source]

    def concat(self, arrays: Sequence[Tensor], offsets: Sequence[int] | None = None) -> Tensor:
        """Concatenate ``arrays`` of one dtype, adding its offset to all elements of each."""
        if offsets is None:
            return torch.cat(list(arrays))
        return torch.cat([a + offset if offset else a for a, offset in zip(arrays, offsets, strict=True)])

    def concat_rows(self, matrices: Sequence[Matrix], rows: Sequence[int], entries: int) -> Matrix | None:
        """Concatenate the ``rows`` of matrices; None where the caller must use a fallback."""
        del rows, entries
        starts = [0]
        for _, crd, _ in matrices:
            starts.append(starts[-1] + crd.numel())
        pos = [pos[1:] + start for (pos, _, _), start in zip(matrices, starts, strict=False)]
        first = pos[0].new_zeros(1)
        return torch.cat([first, *pos]), *(torch.cat([m[part] for m in matrices]) for part in (1, 2))

    def concat_columns(
        self, matrices: Sequence[Matrix], widths: Sequence[int], rows: int, entries: int
    ) -> Matrix | None:
        """Concatenate matrices of as many rows and ``widths`` columns along columns; None as above."""
        numbers = torch.cat([rows_of(pos, crd.numel()) for pos, crd, _ in matrices])
        order = stable_sort(numbers)[1]
        starts = [0]
        for width in widths:
            starts.append(starts[-1] + width)
        pos = matrices[0][0]
        crd = self.concat([crd for _, crd, _ in matrices], starts[:-1])
        pointers = self.row_pointers(numbers[order].to(pos.dtype), rows)
        return pointers, crd[order], torch.cat([values for _, _, values in matrices])[order]

    def parse_table(
        self, data: bytes, begin: int, sizes: tuple[int, ...], parts: int, whole: bool
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        """Parse the coordinates and values in lines of text from ``begin`` on; None: NumPy must read them."""
        return None
