"""``embedding_bag``: sums, means and maxima of rows, where the table or the weights of samples are sparse.

The bags are a sparse matrix with a row for each bag and a column for each row of the table; their sums are a
product with it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.dataclass import dataclass
from scorch._src.ops.fallback import as_dense, replace_value, run_densely
from scorch._src.ops.movement.index import index_select
from scorch._src.ops.products.matmul import mm
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.entries import Entries, entries_of, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, CallError, IndexRangeError, ShapeError, UnsupportedError


@dataclass(frozen=True)
class Bags:
    """The bag, the row of the table and the weight of each sample, in the order of the bags."""

    bag: torch.Tensor
    row: torch.Tensor
    weight: torch.Tensor
    count: int

    @property
    def sizes(self) -> torch.Tensor:
        return torch.bincount(self.bag, minlength=self.count)


@implements(F.embedding_bag)
def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Sum or average rows of ``weight`` by bags, or take their maximum."""
    input, offsets = as_dense(input), as_dense(offsets)
    args = (input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse)
    options = (per_sample_weights, include_last_offset, padding_idx)
    if not isinstance(offsets, torch.Tensor) or offsets.numel():  # for no bags torch may crash
        check_call(F.embedding_bag, *args, *options[:2])
    _check_padding(padding_idx, weight.shape[0])
    if not any(isinstance(x, SparseTensor) for x in (weight, per_sample_weights)):
        return F.embedding_bag(*args, *options)
    if max_norm is not None:  # rewrites rows of the table
        table = as_dense(weight)
        output = run_densely(F.embedding_bag, (input, table, *args[2:], *options), {})
        if isinstance(weight, SparseTensor):
            replace_value(weight, table, "embedding_bag")
        return output
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"mode must be 'sum', 'mean' or 'max', but got {mode!r}")
    if per_sample_weights is not None and mode != "sum":
        raise UnsupportedError(f"per_sample_weights is only supported for mode='sum', but got mode={mode!r}")
    bags = split_bags(input, offsets, include_last_offset, per_sample_weights, weight)
    if padding_idx is not None:
        kept = bags.row != padding_idx % weight.shape[0]
        bags = Bags(bags.bag[kept], bags.row[kept], bags.weight[kept], bags.count)
    if mode == "max":
        return _max_of_bags(bags, weight)
    shape = bags.count, weight.shape[0]
    output = mm(from_coordinates([bags.bag, bags.row], bags.weight, shape, format="csr"), weight)
    if mode == "sum":
        return output
    return output / bags.sizes.clamp(min=1).to(weight.dtype).unsqueeze(1)


def _check_padding(padding_idx: int | None, rows: int) -> None:
    """Refuse a row that the table does not have; ``check_call`` has tables of other sizes."""
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise CallError(
            f"embedding_bag: padding_idx must be within the number of embeddings, -{rows} through "
            f"{rows - 1}, but got {padding_idx}"
        )


def split_bags(input: Any, offsets: Any, has_last: bool, weights: Any, table: Any) -> Bags:
    """Split rows of ``table`` into bags, from ``embedding_bag``'s arguments, checked."""
    row = input.reshape(-1).to(torch.int64)
    wrong = (row < 0) | (row >= table.shape[0])
    if bool(wrong.any()):
        raise IndexRangeError(
            f"index {int(row[wrong][0])} is out of bounds for a table with {table.shape[0]} rows"
        )
    if weights is not None and tuple(weights.shape) != tuple(input.shape):
        raise ShapeError(
            f"per_sample_weights has shape {tuple(weights.shape)}, but input has shape {tuple(input.shape)}"
        )
    if input.dim() == 2:
        count, sizes = input.shape
    else:
        begins = _begins(input, offsets, has_last)
        count, sizes = begins.numel() - 1, begins.diff()
    bag = torch.arange(count, device=row.device).repeat_interleave(sizes)
    if isinstance(weights, SparseTensor):
        entries = entries_of(weights)
        return Bags(bag[entries.keys], row[entries.keys], entries.values, count)
    ones = torch.ones(row.numel(), dtype=table.dtype, device=row.device)
    return Bags(bag, row, ones if weights is None else weights.reshape(-1), count)


def _begins(input: Any, offsets: Any, has_last: bool) -> torch.Tensor:
    """Return where each bag begins, and the end of the last one."""
    if input.dim() != 1 or offsets is None or offsets.dim() != 1:
        raise ShapeError(
            "embedding_bag expected a 2-D input with one bag per row, or a 1-D input with offsets where "
            f"bags begin, but got a {input.dim()}-D input"
        )
    begins: torch.Tensor = offsets.to(torch.int64)
    if not has_last:
        begins = torch.cat([begins, torch.tensor([input.numel()], device=begins.device)])
    if begins.numel() and (int(begins[0]) != 0 or bool((begins.diff() < 0).any()) or begins[-1] > len(input)):
        raise ArgumentError(
            f"offsets must begin with 0, must not decrease, and must not exceed the {len(input)} indices "
            "in input"
        )
    return begins


def _max_of_bags(bags: Bags, table: SparseTensor) -> SparseTensor:
    """Compute the maximum of each bag: of stored values, and zero where a row stores nothing."""
    rows = entries_of(index_select(table, 0, bags.row))
    sample, column = rows.coordinates
    bag = bags.bag[sample]
    keys = bag * table.shape[1] + column
    keys, position, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    largest = rows.values.new_full((keys.numel(),), float("-inf"))
    largest = largest.scatter_reduce(0, position, rows.values, "amax")
    bag_of_key = keys.div(max(table.shape[1], 1), rounding_mode="floor")
    largest = torch.where(counts < bags.sizes[bag_of_key], largest.clamp(min=0), largest)
    shape = (bags.count, table.shape[1])
    return from_entries(Entries(keys, largest, shape), format_for(table, shape))
