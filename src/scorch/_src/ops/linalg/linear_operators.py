"""Matrices as linear operators for iterative methods: products with a few columns, by Scorch's kernels.

SciPy's sparse linear algebra is used where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.devices import HOST, bring_together
from scorch._src.ops.products import matmul
from scorch._src.tensor.create.check import advice_on
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, DeviceError, DtypeError, OperandError, ShapeError, kind_of

Product = Callable[[torch.Tensor], torch.Tensor]


def scipy_linalg() -> Any:
    """Return the module ``scipy.sparse.linalg``, or None."""
    try:
        import scipy.sparse.linalg
    except ImportError:
        return None
    return scipy.sparse.linalg


def as_scipy(matrix: torch.Tensor) -> Any:
    """Return a matrix for SciPy, which computes on the host."""
    on_host = matrix.to(HOST)
    return on_host.to_scipy() if isinstance(on_host, SparseTensor) else on_host.numpy()


def as_matrix(name: str, A: Any) -> torch.Tensor:
    """Return ``A`` as a floating-point or complex matrix; torch's sparse layouts become ours."""
    if not isinstance(A, torch.Tensor):
        raise OperandError(f"{name} expected a matrix, but got {kind_of(A)}; {advice_on(A)}")
    if A.dim() != 2:
        hint = "; for a diagonal matrix, pass scorch.diag(values, format='csr')" if A.dim() == 1 else ""
        raise ShapeError(f"{name} expected a matrix, but got a tensor of shape {tuple(A.shape)}{hint}")
    if A.dtype not in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        dtype = str(A.dtype).removeprefix("torch.")
        raise DtypeError(
            f"{name} expected a matrix of float32, float64 or complex numbers, but got {dtype}; use .double()"
        )
    return A if A.layout is torch.strided else from_torch(A)


def as_square(name: str, A: Any) -> torch.Tensor:
    """Return the same, where only square matrices have a meaning."""
    matrix = as_matrix(name, A)
    if matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"{name} expected a square matrix, but got shape {tuple(matrix.shape)}")
    return matrix


def as_columns(
    name: str,
    b: Any,
    rows: int | None = None,
    matrix: torch.Tensor | None = None,
    role: str = "the right-hand side",
) -> torch.Tensor:
    """Return one column or several as a dense tensor; messages call it by its ``role``.

    It has the dtype and the device of ``matrix``, which may also be other columns.
    """
    if not isinstance(b, torch.Tensor):
        raise OperandError(f"{name} expected {role} to be a tensor, but got {kind_of(b)}; {advice_on(b)}")
    if b.dim() not in (1, 2):
        raise ShapeError(f"{name}: {role} must have shape (n,) or (n, k), but got {tuple(b.shape)}")
    if rows is not None and b.shape[0] != rows:
        raise ShapeError(
            f"{name}: {role} has shape {tuple(b.shape)}, but the matrix has {rows} rows; "
            f"expected ({rows},) or ({rows}, k)"
        )
    if not b.is_floating_point() and not b.is_complex():
        raise DtypeError(f"{name}: {role} is {b.dtype}; convert it with .double()")
    if matrix is not None:
        _check_alike(name, matrix, b, role)
    if b.layout is not torch.strided or isinstance(b, SparseTensor):
        return b.to_dense()
    return b.detach()


def _check_alike(name: str, matrix: torch.Tensor, b: torch.Tensor, role: str) -> None:
    """Raise unless both have the same dtype and are on the same device."""
    if matrix.dtype != b.dtype:
        raise DtypeError(
            f"{name}: expected the matrix and {role} to have the same dtype, but got {matrix.dtype} and "
            f"{b.dtype}; convert one of them"
        )
    if matrix.device != b.device:
        raise DeviceError(
            f"{name}: expected the matrix and {role} to be on the same device, but got {matrix.device} and "
            f"{b.device}; {bring_together('the matrix', matrix.device, role, b.device)}"
        )


def as_product(name: str, A: Any, columns: torch.Tensor) -> Product:
    """Return ``x -> A @ x`` for columns like ``columns``; ``A`` may be such a function itself."""
    if callable(A) and not isinstance(A, torch.Tensor):
        return _check_product(name, A)
    matrix = as_square(name, A)
    if matrix.shape[0] != columns.shape[0]:
        raise ShapeError(
            f"{name}: a matrix of shape {tuple(matrix.shape)} does not match {columns.shape[0]} rows"
        )
    _check_alike(name, matrix, columns, "the right-hand side")
    return multiply_by(matrix)


def multiply_by(matrix: torch.Tensor) -> Product:
    if isinstance(matrix, SparseTensor):
        return lambda x: matmul.matmul(matrix, x)
    return lambda x: matrix @ x


def adjoint_of(matrix: torch.Tensor) -> torch.Tensor:
    """Return the transpose, conjugated where it is complex."""
    return matrix.T.conj() if matrix.is_complex() else matrix.T


def _check_product(name: str, function: Callable[[torch.Tensor], Any]) -> Product:
    """Wrap a user's function, and check that it returns columns of the same shape."""

    def product(x: torch.Tensor) -> torch.Tensor:
        result = function(x)
        if not isinstance(result, torch.Tensor):
            raise OperandError(
                f"{name}: the function returned {kind_of(result)}; return a tensor, as in "
                "lambda x: torch.from_numpy(operator @ x.numpy()) for a SciPy operator"
            )
        if result.shape != x.shape:
            raise ShapeError(
                f"{name}: the function returned shape {tuple(result.shape)} for columns of shape "
                f"{tuple(x.shape)}; return the same shape"
            )
        return result

    return product


def tolerance(tol: float | None, dtype: torch.dtype) -> float:
    """Return the residual to reach, relative to the right-hand side: by default what the dtype allows."""
    if tol is not None:
        if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not tol >= 0:
            raise ArgumentError(f"tol must be a non-negative number, but got {tol!r}")
        return float(tol)
    return 1e-5 if dtype in (torch.float32, torch.complex64) else 1e-10


def is_hermitian(A: torch.Tensor) -> bool:
    """Whether a matrix is its own transpose, conjugated where it is complex, up to rounding."""
    if not isinstance(A, SparseTensor):
        return _is_close(A, A.mH)
    first, second = from_torch(A, format="csr"), from_torch(A.T, format="csr")
    assert isinstance(first, SparseTensor) and isinstance(second, SparseTensor)
    arrays = zip(first.storage.pattern.arrays, second.storage.pattern.arrays, strict=True)
    if all(torch.equal(a, b) for a, b in arrays):
        return _is_close(first.storage.values, second.storage.values.conj())
    if bool(first.storage.values.all()):
        return False
    return is_hermitian(first.eliminate_zeros())


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.numel():
        return True
    return bool((a - b).abs().max() <= 16 * torch.finfo(a.dtype).eps * a.abs().max())
