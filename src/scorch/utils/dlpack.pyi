"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.utils.dlpack import (
    DLDeviceType as DLDeviceType,
    from_dlpack as from_dlpack,
    to_dlpack as to_dlpack,
    torch as torch,
)
