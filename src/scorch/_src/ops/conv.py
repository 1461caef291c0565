"""Convolutions and pooling of tensors with few entries: by the windows that each entry falls into.

An entry at x lies in the windows o with ``o * stride - padding + k * dilation = x``, one for each offset k of
the kernel at most. Listing them all costs the entries times the size of the kernel, whatever the shape:

    average   the sum of each window, over its size
    maximum   the largest entry of each window, and zero where it has places that are not stored
    conv      a product of the list, as a sparse matrix (window, offset), and the weights

Tensors with many entries are left to torch's dense functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.devices import HOST
from scorch._src.ops.fallback import densely
from scorch._src.statements.einsum import einsum
from scorch._src.storage.budget import check_budget, is_within_budget
from scorch._src.storage.coordinates import keys_of
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.entries import Entries, entries_of, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass
from scorch.errors import ShapeError

# The shares of places up to which lists are faster than dense windows.
FEW_TO_POOL = 0.002
FEW_TO_CONVOLVE = 0.0002
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Windows:
    """Windows over the last dimensions, of ``sizes``: their kernel, and where ``counts`` of them stand."""

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def hits(self, places: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """For each entry and window that it lies in: the entry, the window, and the offset inside it."""
        entries, windows, offsets = [], [], []
        for number, offset in enumerate(itertools.product(*(range(size) for size in self.kernel))):
            inside = torch.ones(places[0].numel(), dtype=torch.bool, device=places[0].device)
            found = []
            for dim, place in enumerate(places):
                shifted = place + self.padding[dim] - offset[dim] * self.dilation[dim]
                window = shifted.div(self.stride[dim], rounding_mode="floor")
                inside &= (shifted >= 0) & (window * self.stride[dim] == shifted)
                inside &= window < self.counts[dim]
                found.append(window)
            kept = inside.nonzero().reshape(-1)
            entries.append(kept)
            windows.append(torch.stack(found)[:, kept])
            offsets.append(torch.full_like(kept, number))
        return torch.cat(entries), list(torch.cat(windows, 1)), torch.cat(offsets)

    def stored_places(self, window: Sequence[torch.Tensor]) -> torch.Tensor:
        """How many places of the tensor each window covers."""
        total = torch.ones((), dtype=torch.int64, device=HOST)
        for dim, place in enumerate(window):
            begin = place * self.stride[dim] - self.padding[dim]
            steps = (
                begin.unsqueeze(-1) + torch.arange(self.kernel[dim], device=place.device) * self.dilation[dim]
            )
            total = total * ((steps >= 0) & (steps < self.sizes[dim])).sum(-1)
        return total

    def padded_places(self, window: Sequence[torch.Tensor]) -> torch.Tensor:
        """As ``stored_places``, with those of the padding."""
        total = torch.ones((), dtype=torch.int64, device=HOST)
        for dim, place in enumerate(window):
            begin = place * self.stride[dim] - self.padding[dim]
            end = (begin + self.kernel[dim]).clamp(max=self.sizes[dim] + self.padding[dim])
            total = total * (end - begin)
        return total


def _has_few(input: Any, share: float) -> bool:
    """Whether to take ``input`` by its entries: they are up to ``share`` of its places, or no copy fits."""
    if not isinstance(input, SparseTensor) or not input.is_floating_point() or input.requires_grad:
        return False
    return input.density <= share or not is_within_budget(2 * input.numel() * input.element_size())


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    numbers = (value,) * dims if isinstance(value, int) else tuple(value)
    return numbers * dims if len(numbers) == 1 else numbers


def _shape(function: Callable[..., torch.Tensor], *tensors: torch.Tensor, **options: Any) -> tuple[int, ...]:
    """The shape that ``function`` gives, and its errors, without computing anything."""
    shells = (torch.empty(tensor.shape, dtype=torch.float32, device="meta") for tensor in tensors)
    return tuple(function(*shells, **options).shape)


def _general(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with DisableTorchFunctionSubclass():
        return function(*args, **kwargs)


# pooling ---------------------------------------------------------------------------------------------


def _pooling(function: Callable[..., Any], dims: int, names: Sequence[str]) -> Callable[..., Any]:
    """``function``, whose options are ``names``, on the last ``dims`` dimensions."""

    def pool(input: Any, *args: Any, **kwargs: Any) -> Any:
        options = {**dict(zip(names, args, strict=False)), **kwargs}
        if not _has_few(input, FEW_TO_POOL) or options.get("return_indices") or "kernel_size" not in options:
            return _general(function, input, *args, **kwargs)
        shape = _shape(function, input, **options)
        kernel = _tuple(options["kernel_size"], dims)
        windows = Windows(
            tuple(input.shape[-dims:]),
            shape[-dims:],
            kernel,
            _tuple(options.get("stride") or kernel, dims),
            _tuple(options.get("padding", 0), dims),
            _tuple(options.get("dilation", 1), dims),
        )
        return _pooled(input, windows, shape, _largest if "dilation" in names else _average, options)

    return pool


def _pooled(
    input: SparseTensor, windows: Windows, shape: tuple[int, ...], body: Callable[..., Any], options: Any
) -> SparseTensor:
    stored = entries_of(input)
    dims = len(windows.kernel)
    crd = stored.coordinates
    entry, window, _ = windows.hits(crd[-dims:])
    keys = keys_of([*(column[entry] for column in crd[:-dims]), *window], shape)
    found, place, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    values = stored.values[entry]
    values = values.float() if values.dtype in _HALVES else values
    touched = Entries(found, values.new_zeros(found.numel()), shape)
    made = body(windows, touched.coordinates[-dims:], values, place, counts, options)
    return from_entries(Entries(found, made.to(input.dtype), shape), format_for(input, shape))


def _largest(
    windows: Windows,
    at: Sequence[torch.Tensor],
    values: torch.Tensor,
    place: torch.Tensor,
    counts: torch.Tensor,
    options: dict[str, Any],
) -> torch.Tensor:
    lowest = torch.full((counts.numel(),), float("-inf"), dtype=values.dtype, device=values.device)
    found = lowest.scatter_reduce(0, place, values, "amax")
    return torch.where(counts < windows.stored_places(at), found.clamp(min=0), found)


def _average(
    windows: Windows,
    at: Sequence[torch.Tensor],
    values: torch.Tensor,
    place: torch.Tensor,
    counts: torch.Tensor,
    options: dict[str, Any],
) -> torch.Tensor:
    total = torch.zeros(counts.numel(), dtype=values.dtype, device=values.device).index_add_(0, place, values)
    if options.get("divisor_override"):
        return torch.div(total, options["divisor_override"])
    counted = windows.padded_places if options.get("count_include_pad", True) else windows.stored_places
    return total / counted(at)


_AVERAGE = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_MAXIMUM = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
for _number, _average_pool in enumerate((F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)):
    implements(_average_pool)(_pooling(_average_pool, _number + 1, _AVERAGE))
for _number, _max_pool in enumerate((F.max_pool1d, F.max_pool2d, F.max_pool3d)):
    implements(_max_pool)(_pooling(_max_pool, _number + 1, _MAXIMUM))


# convolutions ----------------------------------------------------------------------------------------


_CURE = "leave out the bias, without which it is sparse"


def _convolution(function: Callable[..., torch.Tensor], dims: int) -> Callable[..., Any]:
    def convolve(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        is_trained = any(isinstance(t, torch.Tensor) and t.requires_grad for t in (weight, bias))
        is_other = is_trained or input.dtype != weight.dtype or input.dtype in _HALVES
        if is_other or not _has_few(input, FEW_TO_CONVOLVE):
            return _general(function, input, weight, bias, **options)
        _check_channels(input, weight, dims, groups)
        shape = _shape(function, input, weight, **options)
        kernel, steps = tuple(weight.shape[2:]), _tuple(dilation, dims)
        windows = Windows(
            tuple(input.shape[-dims:]),
            shape[-dims:],
            kernel,
            _tuple(stride, dims),
            _padding(padding, kernel, steps),
            steps,
        )
        if isinstance(weight, SparseTensor):
            weight = densely(torch.Tensor.contiguous, (weight,), {})
        found = _convolved(input, weight, windows, shape, groups)
        bound = input.nnz * math.prod(kernel) * shape[-dims - 1]
        if bias is None and math.prod(shape) > 4 * bound:
            return from_entries(found, format_for(input, shape), in_order=False)
        check_budget(math.prod(shape) * weight.element_size(), f"a convolution to shape {shape}", _CURE)
        dense = torch.zeros(shape, dtype=weight.dtype, device=found.values.device)
        dense.view(-1)[found.keys] = found.values
        return dense if bias is None else dense + bias.reshape(-1, *(1,) * dims)

    return convolve


def _check_channels(input: torch.Tensor, weight: torch.Tensor, dims: int, groups: int) -> None:
    if weight.dim() != dims + 2 or input.dim() not in (dims + 1, dims + 2):
        raise ShapeError(
            f"conv{dims}d takes an input of {dims + 1} or {dims + 2} dimensions and weights of {dims + 2}, "
            f"not shapes {tuple(input.shape)} and {tuple(weight.shape)}"
        )
    channels = input.shape[-dims - 1]
    if groups < 1 or weight.shape[1] * groups != channels or weight.shape[0] % groups:
        raise ShapeError(
            f"weights of shape {tuple(weight.shape)} in {groups} groups take {weight.shape[1]} channels a "
            f"group, but input has {channels} in all: shape {tuple(input.shape)}"
        )


def _padding(padding: Any, kernel: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    if padding == "same":
        return tuple(step * (size - 1) // 2 for size, step in zip(kernel, steps, strict=True))
    return _tuple(0 if padding == "valid" else padding, len(kernel))


def _convolved(
    input: SparseTensor, weight: torch.Tensor, windows: Windows, shape: tuple[int, ...], groups: int
) -> Entries:
    """The convolution where a window has an entry, in any order."""
    dims, stored = len(windows.kernel), entries_of(input)
    *batch, channel = stored.coordinates[:-dims]
    entry, window, offset = windows.hits(stored.coordinates[-dims:])
    per_group = weight.shape[1]
    group = channel[entry].div(per_group, rounding_mode="floor")
    outer = [*(column[entry] for column in batch), group, *window]
    sizes = (*shape[: len(batch)], groups, *shape[-dims:])
    keys, place = torch.unique(keys_of(outer, sizes), return_inverse=True)
    column = (channel[entry] % per_group) * math.prod(windows.kernel) + offset
    width = per_group * math.prod(windows.kernel)
    lists = from_coordinates([place, column], stored.values[entry], (keys.numel(), width), "csr")
    at = Entries(keys, stored.values.new_zeros(keys.numel()), sizes).coordinates
    each = weight.shape[0] // groups
    found_keys, found_values = [], []
    for number, part in enumerate(weight.reshape(groups, each, width)):
        rows = (at[len(batch)] == number).nonzero().reshape(-1)
        product = einsum("rw,cw->rc", torch.index_select(lists, 0, rows), part, format="dense")
        channels = number * each + torch.arange(each, device=rows.device)
        place_of = [column[rows].unsqueeze(1) for column in (*at[: len(batch)], *at[len(batch) + 1 :])]
        place_of.insert(len(batch), channels.unsqueeze(0))
        found_keys.append(keys_of(torch.broadcast_tensors(*place_of), shape).reshape(-1))
        found_values.append(product.reshape(-1))
    return Entries(torch.cat(found_keys), torch.cat(found_values), shape)


for _number, _conv in enumerate((F.conv1d, F.conv2d, F.conv3d)):
    implements(_conv)(_convolution(_conv, _number + 1))
