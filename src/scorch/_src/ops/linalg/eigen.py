"""A few eigenvalues of a large symmetric matrix, and the 2-norm of any matrix, its largest singular value.

With SciPy its ARPACK does it, with products by Scorch's kernels; without, a Lanczos method of our own that
keeps the best vectors at each restart. All other norms are sums, maxima and minima over the entries, which
torch decomposes by itself; the nuclear norm and ``ord=-2`` need every singular value and work on dense
copies, within the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.name_hints import suggests_keywords
from scorch._src.ops.fallback import run_torch
from scorch._src.ops.linalg.linear_operators import (
    Product,
    adjoint_of,
    as_columns,
    as_scipy,
    as_square,
    is_hermitian,
    multiply_by,
    scipy_linalg,
)
from scorch._src.ops.linalg.without_gradient import without_gradient
from scorch._src.ops.products.matmul import matmul
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ConvergenceError, LinAlgError, is_integer

MAX_DENSE_EIGEN_ROWS = 256  # up to here dense eigenvalues are faster
_ORDERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "LM": lambda values: -values.abs(),
    "SM": lambda values: values.abs(),
    "LA": lambda values: -values,
    "SA": lambda values: values,
}


@suggests_keywords
@without_gradient(
    "use torch.linalg.eigh for gradients, which computes all eigenvalues, or detach() the matrix"
)
def eigsh(
    A: Any,
    k: int = 6,
    which: str = "LM",
    *,
    sigma: float | None = None,
    v0: torch.Tensor | None = None,
    tol: float = 0.0,
    maxiter: int = 300,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``k`` eigenvalues and eigenvectors of a symmetric matrix, like ``scipy.sparse.linalg.eigsh``.

    It is not differentiable: use ``torch.linalg.eigh``, within the dense budget, for gradients.

    Args:
        A: a symmetric matrix.
        k: the number of eigenvalues.
        which: the largest or smallest in magnitude (``"LM"``, ``"SM"``) or algebraically (``"LA"``,
            ``"SA"``).
        sigma: find those nearest to this number instead (shift-invert; needs SciPy), the fastest way to the
            smallest ones.
        v0: the initial vector.
        tol: the relative tolerance; machine precision if 0.
        maxiter: the maximum number of restarts.

    Returns:
        The eigenvalues in ascending order, and the eigenvectors as columns.

    Raises:
        ShapeError: the matrix is not square.
        ArgumentError: ``k`` or ``which`` is invalid.
        ConvergenceError: the tolerance was not reached within ``maxiter`` restarts.

    Example:

        >>> import torch, scorch
        >>> A = scorch.from_torch(torch.diag(torch.arange(1.0, 9.0)), format="csr")
        >>> scorch.linalg.eigsh(A, 2)[0]
        tensor([7., 8.])
    """
    matrix = as_square("eigsh", A)
    rows = matrix.shape[0]
    if which not in _ORDERS:
        raise ArgumentError(f"unknown which {which!r}; choose from {', '.join(_ORDERS)}")
    if not is_integer(k, 1, rows):
        raise ArgumentError(f"k must be between 1 and {rows}, the number of rows, but got {k!r}")
    if not is_hermitian(matrix):
        raise LinAlgError("eigsh: the matrix is not symmetric; use torch.linalg.eig on A.to_dense()")
    start = None if v0 is None else as_columns("eigsh", v0, rows, matrix, "v0")
    if rows <= MAX_DENSE_EIGEN_ROWS or 2 * k >= rows:
        dense = torch.linalg.eigh(matrix)  # within the dense budget
        ordered = dense.eigenvalues if sigma is None else 1 / (dense.eigenvalues - sigma)
        chosen = torch.argsort(_ORDERS[which](ordered), stable=True)[:k].sort().values
        return dense.eigenvalues[chosen], dense.eigenvectors[:, chosen]
    linalg = scipy_linalg()
    if linalg is not None:
        return _run_arpack(linalg, matrix, k, start, which=which, sigma=sigma, tol=tol, maxiter=maxiter)
    if sigma is not None:
        raise ArgumentError("eigsh with sigma= needs SciPy, which is not installed: pip install scipy")
    return lanczos(
        multiply_by(matrix), rows, matrix.dtype, k, which, start, tol, maxiter, device=matrix.device
    )


