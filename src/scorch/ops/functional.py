"""Functions of ``torch.nn.functional`` and others that are one expression, taken whole as users call them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch.errors import ShapeError
from scorch.ops.einsum import einsum
from scorch.ops.generic import densely
from scorch.ops.matmul import matmul
from scorch.tensor.dispatch import implements, implements_operator
from scorch.tensor.entries import Entries, entries_of, format_for, from_entries
from scorch.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


@implements(F.linear)
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """``input @ weight.T + bias``."""
    if weight.dim() == 1:
        product = matmul(input, weight)
    elif isinstance(weight, SparseTensor) and not isinstance(input, SparseTensor) and input.dim() == 2:
        product = einsum("ij,kj->ik", input, weight, format="dense")
    else:
        product = matmul(input, torch.transpose(weight, 0, 1))
    return product if bias is None else product + bias


@implements(F.bilinear)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """``input1 @ weight[k] @ input2`` for every k."""
    batch = "abcdefg"[: input1.dim() - 1]
    product = einsum(f"{batch}i,kij,{batch}j->{batch}k", input1, weight, input2)
    return product if bias is None else product + bias


@implements(torch.quantile, torch.Tensor.quantile)
def quantile(input: Any, *args: Any, **kwargs: Any) -> Any:
    return densely(torch.quantile, (input, *args), kwargs)


@implements(torch.nanquantile, torch.Tensor.nanquantile)
def nanquantile(input: Any, *args: Any, **kwargs: Any) -> Any:
    return densely(torch.nanquantile, (input, *args), kwargs)


@implements_operator(aten.glu)
def glu(self: SparseTensor, dim: int = -1) -> SparseTensor:
    """``a * sigmoid(b)`` of both halves, at the entries of ``a``."""
    if not self.dim() or self.shape[dim] % 2:
        raise ShapeError(f"glu halves dimension {dim}, whose size must be even, of shape {tuple(self.shape)}")
    a, b = torch.chunk(self, 2, dim)
    assert isinstance(a, SparseTensor) and isinstance(b, SparseTensor)
    stored = entries_of(a)
    gates = torch.sigmoid(entries_of(b).at(stored.keys))
    return from_entries(
        Entries(stored.keys, stored.values * gates, stored.shape), format_for(a, stored.shape)
    )


@implements_operator(aten.rrelu_with_noise)
def rrelu(
    self: Any,
    noise: Any,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """In training the slope is drawn for every element, which makes the result dense."""
    if training:
        func = aten.rrelu_with_noise.default
        return densely(func, (self, noise, lower, upper, training, generator), {})
    return F.leaky_relu(self, (lower + upper) / 2)
