"""Values of a sparse weight in fewer bits than the numbers that are computed with.

bfloat16 values are the upper halves of float32 values, and train like any parameter. int8 values have a
scale for each row, the largest magnitude of the row divided by 127; they are for inference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from scorch._src.nn.pattern import count_rows
from scorch._src.storage.storage import Pattern
from scorch.errors import ArgumentError, CallError

if TYPE_CHECKING:
    from scorch._src.nn.sparse_linear import SparseLinear

WEIGHT_DTYPES = (torch.bfloat16, torch.int8)
LARGEST_INT8 = 127


def check_weight_dtype(dtype: Any) -> None:
    if dtype is not None and dtype not in WEIGHT_DTYPES:
        raise ArgumentError(f"weight_dtype must be torch.bfloat16, torch.int8 or None, but got {dtype!r}")


def quantize(values: torch.Tensor, pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Round values to 8-bit integers; return them and the scale of each row."""
    row, _ = count_rows(pattern)
    row = row.clamp(min=0)  # padding of blocks is zero
    largest = values.new_zeros(pattern.shape[0]).scatter_reduce_(0, row, values.abs(), "amax")
    scales = largest / LARGEST_INT8
    steps = torch.where(scales > 0, scales, 1)[row]
    return (values / steps).round_().clamp_(-LARGEST_INT8, LARGEST_INT8).to(torch.int8), scales


def dequantize(values: torch.Tensor, scales: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Return the values that 8-bit integers represent."""
    row, _ = count_rows(pattern)
    return values.to(scales.dtype) * scales[row.clamp(min=0)]


def store_values(layer: SparseLinear, dtype: torch.dtype) -> float:
    """Have a layer store its values in ``dtype``, one of ``WEIGHT_DTYPES``; return the relative error."""
    values = before = layer.weight.storage.values.detach()
    needs_grad = layer.values.requires_grad and dtype != torch.int8
    layer.scales = None
    if dtype == torch.int8:
        values, layer.scales = quantize(values, layer.pattern)
    layer.values = torch.nn.Parameter(values.to(dtype), requires_grad=needs_grad)
    after = layer.weight.storage.values.detach().to(before.dtype)
    norm = float(before.norm())
    return float((after - before).norm()) / norm if norm else 0.0


def check_not_trained(layer: SparseLinear) -> None:
    """Raise if a layer with 8-bit values is in training."""
    if layer.training and torch.is_grad_enabled():
        raise CallError(
            "the weight is stored as int8, which is for inference: call model.eval(), or compute under "
            "torch.no_grad(); to train, keep the float weights or store them with weight_dtype=torch.bfloat16"
        )


def check_float(layer: SparseLinear) -> None:
    """Raise if a layer has 8-bit values, which cannot be drawn or moved."""
    if layer._buffers.get("scales") is not None:
        raise CallError(
            "the weight is stored as int8, which is for inference; modify the floating-point layer instead"
        )
