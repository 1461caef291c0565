"""The last call of a sparse layer, repeated on tensors of the same shapes.

Choosing a routine, its threads and its memory takes longer than a small product itself. ``LayerCall`` keeps
the choice; the routine checks dtypes, shapes and strides, and reads the memory that tensors have by then.
"""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.backends.by_torch.layers import BatchProduct
from scorch._src.grad_state import is_grad_enabled
from scorch._src.ops.products.linear import bind_batch
from scorch._src.statements.call_cache import may_repeat
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad, is_any_autocast_enabled

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class LayerCall:
    """A call of a layer that may come again; the second one is prepared, all others repeat it."""

    def __init__(
        self, input: torch.Tensor, pattern: Pattern, bias: Any, activation: str | None, residual: Any
    ) -> None:
        self._shape, self._pattern = input.shape, pattern
        self._activation, self._has_bias = activation, bias is not None
        self._has_residual = residual is not None
        self._product: BatchProduct | None = None
        self._is_bound = False

    def covers(
        self, input: torch.Tensor, pattern: Pattern, bias: Any, activation: str | None, residual: Any
    ) -> bool:
        """Whether a call is this one, up to dtypes and strides."""
        return self._is_like(pattern, bias, activation, residual) and input.shape == self._shape

    def _is_like(self, pattern: Pattern, bias: Any, activation: str | None, residual: Any) -> bool:
        return (
            pattern is self._pattern
            and activation == self._activation
            and (bias is not None) == self._has_bias
            and (residual is not None) == self._has_residual
        )

    def repeat(
        self,
        input: torch.Tensor,
        pattern: Pattern,
        values: torch.Tensor,
        bias: Any,
        scales: torch.Tensor | None,
        activation: str | None,
        residual: Any,
    ) -> torch.Tensor | None:
        """Return the output for a plain tensor; None where something tracks the call, or it differs."""
        if self._is_bound and self._product is None:
            return None
        if is_grad_enabled() and any_requires_grad(input, values, bias, residual):
            return None
        if not self._is_like(pattern, bias, activation, residual):
            return None
        if is_any_autocast_enabled() or not may_repeat():
            return None
        if input.is_neg() or not _is_plain(bias) or not _is_plain(residual):
            return None
        if not self._is_bound:
            if input.shape != self._shape or not input.is_contiguous():
                return None
            weight = SparseTensor(Storage(pattern, values.detach()))
            self._product = bind_batch(input, weight, bias, scales, activation, residual)
            self._is_bound = True
        product = self._product
        output = None if product is None else product(values, scales, bias, residual, input)
        if output is None and product is not None:  # dtypes or strides are others: the next call is prepared
            self._is_bound = False
        return output


def _is_plain(tensor: Any) -> bool:
    """Whether memory has the elements of a tensor, if any, as they are: signs may be left to a flag."""
    return tensor is None or (type(tensor) in _PLAIN and not tensor.is_neg())
