"""PyTorch's norms, computed in one pass over memory in inference.

Between sparse layers, which take less time than dense ones, norms take a larger part of the time: PyTorch's
``rms_norm`` is eight kernels on the CPU. ``fuse_modules`` gives the norms of a model with sparse layers these
classes, which are PyTorch's but for ``forward``. Where something tracks a call, PyTorch's function runs.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from scorch._src.backends.base import is_served, routines_for
from scorch._src.backends.routines import Norm, NormFunction
from scorch._src.grad_state import is_grad_enabled, is_tracked_by_autograd_alone
from scorch._src.torch_internals import any_requires_grad, is_any_autocast_enabled

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CACHED = "_last_norm"  # an attribute that copies and files do without


class _FusedNorm(torch.nn.Module):
    """Base class of norms of one pass, which come before PyTorch's class among the bases."""

    is_centered: bool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Do as PyTorch's norm."""
        output = self._compute(x) if is_tracked_by_autograd_alone() else None
        return super().forward(x) if output is None else output

    def _compute(self, x: torch.Tensor) -> torch.Tensor | None:
        """Normalize in one pass; None where PyTorch must, which also says what is wrong with a call."""
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        if type(x) is not torch.Tensor or is_any_autocast_enabled() or x.is_neg():
            return None
        if is_grad_enabled() and any_requires_grad(x, weight, bias):
            return None
        known, compute = self.__dict__.get(_CACHED, (None, None))
        key = (x.shape, x.dtype, x.device, self.normalized_shape, self.eps, weight is None, bias is None)
        if known != key:
            compute = self._bind(x, weight, bias)
            self.__dict__[_CACHED] = key, compute
        if compute is None or not all(
            type(other) in _PLAIN and not other.is_neg() for other in (weight, bias) if other is not None
        ):
            return None
        output: torch.Tensor | None = compute(x, weight, bias)
        return output

    def _bind(self, x: Any, weight: Any, bias: Any) -> NormFunction | None:
        """Choose how to normalize tensors like these; None where PyTorch does it."""
        sizes: tuple[int, ...] = self.normalized_shape  # type: ignore[assignment]
        is_fit = x.layout is torch.strided and x.numel() and tuple(x.shape[-len(sizes) :]) == tuple(sizes)
        if not is_fit or not is_served(x.device) or (bias is not None and weight is None):
            return None
        routines = routines_for(x)
        if x.dtype not in routines.norm_dtypes:
            return None
        if any(other is not None and tuple(other.shape) != tuple(sizes) for other in (weight, bias)):
            return None
        eps: Any = self.eps
        if eps is None:
            eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        return routines.bind_norm(Norm(x, weight, bias, eps, math.prod(sizes), self.is_centered))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _CACHED}


class FusedLayerNorm(_FusedNorm, torch.nn.LayerNorm):
    """A ``LayerNorm`` of one pass."""

    is_centered = True

    def _get_name(self) -> str:
        return "LayerNorm"


class FusedRMSNorm(_FusedNorm, torch.nn.RMSNorm):
    """An ``RMSNorm`` of one pass."""

    is_centered = False

    def _get_name(self) -> str:
        return "RMSNorm"
