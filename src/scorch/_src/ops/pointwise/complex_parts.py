"""Conjugates, real and imaginary parts, and reinterpreted values, which keep the pattern.

They are copies where dense tensors have views, so nothing may be written to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.ops.fallback import run_densely
from scorch._src.ops.pointwise.arithmetic import run_generally
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values

aten = torch.ops.aten


def _apply_to_values(input: SparseTensor, function: Callable[[torch.Tensor], torch.Tensor]) -> SparseTensor:
    return sparse_of(input.storage.pattern, function(values_of(input)))


def _mark_copied(result: SparseTensor, name: str) -> SparseTensor:
    result.copied_by = name
    return result


@implements(aten._conj)
def lazy_conj(input: SparseTensor) -> SparseTensor:
    return with_values(input, input.storage.values.conj().resolve_conj())


@implements(torch.conj, torch.Tensor.conj, differentiable=True)
def conj(input: SparseTensor) -> SparseTensor:
    """Compute the complex conjugate; of a real tensor return the tensor itself."""
    return _mark_copied(conj_physical(input), "conj") if input.is_complex() else input


@implements(torch.conj_physical, torch.Tensor.conj_physical, differentiable=True)
def conj_physical(input: SparseTensor) -> SparseTensor:
    return _apply_to_values(input, torch.conj) if input.is_complex() else input


@implements(torch.real, torch.Tensor.real.__get__, differentiable=True)  # type: ignore[attr-defined]
def real(input: SparseTensor) -> SparseTensor:
    if not input.is_complex():
        return input
    return _mark_copied(_apply_to_values(input, torch.real), "real")


@implements(torch.imag, torch.Tensor.imag.__get__, differentiable=True)  # type: ignore[attr-defined]
def imag(input: SparseTensor) -> SparseTensor:
    return _mark_copied(_apply_to_values(input, torch.imag), "imag")


def set_real(input: SparseTensor, value: Any) -> None:
    """``S.real = value``."""
    part = torch.as_tensor(
        value,
        dtype=None if isinstance(value, torch.Tensor) else input.real.dtype,
        device=input.storage.device,
    )
    input.copy_(torch.complex(_broadcast(part, input), input.imag) if input.is_complex() else part)


def set_imag(input: SparseTensor, value: Any) -> None:
    """``S.imag = value``."""
    imaginary = input.imag  # raises for real tensors
    part = torch.as_tensor(
        value, dtype=None if isinstance(value, torch.Tensor) else imaginary.dtype, device=input.storage.device
    )
    input.copy_(torch.complex(input.real, _broadcast(part, input)))


def _broadcast(part: torch.Tensor, input: SparseTensor) -> torch.Tensor:
    return part.to(input.real.dtype).expand(input.shape)


# torch does not dispatch assignments to these.
SparseTensor.real = property(lambda input: torch.real(input), set_real)  # type: ignore[assignment]
SparseTensor.imag = property(lambda input: torch.imag(input), set_imag)  # type: ignore[assignment]


@implements(torch.Tensor.H.__get__, differentiable=True)  # type: ignore[attr-defined]
def hermitian(input: SparseTensor) -> Any:
    if input.dim() != 2:
        return run_generally(torch.Tensor.H.__get__, input)  # type: ignore[attr-defined]
    return torch.conj(input.T)


@implements(torch.adjoint, torch.Tensor.adjoint, torch.Tensor.mH.__get__, differentiable=True)  # type: ignore[attr-defined]
def adjoint(input: SparseTensor) -> Any:
    return torch.conj(input.mT) if input.dim() >= 2 else run_generally(torch.adjoint, input)


@implements(aten.view.dtype)
def view_as_dtype(input: SparseTensor, dtype: torch.dtype) -> Any:
    """Reinterpret the bits of the values as another dtype, in which zero bits are zero too."""
    if dtype.itemsize != input.dtype.itemsize:
        return run_densely(aten.view.dtype, (input, dtype), {})
    return with_values(input, input.storage.values.view(dtype).clone())
