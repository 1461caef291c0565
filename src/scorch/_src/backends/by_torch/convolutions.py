"""Convolutions by sparse kernels, and what follows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from scorch._src.backends.by_torch.rows import Matrix, Tensor, rows_of


class Windows(NamedTuple):
    """The windows of a convolution over rows and columns; zeros are padded before and after each."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # before and after the rows, then the columns
    dilation: tuple[int, int]
    groups: int

    def out(self, extent: Sequence[int]) -> tuple[int, int]:
        """Return how many windows an image of these rows and columns has, in both directions."""
        rows, columns = (
            (size + self.padding[2 * dim] + self.padding[2 * dim + 1] - self.dilation[dim] * (kernel - 1) - 1)
            // self.stride[dim]
            + 1
            for dim, (size, kernel) in enumerate(zip(extent, self.kernel, strict=True))
        )
        return rows, columns


class FixedNorm(NamedTuple):
    """A batch norm in evaluation mode: statistics and parameters with a number for each channel."""

    mean: Tensor
    variance: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float


class Epilogue(NamedTuple):
    """What follows a convolution, in this order; what is None is left out.

    A batch norm; the sum with ``residual``, an array like the result; ``activation``, as in ``Layer``.
    """

    norm: FixedNorm | None = None
    residual: Tensor | None = None
    activation: str | None = None


NOTHING = Epilogue()


class ConvolutionRoutines:
    """Convolve images."""

    def plan_convolution(
        self, pos: Tensor, crd: Tensor, windows: Windows, image: tuple[int, int, int]
    ) -> Any:
        """Plan ``convolve`` for images of so many channels, rows and columns; None: it needs no plan."""
        del pos, crd, windows, image

    def convolve(
        self,
        weight: Matrix,
        bias: Tensor | None,
        input: Tensor,
        windows: Windows,
        plan: Any,
        follows: Epilogue = NOTHING,
    ) -> Tensor | None:
        """Convolve images by kernels that are compressed rows of channels, rows and columns.

        None where what follows must be computed by itself.
        """
        del plan
        if follows != NOTHING:
            return None
        pos, crd, values = weight
        rows, channels = pos.numel() - 1, input.shape[1] // windows.groups
        dense = values.new_zeros(rows, channels * math.prod(windows.kernel))
        dense[rows_of(pos, crd.numel()), crd.long()] = values
        top, bottom, left, right = windows.padding
        padded = torch.nn.functional.pad(input, (left, right, top, bottom))
        kernels = dense.view(rows, channels, *windows.kernel)
        stride, dilation = windows.stride, windows.dilation
        return torch.nn.functional.conv2d(padded, kernels, bias, stride, 0, dilation, windows.groups)
