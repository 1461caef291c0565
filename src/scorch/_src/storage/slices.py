"""Slices of a sparse tensor along the dimension that its outermost level stores.

The coordinates from ``start`` to ``stop`` there are a range of positions of the first level, and so a range
of positions of every level below: a slice has slices of the same arrays, and the time to compute it does not
grow with the entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch

from scorch._src.backends.base import routines_for
from scorch._src.compiler.pipeline import index_type
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.formats import Format
from scorch._src.storage.complete_levels import assembled
from scorch._src.storage.coordinates import joined_ranges
from scorch._src.storage.storage import Pattern, Storage

Array = torch.Tensor | None
MAX_ROWS_OF_ENTRY = 16  # of a list of entries to rows of which pointers are worth their memory


def outer_dim(form: Format) -> int | None:
    """Return the dimension along which a tensor has slices; None if it is blocked."""
    return None if form.is_blocked or not form.order else form.order[0]


def outer_slice(storage: Storage, start: int, stop: int) -> Storage:
    """Slice the coordinates from ``start`` to before ``stop`` of the outermost dimension."""
    pattern = storage.pattern
    shape = list(pattern.shape)
    shape[pattern.format.order[0]] = stop - start
    ranges = _ranges(pattern, start, stop)
    pos, crd = _sliced(pattern, ranges)
    if crd[0] is not None:
        crd[0] = crd[0] - start
    counts = tuple(end - begin for begin, end in ranges)
    begin, end = ranges[-1]
    return assembled(pattern.format, tuple(shape), pos, crd, counts, storage.values[begin:end])


def select_outer(storage: Storage, index: int) -> Storage | None:
    """Select coordinate ``index`` of the outermost dimension, of two or more; None if nothing is stored."""
    pattern, form = storage.pattern, storage.pattern.format
    ranges = _ranges(pattern, index, index + 1)
    begin, end = ranges[0]
    if begin == end:
        return None
    pos, crd = _sliced(pattern, ranges)
    if not form.is_unique(0):  # coordinates in step with those of the outermost level: a list of its own
        pos[1] = torch.tensor([0, end - begin], dtype=pattern.index_dtype, device=pattern.device)
    shape = tuple(size for dim, size in enumerate(pattern.shape) if dim != form.order[0])
    inner = form.inner
    counts = tuple(end - begin for begin, end in ranges[1:])
    begin, end = ranges[-1]
    return assembled(inner, shape, pos[1:], crd[1:], counts, storage.values[begin:end])


def unbind_outer(storage: Storage) -> list[Storage | None]:
    """Select every coordinate at once; None too where levels have positions, but no values."""
    pattern, form = storage.pattern, storage.pattern.format
    size = pattern.shape[form.order[0]]
    bounds = _bounds(pattern, torch.arange(size + 1, device=pattern.device))
    held = torch.nonzero(bounds[-1][1:] > bounds[-1][:-1])[:, 0]
    starts, stops = [level[held] for level in bounds], [level[held + 1] for level in bounds]
    pos: list[Sequence[Array]] = []
    crd: list[Sequence[Array]] = []
    for level in range(1, len(form)):
        pointers, places = pattern.pos[level], pattern.crd[level]
        start, stop = starts[level], stops[level]
        if pointers is not None:
            pos.append(_split_pointers(pointers, starts[level - 1], stops[level - 1] + 1, start))
        elif level == 1 and not form.is_unique(0):  # a list of its own, as in select_outer
            lengths = (stop - start).to(pattern.index_dtype)
            pos.append(torch.stack([torch.zeros_like(lengths), lengths], 1).unbind())
        else:
            pos.append([None] * held.numel())
        crd.append([None] * held.numel() if places is None else _split(places, start, stop))
    counts = zip(
        *((stop - start).tolist() for start, stop in zip(starts[1:], stops[1:], strict=True)), strict=True
    )
    values = _split(storage.values, starts[-1], stops[-1])
    shape = tuple(size for dim, size in enumerate(pattern.shape) if dim != form.order[0])
    inner = form.inner
    slices: list[Storage | None] = [None] * size
    rows = zip(held.tolist(), zip(*pos, strict=True), zip(*crd, strict=True), counts, values, strict=True)
    for index, own_pos, own_crd, own_counts, own in rows:
        slices[index] = assembled(inner, shape, own_pos, own_crd, own_counts, own)
    return slices


def _split(array: torch.Tensor, start: torch.Tensor, stop: torch.Tensor) -> Sequence[torch.Tensor]:
    """Slice ``array`` from each ``start`` to before its ``stop``; they come one after the other."""
    sizes = torch.stack([start - torch.cat([start.new_zeros(1), stop])[:-1], stop - start], 1)
    until = int(stop[-1]) if stop.numel() else 0
    if not bool(sizes[:, 0].any()):
        return torch.split(array[:until], sizes[:, 1].tolist())
    return torch.split(array[:until], sizes.reshape(-1).tolist())[1::2]


def _bounds(pattern: Pattern, cuts: torch.Tensor) -> list[torch.Tensor]:
    """Return the first positions of each level below coordinates ``cuts`` of the outermost dimension."""
    bounds: list[torch.Tensor] = []
    for level, kind in enumerate(pattern.format.levels):
        crd, pos = pattern.crd[level], pattern.pos[level]
        if level == 0 and crd is not None:
            cuts = torch.searchsorted(crd, cuts.to(crd.dtype))
        elif level and kind.is_full:
            cuts = cuts * pattern.format.level_size(level, pattern.shape)
        elif level and pos is not None:
            cuts = pos[cuts].to(torch.int64)
        bounds.append(cuts)
    return bounds


def _split_pointers(
    array: torch.Tensor, start: torch.Tensor, stop: torch.Tensor, less: torch.Tensor
) -> Sequence[torch.Tensor]:
    """Slice ``array`` as ``_split`` does, with slices that may overlap, and subtract ``less`` from each."""
    lengths = stop - start
    pointers = array[joined_ranges(start, lengths)] - less.to(array.dtype).repeat_interleave(lengths)
    return torch.split(pointers, lengths.tolist())


def element(storage: Storage, places: Sequence[int]) -> torch.Tensor:
    """Return the value at one place of a tensor that is not blocked."""
    pattern = storage.pattern
    form = pattern.format
    begin, end = 0, 1  # the positions of the level above, or of the entries of a run of coordinates
    for level, kind in enumerate(form.levels):
        place = places[form.order[level]]
        if kind.is_full:
            begin = begin * pattern.shape[form.order[level]] + place
            end = begin + 1
            continue
        pos, crd = pattern.pos[level], pattern.crd[level]
        assert crd is not None
        if pos is not None:
            begin, end = int(pos[begin]), int(pos[end])
        among = crd[begin:end]
        first, last = (int(torch.searchsorted(among, place, right=right)) for right in (False, True))
        begin, end = begin + first, begin + last
        if begin == end:
            return storage.values.new_zeros(())
    return storage.values[begin].clone()


def _ranges(pattern: Pattern, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the positions of each level below these coordinates of the outermost dimension."""
    begin, end = start, stop
    ranges: list[tuple[int, int]] = []
    for level, kind in enumerate(pattern.format.levels):
        crd, pos = pattern.crd[level], pattern.pos[level]
        if level == 0 and crd is not None:
            places = torch.tensor([start, stop], dtype=crd.dtype, device=crd.device)
            begin, end = torch.searchsorted(crd, places).tolist()
        elif kind.is_full and level:
            size = pattern.format.level_size(level, pattern.shape)
            begin, end = begin * size, end * size
        elif level and pos is not None:
            bounds = pos[begin : end + 1 : max(end - begin, 1)].tolist()  # the first and the last
            begin, end = bounds[0], bounds[-1]
        ranges.append((begin, end))
    return ranges


