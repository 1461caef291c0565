"""``scorch.masked``: all of ``torch.masked``; with a sparse mask, only the mask's entries cost time.

``torch.masked`` itself accepts sparse tensors of Scorch, too, but makes them dense: it fills what is masked
out with the identity of the operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.ops.reduction.masked import OPERATIONS, PER_ENTRY, sample_at_mask
from scorch._src.ops.reduction.reduction_docs import document_masked
from scorch._src.tensor.sparse_tensor import SparseTensor

_NAMES = [name for name in (*OPERATIONS, *PER_ENTRY) if hasattr(torch.masked, name)]
__all__ = list(_NAMES)


def _is_sparse(mask: Any) -> bool:
    return isinstance(mask, SparseTensor) or (
        isinstance(mask, torch.Tensor) and mask.layout is not torch.strided
    )


def _extended(name: str) -> Callable[..., Any]:
    plain: Callable[..., Any] = getattr(torch.masked, name)
    operation = {**OPERATIONS, **PER_ENTRY}[name]

    @functools.wraps(plain)
    def call(
        input: Any, *args: Any, mask: Any = None, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Any:
        if not isinstance(input, SparseTensor) or not _is_sparse(mask):
            return plain(input, *args, mask=mask, dtype=dtype, **kwargs)
        given = input if dtype is None else input.to(dtype)
        named = {"p" if key == "ord" else key: value for key, value in kwargs.items()}
        if name == "median" and not args:
            named.setdefault("dim", -1)
        found = operation(sample_at_mask(given, mask), *args, **named)
        return found.to(given.dtype) if name.startswith("arg") else found  # as torch.masked does

    document_masked(call, name)
    call.__module__, call.__qualname__ = __name__, name
    return call


globals().update({name: _extended(name) for name in _NAMES})
