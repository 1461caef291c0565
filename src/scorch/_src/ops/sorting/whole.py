"""All elements of a sparse tensor in ascending order, of which a few are selected: a median, quantiles.

What is stored is not sorted. Zeros, stored or not, stand together after the negative values, so the element
of any rank is a zero, or the stored value of a rank that is known once the values of each sign are counted.
"""

from __future__ import annotations

import torch

from scorch._src.backends.base import routines_for
from scorch._src.storage.coordinates import clear_padding
from scorch._src.tensor.sparse_tensor import SparseTensor


class WholeOrder:
    """The elements of ``tensor`` in ascending order, as one segment of ``SortedSegments``."""

    shape: tuple[int, ...] = ()
    count = 1

    def __init__(self, tensor: SparseTensor) -> None:
        values = clear_padding(tensor.storage.values.detach(), tensor.storage.pattern)
        self._routines = routines_for(values)
        self._values = values.contiguous()
        self._negatives, nonzeros, self.nans = self._routines.count_signs(self._values)
        self.size = tensor.numel()
        self.keys = torch.zeros(1, dtype=torch.int64, device=values.device)
        self._unstored = self.size - values.numel()  # less than zero where padding is stored, too
        self._zeros = self.size - nonzeros

    def count_nans(self) -> torch.Tensor:
        """Count what is not a number."""
        return torch.full_like(self.keys, self.nans)

    def values_at(self, ranks: torch.Tensor) -> torch.Tensor:
        """Return the elements of several rows of ranks, one in each."""
        return self.at(ranks.flatten().tolist()).view(ranks.shape)

    def at(self, ranks: list[int]) -> torch.Tensor:
        """Return the elements of some ranks."""
        is_zero = [0 <= rank - self._negatives < self._zeros for rank in ranks]
        stored = [rank if rank < self._negatives else rank - self._unstored for rank in ranks]
        wanted = sorted({rank for rank, zero in zip(stored, is_zero, strict=True) if not zero})
        ranked = self._routines.select(self._values, wanted) if wanted else self._values[:0]
        ranked = torch.cat([ranked, ranked.new_zeros(1)])
        positions = [
            len(wanted) if zero else wanted.index(at) for at, zero in zip(stored, is_zero, strict=True)
        ]
        return ranked[torch.tensor(positions, dtype=torch.int64, device=ranked.device)]
