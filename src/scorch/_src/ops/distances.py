"""Distances between sparse tensors: the work follows the entries of both."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.tensor.entries import entries_of
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass, legacy_reduction

aten = torch.ops.aten


@implements(torch.dist, torch.Tensor.dist)
def dist(input: Any, other: Any, p: float = 2) -> Any:
    """Compute the p-norm of the difference."""
    return torch.linalg.vector_norm(torch.sub(input, other), p)


@implements(F.pairwise_distance)
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """Compute ``norm(x1 - x2 + eps)`` along the last dimension; ``eps`` alone counts at implicit zeros."""
    difference = torch.sub(x1, x2)
    if not isinstance(difference, SparseTensor) or p <= 0 or not difference.dim():
        with DisableTorchFunctionSubclass():
            return F.pairwise_distance(x1, x2, p, eps, keepdim)
    entries = entries_of(difference)
    *outer, size = entries.shape
    rows = math.prod(outer)
    row = entries.keys.div(max(size, 1), rounding_mode="floor")
    implicit_zeros = size - torch.bincount(row, minlength=rows)
    shifted = (entries.values + eps).abs()
    if math.isinf(p):
        distances = torch.where(implicit_zeros > 0, abs(eps), 0.0).to(shifted.dtype)
        distances = distances.scatter_reduce(0, row, shifted, "amax")
    else:
        distances = (implicit_zeros * abs(eps) ** p).to(shifted.dtype).index_add_(0, row, shifted**p) ** (
            1 / p
        )
    return distances.reshape(*outer, 1) if keepdim else distances.reshape(outer)


@implements(F.triplet_margin_loss)
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Compute ``relu(distance to positive - distance to negative + margin)``."""
    if size_average is not None or reduce is not None:
        reduction = legacy_reduction(size_average, reduce)
    return F.triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=lambda a, b: pairwise_distance(a, b, p, eps),
        margin=margin,
        swap=swap,
        reduction=reduction,
    )
