"""PyTorch's norms, computed in one pass over memory in inference.

Between sparse layers, which take less time than dense ones, norms take a larger part of the time: PyTorch's
``rms_norm`` is eight kernels on the CPU. ``fuse_modules`` gives the norms of a model with sparse layers these
classes, which are PyTorch's but for ``forward``. Where something tracks a call, PyTorch's function runs.
Norms of other libraries that do what ``RMSNorm`` does, such as ``LlamaRMSNorm``, are found by trying them.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch

from scorch._src.backends.base import is_served, routines_for
from scorch._src.backends.by_torch.layers import Norm, NormFunction
from scorch._src.devices import HOST
from scorch._src.grad_state import is_grad_enabled, is_tracked_by_autograd_alone
from scorch._src.nn.module_mixin import ModuleMixin, original_class
from scorch._src.torch_internals import any_requires_grad, is_any_autocast_enabled

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CACHED = "_last_norm"  # an attribute that copies and files do without
_EPSILONS = ("eps", "variance_epsilon", "epsilon")  # what libraries call it
_TOLERANCE = 1e-5  # of results for float32, relative to numbers of about one


class _FusedNorm(ModuleMixin):
    """Base class of norms of one pass, which comes before PyTorch's class among the bases."""

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
        key = (x.shape, x.dtype, x.device, self._sizes(), self._epsilon(), weight is None, bias is None)
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
        sizes = self._sizes()
        is_fit = x.layout is torch.strided and x.numel() and tuple(x.shape[-len(sizes) :]) == tuple(sizes)
        if not is_fit or not is_served(x.device) or (bias is not None and weight is None):
            return None
        routines = routines_for(x)
        if x.dtype not in routines.norm_dtypes:
            return None
        if any(other is not None and tuple(other.shape) != tuple(sizes) for other in (weight, bias)):
            return None
        eps: Any = self._epsilon()
        if eps is None:
            eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        return routines.bind_norm(Norm(x, weight, bias, eps, math.prod(sizes), self.is_centered))

    def _sizes(self) -> tuple[int, ...]:
        return self.normalized_shape  # type: ignore[return-value]

    def _epsilon(self) -> float | None:
        return self.eps  # type: ignore[return-value]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _CACHED}


class FusedLayerNorm(_FusedNorm, torch.nn.LayerNorm):
    """A ``LayerNorm`` of one pass."""

    is_centered = True


class FusedRMSNorm(_FusedNorm, torch.nn.RMSNorm):
    """An ``RMSNorm`` of one pass."""

    is_centered = False


def _restore(kind: Any) -> Any:
    """Return a norm without attributes; pickles name this function."""
    return _ForeignNorm.new(kind)


class _ForeignNorm(_FusedNorm):
    """Norms of other libraries: their class comes after it among the bases."""

    restore = staticmethod(_restore)
    is_centered = False

    def _sizes(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)  # type: ignore[arg-type]

    def _epsilon(self) -> float:
        names = self.__dict__
        return next(names[name] for name in _EPSILONS if name in names)  # type: ignore[no-any-return]

    def _compute(self, x: torch.Tensor) -> torch.Tensor | None:
        is_float = type(x) is torch.Tensor and x.dtype == torch.float32  # others are rounded in between
        return super()._compute(x) if is_float else None


def fused_norm_like(module: torch.nn.Module) -> type[torch.nn.Module] | None:
    """Return the class of one pass for a module of another library that computes ``RMSNorm``; None if not."""
    kind = original_class(module)
    parameters, names = module._parameters, vars(module)
    weight = parameters.get("weight")
    epsilons = [name for name in _EPSILONS if isinstance(names.get(name), float)]
    is_alone = len(parameters) == 1 and not module._modules and not module._buffers
    if kind.__module__.startswith("torch.") or not is_alone or weight is None or len(epsilons) != 1:
        return None
    if weight.dim() != 1 or not weight.numel() or len(inspect.signature(kind.forward).parameters) != 2:
        return None
    return _ForeignNorm.class_for(kind) if _is_rms_norm(module, weight.numel(), names[epsilons[0]]) else None


def _is_rms_norm(module: torch.nn.Module, size: int, eps: float) -> bool:
    """Whether a module computes what the formula does in float64, for some weight and rows of numbers."""
    gain = torch.linspace(0.5, -1.5, size, device=HOST)
    x = torch.linspace(-2, 3, 2 * size, device=HOST).reshape(2, size)
    held = module._parameters["weight"]
    try:
        module._parameters["weight"] = torch.nn.Parameter(gain, requires_grad=False)
        with torch.no_grad():
            found = original_class(module).forward(module, x)
    except Exception:  # whatever it needs, it is something else
        return False
    finally:
        module._parameters["weight"] = held
    exact = x.double()
    wanted = exact * (exact.square().mean(-1, keepdim=True) + eps).rsqrt() * gain.double()
    is_alike = type(found) is torch.Tensor and found.dtype == x.dtype and found.shape == x.shape
    return is_alike and torch.allclose(found.double(), wanted, rtol=_TOLERANCE, atol=_TOLERANCE)
