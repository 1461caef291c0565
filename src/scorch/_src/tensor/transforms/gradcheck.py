"""Sparse tensors in ``torch.autograd.gradcheck``, which perturbs its inputs to measure derivatives.

It writes to ``S.data``, element by element, or in its fast mode to all of them at once. What is not stored is
no variable, and its gradient is zero: a change there stays without effect, and the pattern is what it was.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from scorch._src.tensor.autograd import values_at
from scorch._src.tensor.entries import entries_of, number_entries
from scorch._src.tensor.sparse_tensor import SparseTensor


class Perturbed(SparseTensor):
    """A sparse tensor whose elements are views of its stored values, so that they can be written."""

    @functools.cached_property
    def places(self) -> dict[tuple[int, ...], int]:
        """The position of the value of every entry, by its coordinates."""
        entries = entries_of(number_entries(self.storage.pattern))
        coordinates = [column.tolist() for column in entries.coordinates]
        return dict(zip(zip(*coordinates, strict=True), entries.values.tolist(), strict=True))

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Return a view of the stored value, or a new zero where none is stored."""
        values = self.storage.values.data
        place = self.places.get(index) if self.dim() else 0
        return values.new_zeros(()) if place is None else values[place]

    def copy_(self, other: torch.Tensor, non_blocking: bool = False) -> Perturbed:
        """Copy the values of ``other`` at the entries of this tensor."""
        self.storage.values.data.copy_(values_at(other.detach(), self.storage.pattern))
        return self
