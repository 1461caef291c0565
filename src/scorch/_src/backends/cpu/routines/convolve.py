"""Convolutions with a sparse kernel, without the copy of all windows that a matrix product would need.

    out[n,o,y,x] = bias[o] + sum over entries (c,i,j) of row o of W[o,c,i,j] * X[n,c, y*s+i*d-p, x*s+j*d-p]

The input is copied once, with its padding. What an entry multiplies is then that copy from an offset on, at
all positions y, x at once: lines of the output are computed as wide as those of the copy, and what hangs over
is dropped. With a stride of s, every s-th pixel goes to an image of its own (a phase), in which neighbors of
the output are neighbors again. Kernels of one pixel read a copy of some positions of all channels instead.
A batch norm in evaluation mode, a residual and an activation follow while results are in the first cache.
"""

from __future__ import annotations

import itertools
import struct

import torch

from scorch._src.backends.by_torch.convolutions import NOTHING, Epilogue, Windows
from scorch._src.backends.by_torch.rows import Matrix, Tensor, rows_of
from scorch._src.backends.cpu.jit import read_source
from scorch._src.backends.cpu.launch import empty
from scorch._src.backends.cpu.routines import by_rows
from scorch._src.backends.cpu.routines.linear import ACTIVATIONS
from scorch._src.dataclass import dataclass
from scorch._src.events import emits
from scorch._src.loops.types import LAST_INT32

SOURCE = "".join(read_source(f"{name}.c") for name in ("tiles", "activations", "convolve"))
SLACK = 64  # elements behind an input, which the last vector of an image may read and nobody uses
MIN_READ_OF_COPY = (
    32  # times that an element of a copy must be read, where several threads copy the same ones
)
TILE_BYTES = 128  # of each channel that ``c/convolve.c`` copies at a time
_WHAT = "the convolution with a sparse kernel"
Pair = tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """How the input is copied, and where in a copy of an image each entry begins to read."""

    pos: Tensor
    offsets: Tensor
    pixels: tuple[tuple[slice, ...], ...]  # of each phase that are no padding, and those of the input
    size: Pair  # of a phase
    out: Pair
    channels: int
    is_pointwise: bool  # offsets are channels
    is_same: bool  # the copy is laid out as the input
    is_padded: bool
    stride: int  # what offsets are multiplied by
    input: int  # the elements of the copy of an image
    span: int  # the positions from the first of the output to the last, in lines of the copy


