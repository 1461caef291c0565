"""Convert a matrix: to dense, PyTorch's layouts, Scorch, SciPy, another dtype or device."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorch._src.tensor.interop.optional import optional_module
from scorch._src.tensor.interop.torch_layouts import silence_beta_warning
from scorch._src.torch_internals import parse_to
from scorch.compat.torch_sparse import memory
from scorch.errors import OperandError, ShapeError

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.storage import SparseStorage
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
    silence_beta_warning()
    return torch.sparse_csr_tensor(rowptr, col, filled(src, dtype), src.sizes(), check_invariants=False)


def to_torch_sparse_csc_tensor(src: SparseTensor, dtype: torch.dtype | None = None) -> Tensor:
    colptr, row, _ = src.csc()
    value = filled(src, dtype)[src.storage.csr2csc()]
    silence_beta_warning()
    return torch.sparse_csc_tensor(colptr, row, value, src.sizes(), check_invariants=False)


def to_scorch(src: SparseTensor, format: Any = "csr") -> Any:
    """Return a ``scorch.SparseTensor``, which is a ``torch.Tensor`` and works with everything else."""
    return src.storage.matrix(filled(src)).to_format(format)


def to_scipy(src: SparseTensor, layout: str | None = None, dtype: torch.dtype | None = None) -> Any:
    sparse = optional_module("scipy.sparse", "SciPy")
    if src.dim() != 2:
        raise ShapeError(f"SciPy's matrices are 2-D, but got sizes {src.sizes()}")
    row, col = (array.numpy(force=True) for array in src.coo()[:2])
    value = filled(src, dtype).numpy(force=True)
    if layout in (None, "coo"):
        return sparse.coo_matrix((value, (row, col)), src.sparse_sizes())
    if layout == "csr":
        rowptr = src.storage.rowptr().numpy(force=True)
        return sparse.csr_matrix((value, col, rowptr), src.sparse_sizes())
    if layout == "csc":
        order = src.storage.csr2csc().numpy(force=True)
        arrays = (value[order], row[order], src.storage.colptr().numpy(force=True))
        return sparse.csc_matrix(arrays, src.sparse_sizes())
    raise OperandError(f"layout must be 'coo', 'csr' or 'csc', but got {layout!r}")


# dtypes and devices ----------------------------------------------------------------------------------


def _on_storage(change: Callable[..., SparseStorage]) -> Callable[..., SparseTensor]:
    """Return the method of a matrix that applies ``change`` to its entries."""

    @wraps(change)
    def method(src: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        changed = change(src.storage, *args, **kwargs)
        return src if changed is src.storage else src.from_storage(changed)

    return method


as_type = _on_storage(memory.as_type)
type_as = _on_storage(memory.type_as)
to_device = _on_storage(memory.to_device)
device_as = _on_storage(memory.device_as)
cpu = _on_storage(memory.cpu)
cuda = _on_storage(memory.cuda)
pin_memory = _on_storage(memory.pin_memory)
share_memory_ = _on_storage(memory.share_memory_)


def cast(dtype: torch.dtype) -> Callable[[SparseTensor], SparseTensor]:
    """Return the method that converts values to ``dtype``."""

    def method(src: SparseTensor) -> SparseTensor:
        return as_type(src, dtype)

    return method


def to(src: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    """Convert like ``torch.Tensor.to``: a device, a dtype or both."""
    device, dtype, *_ = parse_to(*args, **kwargs)
    found = src if device is None else to_device(src, device)
    return found if dtype is None else as_type(found, dtype)


def is_shared(src: SparseTensor) -> bool:
    return memory.is_shared(src.storage)


def is_pinned(src: SparseTensor) -> bool:
    return memory.is_pinned(src.storage)
