"""The sparsity pattern of a weight: drawn, read from a mask or from the largest values, and changed.

A weight is trained on a fixed sparsity pattern. These functions find one; a layer holds it, and its values as
a plain parameter with one element for each entry.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NoReturn

import torch

from scorch._src.backends.base import routines_for
from scorch._src.engine.execute import convert
from scorch._src.formats import Format, as_format
from scorch._src.nn.prune import sum_blocks
from scorch._src.storage.coordinates import coordinates, coordinates_of, inside, keys_of
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import placed
from scorch._src.tensor.create.check import check_tensor
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.entries import Entries, from_entries
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import (
    ArgumentError,
    FormatError,
    OperandError,
    ShapeError,
    UnsupportedError,
    is_integer,
    kind_of,
)

Shape = tuple[int, ...]  # of two dimensions
MAX_NARROW = 1 << 16  # of a level, whose coordinates then fit in 16 bits without a sign


def resolve_density(sparsity: float | None, density: float | None, default: float | None = None) -> float:
    """Return the density, from either ``sparsity`` or ``density``."""
    if sparsity is not None and density is not None:
        raise ArgumentError(
            "pass sparsity, the fraction to prune, or density, the fraction to keep, not both"
        )
    if sparsity is None and density is None:
        if default is None:
            raise ArgumentError("pass sparsity, the fraction to prune, or density, the fraction to keep")
        return default
    name, value = ("density", density) if sparsity is None else ("sparsity", sparsity)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ArgumentError(f"{name} must be between 0 and 1, but got {value!r}")
    return float(value) if sparsity is None else 1 - float(value)


def check_sizes(**sizes: Any) -> None:
    """Raise unless all sizes of a layer are non-negative integers."""
    for name, size in sizes.items():
        if not is_integer(size, 0):
            raise ArgumentError(f"{name} must be a non-negative integer, but got {size!r}")


def check_features(input: torch.Tensor, features: int, name: str = "input") -> None:
    """Raise unless the last dimension of the input of a layer has as many features as the layer expects."""
    if not isinstance(input, torch.Tensor):
        check_tensor(f"the {name}", input)
    if input.shape[-1:] != (features,):
        raise ShapeError(
            f"the {name} has shape {tuple(input.shape)}, but the layer expects {features} features"
        )


def weight_format(format: str | Format, blocks: tuple[int, int] | int | None = None) -> Format:
    """Return the format of a weight; ``auto`` is ``bsr`` with blocks and ``csr`` without."""
    if isinstance(blocks, int):
        blocks = (blocks, blocks)
    if format == "auto":
        format = "csr" if blocks is None else f"bsr({blocks[0]},{blocks[1]})"
    form = as_format(format, 2)
    if form.is_dense:
        raise FormatError(
            "the format of a sparse weight must be sparse; for a dense weight, use torch.nn.Linear"
        )
    if blocks is not None and form.blocks != tuple(enumerate(blocks)):
        raise FormatError(f"format {form} does not store blocks of {blocks}; omit format")
    return form


# patterns --------------------------------------------------------------------------------------------


def draw_pattern(shape: Shape, density: float, form: Format, device: torch.device) -> Pattern:
    """Draw a random pattern with an exact number of entries, distributed evenly over the rows.

    Formats with blocks draw whole blocks.
    """
    rows, columns = _grid(shape, form)
    count = round(density * rows * columns)
    counts = torch.full((rows,), count // max(rows, 1), device=device)
    counts[torch.randperm(rows, device=device)[: count - int(counts.sum())]] += 1
    return pattern_from_keys(_draw_keys(counts, columns), shape, form)


def _draw_keys(counts: torch.Tensor, columns: int) -> torch.Tensor:
    """Draw ``counts[i]`` different columns in row i, uniformly; return sorted keys."""
    rows = counts.numel()
    if int(counts.sum()) * 2 > rows * columns:  # fewer are left out
        is_stored = torch.ones(rows * columns, dtype=torch.bool, device=counts.device)
        is_stored[_draw_keys(columns - counts, columns)] = False
        return is_stored.nonzero().squeeze(1)
    row = torch.arange(rows, device=counts.device)
    keys = torch.zeros(0, dtype=torch.int64, device=counts.device)
    missing = counts
    while bool(missing.any()):
        rows_missing = row.repeat_interleave(missing)
        drawn = torch.randint(columns, (rows_missing.numel(),), device=counts.device)
        keys = torch.unique(torch.cat([keys, rows_missing * columns + drawn]))
        missing = counts - torch.bincount(keys // columns, minlength=rows)
    return keys


def magnitude_pattern(weight: torch.Tensor, density: float, form: Format) -> Pattern:
    """Return the pattern of the largest values, or of the blocks with the largest norms, in exact number."""
    score = weight.detach().abs()
    if form.is_blocked:
        score = sum_blocks(score.float().square(), (form.block(0) or 1, form.block(1) or 1))
    count = round(density * score.numel())
    keys = score.reshape(-1).topk(count, sorted=False).indices.sort().values
    return pattern_from_keys(keys, tuple(weight.shape), form)


def pattern_of_mask(mask: Any, shape: Shape, form: Format) -> Pattern:
    """Return the pattern of ``mask``: its stored elements if it is sparse, its nonzeros otherwise."""
    check_tensor("mask", mask)
    if tuple(mask.shape) != tuple(shape):
        raise ShapeError(f"the mask has shape {tuple(mask.shape)}, but the weight has shape {tuple(shape)}")
    if isinstance(mask, SparseTensor):
        converted = SparseTensor(Storage(mask.storage.pattern, mask.storage.pattern.present)).to_format(form)
    else:
        converted = from_torch(mask.detach() if mask.layout != torch.strided else mask.detach() != 0, form)
    assert isinstance(converted, SparseTensor)
    return converted.storage.pattern


def pattern_from_keys(keys: torch.Tensor, shape: Shape, form: Format) -> Pattern:
    """Return the pattern with entries, or blocks, at sorted keys, counted row by row."""
    grid = _grid(shape, form)
    cells = coordinates_of(keys, grid)
    if form.is_blocked:
        inner = [torch.arange(form.block(dim) or 1, device=keys.device) for dim in (0, 1)]
        row = (cells[0] * inner[0].numel())[:, None, None] + inner[0][:, None]
        column = (cells[1] * inner[1].numel())[:, None, None] + inner[1]
        row, column = (array.reshape(-1) for array in torch.broadcast_tensors(row, column))
        within = (row < shape[0]) & (column < shape[1])
        keys = keys_of([row[within], column[within]], shape).sort().values
    ones = torch.ones(keys.numel(), dtype=torch.bool, device=keys.device)
    return from_entries(Entries(keys, ones, shape), form).storage.pattern


def _grid(shape: Shape, form: Format) -> Shape:
    """Return how many rows and columns of entries, or of blocks, there are."""
    return -(-shape[0] // (form.block(0) or 1)), -(-shape[1] // (form.block(1) or 1))


# values ----------------------------------------------------------------------------------------------


def count_rows(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row of every value, in stored order, and the values of each row; padding is in no row."""
    row = stored_keys(pattern) // max(pattern.shape[1], 1)  # which rounds down
    return row, torch.bincount(row[row >= 0], minlength=pattern.shape[0])


