"""Is a ``Storage`` what its format promises? And, independently of any kernel, which dense tensor is it?"""

from __future__ import annotations

import itertools
import math

import torch

from scorch._src.storage.storage import Storage
from scorch._src.tensor.sparse_tensor import SparseTensor


def check_storage(stored: Storage | SparseTensor) -> None:
    """Assert the promises of every level: kernels follow the arrays without looking."""
    storage = stored.storage if isinstance(stored, SparseTensor) else stored
    pattern, form = storage.pattern, storage.pattern.format
    assert form.dims == len(pattern.shape)
    assert len(pattern.pos) == len(pattern.crd) == len(pattern.counts) == len(form)
    parents = 1
    for level, kind in enumerate(form.levels):
        if kind.is_full:
            assert pattern.pos[level] is None and pattern.crd[level] is None
            parents *= form.level_size(level, pattern.shape)
        elif form.starts_run(level):
            parents = _check_run(storage, level, parents)
        else:
            assert pattern.pos[level] is None, "only the first level of a run keeps pos"
        assert pattern.counts[level] == parents, (
            f"level {level} counts {pattern.counts[level]}, has {parents}"
        )
    values = storage.values
    assert values.dim() == 1 and values.is_contiguous() and not values.is_conj() and not values.is_neg()
    assert values.numel() == parents == pattern.size
    assert not values.requires_grad
    fits = max((*pattern.shape, *pattern.counts), default=0) <= 2**31 - 1
    for array in pattern.arrays:
        assert array.dtype == (torch.int32 if fits else torch.int64)
        assert array.dim() == 1 and array.is_contiguous()
    _check_padding(storage)


def _check_run(storage: Storage, level: int, parents: int) -> int:
    """A compressed level, or a run of coordinate levels from ``level`` on: the number of its entries."""
    pattern, form = storage.pattern, storage.pattern.format
    run = [level]
    while run[-1] + 1 < len(form) and form.letters[run[-1] + 1] == "o" and not form.starts_run(run[-1] + 1):
        run.append(run[-1] + 1)
    pos = pattern.pos[level]
    assert pos is not None and pos.numel() == parents + 1
    bounds = pos.tolist()
    assert bounds[0] == 0 and bounds == sorted(bounds), f"pos of level {level} goes down: {bounds}"
    columns = []
    for member in run:
        crd = pattern.crd[member]
        assert crd is not None and crd.numel() == bounds[-1], (
            f"level {member} has {crd} for {bounds[-1]} entries"
        )
        column = crd.tolist()
        size = form.level_size(member, pattern.shape)
        assert all(0 <= coordinate < size for coordinate in column), f"level {member} leaves 0..{size - 1}"
        columns.append(column)
    entries = list(zip(*columns, strict=True))
    for begin, end in itertools.pairwise(bounds):
        below = entries[begin:end]
        assert all(a < b for a, b in itertools.pairwise(below)), f"not sorted or repeated: {below}"
    return bounds[-1]


def coordinates_of(storage: Storage) -> list[torch.Tensor]:
    """For each dimension the coordinate of every value, found by walking the levels."""
    pattern, form = storage.pattern, storage.pattern.format
    found: dict[int, torch.Tensor] = {}
    positions = 1
    for level, kind in enumerate(form.levels):
        size = form.level_size(level, pattern.shape)
        if kind.is_full:
            found = {dim: array.repeat_interleave(size) for dim, array in found.items()}
            here = torch.arange(size if positions else 0, device=storage.values.device).repeat(positions)
            positions *= size
        else:
            crd = pattern.crd[level]
            assert crd is not None
            here = crd.to(torch.int64)
            if form.starts_run(level):
                pos = pattern.pos[level]
                assert pos is not None
                lengths = pos[1:].to(torch.int64) - pos[:-1]
                found = {dim: array.repeat_interleave(lengths) for dim, array in found.items()}
                positions = here.numel()
        dim = form.order[level]
        block = form.block(dim)
        part = form.part(level)
        found[dim] = here if part == "whole" else here * block if part == "outer" else found[dim] + here
    return [found[dim] for dim in range(len(pattern.shape))]


def dense_of(stored: Storage | SparseTensor) -> torch.Tensor:
    """The dense tensor that a storage means, without a kernel."""
    storage = stored.storage if isinstance(stored, SparseTensor) else stored
    shape = storage.pattern.shape
    coordinates, kept = _inside(storage)
    dense = torch.zeros(shape, dtype=storage.values.dtype, device=storage.values.device)
    if math.prod(shape):
        dense[tuple(array[kept] for array in coordinates)] = storage.values[kept]
    return dense


def _inside(storage: Storage) -> tuple[list[torch.Tensor], torch.Tensor]:
    coordinates = coordinates_of(storage)
    kept = torch.ones(storage.values.numel(), dtype=torch.bool, device=storage.values.device)
    for array, size in zip(coordinates, storage.pattern.shape, strict=True):
        kept &= array < size
    return coordinates, kept


def _check_padding(storage: Storage) -> None:
    """The part of a block that lies outside the tensor holds zeros."""
    _, kept = _inside(storage)
    assert not bool((storage.values[~kept] != 0).any()), "padding of a block is not zero"
