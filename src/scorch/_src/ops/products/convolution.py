"""A convolution with sparse kernels as one function, and what follows it: ``scorch.compile`` records both."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.base import routines_for
from scorch._src.backends.by_torch.convolutions import NOTHING, Epilogue, FixedNorm, Windows
from scorch._src.grad_state import untracked
from scorch._src.ops.products.activations import finish
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.sparse_tensor import SparseTensor

_PLAIN = (torch.Tensor, torch.nn.Parameter)
Numbers = tuple[int, ...]  # of windows, one after the other


def numbers_of(windows: Windows) -> Numbers:
    """Return windows as integers, which recorded calls are looked up by."""
    return *windows.kernel, *windows.stride, *windows.padding, *windows.dilation, windows.groups


@functools.lru_cache(maxsize=1024)
def windows_of(numbers: Numbers) -> Windows:
    """Return the windows of which ``numbers_of`` has made integers."""
    kernel, stride, padding, dilation = numbers[:2], numbers[2:4], numbers[4:8], numbers[8:10]
    return Windows(kernel, stride, padding, dilation, numbers[10])  # type: ignore[arg-type]


def apply_convolution(images: torch.Tensor, weight: SparseTensor, bias: Any, *numbers: int) -> torch.Tensor:
    """Convolve images (n, channels, rows, columns) where nothing is tracked.

    Args:
        images: images of the dtype of the weight.
        weight: one row for each kernel, in csr.
        bias: the bias of each kernel, or None.
        numbers: the windows, as ``numbers_of`` returns them.
    """
    return convolve(images, weight.storage.pattern, weight.storage.values, bias, windows_of(numbers))


apply_convolution.__name__ = "convolution"


def convolve(
    images: torch.Tensor,
    pattern: Pattern,
    values: torch.Tensor,
    bias: Any,
    windows: Windows,
    follows: Epilogue = NOTHING,
) -> torch.Tensor:
    """Convolve images, and do what follows in the same pass where a routine can."""
    if not images.shape[0]:  # of graphs that any number of images goes through
        return images.new_empty(0, pattern.shape[0], *windows.out(images.shape[2:]))
    pos, crd = pattern.pos[-1], pattern.crd[-1]
    assert pos is not None and crd is not None
    routines, image = routines_for(images), (images.shape[1], images.shape[2], images.shape[3])
    key = ("convolution", image, windows)
    plan = pattern.structures.get(key)
    if plan is None:
        with untracked():
            plan = pattern.structures[key] = routines.plan_convolution(pos, crd, windows, image)
    arguments = ((pos, crd, values.detach()), None if bias is None else bias.detach(), images, windows, plan)
    output = routines.convolve(*arguments, follows)
    if output is not None:
        return output
    output = routines.convolve(*arguments)
    assert output is not None
    if follows.norm is not None:
        mean, variance, weight_of_norm, bias_of_norm, eps = follows.norm
        output = F.batch_norm(output, mean, variance, weight_of_norm, bias_of_norm, eps=eps)
    output = output if follows.residual is None else output + follows.residual
    return finish(output, follows.activation, None)  # type: ignore[no-any-return]


def find_fixed_norm(
    channels: int, dtype: torch.dtype, mean: Any, variance: Any, weight: Any, bias: Any, eps: float
) -> FixedNorm | None:
    """Return a batch norm that scales and shifts each channel of such a result; None for unusual ones."""
    if mean is None or variance is None:
        return None
    for other in (mean, variance, weight, bias):
        if other is not None and (type(other) not in _PLAIN or other.dtype is not dtype):
            return None
        if other is not None and (tuple(other.shape) != (channels,) or other.is_neg()):
            return None
    weight, bias = (None if other is None else other.detach() for other in (weight, bias))
    return FixedNorm(mean.detach(), variance.detach(), weight, bias, eps)
