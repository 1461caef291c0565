"""Convolutions and pooling of tensors with few entries: by the windows that each entry falls into.

An entry at x lies in the windows o with ``o * stride - padding + k * dilation = x``, one for each offset k of
the kernel at most. Listing them all costs the entries times the size of the kernel, whatever the shape:

    average   the sum of each window, over its size
    maximum   the largest entry of each window, and zero where it has implicit zeros
    conv      a product of the list, as a sparse matrix (window, offset), and the weights

Tensors with more entries are left to torch's dense functions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.by_torch.rows import sum_rows
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.ops.fallback import run_densely, run_torch
from scorch._src.statements.einsum import einsum
from scorch._src.storage.budget import check_budget, is_within_budget
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.entries import Entries, entries_of, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError

# The densities up to which lists are faster than dense windows.
MAX_POOL_DENSITY = 0.002
MAX_CONV_DENSITY = 0.0002
_HALF_DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Windows:
    """Windows over the last dimensions, of ``sizes``: their kernel, and where ``counts`` of them stand."""

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def find_windows(
        self, positions: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """Return the entry, the window and the offset inside it, for each window that an entry lies in."""
        entries, windows, offsets = [], [], []
        for number, offset in enumerate(itertools.product(*(range(size) for size in self.kernel))):
            inside = torch.ones(positions[0].numel(), dtype=torch.bool, device=positions[0].device)
            window_columns = []
            for dim, position in enumerate(positions):
                shifted = position + self.padding[dim] - offset[dim] * self.dilation[dim]
                window = shifted.div(self.stride[dim], rounding_mode="floor")
                inside &= (shifted >= 0) & (window * self.stride[dim] == shifted)
                inside &= window < self.counts[dim]
                window_columns.append(window)
            inside_entries = inside.nonzero().reshape(-1)
            entries.append(inside_entries)
            windows.append(torch.stack(window_columns)[:, inside_entries])
            offsets.append(torch.full_like(inside_entries, number))
        return torch.cat(entries), list(torch.cat(windows, 1)), torch.cat(offsets)

    def count_elements(self, window: Sequence[torch.Tensor], with_padding: bool = False) -> torch.Tensor:
        """Count the elements of the tensor that each window covers, or also those of the padding."""
        total = torch.ones((), dtype=torch.int64, device=HOST)
        for dim, position in enumerate(window):
            padding = self.padding[dim] if with_padding else 0
            begin = position * self.stride[dim] - self.padding[dim]
            offsets = torch.arange(self.kernel[dim], device=position.device) * self.dilation[dim]
            steps = begin.unsqueeze(-1) + offsets
            total = total * ((steps >= -padding) & (steps < self.sizes[dim] + padding)).sum(-1)
        return total


def _is_sparse_enough(input: Any, share: float) -> bool:
    """Whether to compute by entries: the density is up to ``share``, or no dense tensor fits."""
    if not isinstance(input, SparseTensor) or not input.is_floating_point() or input.requires_grad:
        return False
    size = 2 * input.numel() * input.element_size()
    return input.density <= share or not is_within_budget(size, input.storage.device)


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    numbers = (value,) * dims if isinstance(value, int) else tuple(value)
    return numbers * dims if len(numbers) == 1 else numbers


def _windows(input: SparseTensor, shape: tuple[int, ...], kernel: tuple[int, ...], *steps: Any) -> Windows:
    """Return the windows of a result of ``shape``; ``steps`` are stride, padding and dilation."""
    dims = len(kernel)
    sizes = tuple(input.shape[-dims:]), shape[-dims:]
    return Windows(*sizes, kernel, *(_tuple(step, dims) for step in steps))


def _shape(function: Callable[..., torch.Tensor], *tensors: torch.Tensor, **options: Any) -> tuple[int, ...]:
    """Return the shape of the result of ``function``, or raise its error, without computing anything."""
    meta_tensors = (torch.empty(tensor.shape, dtype=torch.float32, device="meta") for tensor in tensors)
    return tuple(function(*meta_tensors, **options).shape)


def _pool(
    function: Callable[..., Any], dims: int, names: Sequence[str], input: Any, *args: Any, **kwargs: Any
) -> Any:
    """Run ``function``, whose options are ``names``, on the last ``dims`` dimensions."""
    options = {**dict(zip(names, args, strict=False)), **kwargs}
    is_plain = not options.get("return_indices") and "kernel_size" in options
    if not is_plain or not _is_sparse_enough(input, MAX_POOL_DENSITY):
        return run_torch(function, input, *args, **kwargs)
    shape = _shape(function, input, **options)
    kernel = _tuple(options["kernel_size"], dims)
    steps = options.get("stride") or kernel, options.get("padding", 0), options.get("dilation", 1)
    windows = _windows(input, shape, kernel, *steps)
    return _pool_entries(input, windows, shape, "dilation" in names, options)


def _pool_entries(
    input: SparseTensor, windows: Windows, shape: tuple[int, ...], is_max: bool, options: dict[str, Any]
) -> SparseTensor:
    """Return the maximum or the mean of each window that has entries."""
    stored = entries_of(input)
    dims = len(windows.kernel)
    crd = stored.coordinates
    entry, window, _ = windows.find_windows(crd[-dims:])
    keys = keys_of([*(column[entry] for column in crd[:-dims]), *window], shape)
    keys, position, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    values = stored.values[entry]
    values = values.float() if values.dtype in _HALF_DTYPES else values
    window = coordinates_of(keys, shape)[-dims:]
    if is_max:
        lowest = values.new_full((counts.numel(),), float("-inf"))
        pooled = lowest.scatter_reduce(0, position, values, "amax")
        pooled = torch.where(counts < windows.count_elements(window), pooled.clamp(min=0), pooled)
    else:
        pooled = sum_rows(position, values, counts.numel())
        with_padding = options.get("count_include_pad", True)
        divisor = options.get("divisor_override") or windows.count_elements(window, with_padding)
        pooled = torch.div(pooled, divisor)
    return from_entries(Entries(keys, pooled.to(input.dtype), shape), format_for(input, shape))


_AVERAGE_OPTIONS = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_MAX_OPTIONS = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
for _kind, _names in (("avg", _AVERAGE_OPTIONS), ("max", _MAX_OPTIONS)):
    for _dims in (1, 2, 3):
        _function = getattr(F, f"{_kind}_pool{_dims}d")
        implements(_function)(functools.partial(_pool, _function, _dims, _names))


_HINT = "omit the bias for a sparse result"


def _convolve(
    function: Callable[..., torch.Tensor],
    dims: int,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    requires_grad = any(isinstance(t, torch.Tensor) and t.requires_grad for t in (weight, bias))
    is_unsupported = requires_grad or input.dtype != weight.dtype or input.dtype in _HALF_DTYPES
    if is_unsupported or not _is_sparse_enough(input, MAX_CONV_DENSITY):
        return run_torch(function, input, weight, bias, **options)
    _check_channels(input, weight, dims, groups)
    shape = _shape(function, input, weight, **options)
    kernel, steps = tuple(weight.shape[2:]), _tuple(dilation, dims)
    windows = _windows(input, shape, kernel, stride, _padding(padding, kernel, steps), steps)
    if isinstance(weight, SparseTensor):
        weight = run_densely(torch.Tensor.contiguous, (weight,), {})
    entries_out = _convolve_entries(input, weight, windows, shape, groups)
    bound = input.nnz * math.prod(kernel) * shape[-dims - 1]
    if bias is None and math.prod(shape) > 4 * bound:
        return from_entries(entries_out, format_for(input, shape), in_order=False)
    size = math.prod(shape) * weight.element_size()
    check_budget(size, entries_out.values.device, f"a convolution to shape {shape}", _HINT)
    dense = torch.zeros(shape, dtype=weight.dtype, device=entries_out.values.device)
    dense.view(-1)[entries_out.keys] = entries_out.values
    return dense if bias is None else dense + bias.reshape(-1, *(1,) * dims)


def _check_channels(input: torch.Tensor, weight: torch.Tensor, dims: int, groups: int) -> None:
    if weight.dim() != dims + 2 or input.dim() not in (dims + 1, dims + 2):
        raise ShapeError(
            f"conv{dims}d expected a {dims + 1}-D or {dims + 2}-D input and a {dims + 2}-D weight, but got "
            f"shapes {tuple(input.shape)} and {tuple(weight.shape)}"
        )
    channels = input.shape[-dims - 1]
    if groups < 1 or weight.shape[1] * groups != channels or weight.shape[0] % groups:
        raise ShapeError(
            f"given groups={groups}, weight of shape {tuple(weight.shape)}, expected input of shape "
            f"{tuple(input.shape)} to have {weight.shape[1] * groups} channels, but got {channels} "
            "channels instead"
        )


def _padding(padding: Any, kernel: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    if padding == "same":
        return tuple(step * (size - 1) // 2 for size, step in zip(kernel, steps, strict=True))
    return _tuple(0 if padding == "valid" else padding, len(kernel))


def _convolve_entries(
    input: SparseTensor, weight: torch.Tensor, windows: Windows, shape: tuple[int, ...], groups: int
) -> Entries:
    """Convolve where a window has an entry, in any order."""
    dims, stored = len(windows.kernel), entries_of(input)
    *batch, channel = stored.coordinates[:-dims]
    entry, window, offset = windows.find_windows(stored.coordinates[-dims:])
    per_group = weight.shape[1]
    group = channel[entry].div(per_group, rounding_mode="floor")
    outer = [*(column[entry] for column in batch), group, *window]
    sizes = (*shape[: len(batch)], groups, *shape[-dims:])
    keys, position = torch.unique(keys_of(outer, sizes), return_inverse=True)
    column = (channel[entry] % per_group) * math.prod(windows.kernel) + offset
    width = per_group * math.prod(windows.kernel)
    lists = from_coordinates([position, column], stored.values[entry], (keys.numel(), width), "csr")
    window_coordinates = coordinates_of(keys, sizes)
    channels_per_group = weight.shape[0] // groups
    key_parts, value_parts = [], []
    for number, group_weight in enumerate(weight.reshape(groups, channels_per_group, width)):
        rows = (window_coordinates[len(batch)] == number).nonzero().reshape(-1)
        product = einsum("rw,cw->rc", torch.index_select(lists, 0, rows), group_weight, format="dense")
        channels = number * channels_per_group + torch.arange(channels_per_group, device=rows.device)
        coordinate_columns = [column[rows].unsqueeze(1) for column in window_coordinates]
        coordinate_columns[len(batch)] = channels.unsqueeze(0)
        key_parts.append(keys_of(torch.broadcast_tensors(*coordinate_columns), shape).reshape(-1))
        value_parts.append(product.reshape(-1))
    return Entries(torch.cat(key_parts), torch.cat(value_parts), shape)


for _number, _conv in enumerate((F.conv1d, F.conv2d, F.conv3d)):
    implements(_conv)(functools.partial(_convolve, _conv, _number + 1))