def _sliced(pattern: Pattern, ranges: Sequence[tuple[int, int]]) -> tuple[list[Array], list[Array]]:
    pos: list[Array] = list(pattern.pos)
    crd: list[Array] = list(pattern.crd)
    for level, (begin, end) in enumerate(ranges):
        places, pointers = crd[level], pos[level]
        if places is not None:
            crd[level] = places[begin:end]
        if pointers is None:
            continue
        if level == 0:
            pos[0] = torch.tensor([0, end - begin], dtype=pointers.dtype, device=pointers.device)
        else:
            above, until = ranges[level - 1]
            pos[level] = pointers[above : until + 1] - begin
    return pos, crd


def select_rows(storage: Storage, picked: torch.Tensor, from_end: bool = True) -> Storage | None:
    """Select the coordinates ``picked`` of the outermost dimension, of rows below dense levels or in a list.

    Numbers below 0 count ``from_end``, or are out of range. None where the general way must be taken, which
    also raises for a row that is out of range.
    """
    pattern = storage.pattern
    form = pattern.format
    if form.is_list and len(form) == 2 and not form.is_blocked:
        return _select_listed(storage, picked, from_end)
    if len(form) < 2 or form.dense_levels != len(form) - 1 or form.is_blocked:
        return None
    pos, crd = pattern.pos[-1], pattern.crd[-1]
    assert pos is not None and crd is not None
    shape = list(pattern.shape)
    shape[form.order[0]] = picked.numel()
    each = pattern.counts[-2] // max(pattern.counts[0], 1)
    if not each:
        return None
    rows = picked
    if each != 1:
        rows = (rows.long().unsqueeze(1) * each + torch.arange(each, device=rows.device)).reshape(-1)
    arrays = routines_for(pos).pick_rows(pos, crd, storage.values, rows, from_end)
    if arrays is None:
        return None
    above = [None] * (len(form) - 1)
    counts = [count // max(pattern.counts[0], 1) * picked.numel() for count in pattern.counts[:-1]]
    counts.append(arrays[1].numel())
    return assembled(form, tuple(shape), (*above, arrays[0]), (*above, arrays[1]), counts, arrays[2])


def _select_listed(storage: Storage, picked: torch.Tensor, from_end: bool) -> Storage | None:
    """Select rows of a list of entries, by pointers to them; None where rows are far more than entries."""
    pattern, form = storage.pattern, storage.pattern.format
    numbers, columns = pattern.crd
    assert numbers is not None and columns is not None
    shape = list(pattern.shape)
    rows = shape[form.order[0]]
    if rows > MAX_ROWS_OF_ENTRY * (pattern.size + picked.numel()):
        return None
    shape[form.order[0]] = picked.numel()
    routines = routines_for(numbers)
    pos = routines.row_pointers(numbers, rows)
    arrays = routines.pick_rows(pos, columns, storage.values, picked, from_end)
    if arrays is None:
        return None
    new_pos, new_columns, values = arrays
    ends, new_numbers = routines.row_numbers(new_pos, new_columns)
    count = new_columns.numel()
    return assembled(form, tuple(shape), (ends, None), (new_numbers, new_columns), (count, count), values)


def concat_matrices(parts: Sequence[Storage], dim: int, shape: tuple[int, ...]) -> Storage | None:
    """Concatenate matrices of compressed rows, or columns, along ``dim``; None if they are anything else."""
    form = parts[0].pattern.format
    if not form.is_compressed_matrix:
        return None
    patterns = [part.pattern for part in parts]
    rows, count = shape[form.order[0]], sum([pattern.counts[1] for pattern in patterns])
    index = dtype_of_type(index_type(shape, count))
    if any([pattern.index_dtype is not index for pattern in patterns]):
        return None
    arrays, sizes = [part.tensors for part in parts], [pattern.shape[dim] for pattern in patterns]
    is_outer = dim == form.order[0]
    routines = routines_for(parts[0].values)
    if is_outer:
        joined = routines.concat_rows(arrays, sizes, count)
    else:
        joined = routines.concat_columns(arrays, sizes, rows, count)
    if joined is None:
        return None
    pos, crd, values = joined
    return Storage(Pattern(form, shape, (None, pos), (None, crd), (rows, count)), values)


def concat_outer(parts: Sequence[Storage], shape: tuple[int, ...]) -> Storage:
    """Concatenate tensors of one format, not blocked, along the outermost dimension."""
    patterns = [part.pattern for part in parts]
    form = patterns[0].format
    counts = tuple(sum(pattern.counts[level] for pattern in patterns) for level in range(len(form)))
    index = dtype_of_type(index_type(shape, counts[-1]))
    pos: list[Array] = []
    crd: list[Array] = []
    for level in range(len(form)):
        if form.levels[level].is_full:
            pos.append(None)
            crd.append(None)
            continue
        pointers = [pattern.pos[level] for pattern in patterns]
        places = [pattern.crd[level] for pattern in patterns]
        if level == 0 and pointers[0] is not None:
            pos.append(torch.tensor([0, counts[0]], dtype=index, device=pointers[0].device))
        else:
            below = [array if not n or array is None else array[1:] for n, array in enumerate(pointers)]
            pos.append(_concat_arrays(below, _starts([p.counts[level] for p in patterns]), index))
        offsets = _starts([p.shape[form.order[0]] for p in patterns]) if level == 0 else None
        crd.append(_concat_arrays(places, offsets, index))
    values = routines_for(parts[0].values).concat([part.values for part in parts])
    return assembled(form, shape, pos, crd, counts, values)


def shift(storage: Storage, dim: int, by: int, shape: tuple[int, ...]) -> Storage | None:
    """Shift entries by ``by`` along ``dim`` of a larger ``shape``; None if no array stores that."""
    pattern = storage.pattern
    form = pattern.format
    level = form.order.index(dim)
    there = pattern.crd[level]
    if there is None or form.is_blocked:
        return None
    index = dtype_of_type(index_type(shape, pattern.size))
    crd = [array if array is None else array.to(index) for array in pattern.crd]
    pos = [array if array is None else array.to(index) for array in pattern.pos]
    crd[level] = there.to(index) + by if by else crd[level]
    return assembled(form, shape, pos, crd, pattern.counts, storage.values)


def _starts(lengths: Iterable[int]) -> list[int]:
    """Return where each of several slices begins."""
    return [0, *itertools.accumulate(lengths)][:-1]


def _concat_arrays(arrays: Sequence[Array], offsets: Sequence[int] | None, dtype: torch.dtype) -> Array:
    """Concatenate the arrays of a level; None if it stores none."""
    converted = [array if array.dtype == dtype else array.to(dtype) for array in arrays if array is not None]
    return routines_for(converted[0]).concat(converted, offsets) if converted else None
