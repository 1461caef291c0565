"""One matrix in every layout that a contestant may want; made when first asked for, outside what is timed."""

from __future__ import annotations

import importlib
import types
from functools import cache, cached_property
from typing import Any

import torch

import scorch
from benchmarks.kernels.data import Matrix

DENSE_BYTES = 64 << 20  # dense matrices up to this size take part


class Skip(Exception):  # noqa: N818 - nothing is wrong
    """A contestant does not take part; the message says why, unless that is no news."""


@cache
def module(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def needed(name: str, package: str) -> types.ModuleType:
    """A module that some machines lack."""
    found = module(name)
    if found is None:
        raise Skip(f"{package} is not installed")
    return found


class Layouts:
    """A matrix as each library likes it."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.shape = matrix.shape

    @cached_property
    def indptr(self) -> torch.Tensor:
        return torch.from_numpy(self.matrix.indptr)

    @cached_property
    def indices(self) -> torch.Tensor:
        return torch.from_numpy(self.matrix.indices)

    @cached_property
    def values(self) -> torch.Tensor:
        return torch.from_numpy(self.matrix.data)

    @cached_property
    def rows(self) -> torch.Tensor:
        return torch.from_numpy(self.matrix.rows)

    @cached_property
    def columns(self) -> torch.Tensor:
        return self.indices.long()

    @cached_property
    def scorch(self) -> scorch.SparseTensor:
        found = scorch.sparse_csr_tensor(self.indptr, self.indices, self.values, self.shape)
        assert isinstance(found, scorch.SparseTensor)
        return found

    @cached_property
    def csr32(self) -> torch.Tensor:
        return torch.sparse_csr_tensor(self.indptr, self.indices, self.values, self.shape)

    @cached_property
    def csr64(self) -> torch.Tensor:
        return torch.sparse_csr_tensor(self.indptr.long(), self.indices.long(), self.values, self.shape)

    @cached_property
    def coo(self) -> torch.Tensor:
        return self.csr64.to_sparse_coo().coalesce()

    @cached_property
    def scipy(self) -> Any:
        sparse = needed("scipy.sparse", "SciPy")
        matrix = self.matrix
        return sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)

    @cached_property
    def dense(self) -> torch.Tensor:
        if 4 * self.shape[0] * self.shape[1] > DENSE_BYTES:
            raise Skip(f"the dense matrix has more than {DENSE_BYTES >> 20} MB")
        return self.csr64.to_dense()

    def torch_layouts(self) -> dict[str, torch.Tensor]:
        """The layouts that torch's sparse operations take."""
        return {"torch CSR int32": self.csr32, "torch CSR int64": self.csr64, "torch COO": self.coo}
