"""``S | T`` and ``S & T`` of sparse boolean tensors, as sets of positions, by generated kernels.

Unions and intersections of masks. Only the merge of two sorted lists is done here; numbers, blocks and
broadcasting take the general rule for elementwise functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.ops.fallback import run_torch
from scorch._src.statements.evaluate import evaluate
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor

_LETTERS = "abcdefghijklmnop"


def _merge(function: Callable[..., Any], sign: str, input: Any, other: Any, **kwargs: Any) -> Any:
    """Compute ``input sign other``, the function on bools, where the entries of both can be merged."""
    if kwargs or not _is_mask(input) or not _is_mask(other) or input.shape != other.shape:
        return run_torch(function, input, other, **kwargs)
    indices = ",".join(_LETTERS[: input.dim()])
    text = f"C[{indices}] = A[{indices}] {sign} B[{indices}]"
    return evaluate(text, A=input, B=other, format=input.format)


def _is_mask(tensor: Any) -> bool:
    is_sparse = isinstance(tensor, SparseTensor) and tensor.dtype == torch.bool
    return is_sparse and 0 < tensor.dim() <= len(_LETTERS) and not tensor.format.is_blocked


for _name, _sign, _operators in (
    ("logical_or", "+", ()),
    ("logical_and", "*", ()),
    ("bitwise_or", "+", ("__or__", "__ror__")),
    ("bitwise_and", "*", ("__and__", "__rand__")),
):
    _methods = (getattr(torch.Tensor, method) for method in (_name, *_operators))
    _function = getattr(torch, _name)
    implements(_function, *_methods)(functools.partial(_merge, _function, _sign))
