"""The entries of a local shard by the rows that they multiply: own ones first, then those of others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.dataclass import dataclass
from scorch._src.grad_state import outside_modes
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.create.torch_constructors import sparse_csr_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor

Tensor = torch.Tensor


@dataclass(frozen=True)
class Block:
    """Some columns of a local shard: their pattern, and the positions of their values among all."""

    pattern: Pattern
    places: Tensor

    def matrix(self, values: Tensor) -> SparseTensor:
        """Return the block as a matrix, given the values of all blocks."""
        return sparse_of(self.pattern, values.index_select(0, self.places))

    def ones(self, dtype: torch.dtype) -> SparseTensor:
        """Return the block with ones for values."""
        return sparse_of(self.pattern, torch.ones(len(self.places), dtype=dtype, device=self.places.device))


def blocks_of(pattern: Pattern, widths: Sequence[int], dim: int = 1) -> list[Block]:
    """Cut a matrix along a dimension into blocks of these widths, which are the columns of each block.

    The blocks are cached with the pattern.
    """
    key = "blocks", tuple(widths), dim
    found: list[Block] | None = pattern.structures.get(key)
    if found is None:
        found = pattern.structures[key] = _cut(pattern, widths, dim)
    return found


@outside_modes
def _cut(pattern: Pattern, widths: Sequence[int], dim: int) -> list[Block]:
    crd, places = numbered_entries(pattern)
    rows, columns = (crd[1 - dim].to(torch.int64), crd[dim].to(torch.int64))
    begins = torch.tensor([0, *widths], device=rows.device).cumsum(0)
    number = torch.searchsorted(begins, columns, right=True) - 1
    number = number.clamp(max=len(widths) - 1)
    order = torch.argsort(columns, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]
    order = order[torch.argsort(number[order], stable=True)]
    counts = torch.bincount(number, minlength=len(widths)).tolist()
    return [
        _block(rows[part], columns[part] - begins[block], places[part], (pattern.shape[1 - dim], width))
        for block, (part, width) in enumerate(zip(torch.split(order, counts), widths, strict=True))
    ]


def _block(rows: Tensor, columns: Tensor, places: Tensor, shape: tuple[int, int]) -> Block:
    pos = torch.zeros(shape[0] + 1, dtype=torch.int64, device=rows.device)
    pos[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    matrix = sparse_csr_tensor(pos, columns, torch.zeros(len(rows), device=rows.device), shape)
    assert isinstance(matrix, SparseTensor)
    return Block(matrix.storage.pattern, places)
