"""Operands of one step are on one device."""

from __future__ import annotations

import torch

from scorch._src.devices import HOST, bring_together
from scorch._src.engine.executable import Tensor
from scorch.errors import DeviceError


def on_one_device(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Check that tensors are on one device; numbers, without dimensions, are brought there from the host."""
    if len({tensor.device for tensor in tensors.values()}) < 2:
        return tensors
    placed = {name: tensor for name, tensor in tensors.items() if not _is_number(tensor)} or tensors
    devices = {tensor.device: name for name, tensor in placed.items()}
    if len(devices) > 1:
        (first, a), (second, b) = list(devices.items())[:2]
        raise DeviceError(
            f"expected all tensors to be on the same device, but {a} is on {first} and {b} is on {second}; "
            + bring_together(a, first, b, second)
        )
    (device,) = devices
    return {name: tensor if name in placed else tensor.to(device) for name, tensor in tensors.items()}


def _is_number(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.Tensor) and not tensor.dim() and tensor.device == HOST
