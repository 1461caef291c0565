"""The places of a sparse weight: drawn, read from a mask or from the largest values, and carried over.

A weight is learned at fixed places. These functions find them; a layer holds the ``Pattern`` that results,
and its values as a plain parameter with one element for each entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from scorch._src.engine.execute import convert
from scorch._src.formats import Format, as_format
from scorch._src.storage.coordinates import coordinates, coordinates_of, keys_of
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.entries import Entries, from_entries
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, FormatError, OperandError, ShapeError

Shape = tuple[int, int]


def chosen_density(sparsity: float | None, density: float | None, default: float | None = None) -> float:
    """The share that is kept, from either way of saying it."""
    if sparsity is not None and density is not None:
        raise ArgumentError("give sparsity, the share that is left out, or density, the share kept, not both")
    if sparsity is None and density is None:
        if default is None:
            raise ArgumentError("give sparsity, the share that is left out, or density, the share kept")
        return default
    name, given = ("density", density) if sparsity is None else ("sparsity", sparsity)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
        raise ArgumentError(f"{name} is a number from 0 to 1, not {given!r}")
    return float(given) if sparsity is None else 1 - float(given)


def weight_format(format: str | Format, blocks: tuple[int, int] | int | None = None) -> Format:
    """The format of a weight; ``auto`` is rows of blocks where there are blocks, else ``csr``."""
    if isinstance(blocks, int):
        blocks = (blocks, blocks)
    if format == "auto":
        format = "csr" if blocks is None else f"bsr({blocks[0]},{blocks[1]})"
    form = as_format(format, 2)
    if form.is_dense:
        raise FormatError("a sparse weight has no dense format; use torch.nn.Linear")
    if blocks is not None and form.blocks != tuple(enumerate(blocks)):
        raise FormatError(f"format {form} does not store blocks of {blocks}; leave format out")
    return form


# places ----------------------------------------------------------------------------------------------


def drawn_pattern(shape: Shape, density: float, form: Format, device: torch.device) -> Pattern:
    """Places drawn at random, their number exact, as many in each row as in any other, or one more.

    For formats with blocks it is whole blocks that are drawn.
    """
    rows, columns = _grid(shape, form)
    count = round(density * rows * columns)
    wanted = torch.full((rows,), count // max(rows, 1), device=device)
    wanted[torch.randperm(rows, device=device)[: count - int(wanted.sum())]] += 1
    return pattern_at(_drawn_keys(wanted, columns), shape, form)


def _drawn_keys(wanted: torch.Tensor, columns: int) -> torch.Tensor:
    """``wanted[i]`` different places in row i, each choice as likely as any other; sorted keys."""
    rows = wanted.numel()
    if int(wanted.sum()) * 2 > rows * columns:  # the places that are left out are fewer
        kept = torch.ones(rows * columns, dtype=torch.bool, device=wanted.device)
        kept[_drawn_keys(columns - wanted, columns)] = False
        return kept.nonzero().squeeze(1)
    row = torch.arange(rows, device=wanted.device)
    keys = torch.zeros(0, dtype=torch.int64, device=wanted.device)
    missing = wanted
    while bool(missing.any()):
        where = row.repeat_interleave(missing)
        drawn = torch.randint(columns, (where.numel(),), device=wanted.device)
        keys = torch.unique(torch.cat([keys, where * columns + drawn]))
        missing = wanted - torch.bincount(keys // columns, minlength=rows)
    return keys


def largest_pattern(weight: torch.Tensor, density: float, form: Format) -> Pattern:
    """The places of the largest values, or of the blocks with the largest norms; their number is exact."""
    score = weight.detach().abs()
    if form.is_blocked:
        rows, columns = form.block(0) or 1, form.block(1) or 1
        padding = (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
        padded = torch.nn.functional.pad(score.float().square(), padding)
        score = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).sum((1, 3))
    count = round(density * score.numel())
    keys = score.reshape(-1).topk(count, sorted=False).indices.sort().values
    return pattern_at(keys, (weight.shape[0], weight.shape[1]), form)


def masked_pattern(mask: Any, shape: Shape, form: Format) -> Pattern:
    """The places where ``mask`` is stored, if it is sparse, or not zero."""
    if not isinstance(mask, torch.Tensor):
        raise OperandError(f"a mask is a tensor, not a {type(mask).__name__}")
    if tuple(mask.shape) != tuple(shape):
        raise ShapeError(f"the mask has shape {tuple(mask.shape)}, but the weight has shape {tuple(shape)}")
    if not isinstance(mask, SparseTensor):
        found = from_torch(mask.detach() if mask.layout != torch.strided else mask.detach() != 0, form)
    else:
        found = SparseTensor(Storage(mask.storage.pattern, mask.storage.pattern.present)).to_format(form)
    assert isinstance(found, SparseTensor)
    return found.storage.pattern


def pattern_at(keys: torch.Tensor, shape: Shape, form: Format) -> Pattern:
    """The pattern with entries, or blocks, at sorted keys, counted row by row."""
    grid = _grid(shape, form)
    listed = coordinates_of(keys, grid)
    if form.is_blocked:
        inner = [torch.arange(form.block(dim) or 1, device=keys.device) for dim in (0, 1)]
        row = (listed[0] * inner[0].numel())[:, None, None] + inner[0][:, None]
        column = (listed[1] * inner[1].numel())[:, None, None] + inner[1]
        row, column = (array.reshape(-1) for array in torch.broadcast_tensors(row, column))
        within = (row < shape[0]) & (column < shape[1])
        keys = keys_of([row[within], column[within]], shape).sort().values
    ones = torch.ones(keys.numel(), dtype=torch.bool, device=keys.device)
    return from_entries(Entries(keys, ones, shape), form).storage.pattern


def _grid(shape: Shape, form: Format) -> Shape:
    """How many rows and columns of entries, or of blocks, there are."""
    return -(-shape[0] // (form.block(0) or 1)), -(-shape[1] // (form.block(1) or 1))


# values ----------------------------------------------------------------------------------------------


def row_counts(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """The row of every value, in stored order, and how many each row has; padding of blocks is in no row."""
    found = coordinates(pattern)
    inside = (found[0] < pattern.shape[0]) & (found[1] < pattern.shape[1])
    return torch.where(inside, found[0], -1), torch.bincount(found[0][inside], minlength=pattern.shape[0])


def initial_values(pattern: Pattern, dtype: torch.dtype | None = None) -> torch.Tensor:
    """As ``torch.nn.Linear`` begins: uniform, bounded by one over the root of the entries of the row."""
    row, counts = row_counts(pattern)
    bound = counts.clamp(min=1).to(torch.float64).rsqrt()
    values = torch.empty(pattern.size, dtype=dtype, device=pattern.device).uniform_(-1, 1)
    return torch.where(row < 0, 0, values * bound[row].to(values.dtype))


def initial_bias(pattern: Pattern, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A bias for every row, bounded as its weights are."""
    _, counts = row_counts(pattern)
    bound = torch.where(counts > 0, counts, pattern.shape[1]).clamp(min=1).to(torch.float64).rsqrt()
    bias = torch.empty(pattern.shape[0], dtype=dtype, device=pattern.device).uniform_(-1, 1)
    return bias * bound.to(bias.dtype)


