"""Normalisation by running statistics."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.ops.fallback import are_all_sparse, as_dense, replace_value, run_densely, store_like
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


@implements(aten.native_batch_norm.default)
def native_batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, *numbers: float
) -> Any:
    """Normalise; in training the running mean and variance change in place, sparse ones too.

    A result scaled by a sparse weight is sparse, and so is one that is moved by a sparse mean.
    """
    func, statistics = aten.native_batch_norm.default, (running_mean, running_var)
    dense = [as_dense(statistic) for statistic in statistics]
    result = run_densely(func, (input, weight, bias, *dense, training, *numbers), {})
    for statistic, changed in zip(statistics, dense, strict=True):
        if training and isinstance(statistic, SparseTensor):
            replace_value(statistic, changed, "batch_norm")
    is_sparse = are_all_sparse((input, weight, bias, *statistics)) and not (training and weight is None)
    return store_like(result, input) if is_sparse else result
