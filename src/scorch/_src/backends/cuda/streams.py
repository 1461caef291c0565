"""Streams and captured graphs: when the host may wait for a device, and for what it must."""

from __future__ import annotations

import torch

from scorch._src.backends.routines import Routines
from scorch.errors import DeviceError


def check_waiting(device: torch.device, what: str) -> None:
    """Raise while a CUDA graph is captured, in which the host cannot wait for the device."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise DeviceError(
            f"a CUDA graph is being captured, in which Scorch cannot wait for {what}; run the function once "
            "before the capture, and keep operations whose results have a new pattern out of it"
        )


def settle(device: torch.device) -> None:
    """Wait for the current stream, so that arrays may be read on any other."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class WaitingRoutines(Routines):
    """The routines in torch's own operations, with what they must wait for."""

    def check_waiting(self, device: torch.device, what: str) -> None:
        check_waiting(device, what)

    def settle(self, device: torch.device) -> None:
        settle(device)
