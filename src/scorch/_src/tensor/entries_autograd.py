"""Differentiable entries: as ``tensor.entries`` has them, with values connected to the tensor.

A function that groups, sorts or moves entries by their keys is written once; on these entries its result has
a gradient. Where nothing requires one they are the entries of ``tensor.entries``, at no cost.
"""

from __future__ import annotations

import torch

from scorch._src.formats import Format
from scorch._src.grad_state import is_differentiable, untracked
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.entries import Entries, entries_of, from_entries, number_entries
from scorch._src.tensor.sparse_tensor import SparseTensor


def differentiable_entries(tensor: SparseTensor) -> Entries:
    """Return the stored entries sorted by position, connected to the tensor."""
    if not is_differentiable(tensor):
        return entries_of(tensor)
    with untracked():
        listed = numbered_entries(tensor.storage.pattern)
    return Entries(listed.keys, values_of(tensor)[listed.values], listed.shape, listed.coordinates)


def numbered_entries(pattern: Pattern) -> Entries:
    """Return the keys of a sparsity pattern in ascending order, with the positions of its values."""
    return entries_of(number_entries(pattern))


def from_differentiable_entries(entries: Entries, form: Format, in_order: bool = True) -> SparseTensor:
    """Return the tensor with these entries, which have distinct positions, connected to their values."""
    if not is_differentiable(entries.values):
        return from_entries(entries, form, in_order)
    with untracked():
        numbers = torch.arange(1, entries.values.numel() + 1, device=entries.keys.device)
        numbered = from_entries(Entries(entries.keys, numbers, entries.shape), form, in_order)
    pattern, places = numbered.storage.pattern, numbered.storage.values
    padded = torch.cat([entries.values.new_zeros(1), entries.values])  # blocks have zeros of their own
    return sparse_of(pattern, padded[places])
