"""Dropout of sparse tensors: what is not stored is zero either way, so only stored values are drawn for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.ops.fallback import densely, replace_by
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values


@implements(F.dropout)
def dropout(input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """The tensor with some of its stored values set to zero and the others scaled; it keeps its pattern."""
    values = input.storage.values
    dropped = F.dropout(values, p, training)  # which refuses what torch does
    if dropped is values:
        return input
    found = with_values(input, dropped)
    return replace_by(input, found, "dropout_") if inplace else found


@implements(torch.dropout)
def torch_dropout(input: SparseTensor, p: float, train: bool) -> Any:
    return dropout(input, p, train)


@implements(torch.dropout_)
def dropout_(input: SparseTensor, p: float, train: bool) -> Any:
    return dropout(input, p, train, inplace=True)


def _of_channels(function: Callable[..., torch.Tensor], spatial: int) -> Callable[..., Any]:
    """``function`` drops whole channels: the same factor for all of their ``spatial`` dimensions."""

    def drop(input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        is_single = input.dim() == spatial + 1 and spatial != 2  # torch reads (N, C, L) there
        kept = 1 if is_single else 2
        shape = (*input.shape[:kept], *(1,) * (input.dim() - kept))
        factors = function(
            torch.ones(shape, dtype=input.dtype, device=input.storage.device), p, training
        )  # which refuses what torch does
        if not training or p == 0:
            return input
        found = torch.mul(input, factors)
        return replace_by(input, found, function.__name__) if inplace else found

    return drop


implements(F.dropout1d)(_of_channels(F.dropout1d, 1))
implements(F.dropout2d)(_of_channels(F.dropout2d, 2))
implements(F.dropout3d)(_of_channels(F.dropout3d, 3))


def _of_all(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """``function`` changes zeros too: a number is drawn for every element, and the result is dense."""

    def drop(input: SparseTensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
        function(input.storage.values[:0], p, training)  # which refuses what torch does
        if not training or p == 0:
            return input
        found = densely(function, (input, p, True), {})
        return replace_by(input, found, function.__name__) if inplace else found

    return drop


implements(F.alpha_dropout)(_of_all(F.alpha_dropout))
implements(F.feature_alpha_dropout)(_of_all(F.feature_alpha_dropout))
