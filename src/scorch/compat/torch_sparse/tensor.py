"""torch_sparse's ``SparseTensor``: a matrix with or without values, multiplied by Scorch's kernels.

It is not a ``torch.Tensor``; ``to_scorch`` returns one. Its methods are the functions of this package with
the matrix as first argument.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorch._src.tensor.create.check import as_device, check_presence
from scorch._src.tensor.interop.torch_layouts import from_scipy as matrix_from_scipy
from scorch._src.tensor.sparse_tensor import SparseTensor as Matrix
from scorch._src.units import format_density
from scorch.compat.torch_sparse import arithmetic, arrange, forms
from scorch.compat.torch_sparse import matmul as products
from scorch.compat.torch_sparse import reduce as reductions
from scorch.compat.torch_sparse import sample as sampling
from scorch.compat.torch_sparse.storage import SparseStorage, pick
from scorch.errors import OperandError, ShapeError, kind_of

Arrays = tuple[Tensor, Tensor, Tensor | None]
Sizes = tuple[int | None, int | None]


class SparseTensor:
    """torch_sparse's sparse matrix, whose entries may have values of any shape.

    Args:
        row: the row of each entry; or pass ``rowptr``.
        rowptr: where each row begins, if entries are sorted.
        col: the column of each entry.
        value: the value of each entry, if any.
        sparse_sizes: the numbers of rows and columns; inferred by default.
        is_sorted: whether entries are sorted by row and then column.
        trust_data: whether to skip validation.

    Example:

        >>> import torch
        >>> from scorch.compat.torch_sparse import SparseTensor
        >>> A = SparseTensor(row=torch.tensor([0, 1]), col=torch.tensor([1, 0]), sparse_sizes=(2, 2))
        >>> A @ torch.tensor([[1.0], [2.0]])
        tensor([[2.],
                [1.]])
    """

    def __init__(
        self,
        row: Tensor | None = None,
        rowptr: Tensor | None = None,
        col: Tensor | None = None,
        value: Tensor | None = None,
        sparse_sizes: Sizes | None = None,
        is_sorted: bool = False,
        trust_data: bool = False,
    ) -> None:
        self.storage = SparseStorage(
            row, rowptr, col, value, sparse_sizes, is_sorted=is_sorted, trust_data=trust_data
        )

    # made from ---------------------------------------------------------------------------------------

    @classmethod
    def from_storage(cls, storage: SparseStorage) -> SparseTensor:
        made = cls.__new__(cls)
        made.storage = storage
        return made

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        sparse_sizes: Sizes | None = None,
        is_sorted: bool = False,
        trust_data: bool = False,
    ) -> SparseTensor:
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            shape = tuple(edge_index.shape)
            cure = "; pass edge_index.t()" if shape[1:] == (2,) else ""
            raise ShapeError(f"edge_index has shape {shape}; it must be (2, number of edges){cure}")
        row, col = edge_index
        return cls(row, None, col, edge_attr, sparse_sizes, is_sorted, trust_data)

    @classmethod
    def from_dense(cls, mat: Tensor, has_value: bool = True) -> SparseTensor:
        stored = mat != 0 if mat.dim() == 2 else (mat != 0).flatten(2).any(2)
        row, col = stored.nonzero().t()
        value = mat[row, col] if has_value else None
        return cls(row, None, col, value, (mat.shape[0], mat.shape[1]), True, True)

    @classmethod
    def from_torch_sparse_coo_tensor(cls, mat: Tensor, has_value: bool = True) -> SparseTensor:
        mat = mat.coalesce()
        row, col = mat.indices()
        value = mat.values() if has_value else None
        return cls(row, None, col, value, (mat.shape[0], mat.shape[1]), True, True)

    @classmethod
    def from_torch_sparse_csr_tensor(cls, mat: Tensor, has_value: bool = True) -> SparseTensor:
        rowptr, col = mat.crow_indices().long(), mat.col_indices().long()
        return cls(None, rowptr, col, mat.values() if has_value else None, (mat.shape[0], mat.shape[1]))

    @classmethod
    def from_scipy(cls, mat: Any, has_value: bool = True) -> SparseTensor:
        return cls.from_scorch(matrix_from_scipy(mat, format="csr"), has_value)

    @classmethod
    def from_scorch(cls, mat: Any, has_value: bool = True) -> SparseTensor:
        """Convert a ``scorch.SparseTensor`` of any format."""
        if not isinstance(mat, Matrix):
            raise OperandError(f"from_scorch expected a scorch.SparseTensor, but got {kind_of(mat)}")
        rowptr, col, value = mat.csr()
        return cls(None, rowptr, col, value if has_value else None, mat.sparse_sizes(), True, True)

    @classmethod
    def eye(
        cls,
        M: int,
        N: int | None = None,
        has_value: bool = True,
        dtype: torch.dtype | None = None,
        device: Any = None,
        fill_cache: bool = False,
    ) -> SparseTensor:
        columns = M if N is None else N
        if device is not None:
            check_presence("eye", as_device(device))
        row = torch.arange(min(M, columns), device=device)
        value = torch.ones(row.numel(), dtype=dtype, device=device) if has_value else None
        made = cls(row, None, row, value, (M, columns), True, True)
        return made.fill_cache_() if fill_cache else made

    def like(
        self,
        row: Tensor | None,
        col: Tensor,
        value: Tensor | None,
        sizes: tuple[int, int],
        rowptr: Tensor | None = None,
        is_sorted: bool = False,
    ) -> SparseTensor:
        """Return another matrix of this class, from arrays that are known to be valid."""
        return type(self)(row, rowptr, col, value, sizes, is_sorted, True)

    def copy(self) -> SparseTensor:
        return self.from_storage(self.storage.copy())

    def clone(self) -> SparseTensor:
        return self.from_storage(self.storage.clone())

    # values ------------------------------------------------------------------------------------------

    def set_value(self, value: Tensor | None, layout: str | None = None) -> SparseTensor:
        return self.from_storage(self.storage.set_value(value, layout))

    def set_value_(self, value: Tensor | None, layout: str | None = None) -> SparseTensor:
        self.storage.set_value_(value, layout)
        return self

    def fill_value(self, fill_value: Any, dtype: torch.dtype | None = None) -> SparseTensor:
        value = torch.full((self.nnz(),), fill_value, dtype=dtype, device=self.device())
        if dtype is None and not isinstance(fill_value, complex):
            value = value.to(torch.get_default_dtype())
        return self.set_value(value)

    def fill_value_(self, fill_value: Any, dtype: torch.dtype | None = None) -> SparseTensor:
        return self.set_value_(self.fill_value(fill_value, dtype).storage.value())

    def detach(self) -> SparseTensor:
        value = self.storage.value()
        return self.set_value(None if value is None else value.detach())

    def detach_(self) -> SparseTensor:
        return self.set_value_(self.detach().storage.value())

    def requires_grad_(self, requires_grad: bool = True, dtype: torch.dtype | None = None) -> SparseTensor:
        if requires_grad and not self.has_value():
            self.fill_value_(1.0, dtype)
        value = self.storage.value()
        if value is not None:
            value.requires_grad_(requires_grad)
        return self

    def coalesce(self, reduce: str = "sum") -> SparseTensor:
        return self.from_storage(self.storage.coalesce(reduce))

    def fill_cache_(self) -> SparseTensor:
        self.storage.fill_cache_()
        return self

    def clear_cache_(self) -> SparseTensor:
        self.storage.clear_cache_()
        return self

    # facts -------------------------------------------------------------------------------------------

    def coo(self) -> Arrays:
        """Return the row, column and value of every entry."""
        return self.storage.row(), self.storage.col(), self.storage.value()

    def csr(self) -> Arrays:
        """Return row pointers, columns and values."""
        return self.storage.rowptr(), self.storage.col(), self.storage.value()

    def csc(self) -> Arrays:
        """Return column pointers, rows and values, column by column."""
        order, value = self.storage.csr2csc(), self.storage.value()
        return self.storage.colptr(), self.storage.row()[order], pick(value, order)

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
        return _are_equal(self.csr(), self.csc())

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

    # sizes -------------------------------------------------------------------------------------------

    def sparse_resize(self, sparse_sizes: tuple[int, int]) -> SparseTensor:
        return self.from_storage(self.storage.sparse_resize(sparse_sizes))

    def sparse_reshape(self, num_rows: int, num_cols: int) -> SparseTensor:
        return self.from_storage(self.storage.sparse_reshape(num_rows, num_cols))

    def to_symmetric(self, reduce: str = "sum") -> SparseTensor:
        """Return the matrix with every entry in both directions; duplicate values are reduced."""
        row, col, value = self.coo()
        size = max(self.sparse_sizes())
        both = None if value is None else torch.cat([value, value])
        made = self.like(torch.cat([row, col]), torch.cat([col, row]), both, (size, size))
        return made.coalesce(reduce)

    # Python ------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparseTensor) or self.sizes() != other.sizes():
            return False
        return _are_equal(self.csr(), other.csr())

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        words = [f"row={self.storage.row()}", f"col={self.storage.col()}"]
        words += [f"val={self.storage.value()}"] if self.has_value() else []
        facts = f"size={tuple(self.sizes())}, nnz={self.nnz()}, density={format_density(self.density())}"
        return "SparseTensor(" + ",\n             ".join([*words, facts]) + ")"

    # functions of this package -----------------------------------------------------------------------

    __getitem__ = arrange.get_item
    t = arrange.t
    permute = arrange.permute
    narrow = arrange.narrow
    __narrow_diag__ = arrange.__narrow_diag__
    select = arrange.select
    index_select = arrange.index_select
    index_select_nnz = arrange.index_select_nnz
    masked_select = arrange.masked_select
    masked_select_nnz = arrange.masked_select_nnz
    remove_diag = arrange.remove_diag
    set_diag = arrange.set_diag
    fill_diag = arrange.fill_diag
    get_diag = arrange.get_diag
    add = __add__ = __radd__ = arithmetic.add
    add_ = __iadd__ = arithmetic.add_
    add_nnz = arithmetic.add_nnz
    add_nnz_ = arithmetic.add_nnz_
    mul = __mul__ = __rmul__ = arithmetic.mul
    mul_ = __imul__ = arithmetic.mul_
    mul_nnz = arithmetic.mul_nnz
    mul_nnz_ = arithmetic.mul_nnz_
    matmul = spmm = spspmm = __matmul__ = products.matmul
    __rmatmul__ = products.rmatmul
    sample = sampling.sample
    sample_adj = sampling.sample_adj
    random_walk = sampling.random_walk
    saint_subgraph = sampling.saint_subgraph
    partition = sampling.partition
    reverse_cuthill_mckee = sampling.reverse_cuthill_mckee
    sum = reductions.sum
    mean = reductions.mean
    min = reductions.min
    max = reductions.max
    to_dense = forms.to_dense
    to_torch_sparse_coo_tensor = forms.to_torch_sparse_coo_tensor
    to_torch_sparse_csr_tensor = forms.to_torch_sparse_csr_tensor
    to_torch_sparse_csc_tensor = forms.to_torch_sparse_csc_tensor
    to_scorch = forms.to_scorch
    to_scipy = forms.to_scipy
    type = forms.as_type
    type_as = forms.type_as
    to_device = forms.to_device
    device_as = forms.device_as
    to = forms.to
    cpu = forms.cpu
    cuda = forms.cuda
    share_memory_ = forms.share_memory_
    is_shared = forms.is_shared
    pin_memory = forms.pin_memory
    is_pinned = forms.is_pinned
    half = forms.cast(torch.float16)
    bfloat16 = forms.cast(torch.bfloat16)
    double = forms.cast(torch.float64)
    byte = forms.cast(torch.uint8)
    char = forms.cast(torch.int8)
    short = forms.cast(torch.int16)
    long = forms.cast(torch.int64)
    float = forms.cast(torch.float32)
    int = forms.cast(torch.int32)
    bool = forms.cast(torch.bool)


def from_scipy(mat: Any, has_value: bool = True) -> SparseTensor:
    return SparseTensor.from_scipy(mat, has_value)


to_scipy, to, cpu, cuda = forms.to_scipy, forms.to, forms.cpu, forms.cuda
share_memory_, is_shared = forms.share_memory_, forms.is_shared


def _are_equal(first: Arrays, second: Arrays) -> bool:
    """Whether two matrices have the same arrays, and both values or none."""
    return all(
        a is b or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(first, second, strict=True)
    )
