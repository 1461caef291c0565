"""Writing to a view writes to the tensor it is a view of, as with dense tensors.

    S[1, 2] = 5        S[0].zero_()        S.T.mul_(2)        S.diagonal().fill_(1)

A view of a sparse tensor has entries of its own, but remembers how it was made. Where its elements stand in
the tensor follows from the strides that torch gives the same view of a dense tensor without memory. When the
tensor changes, its views forget their entries, and are made anew when they are read (``tensor.storage``).
"""

from __future__ import annotations

import torch

from scorch.tensor.entries import Entries, entries_of, from_entries
from scorch.tensor.sparse_tensor import SparseTensor


def written_through(view: SparseTensor, before: Entries) -> None:
    """Put the entries of ``view``, which had the entries ``before``, into the tensor that it is a view of."""
    base = view.storage
    shell = None if base.origin is None else base.origin.shell()
    if shell is None:
        return
    while base.origin is not None:
        base = base.origin.source
    whole = entries_of(SparseTensor(base))
    kept = ~torch.isin(whole.keys, _keys_in_base(before, shell))
    after = entries_of(view)
    keys = torch.cat([whole.keys[kept], _keys_in_base(after, shell)])
    values = torch.cat([whole.values[kept], after.values])
    changed = from_entries(Entries(keys, values, whole.shape), base.pattern.format, in_order=False)
    pattern, values = view.storage.pattern, view.storage.values
    base.become(changed.storage)
    view.storage.take(pattern, values)  # what it would be made anew as


def _keys_in_base(entries: Entries, shell: torch.Tensor) -> torch.Tensor:
    keys = torch.full_like(entries.keys, int(shell.storage_offset()))
    for column, stride in zip(entries.coordinates, shell.stride(), strict=True):
        keys += column * stride
    return keys
