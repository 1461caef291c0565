"""Normalisation by statistics that are kept from call to call."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.ops.fallback import all_sparse, densely, replace_by, stored
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


@implements(aten.native_batch_norm.default)
def native_batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, *numbers: float
) -> Any:
    """In training the running mean and variance change in place, sparse ones too.

    A result scaled by a sparse weight is sparse, and so is one that is moved by a sparse mean.
    """
    func, given = aten.native_batch_norm.default, (running_mean, running_var)
    dense = [kept.to_dense() if isinstance(kept, SparseTensor) else kept for kept in given]
    found = densely(func, (input, weight, bias, *dense, training, *numbers), {})
    for kept, changed in zip(given, dense, strict=True):
        if training and isinstance(kept, SparseTensor):
            replace_by(kept, changed, "batch_norm")
    is_sparse = all_sparse((input, weight, bias, *given)) and not (training and weight is None)
    return stored(found, input) if is_sparse else found
