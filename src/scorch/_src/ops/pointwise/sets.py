"""``S | T`` and ``S & T`` of sparse boolean tensors, as sets of positions, by generated kernels.

Unions and intersections of masks. Only the merge of two sorted lists is done here; numbers, blocks and
broadcasting take the general rule for elementwise functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.statements.evaluate import evaluate
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass

_LETTERS = "abcdefghijklmnop"


@implements(torch.logical_or, torch.Tensor.logical_or)
def logical_or(input: Any, other: Any, **kwargs: Any) -> Any:
    return _merge(torch.logical_or, "+", input, other, kwargs)


@implements(torch.logical_and, torch.Tensor.logical_and)
def logical_and(input: Any, other: Any, **kwargs: Any) -> Any:
    return _merge(torch.logical_and, "*", input, other, kwargs)


@implements(torch.bitwise_or, torch.Tensor.bitwise_or, torch.Tensor.__or__, torch.Tensor.__ror__)
def bitwise_or(input: Any, other: Any, **kwargs: Any) -> Any:
    return _merge(torch.bitwise_or, "+", input, other, kwargs)


@implements(torch.bitwise_and, torch.Tensor.bitwise_and, torch.Tensor.__and__, torch.Tensor.__rand__)
def bitwise_and(input: Any, other: Any, **kwargs: Any) -> Any:
    return _merge(torch.bitwise_and, "*", input, other, kwargs)


def _merge(function: Callable[..., Any], sign: str, a: Any, b: Any, kwargs: dict[str, Any]) -> Any:
    """Compute ``a sign b``, the function on bools, where both are sparse and their entries can be merged."""
    if kwargs or not _is_mask(a) or not _is_mask(b) or a.shape != b.shape:
        with DisableTorchFunctionSubclass():
            return function(a, b, **kwargs)
    indices = ",".join(_LETTERS[: a.dim()])
    return evaluate(f"C[{indices}] = A[{indices}] {sign} B[{indices}]", A=a, B=b, format=a.format)


def _is_mask(tensor: Any) -> bool:
    is_sparse = isinstance(tensor, SparseTensor) and tensor.dtype == torch.bool
    return is_sparse and 0 < tensor.dim() <= len(_LETTERS) and not tensor.format.is_blocked
