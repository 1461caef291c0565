"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from typing import Any

from torch.nn.parameter import (
    Buffer as Buffer,
    Parameter as Parameter,
    UninitializedBuffer as UninitializedBuffer,
    UninitializedParameter as UninitializedParameter,
    is_lazy as is_lazy,
)

UninitializedTensorMixin: Any
torch: Any
