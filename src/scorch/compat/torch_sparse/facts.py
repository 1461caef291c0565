"""What a matrix of torch_sparse is: its sizes, its entries in every layout, and numbers about them."""

from __future__ import annotations

import torch
from torch import Tensor

from scorch.compat.torch_sparse.storage import SparseStorage

Arrays = tuple[Tensor, Tensor, Tensor | None]


class Facts:
    """What a matrix is, and its entries in every layout."""

    storage: SparseStorage

    def coo(self) -> Arrays:
        """Row, column and value of every entry."""
        return self.storage.row(), self.storage.col(), self.storage.value()

    def csr(self) -> Arrays:
        """Row pointers, columns and values."""
        return self.storage.rowptr(), self.storage.col(), self.storage.value()

    def csc(self) -> Arrays:
        """Column pointers, rows and values, column by column."""
        order, value = self.storage.csr2csc(), self.storage.value()
        return self.storage.colptr(), self.storage.row()[order], None if value is None else value[order]

    def has_value(self) -> bool:
        return self.storage.has_value()

    def sparse_sizes(self) -> tuple[int, int]:
        return self.storage.sparse_sizes()

    def sparse_size(self, dim: int) -> int:
        return self.storage.sparse_size(dim)

    def sizes(self) -> list[int]:
        value = self.storage.value()
        return [*self.sparse_sizes(), *(() if value is None else value.shape[1:])]

    def size(self, dim: int) -> int:
        return self.sizes()[dim]

    def dim(self) -> int:
        return len(self.sizes())

    def nnz(self) -> int:
        return self.storage.col().numel()

    def numel(self) -> int:
        value = self.storage.value()
        return self.nnz() if value is None else value.numel()

    def density(self) -> float:
        return self.nnz() / max(self.sparse_size(0) * self.sparse_size(1), 1)

    def sparsity(self) -> float:
        return 1 - self.density()

    def avg_row_length(self) -> float:
        return self.nnz() / max(self.sparse_size(0), 1)

    def avg_col_length(self) -> float:
        return self.nnz() / max(self.sparse_size(1), 1)

    def bandwidth(self) -> int:
        return int((self.storage.row() - self.storage.col()).abs().max()) if self.nnz() else 0

    def avg_bandwidth(self) -> float:
        return float((self.storage.row() - self.storage.col()).abs().float().mean())

    def bandwidth_proportion(self, bandwidth: int) -> float:
        return float(((self.storage.row() - self.storage.col()).abs() <= bandwidth).float().mean())

    def is_quadratic(self) -> bool:
        return self.sparse_size(0) == self.sparse_size(1)

    def is_symmetric(self) -> bool:
        if not self.is_quadratic():
            return False
        return are_equal(self.csr(), self.csc())

    def is_coalesced(self) -> bool:
        return self.storage.is_coalesced()

    def device(self) -> torch.device:
        return self.storage.col().device

    def is_cuda(self) -> bool:
        return self.storage.col().is_cuda

    def dtype(self) -> torch.dtype:
        value = self.storage.value()
        return torch.get_default_dtype() if value is None else value.dtype

    def is_floating_point(self) -> bool:
        return self.dtype().is_floating_point

    def requires_grad(self) -> bool:
        value = self.storage.value()
        return value is not None and value.requires_grad


def are_equal(first: Arrays, second: Arrays) -> bool:
    """Whether two matrices have the same arrays, and both values or none."""
    return all(
        a is b or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(first, second, strict=True)
    )
