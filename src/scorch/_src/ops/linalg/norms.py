"""The 2-norm of a large matrix, its largest singular value, without a dense copy.

All other norms are sums, maxima and minima over the entries, which torch decomposes by itself; the nuclear
norm and ``ord=-2`` need every singular value and work on dense copies, within the budget.
"""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.ops.linalg.eigen import MAX_DENSE_EIGEN_ROWS, lanczos
from scorch._src.ops.products.matmul import matmul
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass

_FLOATS = (torch.float32, torch.float64, torch.complex64, torch.complex128)


@implements(torch.linalg.matrix_norm)
def matrix_norm(
    A: Any,
    ord: Any = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
    out: Any = None,
) -> torch.Tensor:
    if _has_large_spectrum(A, ord, dim) and out is None:
        return _spectral_norm(A if dtype is None else A.to(dtype), keepdim)
    kwargs = {"dtype": dtype} if out is None else {"dtype": dtype, "out": out}
    return _run_torch(torch.linalg.matrix_norm, A, ord, dim, keepdim, **kwargs)


@implements(torch.linalg.norm)
def norm(
    A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, out: Any = None, dtype: Any = None
) -> torch.Tensor:
    both = (-2, -1) if dim is None else dim
    if _has_large_spectrum(A, ord, both) and out is None:
        return _spectral_norm(A if dtype is None else A.to(dtype), keepdim)
    kwargs = {"dtype": dtype} if out is None else {"dtype": dtype, "out": out}
    return _run_torch(torch.linalg.norm, A, ord, dim, keepdim, **kwargs)


def _run_torch(function: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    with DisableTorchFunctionSubclass():
        result: torch.Tensor = function(*args, **kwargs)
    return result


def _has_large_spectrum(A: Any, ord: Any, dim: Any) -> bool:
    if not isinstance(A, SparseTensor) or A.dim() != 2 or A.dtype not in _FLOATS or ord != 2:
        return False
    is_both = isinstance(dim, (tuple, list)) and sorted(d % 2 for d in dim) == [0, 1]
    return is_both and min(A.shape) > MAX_DENSE_EIGEN_ROWS


def _spectral_norm(A: Any, keepdim: bool) -> torch.Tensor:
    """Compute the root of the largest eigenvalue of ``A.T @ A``, which is never formed."""
    adjoint = A.T.conj() if A.is_complex() else A.T
    first, second = (A, adjoint) if A.shape[1] <= A.shape[0] else (adjoint, A)
    values, _ = lanczos(lambda x: matmul(second, matmul(first, x)), min(A.shape), A.dtype, 1, "LA")
    norm = values[0].clamp(min=0).sqrt()
    return norm.reshape(1, 1) if keepdim else norm
