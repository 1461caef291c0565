"""A sparse linear layer as one function, which ``scorch.compile`` records whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.grad_state import is_tracked_by_autograd_alone
from scorch._src.ops.products.activations import finish
from scorch._src.ops.products.linear import linear_of_parameter
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.sparse_tensor import SparseTensor


def apply_layer(
    input: torch.Tensor,
    weight: SparseTensor,
    values: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
) -> Any:
    """Return ``activation(input @ weight.T + bias) + residual`` for a dense input.

    Args:
        input: rows of features.
        weight: a weight, or with ``values`` a detached one.
        values: the parameter of a detached weight, which results are connected to.
        bias: the bias.
        scales: of the rows of a weight whose values are 8-bit integers.
        activation: the name of what follows, in ``ACTIVATIONS``.
        residual: a tensor with the shape of the output.
    """
    if values is not None:
        if is_tracked_by_autograd_alone():
            output = linear_of_parameter(input, weight, bias, scales, activation, residual)
            if output is not None:
                return output
        weight = sparse_of(weight.storage.pattern, values.to(input.dtype))
    if scales is None:
        return finish(F.linear(input, weight, bias), activation, residual)
    product = F.linear(input, weight) * scales
    return finish(product if bias is None else product + bias, activation, residual)


apply_layer.__name__ = "linear"
