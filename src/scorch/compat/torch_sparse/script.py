"""``SparseTensor`` for TorchScript, so that PyG's layers and functions can be scripted.

TorchScript compiles a class as a whole, which ``SparseTensor`` is not written for. It finds these classes
instead, copies the arrays of a matrix into them when a scripted function is called, and compiles the
functions below instead of those of this package. Products are ``torch.ops.torch_sparse``, which run on
Scorch.
"""

# TorchScript has its own rules: no unpacking in lists, typing's names alone, dtypes that are integers.
# ruff: noqa: RUF005, UP006, UP035, UP045
# mypy: disable-error-code="no-any-return,arg-type"

import warnings
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor


class ScriptStorage:
    """The entries of a matrix, sorted by row and then column."""

    def __init__(
        self,
        row: Optional[Tensor],
        rowptr: Optional[Tensor],
        col: Tensor,
        value: Optional[Tensor],
        sparse_sizes: Tuple[int, int],
    ):
        self._row = row
        self._rowptr = rowptr
        self._col = col
        self._value = value
        self._sparse_sizes = sparse_sizes

    def row(self) -> Tensor:
        row, rowptr = self._row, self._rowptr
        if row is not None:
            return row
        assert rowptr is not None
        return torch.ops.torch_sparse.ptr2ind(rowptr, self._col.numel())

    def rowptr(self) -> Tensor:
        row, rowptr = self._row, self._rowptr
        if rowptr is not None:
            return rowptr
        assert row is not None
        return torch.ops.torch_sparse.ind2ptr(row, self._sparse_sizes[0])

    def col(self) -> Tensor:
        return self._col

    def value(self) -> Optional[Tensor]:
        return self._value

    def rowcount(self) -> Tensor:
        rowptr = self.rowptr()
        return rowptr[1:] - rowptr[:-1]

    def sparse_sizes(self) -> Tuple[int, int]:
        return self._sparse_sizes


class ScriptTensor:
    """A sparse matrix with the methods that PyG's scripted code calls."""

    def __init__(self, storage: ScriptStorage):
        self.storage = storage

    def sparse_sizes(self) -> Tuple[int, int]:
        return self.storage.sparse_sizes()

    def sparse_size(self, dim: int) -> int:
        sizes = self.storage.sparse_sizes()
        return sizes[0] if dim == 0 else sizes[1]

    def sizes(self) -> List[int]:
        found = [self.sparse_size(0), self.sparse_size(1)]
        value = self.storage.value()
        return found if value is None else found + list(value.size()[1:])

    def size(self, dim: int) -> int:
        return self.sizes()[dim]

    def dim(self) -> int:
        return len(self.sizes())

    def nnz(self) -> int:
        return self.storage.col().numel()

    def is_cuda(self) -> bool:
        return self.storage.col().is_cuda

    def device(self) -> torch.device:
        return self.storage.col().device

    def has_value(self) -> bool:
        return self.storage.value() is not None

    def requires_grad(self) -> bool:
        value = self.storage.value()
        return False if value is None else value.requires_grad

    def coo(self) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        return self.storage.row(), self.storage.col(), self.storage.value()

    def csr(self) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        return self.storage.rowptr(), self.storage.col(), self.storage.value()

    def set_value(self, value: Optional[Tensor], layout: Optional[str] = None) -> "ScriptTensor":
        assert layout is None or layout == "coo", "scripted code gives values row by row"
        row, col, sizes = self.storage.row(), self.storage.col(), self.storage.sparse_sizes()
        return ScriptTensor(ScriptStorage(row, self.storage.rowptr(), col, value, sizes))

    def fill_value(self, fill_value: float, dtype: Optional[int] = None) -> "ScriptTensor":
        value = torch.full([self.nnz()], fill_value, dtype=dtype, device=self.device())
        return self.set_value(value, None)

    def to_torch_sparse_csr_tensor(self, dtype: Optional[int] = None) -> Tensor:
        value = self.storage.value()
        if value is None:
            value = torch.ones([self.nnz()], dtype=dtype, device=self.device())
        return torch.sparse_csr_tensor(self.storage.rowptr(), self.storage.col(), value, self.sizes())

    @staticmethod
    def from_edge_index(
        edge_index: Tensor,
        edge_attr: Optional[Tensor] = None,
        sparse_sizes: Optional[Tuple[Optional[int], Optional[int]]] = None,
        is_sorted: bool = False,
        trust_data: bool = False,
    ) -> "ScriptTensor":
        row, col = edge_index[0], edge_index[1]
        rows: Optional[int] = None
        columns: Optional[int] = None
        if sparse_sizes is not None:
            rows, columns = sparse_sizes
        if rows is None:
            rows = int(row.max()) + 1 if row.numel() > 0 else 0
        if columns is None:
            columns = int(col.max()) + 1 if col.numel() > 0 else 0
        if not is_sorted:
            order = (row * max(columns, 1) + col).argsort(stable=True, dim=0, descending=False)
            row, col = row[order], col[order]
            if edge_attr is not None:
                edge_attr = edge_attr[order]
        return ScriptTensor(ScriptStorage(row, None, col, edge_attr, (rows, columns)))