def old_places(before: Pattern, after: Pattern) -> torch.Tensor:
    """For every value of ``after`` where it was stored in ``before``, or -1 where it was not."""
    if before is after:
        return torch.arange(after.size, device=after.device)
    keys, order = _stored_keys(before).sort()
    wanted = _stored_keys(after)
    if not keys.numel():
        return torch.full_like(wanted, -1)
    place = torch.searchsorted(keys, wanted).clamp_(max=keys.numel() - 1)
    return torch.where((keys[place] == wanted) & (wanted >= 0), order[place], -1)


def _stored_keys(pattern: Pattern) -> torch.Tensor:
    """The key of every value in stored order; -1 for the padding of blocks."""
    found = coordinates(pattern)
    keys = keys_of([found[0], found[1]], pattern.shape)
    inside = (found[0] < pattern.shape[0]) & (found[1] < pattern.shape[1])
    return torch.where(inside, keys, -1)


def carried(values: torch.Tensor, places: torch.Tensor, new: float | torch.Tensor = 0.0) -> torch.Tensor:
    """``values`` at their new places, and ``new`` where there was none."""
    fill = torch.as_tensor(new, dtype=values.dtype, device=values.device)
    if not values.numel():
        return torch.where(places >= 0, 0, fill)
    return torch.where(places >= 0, values[places.clamp(min=0)], fill)


def carry_state(optimizers: Any, parameter: torch.Tensor, places: torch.Tensor, size: int) -> None:
    """Move what optimizers keep for each of ``size`` values to the new places; new ones begin at zero."""
    for optimizer in optimizers if isinstance(optimizers, Iterable) else (optimizers,):
        state = optimizer.state.get(parameter, {})
        for name, kept in state.items():
            if isinstance(kept, torch.Tensor) and tuple(kept.shape) == (size,):
                state[name] = carried(kept, places)


def fingerprint(pattern: Pattern) -> int:
    """A number that differs, all but certainly, for other places or another format."""
    total = hash_of(str(pattern.format))
    for size in pattern.shape:
        total = (total * 1_000_003 ^ size) & (2**62 - 1)
    for number, array in enumerate(pattern.arrays):
        weights = torch.arange(1, array.numel() + 1, device=array.device)
        mixed = (array.to(torch.int64) + 1 + number) * 0x9E3779B97F4A7C1 ^ (weights * 0x2545F4914F6CDD1D)
        total = (total * 31 + int((mixed ^ (mixed >> 29)).sum())) & (2**62 - 1)
    return total


def hash_of(text: str) -> int:
    """The same number for a text in every process."""
    return math.prod(ord(letter) + place for place, letter in enumerate(text, 1)) % (2**61 - 1)


def same_places(first: Pattern, second: Pattern) -> bool:
    """Whether two patterns have the same format and the same entries."""
    if first is second:
        return True
    if first.format != second.format or first.shape != second.shape or first.size != second.size:
        return False
    pairs = zip(first.arrays, second.arrays, strict=True)
    return all(one.shape == other.shape and torch.equal(one, other) for one, other in pairs)


def stored_as(weight: SparseTensor, form: Format) -> SparseTensor:
    """A weight in another format, its explicit zeros kept."""
    storage = Storage(weight.storage.pattern, weight.storage.values.detach())
    found = convert(storage, form)
    assert isinstance(found, Storage)
    return SparseTensor(found)
