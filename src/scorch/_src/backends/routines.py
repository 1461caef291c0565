"""Routines that complement generated kernels, in PyTorch operators: they run on any device.

A backend overrides those that it has faster code for (``backends.cpu.cpu_routines``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from scorch._src.backends.by_torch.attention import AttentionRoutines
from scorch._src.backends.by_torch.convolutions import ConvolutionRoutines
from scorch._src.backends.by_torch.graphs import GraphRoutines
from scorch._src.backends.by_torch.index_arrays import IndexRoutines
from scorch._src.backends.by_torch.layers import LayerRoutines
from scorch._src.backends.by_torch.rows import Tensor


class Routines(IndexRoutines, GraphRoutines, LayerRoutines, ConvolutionRoutines, AttentionRoutines):
    """All routines, in PyTorch operators."""

    def free_memory(self, device: torch.device) -> int | None:
        """Return the bytes that can still be allocated on a device; None if it shares the host's memory."""
        del device
        return None

    # order in time -----------------------------------------------------------------------------------

    def check_waiting(self, device: torch.device, what: str) -> None:
        """Raise where the host must not wait for a device now; ``what`` is what it would wait for."""
        del device, what

    def check_seeds(self, device: torch.device) -> None:
        """Raise where kernels must not be given seeds that are drawn on the host now."""
        del device

    def settle(self, device: torch.device) -> None:
        """Wait until what was computed may be read by anybody, before it is cached."""
        del device

    def record(self, device: torch.device) -> Callable[[], None] | None:
        """Return a function that others than this stream of work call before they read what is cached."""
        del device
        return None

    # dense tensors -----------------------------------------------------------------------------------

    def transpose(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """Permute the dimensions of a dense tensor to ``order``, without gaps in memory."""
        return tensor.permute(*order).contiguous()

    def are_finite(self, arrays: Sequence[Tensor]) -> bool:
        """Check that all real numbers in arrays, and their sum, are finite; a device is asked once."""
        total = arrays[0].sum()
        for array in arrays[1:]:
            total = total + array.sum()
        return math.isfinite(total)

    def ask_finite(self, arrays: Sequence[Tensor]) -> Callable[[], bool]:
        """Return what answers ``are_finite``; a device is asked at once, and works while the host goes on."""
        return functools.partial(self.are_finite, arrays)

    def ask_divisor(self, array: Tensor) -> Callable[[], bool]:
        """Return what answers whether all numbers are finite, and none is zero, as ``ask_finite`` does."""
        return lambda: bool(array.all()) and self.are_finite((array,))

    def ask_nonzero(self, array: Tensor) -> Callable[[], bool]:
        """Return what answers whether any number is not zero, as ``ask_finite`` does."""
        return lambda: bool(array.count_nonzero())

    min_summed: int | None = None  # numbers from which on ``sum_columns`` is worth a call from Python

    def sum_columns(self, matrix: Tensor) -> Tensor:
        """Return the sum of each column of a dense matrix."""
        return matrix.sum(0)

    def add_row(self, result: Tensor, row: Tensor) -> Tensor:
        """Add ``row`` to every row of a dense tensor of its dtype that nothing tracks, in place."""
        return result.add_(row)

    # stored values -----------------------------------------------------------------------------------

    answers_at_once: bool = False  # whether the host waits for nothing where it asks about values
    repeats_calls: bool = False  # whether ``backends.repeated_calls`` may repeat those of the functions below

    def scale(self, values: Tensor, factor: float) -> Tensor:
        """Multiply values by a finite number, which does not change their dtype."""
        return values * factor

    @property
    def relu(self) -> Callable[[Tensor], Tensor]:
        return torch.relu

    @property
    def neg(self) -> Callable[[Tensor], Tensor]:
        return torch.neg

    @property
    def abs(self) -> Callable[[Tensor], Tensor]:
        return torch.abs
