"""A matrix in other forms: dense, in torch's own layouts, Scorch's, SciPy's, of a dtype, on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorch._src.devices import HOST
from scorch._src.torch_internals import parse_to
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


# dtypes and devices ----------------------------------------------------------------------------------


def as_type(src: SparseTensor, dtype: torch.dtype, non_blocking: bool = False) -> SparseTensor:
    """With values of ``dtype``; a matrix without values has nothing to change."""
    value = src.storage.value()
    return src if value is None or value.dtype == dtype else src.set_value(value.to(dtype))


def type_as(src: SparseTensor, tensor: Tensor, non_blocking: bool = False) -> SparseTensor:
    return as_type(src, tensor.dtype)


def cast(dtype: torch.dtype) -> Callable[[SparseTensor], SparseTensor]:
    """The method that gives values of ``dtype``."""

    def method(src: SparseTensor) -> SparseTensor:
        return as_type(src, dtype)

    return method


def to_device(src: SparseTensor, device: Any, non_blocking: bool = False) -> SparseTensor:
    if torch.device(device) == src.device():
        return src
    return src.from_storage(src.storage.map(lambda array: array.to(device)))


def device_as(src: SparseTensor, tensor: Tensor, non_blocking: bool = False) -> SparseTensor:
    return to_device(src, tensor.device)


def to(src: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    """As ``torch.Tensor.to``: a device, a dtype or both."""
    device, dtype, *_ = parse_to(*args, **kwargs)
    found = src if device is None else to_device(src, device)
    return found if dtype is None else as_type(found, dtype)


def cpu(src: SparseTensor) -> SparseTensor:
    return to_device(src, HOST)


def cuda(src: SparseTensor, device: Any = "cuda", **_: Any) -> SparseTensor:
    return to_device(src, device)


# memory ----------------------------------------------------------------------------------------------


def _arrays(src: SparseTensor) -> list[Tensor]:
    row, col, value = src.coo()
    return [array for array in (row, src.storage.rowptr(), col, value) if array is not None]


def share_memory_(src: SparseTensor) -> SparseTensor:
    """Move the entries to shared memory, for other processes."""
    for array in _arrays(src):
        array.share_memory_()
    return src


def is_shared(src: SparseTensor) -> bool:
    return all(array.is_shared() for array in _arrays(src))


def pin_memory(src: SparseTensor) -> SparseTensor:
    """With entries in memory from which a GPU copies fast."""
    return src.from_storage(src.storage.map(Tensor.pin_memory))


def is_pinned(src: SparseTensor) -> bool:
    return all(array.is_pinned() for array in _arrays(src))
