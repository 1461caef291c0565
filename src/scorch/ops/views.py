"""Writing to a view writes to the tensor it is a view of, as with dense tensors.

    S[1, 2] = 5        S[0].zero_()        S.T.mul_(2)        S.diagonal().fill_(1)

A view of a sparse tensor has entries of its own, but remembers how it was made. Where its elements stand in
the tensor follows from the strides that torch gives the same view of a dense tensor without memory. Before
something is written to a view it is made anew if the tensor has changed since.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from scorch.tensor.entries import Entries, entries_of, from_entries
from scorch.tensor.run import convert
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Storage


def written_through(view: SparseTensor, before: Entries) -> None:
    """Put the entries of ``view``, which had the entries ``before``, into the tensor that it is a view of."""
    sources, base = [], view
    while base.origin is not None:
        base = base.origin.source
        sources.append(base)
    shell = _shell(view)
    if base is view or shell is None:
        return
    whole = entries_of(base)
    kept = ~torch.isin(whole.keys, _keys_in_base(before, shell))
    after = entries_of(view)
    keys = torch.cat([whole.keys[kept], _keys_in_base(after, shell)])
    values = torch.cat([whole.values[kept], after.values])
    changed = from_entries(Entries(keys, values, whole.shape), base.format, in_order=False)
    base.storage.become(changed.storage)
    for between in reversed(sources[:-1]):  # views of the tensor that the view was made from
        _remake(between)
    assert view.origin is not None
    view.origin = replace(view.origin, seen=view.origin.source.storage.version)


def refresh(view: SparseTensor) -> None:
    """Make a view anew if the tensor that it is a view of has changed."""
    if view.origin is None:
        return
    refresh(view.origin.source)
    if view.origin.source.storage.version != view.origin.seen:
        _remake(view)


def _remake(view: SparseTensor) -> None:
    origin = view.origin
    assert origin is not None
    found = origin.func(origin.source, *origin.args, **origin.kwargs)
    again = found if origin.place is None else found[origin.place]
    if isinstance(again, SparseTensor) and again.storage.pattern.shape == view.storage.pattern.shape:
        stored = convert(again.storage, view.format)
        assert isinstance(stored, Storage)
        view.storage.become(stored)
    view.origin = replace(origin, seen=origin.source.storage.version)


def _keys_in_base(entries: Entries, shell: torch.Tensor) -> torch.Tensor:
    keys = torch.full_like(entries.keys, int(shell.storage_offset()))
    for column, stride in zip(entries.coordinates, shell.stride(), strict=True):
        keys += column * stride
    return keys


def _shell(tensor: SparseTensor) -> torch.Tensor | None:
    """The same view of a dense tensor without memory; None where that would be a copy."""
    origin = tensor.origin
    if origin is None:
        return torch.empty(tuple(tensor.shape), device="meta")
    source = _shell(origin.source)
    if source is None:
        return None
    try:
        found = origin.func(source, *origin.args, **origin.kwargs)
    except RuntimeError:  # a reshape of what does not lie so in memory
        return None
    view: torch.Tensor = found if origin.place is None else found[origin.place]
    return view