def plan_convolution(pos: Tensor, crd: Tensor, windows: Windows, image: tuple[int, int, int]) -> Plan | None:
    """Plan the convolution of images of so many channels, rows and columns."""
    channels, out = image[0], windows.out(image[1:])
    reach = [
        tuple(k * d for k in range(size)) for size, d in zip(windows.kernel, windows.dilation, strict=True)
    ]
    used = [sorted({at % s for at in steps}) for steps, s in zip(reach, windows.stride, strict=True)]
    phases = tuple(itertools.product(used[0], used[1]))
    size = tuple(n + steps[-1] // s for n, steps, s in zip(out, reach, windows.stride, strict=True))
    places = torch.tensor(
        [
            (phases.index((y % windows.stride[0], x % windows.stride[1])) * size[0] + y // windows.stride[0])
            * size[1]
            + x // windows.stride[1]
            for y, x in itertools.product(*reach)
        ]
    )
    if channels * len(phases) * size[0] * size[1] > LAST_INT32:
        crd = crd.long()
    kernel, rows = windows.kernel[0] * windows.kernel[1], pos.numel() - 1
    per_group = channels // windows.groups
    group = rows_of(pos, crd.numel()) // max(rows // windows.groups, 1)
    channel = group * per_group + crd // kernel
    offsets = channel * (len(phases) * size[0] * size[1]) + places[(crd % kernel).long()]
    is_pointwise, extent = kernel == 1, image[1:]
    offsets = (channel if is_pointwise else offsets).to(crd.dtype)
    sides = [
        [
            _overlap(*sizes)
            for sizes in zip(phase, windows.stride, windows.padding[::2], extent, size, strict=True)
        ]
        for phase in phases
    ]
    pixels = tuple((rows[0], columns[0], rows[1], columns[1]) for rows, columns in sides)
    return Plan(
        pos.to(crd.dtype),
        offsets,
        pixels,
        (size[0], size[1]),
        out,
        channels,
        is_pointwise,
        is_same=phases == ((0, 0),) and windows.stride == (1, 1) and extent == size,
        is_padded=any((part[0], part[1]) != (slice(0, size[0]), slice(0, size[1])) for part in pixels),
        stride=size[0] * size[1] if is_pointwise else 1,
        input=channels * len(phases) * size[0] * size[1],
        span=(out[0] - 1) * size[1] + out[1],
    )


@emits("convolution with a sparse kernel")
def convolve(
    weight: Matrix,
    bias: Tensor | None,
    input: Tensor,
    windows: Windows,
    plan: Plan | None,
    follows: Epilogue = NOTHING,
) -> Tensor | None:
    """Convolve images (n, channels, rows, columns), and do what follows."""
    del windows
    values = weight[2]
    if plan is None or input.dtype not in (torch.float32, torch.float64):
        return None
    pos = plan.pos
    at = by_rows.address(SOURCE, _WHAT, "convolve", input.dtype, pos.dtype)
    if not at:
        return None
    images, rows = input.shape[0], pos.numel() - 1
    out = empty((images, rows, *plan.out), input.dtype)
    packed = _pack(input, plan)
    bias = None if bias is None else bias.contiguous()
    *norm, eps = (None, None, None, None, 0.0) if follows.norm is None else follows.norm
    normed = None if follows.norm is None else empty((2 * rows,), input.dtype)
    arrays = [None if other is None else other.contiguous() for other in (*norm, normed, follows.residual)]
    ending = (*struct.unpack("q", struct.pack("d", eps)), ACTIVATIONS[follows.activation])
    threads, per_tile = by_rows.max_threads(), TILE_BYTES // input.itemsize
    channels = plan.channels if _copies_tiles(plan, values.numel(), images, per_tile, threads) else 0
    space = empty((threads * channels * per_tile,), input.dtype)
    by_rows.run(
        at,
        values.numel() * images * plan.span,
        rows,
        (pos, plan.offsets, values.contiguous(), bias, packed, out, space, *arrays),
        [images, plan.input, plan.span, plan.size[1], plan.out[1], plan.stride, channels, *ending],
    )
    return out


def _copies_tiles(plan: Plan, entries: int, images: int, per_tile: int, threads: int) -> bool:
    """Whether each thread copies channels next to each other: not where threads share few tiles."""
    tiles = images * -(-plan.span // per_tile)
    is_gain = tiles >= 2 * threads or entries * tiles >= MIN_READ_OF_COPY * plan.channels * threads
    return plan.is_pointwise and (threads == 1 or is_gain)


def _pack(input: Tensor, plan: Plan) -> Tensor:
    """Copy images with their padding, phase by phase; an input that is laid out so stays as it is."""
    if plan.is_same and input.is_contiguous() and (plan.is_pointwise or not plan.span % SLACK):
        return input
    images, phases = input.shape[0], len(plan.pixels)
    buffer = empty((images * plan.input + SLACK,), input.dtype)
    buffer = buffer.zero_() if plan.is_padded else buffer
    copies = buffer[: images * plan.input].view(images, plan.channels, phases, *plan.size)
    for number, (rows, columns, from_rows, from_columns) in enumerate(plan.pixels):
        copies[:, :, number, rows, columns].copy_(input[:, :, from_rows, from_columns])
    return buffer


def _overlap(first: int, stride: int, padding: int, extent: int, size: int) -> tuple[slice, slice]:
    """Return which pixels of a phase are no padding, and which pixels of the input those are."""
    begin = max(0, -((first - padding) // stride))
    end = max(begin, min(size, (extent - 1 + padding - first) // stride + 1))
    source = begin * stride + first - padding
    return slice(begin, end), slice(source, max(source, source + (end - begin - 1) * stride + 1), stride)
