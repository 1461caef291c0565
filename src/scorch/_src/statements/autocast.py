"""``torch.autocast``: products in a narrower dtype.

torch casts the operands of its own operators; products of sparse tensors never reach those, so they are cast
here. float64 stays, as in torch, and gradients come back in the dtype of the operand.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from scorch._src.backends.base import is_served, served_devices
from scorch._src.torch_internals import is_any_autocast_enabled
from scorch.errors import CallError


def is_autocast() -> bool:
    """Check whether products of Scorch are cast; torch's flag for all devices is the fastest to ask first."""
    return is_any_autocast_enabled() and any(map(torch.is_autocast_enabled, served_devices()))


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which products are computed in the dtype of their operands."""
    return torch.autocast(device.type, enabled=False) if is_autocast() else nullcontext()


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype that products on a device are cast to; None if they are not."""
    is_cast = is_autocast() and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_cast else None


def cast(*tensors: Any) -> tuple[Any, ...]:
    """Cast the operands of a product as autocast does."""
    return tuple(
        tensor.to(torch.get_autocast_dtype(tensor.device.type)) if _is_cast(tensor) else tensor
        for tensor in tensors
    )


def check_same_dtype(name: str, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise, as ``torch.nn.Linear`` does, unless both have one dtype, or get one from autocast."""
    if x.dtype == weight.dtype or (is_autocast() and _is_cast(x) and _is_cast(weight)):
        return
    other = f" or layer.to({x.dtype})" if x.is_floating_point() or x.is_complex() else ""
    raise CallError(
        f"{name} and the weight must have the same dtype, as in torch.nn.Linear, but got {x.dtype} and "
        f"{weight.dtype}; use {name}.to({weight.dtype}){other}"
    )


def _is_cast(tensor: Any) -> bool:
    is_float = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    if not is_float or tensor.dtype == torch.float64 or not is_served(tensor.device):
        return False
    return torch.is_autocast_enabled(tensor.device.type)
