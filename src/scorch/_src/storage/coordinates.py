"""Compute the coordinates of every stored value by walking the levels from the outermost in.

Files, pictures and graphs want entries one by one, whatever the format; this takes time and memory in the
number of values and needs no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from scorch._src.backends.base import routines_for
from scorch._src.backends.by_torch.rows import rows_of
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.torch_internals import len_torch_dispatch_stack, peek_interpreter_stack


def coordinates(pattern: Pattern, dims: Iterable[int] | None = None) -> dict[int, torch.Tensor]:
    """Compute, for each of ``dims`` (or all), the coordinate (int64) of every value.

    The padding of blocks lies outside the shape.
    """
    form = pattern.format
    wanted = set(range(len(pattern.shape)) if dims is None else dims)
    columns: dict[int, torch.Tensor] = {}
    positions = 1
    for level, kind in enumerate(form.levels):
        size = form.level_size(level, pattern.shape)
        crd = pattern.crd[level]
        if kind.is_full:
            columns = {dim: array.repeat_interleave(size) for dim, array in columns.items()}
            here = torch.arange(size if positions else 0, device=pattern.device).repeat(positions)
            positions *= size
        else:
            assert crd is not None
            here = crd.to(torch.int64)
            pos = pattern.pos[level]
            if pos is not None and columns:
                parent = _parents(pos, crd)
                is_counted = level == 1 and form.part(0) == "whole" and form.levels[0].is_full
                columns = {
                    dim: parent if is_counted else array.index_select(0, parent)
                    for dim, array in columns.items()
                }
            positions = here.numel()
        dim = form.order[level]
        if dim not in wanted:
            continue
        block = form.block(dim) or 1
        part = form.part(level)
        columns[dim] = here if part == "whole" else here * block if part == "outer" else columns[dim] + here
    return columns


def _parents(pos: torch.Tensor, crd: torch.Tensor) -> torch.Tensor:
    """Return the position (int64) above each of a level with pointers ``pos``.

    PyTorch's ``repeat_interleave`` takes all threads however short arrays are, and waits for them.
    """
    is_plain = type(pos) is type(crd) is torch.Tensor and not len_torch_dispatch_stack()
    if is_plain and peek_interpreter_stack() is None:
        return routines_for(crd).row_numbers(pos, crd)[1].to(torch.int64)
    return rows_of(pos, crd.numel())


def clear_padding(values: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Zero the padding of blocks in ``values``; the result is connected to them."""
    is_inside = inside(pattern)
    return values if is_inside is None else values.masked_fill(~is_inside, 0)


def inside(pattern: Pattern, columns: Mapping[int, torch.Tensor] | None = None) -> torch.Tensor | None:
    """Check which values lie inside the shape; None where all do, as only blocks are padded.

    ``columns`` are the coordinates, if they are known.
    """
    padded = [dim for dim, block in pattern.format.blocks if pattern.shape[dim] % block]
    if not padded:
        return None
    columns = coordinates(pattern, padded) if columns is None else columns
    is_inside = torch.ones(pattern.size, dtype=torch.bool, device=pattern.device)
    for dim in padded:
        is_inside &= columns[dim] < pattern.shape[dim]
    return is_inside


def entries(storage: Storage) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the coordinates and values of all entries, without the padding of blocks, in stored order."""
    by_dim = coordinates(storage.pattern)
    is_inside = inside(storage.pattern, by_dim)
    columns, values = [by_dim[dim] for dim in range(len(by_dim))], storage.values.detach()
    if is_inside is None:
        return columns, values
    return [array[is_inside] for array in columns], values[is_inside]


def numbered_entries(pattern: Pattern) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the coordinates of all entries without padding, and the number of each among the values."""
    by_dim = coordinates(pattern)
    is_inside = inside(pattern, by_dim)
    columns = [by_dim[dim] for dim in range(len(by_dim))]
    if is_inside is None:
        return columns, torch.arange(pattern.size, device=pattern.device)
    return [array[is_inside] for array in columns], is_inside.nonzero().squeeze(1)


def keys_of(
    coordinates: Sequence[torch.Tensor], shape: tuple[int, ...], device: torch.device | None = None
) -> torch.Tensor:
    """Compute the key of each entry; without dimensions, and so coordinates, it is one 0 on ``device``."""
    own = coordinates[0].device if coordinates else device
    assert own is not None, "without coordinates it is not known where keys should be"
    keys = torch.zeros((), dtype=torch.int64, device=own)
    for crd, size in zip(coordinates, shape, strict=True):
        keys = keys * size + crd.to(torch.int64)
    return keys


def coordinates_of(keys: torch.Tensor, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Compute for each dimension the coordinates at ``keys``."""
    columns: list[torch.Tensor] = []
    for size in reversed(shape):
        columns.insert(0, keys % size if size else keys)
        keys = keys.div(size, rounding_mode="floor") if size else keys
    return columns


def joined_ranges(begins: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """List the numbers from each of ``begins`` on, as many as its length, one range after the other."""
    offsets = begins - (torch.cumsum(lengths, 0) - lengths)
    numbers = torch.repeat_interleave(offsets, lengths)
    return numbers + torch.arange(numbers.numel(), device=numbers.device)
