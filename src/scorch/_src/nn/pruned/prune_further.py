"""Prune layers that are sparse already: the new sparsity pattern is part of the old one.

The values stay the same parameter, with fewer elements, so that hooks, gradients and whatever else refers to
it stay valid. What optimizers have for each element moves along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from scorch._src.nn.pattern import is_same_pattern, pattern_of_mask
from scorch._src.nn.pruned.prunable import tables_of
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.storage.storage import Storage
from scorch._src.tensor.sparse_tensor import SparseTensor

ChooseMasks = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def prune_further(
    layers: Iterable[torch.nn.Module], group: int, is_random: bool, choose: ChooseMasks
) -> set[torch.nn.Module]:
    """Prune sparse layers in place to the masks that ``choose`` returns for their weights as dense matrices.

    Weights whose rows cannot be divided into groups of ``group`` stay as they are, and so do 8-bit integers.
    Return the layers that stay as they are.
    """
    tables_by_layer = {layer: tables_of(layer).values() for layer in layers}
    shared: dict[int, list[SparseLinear]] = {}  # by the parameter of the values
    for tables in tables_by_layer.values():
        for table in tables:
            shared.setdefault(id(table.values), []).append(table)
    fixed = {key for key, tables in shared.items() if not _can_be_pruned(tables, group)}
    firsts = [tables[0] for key, tables in shared.items() if key not in fixed]
    scores = [_scores(table, is_random) for table in firsts]
    for first, mask in zip(firsts, choose(scores), strict=True):
        is_kept = mask & _stored(first)
        if int(torch.count_nonzero(is_kept)) < first.nnz:
            first.rewire(pattern_of_mask(is_kept, first.pattern.shape, first.format), new=0.0)
            for other in shared[id(first.values)][1:]:
                other._set_pattern(first.pattern)
    return {
        layer
        for layer, tables in tables_by_layer.items()
        if any(id(table.values) in fixed for table in tables)
    }


def _can_be_pruned(tables: Sequence[SparseLinear], group: int) -> bool:
    """Whether layers that share values have one pattern, floating-point values and rows of whole groups."""
    first = tables[0]
    are_same = all(is_same_pattern(first.pattern, other.pattern) for other in tables[1:])
    return are_same and first.scales is None and first.in_features % group == 0


def _stored(table: SparseLinear) -> torch.Tensor:
    """Return where a weight is stored, as a dense mask."""
    mask = SparseTensor(Storage(table.pattern, table.pattern.present)).to_dense()
    return mask if mask.dtype == torch.bool else mask != 0


def _scores(table: SparseLinear, is_random: bool) -> torch.Tensor:
    weight = table.weight.detach().to_dense()
    return torch.rand_like(weight) * _stored(table) if is_random else weight
