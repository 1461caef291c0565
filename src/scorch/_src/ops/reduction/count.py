"""What counts elements by their value: ``unique histc histogram bincount``.

torch counts the entries, and among them one zero that stands for all; then the zeros are counted as often as
there are. Results are as large as torch's, whatever the shape of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.ops.fallback import densely
from scorch._src.storage.budget import check_budget
from scorch._src.tensor.entries import Entries, entries_of
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError

aten = torch.ops.aten


def _nonzero(self: SparseTensor) -> tuple[Entries, int]:
    """The entries that are not zero, and the number of zeros."""
    entries = entries_of(self)
    kept = entries.values != 0
    found = Entries(entries.keys[kept], entries.values[kept], entries.shape)
    return found, self.numel() - found.values.numel()


def _with_a_zero(values: torch.Tensor, zeros: int) -> torch.Tensor:
    return torch.cat([values, values.new_zeros(1)]) if zeros else values


def _inverse_budget(self: SparseTensor, name: str) -> None:
    check_budget(
        8 * self.numel(),
        f"return_inverse in {name} of {tuple(self.shape)}",
        "values and counts need none",
    )


@implements(aten._unique2.default)
def unique(
    self: SparseTensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """All different values, rising; where each element is among them; how often each is there."""
    if return_inverse:
        _inverse_budget(self, "unique")
    entries, zeros = _nonzero(self)
    values, place, counts = aten._unique2.default(entries.values, True, True, True)
    at = int((values < 0).sum())
    if zeros:
        values = torch.cat([values[:at], values.new_zeros(1), values[at:]])
        counts = torch.cat([counts[:at], counts.new_tensor([zeros]), counts[at:]])
        place = torch.where(place >= at, place + 1, place)
    nothing = torch.zeros(0, dtype=torch.int64, device=entries.keys.device)
    inverse = nothing
    if return_inverse:
        inverse = torch.full(tuple(self.shape), at, dtype=torch.int64, device=entries.keys.device)
        inverse.view(-1)[entries.keys] = place
    return values, inverse, counts if return_counts else nothing


@implements(aten.unique_consecutive.default)
def unique_consecutive(
    self: SparseTensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The first of every run of equal elements, row by row; along a dimension it takes a dense copy."""
    if dim is not None:
        args = (self, return_inverse, return_counts, dim)
        return densely(aten.unique_consecutive.default, args, {})
    if return_inverse:
        _inverse_budget(self, "unique_consecutive")
    entries, _ = _nonzero(self)
    bounds = torch.tensor([-1, self.numel()], device=entries.keys.device)
    gaps = torch.diff(torch.cat([bounds[:1], entries.keys, bounds[1:]])) - 1  # zeros before each entry
    runs = entries.values.new_zeros(2 * gaps.numel() - 1)
    runs[1::2] = entries.values
    lengths = torch.ones(runs.numel(), dtype=torch.int64, device=entries.keys.device)
    lengths[::2] = gaps
    runs, lengths = runs[lengths > 0], lengths[lengths > 0]
    values, place, counts = aten.unique_consecutive.default(runs, True, True)
    nothing = torch.zeros(0, dtype=torch.int64, device=entries.keys.device)
    inverse = nothing
    if return_inverse:
        inverse = torch.repeat_interleave(place, lengths).reshape(tuple(self.shape))
    if return_counts:
        counts = torch.zeros_like(counts).index_add_(0, place, lengths)
    return values, inverse, counts if return_counts else nothing


@implements(aten.histc.default)
def histc(self: SparseTensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """How many elements fall into each of ``bins`` equal parts of the range."""
    entries, zeros = _nonzero(self)
    sample = _with_a_zero(entries.values, zeros)
    found = aten.histc.default(sample, bins, min, max)
    if zeros < 2:
        return found
    if min == max:
        least, most = torch.aminmax(sample)
        min, max = least.item(), most.item()
    if min == max:
        min, max = min - 1, max + 1
    return found + (zeros - 1) * aten.histc.default(sample[-1:], bins, min, max)


@implements(aten.histogram.bin_ct)
def histogram(
    self: SparseTensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> Any:
    """How many elements fall into each bin, and the edges; with weights it takes a dense copy."""
    return _histogram(aten.histogram.bin_ct, self, bins, {"range": range}, weight, density)


@implements(aten.histogram.bins_tensor)
def histogram_of_edges(
    self: Any, bins: torch.Tensor, *, weight: torch.Tensor | None = None, density: bool = False
) -> Any:
    edges = bins.to_dense() if isinstance(bins, SparseTensor) else bins
    return _histogram(aten.histogram.bins_tensor, self, edges, {}, weight, density)


def _histogram(func: Any, self: Any, bins: Any, named: Any, weight: Any, density: bool) -> Any:
    if weight is not None or not isinstance(self, SparseTensor):
        return densely(func, (self, bins), {**named, "weight": weight, "density": density})
    entries, zeros = _nonzero(self)
    sample = _with_a_zero(entries.values, zeros)
    often = torch.ones_like(sample)
    if zeros:
        often[-1] = zeros
    return func(sample, bins, **named, weight=often, density=density)


@implements(aten.bincount.default)
def bincount(self: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often each whole number is there, or the sum of the ``weights`` where it is."""
    if not isinstance(self, SparseTensor):
        return densely(aten.bincount.default, (self, weights, minlength), {})
    aten.bincount.default(torch.zeros((1,) * self.dim(), dtype=self.dtype, device=HOST))  # says what is wrong
    if weights is not None and self.numel() and tuple(weights.shape) != tuple(self.shape):
        given = tuple(weights.shape)
        raise ShapeError(f"bincount: weights have shape {given}, but the numbers {tuple(self.shape)}")
    entries, zeros = _nonzero(self)
    sample = _with_a_zero(entries.values, zeros)
    length = max(int(sample.max()) + 1 if sample.numel() else 0, minlength)
    check_budget(8 * length, f"bincount with {length} bins", "use unique(return_counts=True)")
    if weights is None:
        found = aten.bincount.default(sample, None, minlength)
        if zeros:
            found[0] += zeros - 1
        return found
    mine, rest = _weights(weights, entries.keys)
    return aten.bincount.default(sample, torch.cat([mine, rest.reshape(1)]) if zeros else mine, minlength)


def _weights(weights: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights at ``keys``, and the sum of all others, in a dtype that bincount adds in."""
    weights = weights if weights.dtype == torch.float32 else weights.double()
    if isinstance(weights, SparseTensor):
        given = entries_of(weights)
        others = given.values[~torch.isin(given.keys, keys)]
        return given.at(keys), others.sum()
    is_other = torch.ones(weights.numel(), dtype=torch.bool, device=keys.device)
    is_other[keys] = False
    return weights[keys], weights[is_other].sum()