def matmul(src: ScriptTensor, other: Tensor, reduce: str = "sum") -> Tensor:
    rowptr, col, value = src.csr()
    if reduce == "sum" or reduce == "add":
        return torch.ops.torch_sparse.spmm_sum(None, rowptr, col, value, None, None, other)
    if reduce == "mean":
        return torch.ops.torch_sparse.spmm_mean(None, rowptr, col, value, None, None, None, other)
    if reduce == "min":
        return torch.ops.torch_sparse.spmm_min(rowptr, col, value, other)[0]
    assert reduce == "max", "reduce is one of sum, mean, min and max"
    return torch.ops.torch_sparse.spmm_max(rowptr, col, value, other)[0]


def sum(src: ScriptTensor, dim: Optional[int] = None) -> Tensor:
    row, col, value = src.coo()
    if value is None:
        value = torch.ones([src.nnz()], device=src.device())
    if dim is None:
        return value.sum()
    assert dim == 0 or dim == 1, "scripted code sums over rows or columns"
    empty = torch.zeros(
        [src.sparse_size(1 - dim)] + list(value.size()[1:]), dtype=value.dtype, device=value.device
    )
    return empty.index_add(0, col if dim == 0 else row, value)


def mul(src: ScriptTensor, other: Tensor) -> ScriptTensor:
    row, col, value = src.coo()
    factor = (
        other.squeeze(1)[row]
        if other.size(0) == src.size(0) and other.size(1) == 1
        else other.squeeze(0)[col]
    )
    return src.set_value(factor if value is None else value * factor, None)


def masked_select_nnz(src: ScriptTensor, mask: Tensor, layout: Optional[str] = None) -> ScriptTensor:
    row, col, value = src.coo()
    if value is not None:
        value = value[mask]
    return ScriptTensor(ScriptStorage(row[mask], None, col[mask], value, src.sparse_sizes()))


def set_diag(src: ScriptTensor, values: Optional[Tensor] = None, k: int = 0) -> ScriptTensor:
    src = masked_select_nnz(src, src.storage.col() - src.storage.row() != k, None)
    row, col, value = src.coo()
    rows, columns = src.sparse_sizes()
    first, last = max(-k, 0), min(rows, columns - k)
    here = torch.arange(first, max(first, last), device=row.device)
    if value is not None:
        if values is None:
            values = torch.ones(
                [here.numel()] + list(value.size()[1:]), dtype=value.dtype, device=value.device
            )
        value = torch.cat([value, values])
    index = torch.stack([torch.cat([row, here]), torch.cat([col, here + k])])
    return ScriptTensor.from_edge_index(index, value, (rows, columns), False, True)


def fill_diag(src: ScriptTensor, fill_value: float, k: int = 0) -> ScriptTensor:
    value = src.storage.value()
    if value is None:
        return set_diag(src, None, k)
    rows, columns = src.sparse_sizes()
    count = max(min(rows, columns - k) - max(-k, 0), 0)
    shape = [count] + list(value.size()[1:])
    return set_diag(src, torch.full(shape, fill_value, dtype=value.dtype, device=value.device), k)


_FUNCTIONS = (matmul, sum, mul, masked_select_nnz, set_diag, fill_diag)


def register(package: Any) -> None:
    """Make TorchScript use these classes and functions instead of those of ``package``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript as a whole
        for ours, theirs in ((ScriptStorage, package.SparseStorage), (ScriptTensor, package.SparseTensor)):
            torch.jit.script(ours)
            theirs._jit_override_qualname = f"__torch__.{ours.__module__}.{ours.__name__}"
    for function in _FUNCTIONS:
        getattr(package, function.__name__).__prepare_scriptable__ = lambda found=function: found


def unregister(package: Any) -> None:
    for theirs in (package.SparseStorage, package.SparseTensor):
        del theirs._jit_override_qualname
    for function in _FUNCTIONS:
        del getattr(package, function.__name__).__prepare_scriptable__