def _run_arpack(
    linalg: Any, matrix: torch.Tensor, k: int, start: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    times, device = multiply_by(matrix), matrix.device
    operator: Any = linalg.LinearOperator(
        tuple(matrix.shape),
        matvec=lambda x: as_scipy(times(torch.from_numpy(x).contiguous().to(device))),
        dtype=torch.zeros((), dtype=matrix.dtype, device=HOST).numpy().dtype,
    )
    if options["sigma"] is not None:
        operator = as_scipy(matrix)
        operator = operator.tocsc() if isinstance(matrix, SparseTensor) else operator
    start = _start_vector(matrix.shape[0], matrix.dtype) if start is None else start
    try:
        values, vectors = linalg.eigsh(operator, k, v0=as_scipy(start), **options)
    except linalg.ArpackNoConvergence as error:
        raise _no_convergence(k, options["which"], len(error.eigenvalues)) from None
    except RuntimeError as error:
        raise LinAlgError(f"eigsh: {error}; choose another sigma") from None
    eigenvalues, order = torch.from_numpy(values).sort()
    return eigenvalues.to(device), torch.from_numpy(vectors)[:, order].to(device)


def _start_vector(rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the start vector: the same for every call, so that results repeat."""
    return torch.randn(rows, dtype=dtype, generator=torch.Generator().manual_seed(0), device=HOST)


def lanczos(
    times: Product,
    rows: int,
    dtype: torch.dtype,
    k: int,
    which: str,
    start: torch.Tensor | None = None,
    tol: float = 0.0,
    maxiter: int = 300,
    device: torch.device = HOST,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute eigenpairs of the symmetric ``times``; at each restart the best vectors are kept."""
    basis_size = min(rows, max(2 * k + 10, 24))
    generator = torch.Generator().manual_seed(1)
    eps = torch.finfo(dtype).eps
    limit = max(tol, eps)
    V = torch.zeros(basis_size + 1, rows, dtype=dtype, device=device)
    H = torch.zeros(basis_size, basis_size, dtype=dtype, device=device)
    first = _start_vector(rows, dtype).to(device) if start is None else start
    V[0] = first / first.norm()
    retained = 0
    for _ in range(maxiter):
        residual = 0.0
        for j in range(retained, basis_size):
            w = times(V[j])
            scale = float(w.norm())
            for _ in range(2):  # reorthogonalise
                h = V[: j + 1].conj() @ w
                w = w - h @ V[: j + 1]
                H[: j + 1, j] += h
            residual = float(w.norm())
            if residual <= eps * scale or j + 1 == rows:
                residual = 0.0  # an invariant subspace: continue from a random vector
                w = torch.randn(rows, dtype=dtype, generator=generator, device=HOST).to(device)
                for _ in range(2):
                    w = w - (V[: j + 1].conj() @ w) @ V[: j + 1]
            V[j + 1] = w / w.norm().clamp(min=torch.finfo(dtype).tiny)
        values, Y = torch.linalg.eigh(torch.triu(H) + torch.triu(H, 1).mH)
        order = torch.argsort(_ORDERS[which](values), stable=True)
        errors = residual * Y[-1].abs()
        scale = float(values.abs().max())
        if bool((errors[order[:k]] <= limit * max(scale, torch.finfo(dtype).tiny)).all()):
            chosen = order[:k].sort().values
            return values[chosen], (Y[:, chosen].T @ V[:basis_size]).T
        retained = min(k + (basis_size - k) // 2, basis_size - 1)
        chosen = order[:retained]
        V[:retained] = Y[:, chosen].T @ V[:basis_size]
        V[retained] = V[basis_size].clone()
        H.zero_()
        H.diagonal()[:retained] = values[chosen].to(dtype)
    raise _no_convergence(k, which, int((errors[order[:k]] <= limit * scale).sum()))


def _no_convergence(k: int, which: str, count: int) -> ConvergenceError:
    near_zero = "pass sigma=0" if scipy_linalg() is not None else "install SciPy and pass sigma=0"
    return ConvergenceError(
        f"eigsh found {count} of {k} eigenvalues ({which}); increase maxiter or tol, or {near_zero} for "
        "those near zero"
    )


_FLOATS = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def _define_norm(function: Any, **defaults: Any) -> None:
    """Register ``function``, a norm of matrices, whose arguments are by default ``defaults``."""

    def norm(A: Any, *args: Any, **kwargs: Any) -> Any:
        options = {**defaults, **dict(zip(("ord", "dim", "keepdim"), args, strict=False)), **kwargs}
        is_plain = len(args) <= 3 and kwargs.get("out") is None
        dim = (-2, -1) if options["dim"] is defaults["dim"] else options["dim"]
        if not is_plain or not _has_large_spectrum(A, options["ord"], dim):
            return run_torch(function, A, *args, **kwargs)
        dtype = options.get("dtype")
        return _spectral_norm(A if dtype is None else A.to(dtype), options.get("keepdim", False))

    implements(function)(norm)


_define_norm(torch.linalg.matrix_norm, ord="fro", dim=(-2, -1))
_define_norm(torch.linalg.norm, ord=None, dim=None)


def _has_large_spectrum(A: Any, ord: Any, dim: Any) -> bool:
    if not isinstance(A, SparseTensor) or A.dim() != 2 or A.dtype not in _FLOATS or ord != 2:
        return False
    is_both = isinstance(dim, (tuple, list)) and sorted(d % 2 for d in dim) == [0, 1]
    return is_both and min(A.shape) > MAX_DENSE_EIGEN_ROWS


def _spectral_norm(A: Any, keepdim: bool) -> torch.Tensor:
    """Compute the root of the largest eigenvalue of ``A.T @ A``, which is never formed."""
    first, second = (A, adjoint_of(A)) if A.shape[1] <= A.shape[0] else (adjoint_of(A), A)
    values, _ = lanczos(
        lambda x: matmul(second, matmul(first, x)), min(A.shape), A.dtype, 1, "LA", device=A.device
    )
    norm = values[0].clamp(min=0).sqrt()
    return norm.reshape(1, 1) if keepdim else norm
