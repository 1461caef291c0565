"""Convert to torch's own sparse layouts, connected to autograd."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.tensor.autograd import apply, sparse_of, values_at
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.interop import torch_layouts
from scorch._src.tensor.sparse_tensor import SparseTensor


class _Layout(torch.autograd.Function):
    """Convert S to one of torch's layouts; sample a gradient of any layout at the entries of S."""

    @staticmethod
    def forward(ctx: Any, tensor: SparseTensor) -> torch.Tensor:
        ctx.pattern = tensor.storage.pattern
        return torch_layouts.to_torch(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        converted = gradient if gradient.layout == torch.strided else from_torch(gradient)
        return sparse_of(ctx.pattern, values_at(converted, ctx.pattern))


def to_torch(S: SparseTensor) -> torch.Tensor:
    """Convert ``S`` to one of torch's own layouts, connected to it."""
    tensor: torch.Tensor = apply(_Layout, S)
    return tensor
