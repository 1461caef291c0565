"""Iterative methods, which need only products with the matrix: ``cg``, ``gmres`` and ``lsmr``.

Each stops when the residual of every column is ``tol`` times its right-hand side, by the residual itself and
not its recurrence, and raises ``ConvergenceError`` when it does not get there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.name_hints import suggests_keywords
from scorch._src.ops.linalg.linear_operators import Product, as_columns, as_product, tolerance
from scorch.errors import ConvergenceError, LinAlgError, ShapeError

RESTART_VECTORS = 50  # of gmres
Checked = tuple[torch.Tensor, torch.Tensor, Product, Product, float, int]


@suggests_keywords
def cg(
    A: Any,
    b: torch.Tensor,
    x0: torch.Tensor | None = None,
    *,
    tol: float | None = None,
    maxiter: int | None = None,
    M: Any = None,
) -> torch.Tensor:
    """Solve ``A @ x = b`` by the conjugate gradient method; ``A`` is symmetric positive definite.

    It is not differentiable: use ``torch.linalg.solve`` for gradients.

    Args:
        A: a matrix, or a function that multiplies by it.
        b: the right-hand side, with one or several columns.
        x0: the initial guess; zeros without it.
        tol: the tolerance relative to the norm of ``b``; 1e-10, and 1e-5 in float32.
        maxiter: the maximum number of iterations.
        M: a preconditioner, an approximate inverse of ``A``: a matrix or a function.

    Returns:
        The solution, with the shape of ``b``.

    Raises:
        LinAlgError: the matrix is not positive definite, or has non-finite values.
        ConvergenceError: the tolerance was not reached.

    Example:

        >>> import torch, scorch
        >>> A = scorch.from_torch(torch.tensor([[4.0, 1.0], [1.0, 3.0]]), format="csr")
        >>> scorch.linalg.cg(A, torch.tensor([1.0, 2.0]))
        tensor([0.0909, 0.6364])
    """
    columns, x, times, precondition, limit, max_steps = _check("cg", A, b, x0, tol, maxiter, M)
    target_norm = limit * columns.norm(dim=0)
    steps = 0
    while True:
        residual = columns - times(x) if steps or x0 is not None else columns.clone()
        norm_before, first_step = residual.norm(dim=0), steps
        if bool((norm_before <= target_norm).all()):
            return x
        steps = _conjugate_steps(times, precondition, x, residual, target_norm, steps, max_steps)
        norm_after = (columns - times(x)).norm(dim=0)
        if bool((norm_after <= target_norm).all()):
            return x
        if steps >= max_steps or steps == first_step or bool((norm_after >= 0.5 * norm_before).all()):
            raise _not_converged("cg", steps, norm_after, columns, limit)


def _conjugate_steps(
    times: Product,
    precondition: Product,
    x: torch.Tensor,
    residual: torch.Tensor,
    target_norm: torch.Tensor,
    steps: int,
    max_steps: int,
) -> int:
    """Update ``x`` until the recurrence of the residual reaches ``target_norm``; return the steps so far."""
    z = precondition(residual)
    direction = z.clone()
    rho = _dot(residual, z)
    while steps < max_steps and not bool((residual.norm(dim=0) <= target_norm).all()):
        image = times(direction)
        curvature = _dot(direction, image)
        if not bool(curvature.isfinite().all()):
            raise LinAlgError("cg: the matrix or the right-hand side has non-finite values")
        if bool((curvature < 0).any()):
            raise LinAlgError(
                "cg: the matrix is not positive definite; use scorch.linalg.gmres or torch.linalg.solve"
            )
        step = torch.where(curvature > 0, rho / curvature, 0)
        x += step * direction
        residual -= step * image
        z = precondition(residual)
        rho, old = _dot(residual, z), rho
        direction = z + torch.where(old > 0, rho / old, 0) * direction
        steps += 1
    return steps


@suggests_keywords
def gmres(
    A: Any,
    b: torch.Tensor,
    x0: torch.Tensor | None = None,
    *,
    tol: float | None = None,
    maxiter: int | None = None,
    M: Any = None,
    restart: int = RESTART_VECTORS,
) -> torch.Tensor:
    """Solve ``A @ x = b`` for any square matrix by restarted GMRES.

    Args:
        A, b, x0, tol, M: as for ``cg``.
        maxiter: the maximum number of restarts.
        restart: the number of iterations between restarts.

    Returns:
        The solution, with the shape of ``b``.

    Raises:
        ShapeError: the matrix is not square, or does not match ``b``.
        ConvergenceError: the tolerance was not reached within ``maxiter`` restarts.

    Example:

        >>> import torch, scorch
        >>> A = scorch.from_torch(torch.tensor([[2.0, 1.0], [0.0, 4.0]]), format="csr")
        >>> scorch.linalg.gmres(A, torch.tensor([4.0, 8.0])).round()
        tensor([1., 2.])
    """
    columns, start, times, precondition, limit, max_restarts = _check("gmres", A, b, x0, tol, maxiter, M)
    solve = functools.partial(_gmres_column, times, precondition, limit, max_restarts, restart)
    return solve_by_column(solve, columns, start)


def solve_by_column(solve: Callable[..., torch.Tensor], *sides: torch.Tensor) -> torch.Tensor:
    """Apply ``solve`` to each column of tensors that have one or several."""
    if sides[0].dim() == 1:
        return solve(*sides)
    columns = zip(*(side.unbind(1) for side in sides), strict=True)
    return torch.stack([solve(*column) for column in columns], 1)


def _gmres_column(
    times: Product,
    precondition: Product,
    limit: float,
    max_restarts: int,
    restart: int,
    b: torch.Tensor,
    x: torch.Tensor,
) -> torch.Tensor:
    target_norm = limit * b.norm()
    residual = b - times(x)
    for restarts in range(max_restarts + 1):
        norm = residual.norm()
        if bool(norm <= target_norm):
            return x
        if restarts == max_restarts:
            break
        max_products = min(restart, b.shape[0])
        x = x + precondition(_least_residual(times, precondition, residual, target_norm, max_products))
        residual = b - times(x)
        if not bool(residual.norm() < 0.9999 * norm):
            break
    raise _not_converged("gmres", restarts, residual.norm(), b, limit)


def _least_residual(
    times: Product,
    precondition: Product,
    residual: torch.Tensor,
    target_norm: torch.Tensor,
    max_products: int,
) -> torch.Tensor:
    """Find, in the span of ``max_products`` products, what brings ``A @ M @ y`` closest to the residual."""
    norm = residual.norm()
    V = residual.new_zeros(max_products + 1, residual.shape[0])
    H = residual.new_zeros(max_products + 1, max_products)
    V[0] = residual / norm
    target = residual.new_zeros(max_products + 1)
    target[0] = norm

    def solve_so_far(count: int) -> Any:
        return torch.linalg.lstsq(H[: count + 1, :count], target[: count + 1, None]).solution[:, 0]

    count = 0
    for count in range(1, max_products + 1):
        w = times(precondition(V[count - 1]))
        for _ in range(2):  # reorthogonalise
            h = V[:count].conj() @ w
            w = w - h @ V[:count]
            H[:count, count - 1] += h
        length = w.norm()
        H[count, count - 1] = length
        if not bool(length.isfinite()):  # some versions of torch end lstsq with an internal error
            return torch.full_like(w, torch.nan)
        if bool(length <= torch.finfo(w.dtype).eps * H[:, count - 1].norm()):
            break  # the space holds the solution
        V[count] = w / length
        if count % 10 == 0:
            y = solve_so_far(count)
            if bool((target[: count + 1] - H[: count + 1, :count] @ y).norm() <= 0.5 * target_norm):
                break
    return torch.mv(V[:count].T, solve_so_far(count))


def lsmr(
    times: Product, transposed: Product, b: torch.Tensor, columns: int, limit: float, max_steps: int
) -> torch.Tensor:
    """Find the ``x`` of least norm that brings ``A @ x`` closest to ``b`` (Fong and Saunders, 2011)."""
    x = b.new_zeros(columns)
    beta = float(b.norm())
    if beta == 0:
        return x
    u = b / beta
    v = transposed(u)
    alpha = float(v.norm())
    if alpha == 0:
        return x
    v = v / alpha
    size_b, frobenius = beta, alpha**2
    alpha_bar, zeta_bar, rho, rho_bar, c_bar, s_bar = alpha, alpha * beta, 1.0, 1.0, 1.0, 0.0
    h, h_bar = v.clone(), torch.zeros_like(x)
    for _ in range(max_steps):
        u = times(v) - alpha * u
        beta = float(u.norm())
        u = u / beta if beta else u
        v = transposed(u) - beta * v
        alpha = float(v.norm())
        v = v / alpha if alpha else v
        frobenius += alpha**2 + beta**2
        rho_old, rho_bar_old = rho, rho_bar
        rho = math.hypot(alpha_bar, beta)
        c, s = alpha_bar / rho, beta / rho
        theta, alpha_bar = s * alpha, c * alpha
        theta_bar, rotated = s_bar * rho, c_bar * rho
        rho_bar = math.hypot(rotated, theta)
        c_bar, s_bar = rotated / rho_bar, theta / rho_bar
        zeta, zeta_bar = c_bar * zeta_bar, -s_bar * zeta_bar
        h_bar = h - (theta_bar * rho / (rho_old * rho_bar_old)) * h_bar
        x = x + (zeta / (rho * rho_bar)) * h_bar
        h = v - (theta / rho) * h
        if abs(zeta_bar) <= limit * math.sqrt(frobenius) * size_b:
            residual = b - times(x)
            size = float(residual.norm())
            is_fitted = size <= limit * size_b
            if is_fitted or float(transposed(residual).norm()) <= 10 * limit * math.sqrt(frobenius) * size:
                return x
        if not alpha or not beta:
            return x  # the space holds the solution
    raise _not_converged("lstsq", max_steps, (b - times(x)).norm(), b, limit)


def _dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    product = (x.conj() * y).sum(0)
    return product.real if product.is_complex() else product


def _check(name: str, A: Any, b: Any, x0: Any, tol: Any, maxiter: int | None, M: Any) -> Checked:
    """Return the columns, a copy of ``x0`` or zeros, both products, and the limits of residual and steps."""
    columns = as_columns(name, b)
    rows = columns.shape[0]
    times = as_product(name, A, rows)
    precondition = torch.clone if M is None else as_product(f"M of {name}", M, rows)
    start = torch.zeros_like(columns)
    if x0 is not None:
        start = as_columns(f"x0 of {name}", x0, rows, columns.dtype).clone()
    if start.shape != columns.shape:
        raise ShapeError(
            f"{name}: x0 must have the shape of the right-hand side, {tuple(columns.shape)}, but got "
            f"{tuple(start.shape)}"
        )
    max_steps = 10 * max(rows, 10) if maxiter is None else maxiter
    return columns, start, times, precondition, tolerance(tol, columns.dtype), max_steps


def _not_converged(
    name: str, steps: int, residual: torch.Tensor, b: torch.Tensor, limit: float
) -> ConvergenceError:
    relative = float((residual / b.norm(dim=0).clamp(min=1e-300)).max())
    return ConvergenceError(
        f"{name} did not converge: after {steps} iterations the residual is {relative:.1e} of the "
        f"right-hand side, not {limit:.0e}; increase tol or maxiter, pass M (such as one over the "
        "diagonal), or use torch.linalg.solve with SciPy installed"
    )
