"""Count elements by their value: ``unique histc histogram bincount``.

torch counts the entries, and one zero for all of them; then the zeros are counted in full. Results are as
large as torch's, whatever the shape of the tensor.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.ops.fallback import as_dense, run_densely
from scorch._src.storage.budget import check_budget
from scorch._src.tensor.entries import Entries, entries_of
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError

aten = torch.ops.aten


def _split_zeros(self: SparseTensor) -> tuple[Entries, int]:
    """Return the entries that are not zero, and the number of zeros."""
    entries = entries_of(self)
    is_nonzero = entries.values != 0
    nonzeros = Entries(entries.keys[is_nonzero], entries.values[is_nonzero], entries.shape)
    return nonzeros, self.numel() - nonzeros.values.numel()


def _sample(self: SparseTensor) -> tuple[torch.Tensor, int, torch.Tensor]:
    """Return all values that are not zero and one zero for all others, the number of those, and all keys."""
    entries, zeros = _split_zeros(self)
    return torch.cat([entries.values, entries.values.new_zeros(min(zeros, 1))]), zeros, entries.keys


def _check_inverse_budget(self: SparseTensor, name: str) -> None:
    what = f"return_inverse in {name} of {tuple(self.shape)}"
    check_budget(8 * self.numel(), self.storage.device, what, "leave out return_inverse=True")


@implements(aten._unique2.default)
def unique(
    self: SparseTensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """Return all distinct values, ascending; the inverse indices; the counts."""
    if return_inverse:
        _check_inverse_budget(self, "unique")
    entries, zeros = _split_zeros(self)
    values, inverse_of_entry, counts = aten._unique2.default(entries.values, True, True, True)
    negatives = int((values < 0).sum())
    if zeros:
        values = torch.cat([values[:negatives], values.new_zeros(1), values[negatives:]])
        counts = torch.cat([counts[:negatives], counts.new_tensor([zeros]), counts[negatives:]])
        inverse_of_entry = torch.where(inverse_of_entry >= negatives, inverse_of_entry + 1, inverse_of_entry)
    inverse = empty = entries.keys.new_zeros(0)
    if return_inverse:
        inverse = torch.full(tuple(self.shape), negatives, dtype=torch.int64, device=entries.keys.device)
        inverse.view(-1)[entries.keys] = inverse_of_entry
    return values, inverse, counts if return_counts else empty


@implements(aten.unique_consecutive.default)
def unique_consecutive(
    self: SparseTensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the first of every run of equal elements, row by row; along a dimension densely."""
    if dim is not None:
        args = (self, return_inverse, return_counts, dim)
        return run_densely(aten.unique_consecutive.default, args, {})
    if return_inverse:
        _check_inverse_budget(self, "unique_consecutive")
    entries, _ = _split_zeros(self)
    bounds = torch.tensor([-1, self.numel()], device=entries.keys.device)
    gaps = torch.diff(torch.cat([bounds[:1], entries.keys, bounds[1:]])) - 1  # zeros before each entry
    runs = entries.values.new_zeros(2 * gaps.numel() - 1)
    runs[1::2] = entries.values
    lengths = torch.ones(runs.numel(), dtype=torch.int64, device=entries.keys.device)
    lengths[::2] = gaps
    runs, lengths = runs[lengths > 0], lengths[lengths > 0]
    values, run_number, counts = aten.unique_consecutive.default(runs, True, True)
    inverse = empty = entries.keys.new_zeros(0)
    if return_inverse:
        inverse = torch.repeat_interleave(run_number, lengths).reshape(tuple(self.shape))
    if return_counts:
        counts = torch.zeros_like(counts).index_add_(0, run_number, lengths)
    return values, inverse, counts if return_counts else empty


@implements(aten.histc.default)
def histc(self: SparseTensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Count the elements in each of ``bins`` equal parts of the range."""
    sample, zeros, _ = _sample(self)
    counts = aten.histc.default(sample, bins, min, max)
    if zeros < 2:
        return counts
    if min == max:
        smallest, largest = torch.aminmax(sample)
        min, max = smallest.item(), largest.item()
    if min == max:
        min, max = min - 1, max + 1
    return counts + (zeros - 1) * aten.histc.default(sample[-1:], bins, min, max)


def _histogram(func: Any, self: Any, bins: Any = 100, *, weight: Any = None, **options: Any) -> Any:
    """Count the elements in each bin, and return the edges; with weights densely."""
    bins = as_dense(bins)
    if weight is not None or not isinstance(self, SparseTensor):
        return run_densely(func, (self, bins), {**options, "weight": weight})
    sample, zeros, _ = _sample(self)
    counts = torch.ones_like(sample)
    if zeros:
        counts[-1] = zeros
    return func(sample, bins, **options, weight=counts)


for _func in (aten.histogram.bin_ct, aten.histogram.bins_tensor):
    implements(_func)(functools.partial(_histogram, _func))


@implements(aten.bincount.default)
def bincount(self: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Count each integer, or sum the ``weights`` where it is."""
    if not isinstance(self, SparseTensor):
        return run_densely(aten.bincount.default, (self, weights, minlength), {})
    small = torch.zeros((1,) * self.dim(), dtype=self.dtype, device=HOST)
    aten.bincount.default(small)  # raises torch's error
    if weights is not None and self.numel() and tuple(weights.shape) != tuple(self.shape):
        weights_shape = tuple(weights.shape)
        raise ShapeError(
            f"bincount: input and weights must have the same shape, but got {tuple(self.shape)} and "
            f"{weights_shape}"
        )
    sample, zeros, keys = _sample(self)
    length = max(int(sample.max()) + 1 if sample.numel() else 0, minlength)
    check_budget(8 * length, sample.device, f"bincount with {length} bins", "use unique(return_counts=True)")
    if weights is None:
        counts = aten.bincount.default(sample, None, minlength)
        if zeros:
            counts[0] += zeros - 1
        return counts
    return aten.bincount.default(sample, _weights_of_sample(weights, keys, zeros), minlength)


def _weights_of_sample(weights: torch.Tensor, keys: torch.Tensor, zeros: int) -> torch.Tensor:
    """Return the weights at ``keys``, and the sum of all others, in a dtype that bincount adds in."""
    weights = weights if weights.dtype == torch.float32 else weights.double()
    if isinstance(weights, SparseTensor):
        stored = entries_of(weights)
        at_keys, others = stored.at(keys), stored.values[~torch.isin(stored.keys, keys)]
    else:
        is_other = torch.ones(weights.numel(), dtype=torch.bool, device=keys.device)
        is_other[keys] = False
        at_keys, others = weights[keys], weights[is_other]
    return torch.cat([at_keys, others.sum().reshape(1)]) if zeros else at_keys
