"""The entries of a matrix with values of another dtype, on another device, in shared or pinned memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorch._src.devices import HOST
from scorch._src.tensor.create.check import device_for

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.storage import SparseStorage


def as_type(storage: SparseStorage, dtype: torch.dtype, non_blocking: bool = False) -> SparseStorage:
    """Return values of ``dtype``; entries without values are unchanged."""
    value = storage.value()
    return storage if value is None or value.dtype == dtype else storage.set_value(value.to(dtype))


def type_as(storage: SparseStorage, tensor: Tensor, non_blocking: bool = False) -> SparseStorage:
    return as_type(storage, tensor.dtype)


def to_device(storage: SparseStorage, device: Any, non_blocking: bool = False) -> SparseStorage:
    if torch.device(device) == storage.col().device:
        return storage
    try:
        return storage.map(lambda array: array.to(device))
    except (AssertionError, RuntimeError):  # "Torch not compiled with CUDA enabled", "no NVIDIA driver"
        device_for("to", device)
        raise


def device_as(storage: SparseStorage, tensor: Tensor, non_blocking: bool = False) -> SparseStorage:
    return to_device(storage, tensor.device)


def cpu(storage: SparseStorage) -> SparseStorage:
    return to_device(storage, HOST)


def cuda(storage: SparseStorage, device: Any = "cuda", **_: Any) -> SparseStorage:
    return to_device(storage, device)


def _arrays(storage: SparseStorage) -> list[Tensor]:
    arrays = (storage.row(), storage.rowptr(), storage.col(), storage.value())
    return [array for array in arrays if array is not None]


def share_memory_(storage: SparseStorage) -> SparseStorage:
    """Move the entries to shared memory, for other processes."""
    for array in _arrays(storage):
        array.share_memory_()
    return storage


def is_shared(storage: SparseStorage) -> bool:
    return all(array.is_shared() for array in _arrays(storage))


def pin_memory(storage: SparseStorage) -> SparseStorage:
    """Return entries in pinned memory."""
    return storage.map(Tensor.pin_memory)


def is_pinned(storage: SparseStorage) -> bool:
    return all(array.is_pinned() for array in _arrays(storage))
