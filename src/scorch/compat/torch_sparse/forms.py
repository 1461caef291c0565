"""A matrix of torch_sparse in other forms: dense, torch's own layouts, Scorch's and SciPy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorch.errors import OperandError, ShapeError

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor


def filled(src: SparseTensor, dtype: torch.dtype | None = None) -> Tensor:
    value = src.storage.value()
    return torch.ones(src.nnz(), dtype=dtype, device=src.device()) if value is None else value


def to_dense(src: SparseTensor, dtype: torch.dtype | None = None) -> Tensor:
    value = filled(src, dtype)
    dense = value.new_zeros(src.sizes())
    return dense.index_put((src.storage.row(), src.storage.col()), value, accumulate=True)


def to_torch_sparse_coo_tensor(src: SparseTensor, dtype: torch.dtype | None = None) -> Tensor:
    row, col, _ = src.coo()
    index = torch.stack([row, col])
    return torch.sparse_coo_tensor(index, filled(src, dtype), src.sizes(), check_invariants=False)


def to_torch_sparse_csr_tensor(src: SparseTensor, dtype: torch.dtype | None = None) -> Tensor:
    rowptr, col, _ = src.csr()
    return torch.sparse_csr_tensor(rowptr, col, filled(src, dtype), src.sizes(), check_invariants=False)


def to_torch_sparse_csc_tensor(src: SparseTensor, dtype: torch.dtype | None = None) -> Tensor:
    colptr, row, _ = src.csc()
    value = filled(src, dtype)[src.storage.csr2csc()]
    return torch.sparse_csc_tensor(colptr, row, value, src.sizes(), check_invariants=False)


def to_scorch(src: SparseTensor, format: Any = "csr") -> Any:
    """As a ``scorch.SparseTensor``, a ``torch.Tensor`` that takes part in everything else."""
    return src.storage.matrix(filled(src)).to_format(format)


def to_scipy(src: SparseTensor, layout: str | None = None, dtype: torch.dtype | None = None) -> Any:
    import scipy.sparse

    if src.dim() != 2:
        raise ShapeError(f"SciPy's matrices have two dimensions, not {src.sizes()}")
    value = filled(src, dtype).detach().numpy()
    row, col = src.storage.row().numpy(), src.storage.col().numpy()
    if layout in (None, "coo"):
        return scipy.sparse.coo_matrix((value, (row, col)), src.sparse_sizes())
    if layout == "csr":
        rowptr = src.storage.rowptr().numpy()
        return scipy.sparse.csr_matrix((value, col, rowptr), src.sparse_sizes())
    if layout == "csc":
        order = src.storage.csr2csc().numpy()
        arrays = (value[order], row[order], src.storage.colptr().numpy())
        return scipy.sparse.csc_matrix(arrays, src.sparse_sizes())
    raise OperandError(f"layout is one of coo, csr and csc, not {layout!r}")
