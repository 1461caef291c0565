"""The same matrix with values of another dtype, or on another device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorch._src.devices import HOST
from scorch._src.torch_internals import parse_to

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor


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
