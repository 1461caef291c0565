"""``embedding_bag``: sums, means and maxima of rows, where the table or the weights of samples are sparse.

The bags are a sparse matrix with a row for each bag and a column for each row of the table; their sums are a
product with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.ops.fallback import densely, replace_by
from scorch._src.ops.movement.index import index_select
from scorch._src.ops.products.matmul import mm
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.entries import Entries, entries_of, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, IndexRangeError, ShapeError, UnsupportedError


@dataclass(frozen=True)
class Bags:
    """For each sample its bag and its row of the table, in the order of the bags, and its weight."""

    bag: torch.Tensor
    row: torch.Tensor
    weight: torch.Tensor
    count: int

    def kept(self, which: torch.Tensor) -> Bags:
        return Bags(self.bag[which], self.row[which], self.weight[which], self.count)

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
    """Bags of rows of ``weight``, each summed, averaged, or its maximum taken."""
    input, offsets = (x.to_dense() if isinstance(x, SparseTensor) else x for x in (input, offsets))
    given = (input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse)
    more = (per_sample_weights, include_last_offset, padding_idx)
    if not isinstance(offsets, torch.Tensor) or offsets.numel():  # for no bags torch may crash
        check_call(F.embedding_bag, *given, *more)
    if not any(isinstance(x, SparseTensor) for x in (weight, per_sample_weights)):
        return F.embedding_bag(*given, *more)
    if max_norm is not None:  # which rewrites rows of the table
        table = weight.to_dense() if isinstance(weight, SparseTensor) else weight
        found = densely(F.embedding_bag, (input, table, *given[2:], *more), {})
        if isinstance(weight, SparseTensor):
            replace_by(weight, table, "embedding_bag")
        return found
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"mode is sum, mean or max, not {mode!r}")
    if per_sample_weights is not None and mode != "sum":
        raise UnsupportedError(f"per_sample_weights are for mode='sum', not {mode!r}")
    bags = bags_of(input, offsets, include_last_offset, per_sample_weights, weight)
    if padding_idx is not None:
        bags = bags.kept(bags.row != padding_idx % weight.shape[0])
    if mode == "max":
        return _largest(bags, weight)
    matrix = from_coordinates(
        torch.stack([bags.bag, bags.row]), bags.weight, (bags.count, weight.shape[0]), format="csr"
    )
    found = mm(matrix, weight)
    if mode == "sum":
        return found
    return found / bags.sizes.clamp(min=1).to(weight.dtype).unsqueeze(1)


def bags_of(input: Any, offsets: Any, has_last: bool, given: Any, table: Any) -> Bags:
    """Rows of ``table`` by bags, from ``embedding_bag``'s arguments, checked."""
    row = input.reshape(-1).to(torch.int64)
    wrong = (row < 0) | (row >= table.shape[0])
    if bool(wrong.any()):
        raise IndexRangeError(
            f"row {int(row[wrong][0])} is out of bounds for a table of {table.shape[0]} rows"
        )
    if given is not None and tuple(given.shape) != tuple(input.shape):
        raise ShapeError(
            f"per_sample_weights has shape {tuple(given.shape)}, but input has shape {tuple(input.shape)}"
        )
    if input.dim() == 2:
        count, bag = (
            input.shape[0],
            torch.arange(input.shape[0], device=input.device).repeat_interleave(input.shape[1]),
        )
    else:
        begins = _begins(input, offsets, has_last)
        count = begins.numel() - 1
        bag = torch.arange(count, device=begins.device).repeat_interleave(begins.diff())
    if isinstance(given, SparseTensor):
        entries = entries_of(given)
        return Bags(bag[entries.keys], row[entries.keys], entries.values, count)
    ones = torch.ones(row.numel(), dtype=table.dtype, device=row.device)
    return Bags(bag, row, ones if given is None else given.reshape(-1), count)


def _begins(input: Any, offsets: Any, has_last: bool) -> torch.Tensor:
    """Where each bag begins, and the end of the last one."""
    if input.dim() != 1 or offsets is None or offsets.dim() != 1:
        raise ShapeError(
            "embedding_bag takes rows as a matrix, one bag a row, or as a list with offsets, where bags "
            f"begin; input has {input.dim()} dimensions"
        )
    begins: torch.Tensor = offsets.to(torch.int64)
    if not has_last:
        begins = torch.cat([begins, torch.tensor([input.numel()], device=begins.device)])
    if begins.numel() and (int(begins[0]) != 0 or bool((begins.diff() < 0).any()) or begins[-1] > len(input)):
        raise ArgumentError(f"offsets begin with 0, never fall, and stay within the {len(input)} rows given")
    return begins


def _largest(bags: Bags, table: SparseTensor) -> SparseTensor:
    """The maximum of each bag: of what its rows store, and zero where one of them stores nothing."""
    rows = entries_of(index_select(table, 0, bags.row))
    sample, column = rows.coordinates
    bag = bags.bag[sample]
    keys, place, counts = torch.unique(bag * table.shape[1] + column, return_inverse=True, return_counts=True)
    largest = torch.full((keys.numel(),), float("-inf"), dtype=table.dtype, device=keys.device)
    largest = largest.scatter_reduce(0, place, rows.values, "amax")
    bag_of = keys.div(max(table.shape[1], 1), rounding_mode="floor")
    largest = torch.where(counts < bags.sizes[bag_of], largest.clamp(min=0), largest)
    shape = (bags.count, table.shape[1])
    return from_entries(Entries(keys, largest, shape), format_for(table, shape))
