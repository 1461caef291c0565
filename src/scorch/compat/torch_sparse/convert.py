"""torch_sparse's older functions on plain index and value tensors, and conversions of these."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorch.compat.torch_sparse.arrange import t as t
from scorch.compat.torch_sparse.matmul import matmul
from scorch.compat.torch_sparse.tensor import SparseTensor

Pair = tuple[Tensor, Tensor | None]


def _matrix(index: Tensor, value: Tensor | None, m: int, n: int) -> SparseTensor:
    return SparseTensor(row=index[0], col=index[1], value=value, sparse_sizes=(m, n))


def _pair(matrix: SparseTensor) -> Pair:
    row, col, value = matrix.coo()
    return torch.stack([row, col]), value


def coalesce(index: Tensor, value: Tensor | None, m: int, n: int, op: str = "add") -> Pair:
    """Return the entries sorted by rows, repeated ones reduced by ``op``."""
    return _pair(_matrix(index, value, m, n).coalesce(op))


def transpose(index: Tensor, value: Tensor | None, m: int, n: int, coalesced: bool = True) -> Pair:
    """Return the entries with rows and columns swapped."""
    swapped = index.flip(0)
    return coalesce(swapped, value, n, m) if coalesced else (swapped, value)


def eye(m: int, dtype: torch.dtype | None = None, device: Any = None) -> Pair:
    """Return the identity matrix of size ``m``."""
    row = torch.arange(m, device=device)
    return torch.stack([row, row]), torch.ones(m, dtype=dtype, device=device)


def spmm(index: Tensor, value: Tensor, m: int, n: int, matrix: Tensor) -> Tensor:
    """Return the product of a sparse matrix (m, n) with a dense one."""
    dense = matrix.unsqueeze(-1) if matrix.dim() == 1 else matrix
    found: Tensor = matmul(_matrix(index, value, m, n), dense)
    return found


def spspmm(
    indexA: Tensor,
    valueA: Tensor,
    indexB: Tensor,
    valueB: Tensor,
    m: int,
    k: int,
    n: int,
    coalesced: bool = False,
) -> Pair:
    """Return the product of two sparse matrices (m, k) and (k, n)."""
    return _pair(matmul(_matrix(indexA, valueA, m, k), _matrix(indexB, valueB, k, n)))


def spadd(indexA: Tensor, valueA: Tensor, indexB: Tensor, valueB: Tensor, m: int, n: int) -> Pair:
    """Return the sum of two sparse matrices (m, n)."""
    return _pair(_matrix(indexA, valueA, m, n).add(_matrix(indexB, valueB, m, n)))


# other libraries -------------------------------------------------------------------------------------


def to_torch_sparse(index: Tensor, value: Tensor, m: int, n: int) -> Tensor:
    return torch.sparse_coo_tensor(index.detach(), value, (m, n), check_invariants=False)


def from_torch_sparse(A: Tensor) -> tuple[Tensor, Tensor]:
    return A._indices(), A._values()


def to_scipy(index: Tensor, value: Tensor, m: int, n: int) -> Any:
    return _matrix(index, value, m, n).to_scipy(layout="coo")


def from_scipy(A: Any) -> Pair:
    return _pair(SparseTensor.from_scipy(A))
