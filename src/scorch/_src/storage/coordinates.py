"""The coordinates of every stored value, found by walking the levels from the outermost in.

Files, pictures and graphs want entries one by one, whatever the format; this takes time and memory in the
number of values and needs no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from scorch._src.devices import HOST
from scorch._src.storage.storage import Pattern, Storage


def coordinates(pattern: Pattern, dims: Iterable[int] | None = None) -> dict[int, torch.Tensor]:
    """For each of ``dims`` (or all) the coordinate (int64) of every value.

    The padding of blocks lies outside the shape.
    """
    form = pattern.format
    wanted = set(range(len(pattern.shape)) if dims is None else dims)
    found: dict[int, torch.Tensor] = {}
    positions = 1
    for level, kind in enumerate(form.levels):
        size = form.level_size(level, pattern.shape)
        crd = pattern.crd[level]
        if kind.is_full:
            found = {dim: array.repeat_interleave(size) for dim, array in found.items()}
            here = torch.arange(size if positions else 0, device=pattern.device).repeat(positions)
            positions *= size
        else:
            assert crd is not None
            here = crd.to(torch.int64)
            pos = pattern.pos[level]
            if pos is not None:
                lengths = pos[1:].to(torch.int64) - pos[:-1]
                found = {dim: array.repeat_interleave(lengths) for dim, array in found.items()}
            positions = here.numel()
        dim = form.order[level]
        if dim not in wanted:
            continue
        block = form.block(dim) or 1
        part = form.part(level)
        found[dim] = here if part == "whole" else here * block if part == "outer" else found[dim] + here
    return found


def clear_padding(values: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """``values`` of the entries of ``pattern`` with zeros in the padding of blocks, connected to them."""
    if not _padded(pattern):
        return values
    kept = inside(pattern, coordinates(pattern))
    return values if kept is None else values.masked_fill(~kept, 0)


def _padded(pattern: Pattern) -> list[int]:
    """The dimensions whose blocks reach beyond the shape."""
    return [dim for dim, block in pattern.format.blocks if pattern.shape[dim] % block]


def inside(pattern: Pattern, found: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """Which values lie inside the shape; None where all do, as only blocks are padded."""
    padded = _padded(pattern)
    if not padded:
        return None
    kept = torch.ones(pattern.size, dtype=torch.bool, device=pattern.device)
    for dim in padded:
        kept &= found[dim] < pattern.shape[dim]
    return kept


def entries(storage: Storage) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The coordinates and values of all entries, without the padding of blocks, in stored order."""
    found = coordinates(storage.pattern)
    kept = inside(storage.pattern, found)
    columns, values = [found[dim] for dim in range(len(found))], storage.values.detach()
    return (columns, values) if kept is None else ([array[kept] for array in columns], values[kept])


def keys_of(
    coordinates: Sequence[torch.Tensor], shape: tuple[int, ...], device: torch.device = HOST
) -> torch.Tensor:
    """The key of each entry; of a number, which has no coordinates, it is one 0, on ``device``."""
    keys = torch.zeros((), dtype=torch.int64, device=device)
    for crd, size in zip(coordinates, shape, strict=True):
        keys = keys * size + crd.to(torch.int64)
    return keys


def coordinates_of(keys: torch.Tensor, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """For each dimension the coordinates at ``keys``."""
    found: list[torch.Tensor] = []
    for size in reversed(shape):
        found.insert(0, keys % size if size else keys)
        keys = keys.div(size, rounding_mode="floor") if size else keys
    return found
