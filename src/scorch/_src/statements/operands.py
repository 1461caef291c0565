"""Check what users pass in once, at the edge, by the name they know it by."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from scorch._src.devices import HOST
from scorch._src.engine.execute import convert
from scorch._src.formats import Format
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.check import advice_on, check_device, checked_dtype, refuse_nested
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import FAKE_MODE, get_dispatch_mode, is_functorch_wrapped_tensor
from scorch.errors import FreedError, OperandError, UnsupportedError, kind_of


def as_operand(name: str, value: Any) -> Storage | torch.Tensor:
    """Return ``value`` as a storage or a plain dense tensor; torch's sparse layouts are taken as they are."""
    if isinstance(value, SparseTensor):
        return value.storage
    if isinstance(value, Storage):
        return value
    if isinstance(value, (int, float, complex, np.generic)):
        value = _scalar(name, value)
    if not isinstance(value, torch.Tensor):
        raise OperandError(f"{name} must be a tensor, but got {kind_of(value)}; {_advice_on(value)}")
    _check_has_memory(name, value)
    check_device(name, value.device)
    checked_dtype(name, value.dtype)
    if value.layout != torch.strided:
        sparse = from_torch(value)
        assert isinstance(sparse, SparseTensor)
        return sparse.storage
    if value.numel() and value.data_ptr() == 0:
        if not value._is_zerotensor():
            raise FreedError(f"{name} has no memory: its storage was resized or freed; create it again")
        value = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    plain: torch.Tensor = value.detach() if value.requires_grad else value
    return plain


def _advice_on(value: object) -> str:
    """Return what to do with a value that is no operand."""
    if hasattr(value, "__torch_function__"):
        return "use scorch.distributed.einsum or evaluate"
    return advice_on(value)


def as_differentiable(name: str, value: Any) -> torch.Tensor:
    """Return ``value`` as a tensor that is still connected; torch's sparse layouts become ours."""
    if isinstance(value, torch.Tensor) and (isinstance(value, SparseTensor) or value.layout == torch.strided):
        return value
    if isinstance(value, torch.Tensor):
        return from_torch(value)
    scalar = as_operand(name, value)
    assert isinstance(scalar, torch.Tensor)
    return scalar


def _scalar(name: str, value: Any) -> torch.Tensor:
    """Convert a number to a tensor without dimensions, in the dtype torch infers."""
    try:
        return torch.tensor(value, device=HOST)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise OperandError(f"{name} is the number {value!r}, which does not fit in 64 bits") from None


def _check_has_memory(name: str, value: torch.Tensor) -> None:
    """Raise for tensors without memory of their own, which kernels cannot read."""
    kind = type(value)
    is_wrapper = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    refuse_nested(name, value)
    if get_dispatch_mode(FAKE_MODE) is not None:
        raise UnsupportedError(f"{name} is used inside a fake tensor mode, where Scorch cannot compute")
    if is_wrapper or is_functorch_wrapped_tensor(value):
        word = "a tensor inside torch.func" if not is_wrapper else f"a {kind.__name__}"
        raise UnsupportedError(
            f"{name} is {word}, which Scorch cannot read; call it outside torch.func, vmap, "
            "torch.compile and fake tensor modes, on plain tensors"
        )


def shape_of(tensor: Storage | torch.Tensor) -> tuple[int, ...]:
    return tensor.pattern.shape if isinstance(tensor, Storage) else tuple(tensor.shape)


def converted(tensor: Storage | torch.Tensor, dtype: torch.dtype) -> Storage | torch.Tensor:
    """Return ``tensor`` in another dtype."""
    if isinstance(tensor, Storage):
        return Storage(tensor.pattern, tensor.values.to(dtype))
    return tensor.to(dtype)


def squeezed(tensor: Storage | torch.Tensor, dims: tuple[int, ...]) -> Storage | torch.Tensor:
    """Drop the dimensions ``dims``, which all have size 1."""
    if not dims:
        return tensor
    if isinstance(tensor, torch.Tensor):
        return tensor.squeeze(dims)
    pattern = tensor.pattern
    remaining = [dim for dim in range(len(pattern.shape)) if dim not in dims]
    shape = tuple(pattern.shape[dim] for dim in remaining)
    if not remaining:
        return tensor.values.sum().reshape(()).to(tensor.values.dtype)
    plain = convert(tensor, Format("s" * len(pattern.shape), order=[*dims, *remaining]))
    assert isinstance(plain, Storage)
    return _without_outer_levels(plain, len(dims), shape)


def _without_outer_levels(tensor: Storage, number: int, shape: tuple[int, ...]) -> Storage:
    """Drop the first ``number`` levels of a tensor, which store dimensions of size 1."""
    pattern = tensor.pattern
    entries = pattern.counts[number - 1]
    pos, crd = list(pattern.pos[number:]), list(pattern.crd[number:])
    if entries == 0:
        pos[0] = torch.zeros(2, dtype=pattern.index_dtype, device=pattern.device)
    remaining = pattern.format.order[number:]
    order = [sorted(remaining).index(dim) for dim in remaining]
    form = Format(pattern.format.levels[number:], order=order)
    return Storage(Pattern(form, shape, tuple(pos), tuple(crd), pattern.counts[number:]), tensor.values)


def dtype_of(tensor: Storage | torch.Tensor) -> torch.dtype:
    return tensor.values.dtype if isinstance(tensor, Storage) else tensor.dtype
