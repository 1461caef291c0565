"""Entries of tensors that are broadcast to one shape: repeated, or paired where they meet.

    v[:, None] * w[None, :]     every entry of v with every entry of w
    A[:, None, :] * B[None]     the entries of A and B with the same last coordinate

The second case takes time and memory for the pairs only, however often broadcasting repeats an entry.
"""

from __future__ import annotations

import math

import torch

from scorch._src.backends.sort_entries import stable_sort
from scorch._src.storage.budget import UNCHECKED_BYTES, check_budget
from scorch._src.storage.coordinates import coordinates_of, joined_ranges, keys_of
from scorch._src.tensor.entries import Entries, Shape

BYTES_PER_ENTRY = 64  # of an entry while it is repeated or paired, about


def broadcast_shape(*shapes: Shape) -> Shape:
    """Return ``torch.broadcast_shapes``, which imports torch's compiler at its first call, or its error."""
    if any(type(size) is not int for shape in shapes for size in shape):  # but a symbol in a graph
        return tuple(torch.broadcast_shapes(*shapes))
    rank = max(map(len, shapes), default=0)
    columns = zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    sizes = [{size for size in column if size != 1} for column in columns]
    if any(len(different) > 1 for different in sizes):
        torch.broadcast_shapes(*shapes)
    return tuple(different.pop() if different else 1 for different in sizes)


def expanded(entries: Entries, shape: Shape) -> Entries:
    """Repeat the entries of a tensor as broadcasting to ``shape`` does."""
    if entries.shape == shape:
        return entries
    own = (1,) * (len(shape) - len(entries.shape)) + entries.shape
    repeats = math.prod(new for old, new in zip(own, shape, strict=True) if old != new)
    count = entries.values.numel() * repeats
    if BYTES_PER_ENTRY * count > UNCHECKED_BYTES:
        what = f"broadcasting a tensor of shape {entries.shape} to {shape}, each entry {repeats:,} times,"
        cure = "use einsum or evaluate, which do not repeat them"
        check_budget(BYTES_PER_ENTRY * count, entries.keys.device, what, cure)
    crd = coordinates_of(entries.keys, own)
    numbers = torch.arange(repeats, device=entries.keys.device).repeat(entries.keys.numel())
    columns: list[torch.Tensor] = []
    for dim in reversed(range(len(shape))):
        if own[dim] == shape[dim]:
            columns.insert(0, crd[dim].repeat_interleave(repeats))
        else:
            columns.insert(0, numbers % max(shape[dim], 1))
            numbers = numbers.div(max(shape[dim], 1), rounding_mode="floor")
    keys, order = torch.sort(keys_of(columns, shape, entries.keys.device))
    return Entries(keys, entries.values.repeat_interleave(repeats)[order], shape)


def common_keys(a: Entries, b: Entries, shape: Shape) -> torch.Tensor | None:
    """Return the keys that both have after broadcasting to ``shape``; None if that is wider than both."""
    columns_of_a, columns_of_b = _owned(a, shape), _owned(b, shape)
    dims = range(len(shape))
    if any(dim not in columns_of_a and dim not in columns_of_b for dim in dims):
        return None
    shared = [dim for dim in dims if dim in columns_of_a and dim in columns_of_b]
    sizes = tuple(shape[dim] for dim in shared)
    of_a = keys_of([columns_of_a[dim] for dim in shared], sizes, a.keys.device).expand(a.values.numel())
    of_b = keys_of([columns_of_b[dim] for dim in shared], sizes, b.keys.device).expand(b.values.numel())
    of_a, (of_b, order) = of_a.contiguous(), stable_sort(of_b)
    begins, ends = torch.searchsorted(of_b, of_a), torch.searchsorted(of_b, of_a, right=True)
    counts = ends - begins
    total = int(counts.sum())
    if BYTES_PER_ENTRY * total > UNCHECKED_BYTES:
        what = f"pairing {total:,} entries"
        check_budget(BYTES_PER_ENTRY * total, a.keys.device, what, "multiply parts of the tensors")
    first, second = torch.repeat_interleave(counts, output_size=total), order[joined_ranges(begins, counts)]
    columns = [columns_of_a[dim][first] if dim in columns_of_a else columns_of_b[dim][second] for dim in dims]
    return torch.sort(keys_of(columns, shape, a.keys.device)).values


def values_at(entries: Entries, keys: torch.Tensor, crd: list[torch.Tensor], shape: Shape) -> torch.Tensor:
    """Return the values of the tensor broadcast to ``shape`` at ``keys``, whose coordinates are ``crd``."""
    if entries.shape == shape:
        return entries.at(keys)
    skipped = len(shape) - len(entries.shape)
    own = [
        column if size == wide else torch.zeros_like(column)
        for column, size, wide in zip(crd[skipped:], entries.shape, shape[skipped:], strict=True)
    ]
    there = keys_of(own, entries.shape, keys.device)
    return entries.at(there if own else torch.zeros_like(keys))


def _owned(entries: Entries, shape: Shape) -> dict[int, torch.Tensor]:
    """Return the coordinates of the dimensions along which the tensor is not repeated."""
    skipped = len(shape) - len(entries.shape)
    columns = enumerate(entries.coordinates, skipped)
    return {dim: column for dim, column in columns if entries.shape[dim - skipped] == shape[dim]}
