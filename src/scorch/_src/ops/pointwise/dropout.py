"""Dropout of sparse tensors: implicit zeros stay zero either way, so only stored values are drawn for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.ops.fallback import replace_value, run_densely
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values


@implements(F.dropout)
def dropout(input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Set some stored values to zero and scale the others; the pattern stays."""
    values = input.storage.values
    dropped = F.dropout(values, p, training)  # raises torch's errors
    if dropped is values:
        return input
    result = with_values(input, dropped)
    return replace_value(input, result, "dropout_") if inplace else result


@implements(torch.dropout)
def torch_dropout(input: SparseTensor, p: float, train: bool) -> Any:
    return dropout(input, p, train)


@implements(torch.dropout_)
def dropout_(input: SparseTensor, p: float, train: bool) -> Any:
    return dropout(input, p, train, inplace=True)


def _make_channel_dropout(function: Callable[..., torch.Tensor], spatial: int) -> Callable[..., Any]:
    """Return ``function``, which drops whole channels: one factor for all ``spatial`` dimensions."""

    def drop(input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        is_single = input.dim() == spatial + 1 and spatial != 2  # torch reads (N, C, L) there
        kept_dims = 1 if is_single else 2
        shape = (*input.shape[:kept_dims], *(1,) * (input.dim() - kept_dims))
        factors = function(
            torch.ones(shape, dtype=input.dtype, device=input.storage.device), p, training
        )  # raises torch's errors
        if not training or p == 0:
            return input
        result = torch.mul(input, factors)
        return replace_value(input, result, function.__name__) if inplace else result

    return drop


implements(F.dropout1d)(_make_channel_dropout(F.dropout1d, 1))
implements(F.dropout2d)(_make_channel_dropout(F.dropout2d, 2))
implements(F.dropout3d)(_make_channel_dropout(F.dropout3d, 3))


def _make_dense_dropout(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return ``function``, which changes zeros too: the result is dense."""

    def drop(input: SparseTensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
        function(input.storage.values[:0], p, training)  # raises torch's errors
        if not training or p == 0:
            return input
        result = run_densely(function, (input, p, True), {})
        return replace_value(input, result, function.__name__) if inplace else result

    return drop


implements(F.alpha_dropout)(_make_dense_dropout(F.alpha_dropout))
implements(F.feature_alpha_dropout)(_make_dense_dropout(F.feature_alpha_dropout))
