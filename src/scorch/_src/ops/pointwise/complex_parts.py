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
from scorch._src.tensor.views.link import mark_copy

aten = torch.ops.aten


def _part(input: SparseTensor, function: Callable[[torch.Tensor], torch.Tensor]) -> SparseTensor:
    """Apply ``function`` to the values; it is a view of a dense tensor, of which this is a copy."""
    result = sparse_of(input.storage.pattern, function(values_of(input)))
    mark_copy(result, input, function.__name__)
    return result


@implements(aten._conj)
def lazy_conj(input: SparseTensor) -> SparseTensor:
    return with_values(input, input.storage.values.conj().resolve_conj())


@implements(torch.conj, torch.Tensor.conj, differentiable=True)
def conj(input: SparseTensor) -> SparseTensor:
    """Compute the complex conjugate; of a real tensor return the tensor itself."""
    return _part(input, torch.conj) if input.is_complex() else input


@implements(torch.conj_physical, torch.Tensor.conj_physical, differentiable=True)
def conj_physical(input: SparseTensor) -> SparseTensor:
    return sparse_of(input.storage.pattern, torch.conj(values_of(input))) if input.is_complex() else input


@implements(torch.real, torch.Tensor.real.__get__, differentiable=True)  # type: ignore[attr-defined]
def real(input: SparseTensor) -> SparseTensor:
    return _part(input, torch.real) if input.is_complex() else input


@implements(torch.imag, torch.Tensor.imag.__get__, differentiable=True)  # type: ignore[attr-defined]
def imag(input: SparseTensor) -> SparseTensor:
    return _part(input, torch.imag)


def set_part(input: SparseTensor, value: Any, is_imag: bool) -> None:
    """Run ``S.real = value`` or ``S.imag = value``."""
    old = input.imag if is_imag else input.real  # raises for the imaginary part of real tensors
    dtype = None if isinstance(value, torch.Tensor) else old.dtype
    part = torch.as_tensor(value, dtype=dtype, device=input.storage.device)
    if input.is_complex():
        wide = part.to(old.dtype).expand(input.shape)
        part = torch.complex(input.real, wide) if is_imag else torch.complex(wide, input.imag)
    input.copy_(part)


# torch does not dispatch assignments to these.
SparseTensor.real = property(lambda S: torch.real(S), lambda S, value: set_part(S, value, False))  # type: ignore[assignment]
SparseTensor.imag = property(lambda S: torch.imag(S), lambda S, value: set_part(S, value, True))  # type: ignore[assignment]


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