def init_values(pattern: Pattern, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Initialize values like ``torch.nn.Linear``: uniform, bounded by 1 / sqrt(entries of the row)."""
    row, counts = count_rows(pattern)
    bound = counts.clamp(min=1).to(torch.float64).rsqrt()
    values = torch.empty(pattern.size, dtype=dtype, device=pattern.device).uniform_(-1, 1)
    return torch.where(row < 0, 0, values * bound[row].to(values.dtype))


def init_bias(pattern: Pattern, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Initialize the bias of every row, with the bound of its weights."""
    _, counts = count_rows(pattern)
    bound = torch.where(counts > 0, counts, pattern.shape[1]).clamp(min=1).to(torch.float64).rsqrt()
    bias = torch.empty(pattern.shape[0], dtype=dtype, device=pattern.device).uniform_(-1, 1)
    return bias * bound.to(bias.dtype)


def find_old_positions(before: Pattern, after: Pattern) -> torch.Tensor:
    """Return where every value of ``after`` was stored in ``before``, or -1."""
    return placed(torch.arange(1, before.size + 1, device=before.device), before, after) - 1


def stored_keys(pattern: Pattern) -> torch.Tensor:
    """Return the key of every value, counted row by row, in stored order; -1 for the padding of blocks."""
    columns = coordinates(pattern)
    keys, is_inside = keys_of([columns[0], columns[1]], pattern.shape), inside(pattern, columns)
    return keys if is_inside is None else torch.where(is_inside, keys, -1)


def move_values(
    values: torch.Tensor, old_positions: torch.Tensor, new: float | torch.Tensor = 0.0
) -> torch.Tensor:
    """Move ``values`` to their new positions, with ``new`` where there was none."""
    fill = torch.as_tensor(new, dtype=values.dtype, device=values.device)
    if not values.numel():
        return torch.where(old_positions >= 0, 0, fill)
    return torch.where(old_positions >= 0, values[old_positions.clamp(min=0)], fill)


def compute_fingerprint(pattern: Pattern) -> int:
    """Return a number that differs, almost certainly, for another pattern or format."""
    known: int | None = pattern.__dict__.get("fingerprint")
    if known is None:
        known = _hash_format(pattern.format)
        hashes = [routines_for(array).hash_indices(array) for array in pattern.entry_arrays]
        for number in (*pattern.shape, *hashes):
            known = (known * 1_000_003 ^ number) & (2**62 - 1)
        pattern.__dict__["fingerprint"] = known
    return known


@functools.lru_cache(maxsize=64)
def _hash_format(form: Format) -> int:
    letters = enumerate(str(form), 1)  # whose hash is the same in every process
    return math.prod(ord(letter) + position for position, letter in letters) % (2**61 - 1)


def is_same_pattern(first: Pattern, second: Pattern) -> bool:
    """Whether two patterns have the same format and the same entries."""
    if first is second:
        return True
    if first.format != second.format or first.shape != second.shape or first.size != second.size:
        return False
    arrays = zip(first.arrays, second.arrays, strict=True)
    return all(one.shape == other.shape and torch.equal(one, other) for one, other in arrays)


def convert_weight(weight: SparseTensor, form: Format) -> SparseTensor:
    """Convert a weight to another format, keeping explicit zeros."""
    converted = convert(Storage(weight.storage.pattern, weight.storage.values.detach()), form)
    assert isinstance(converted, Storage)
    return SparseTensor(converted)


def weight_and_bias(linear: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight and the bias of a layer, or a weight that is given itself."""
    if isinstance(linear, torch.nn.Module):
        weight, bias = getattr(linear, "weight", None), getattr(linear, "bias", None)
    else:
        weight, bias = linear, None
    if not isinstance(weight, torch.Tensor) or isinstance(bias, bool):
        raise OperandError(f"expected a torch.nn.Linear or its weight, but got {kind_of(linear)}")
    if weight.dim() != 2:
        advice = "; use scorch.sparsify for other layers" if isinstance(linear, torch.nn.Module) else ""
        raise ShapeError(
            f"weight must have shape (out_features, in_features), but that of {kind_of(linear)} has shape "
            f"{tuple(weight.shape)}{advice}"
        )
    return weight.detach(), bias


def refuse_weight(layer: torch.nn.Module) -> NoReturn:
    """Refuse to replace the weight of a sparse layer, which is computed from its values."""
    name = type(layer).__name__
    create = f", or create another layer with {name}.from_weight(weight)"
    dense = f", or {name}.from_dense(weight) for a dense one" if hasattr(layer, "from_dense") else ""
    raise UnsupportedError(
        f"the weight of a {name} cannot be replaced: it is computed from the trained values; change those in "
        f"place{create if hasattr(layer, 'from_weight') else ''}{dense}"
    )


def refuse_masks(layer: torch.nn.Module) -> NoReturn:
    """Refuse the masks of ``torch.nn.utils.prune`` on a sparse layer."""
    raise UnsupportedError(
        f"torch.nn.utils.prune masks dense weights, and that of a {type(layer).__name__} is sparse; to prune "
        "it further, use scorch.sparsify(layer, sparsity=0.95), or layer.rewire(mask, new=0.0)"
    )


def refuse_parametrization(layer: torch.nn.Module) -> NoReturn:
    """Refuse what computes a parameter of a sparse layer anew in each call."""
    raise UnsupportedError(
        f"torch.nn.utils.parametrize and weight_norm cannot be applied to a {type(layer).__name__}, whose "
        "weight is sparse; apply them to layer.to_dense(), which scorch.sparsify leaves dense"
    )


def split_weight(new: Any, shape: Shape, form: Format) -> tuple[Pattern, torch.Tensor | None]:
    """Return the pattern of a weight, a mask or a pattern in a format, and the values of a weight."""
    if isinstance(new, Pattern):
        if new.shape != shape or new.format != form:
            raise ShapeError(
                f"expected a pattern of format {form} and shape {shape}, like the weight, but got "
                f"{new.format} and {new.shape}"
            )
        return new, None
    if isinstance(new, SparseTensor) and new.dtype != torch.bool:
        if tuple(new.shape) != shape:
            raise ShapeError(f"weight must have shape {shape}, but got {tuple(new.shape)}")
        converted = convert_weight(new, form)
        return converted.storage.pattern, converted.storage.values
    return pattern_of_mask(new, shape, form), None
