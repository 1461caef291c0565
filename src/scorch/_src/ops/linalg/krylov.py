"""Iterative methods, which need products with the matrix only: ``cg``, ``gmres`` and ``lsmr``.

Each stops when the residual of every column is ``tol`` times its right-hand side, by the residual itself and
not its recurrence, and raises ``ConvergenceError`` when it does not get there.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from scorch._src.ops.linalg.operators import Product, as_columns, product_with, tolerance
from scorch.errors import ConvergenceError, LinAlgError, ShapeError

RESTART = 50  # vectors that gmres keeps


def cg(
    A: Any,
    b: torch.Tensor,
    x0: torch.Tensor | None = None,
    *,
    tol: float | None = None,
    maxiter: int | None = None,
    M: Any = None,
) -> torch.Tensor:
    """The solution of ``A @ x = b`` by conjugate gradients; ``A`` is symmetric and positive definite.

    ``b`` has one column or several. ``A`` and ``M``, which is close to the inverse of ``A``, are matrices or
    functions of tensors of the shape of ``b``. ``tol`` is relative to ``b``: 1e-10, in float32 1e-5. It
    cannot be differentiated: for what is learned use ``torch.linalg.solve``.

    >>> import torch, scorch
    >>> A = scorch.from_torch(torch.tensor([[4.0, 1.0], [1.0, 3.0]]), format="csr")
    >>> scorch.linalg.cg(A, torch.tensor([1.0, 2.0]))
    tensor([0.0909, 0.6364])
    """
    columns = as_columns("cg", b)
    times, near = product_with("cg", A, b.shape[0]), _preconditioner("cg", M, b.shape[0])
    limit = tolerance(tol, b.dtype)
    wanted = limit * columns.norm(dim=0)
    most = 10 * max(b.shape[0], 10) if maxiter is None else maxiter
    x = _start("cg", x0, columns)
    done = 0
    while True:
        residual = columns - times(x) if done or x0 is not None else columns.clone()
        before, first = residual.norm(dim=0), done
        if bool((before <= wanted).all()):
            return x
        done = _conjugate_steps(times, near, x, residual, wanted, done, most)
        after = (columns - times(x)).norm(dim=0)
        if bool((after <= wanted).all()):
            return x
        if done >= most or done == first or bool((after >= 0.5 * before).all()):
            raise _not_converged("cg", done, after, columns, limit)


def _conjugate_steps(
    times: Product,
    near: Product,
    x: torch.Tensor,
    residual: torch.Tensor,
    wanted: torch.Tensor,
    done: int,
    most: int,
) -> int:
    """Add to ``x`` until the recurrence says that the residual is as ``wanted``; the number of steps."""
    z = near(residual)
    direction = z.clone()
    rho = _dot(residual, z)
    while done < most and not bool((residual.norm(dim=0) <= wanted).all()):
        image = times(direction)
        curvature = _dot(direction, image)
        if not bool(curvature.isfinite().all()):
            raise LinAlgError("cg: the matrix or the right-hand side has numbers that are not finite")
        if bool((curvature < 0).any()):
            raise LinAlgError(
                "cg: the matrix is not positive definite; use scorch.linalg.gmres or torch.linalg.solve"
            )
        step = torch.where(curvature > 0, rho / curvature, 0)
        x += step * direction
        residual -= step * image
        z = near(residual)
        rho, old = _dot(residual, z), rho
        direction = z + torch.where(old > 0, rho / old, 0) * direction
        done += 1
    return done


def gmres(
    A: Any,
    b: torch.Tensor,
    x0: torch.Tensor | None = None,
    *,
    tol: float | None = None,
    maxiter: int | None = None,
    M: Any = None,
    restart: int = RESTART,
) -> torch.Tensor:
    """The solution of ``A @ x = b`` for any square ``A``, by minimal residuals over ``restart`` products.

    The arguments are those of ``cg``; ``maxiter`` counts restarts.
    """
    columns = as_columns("gmres", b)
    times, near = product_with("gmres", A, b.shape[0]), _preconditioner("gmres", M, b.shape[0])
    limit = tolerance(tol, b.dtype)
    most = 10 * max(b.shape[0], 10) if maxiter is None else maxiter
    start = _start("gmres", x0, columns)
    found = (
        [
            _gmres_column(times, near, columns[:, k], start[:, k], limit, most, restart)
            for k in range(columns.shape[1])
        ]
        if columns.dim() == 2
        else [_gmres_column(times, near, columns, start, limit, most, restart)]
    )
    return torch.stack(found, 1) if columns.dim() == 2 else found[0]


def _gmres_column(
    times: Product, near: Product, b: torch.Tensor, x: torch.Tensor, limit: float, most: int, restart: int
) -> torch.Tensor:
    wanted = limit * b.norm()
    residual = b - times(x)
    for done in range(most + 1):
        size = residual.norm()
        if bool(size <= wanted):
            return x
        if done == most:
            break
        x = x + near(_least_residual(times, near, residual, wanted, min(restart, b.shape[0])))
        residual = b - times(x)
        if not bool(residual.norm() < 0.9999 * size):
            break
    raise _not_converged("gmres", done, residual.norm(), b, limit)


def _least_residual(
    times: Product, near: Product, residual: torch.Tensor, wanted: torch.Tensor, most: int
) -> torch.Tensor:
    """Of the space spanned by ``most`` products, what brings ``A @ M @ y`` closest to the residual."""
    size = residual.norm()
    V = residual.new_zeros(most + 1, residual.shape[0])
    H = residual.new_zeros(most + 1, most)
    V[0] = residual / size
    target = residual.new_zeros(most + 1)
    target[0] = size
    count = 0
    for count in range(1, most + 1):
        w = times(near(V[count - 1]))
        for _ in range(2):  # orthogonal to the last digit
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
            y = torch.linalg.lstsq(H[: count + 1, :count], target[: count + 1, None]).solution
            if bool((target[: count + 1, None] - H[: count + 1, :count] @ y).norm() <= 0.5 * wanted):
                break
    y = torch.linalg.lstsq(H[: count + 1, :count], target[: count + 1, None]).solution
    return torch.mv(V[:count].T, y[:, 0])


def lsmr(
    times: Product, transposed: Product, b: torch.Tensor, columns: int, limit: float, most: int
) -> torch.Tensor:
    """The ``x`` of least norm among those that bring ``A @ x`` closest to ``b`` (Fong and Saunders, 2011)."""
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
    for _ in range(most):
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
        theta_bar, turned = s_bar * rho, c_bar * rho
        rho_bar = math.hypot(turned, theta)
        c_bar, s_bar = turned / rho_bar, theta / rho_bar
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
    raise _not_converged("lstsq", most, (b - times(x)).norm(), b, limit)


def _dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found = (x.conj() * y).sum(0)
    return found.real if found.is_complex() else found


def _start(name: str, x0: Any, columns: torch.Tensor) -> torch.Tensor:
    """A tensor of our own to begin with."""
    if x0 is None:
        return torch.zeros_like(columns)
    given = as_columns(f"x0 of {name}", x0, columns.shape[0], columns.dtype)
    if given.shape != columns.shape:
        raise ShapeError(
            f"{name}: x0 has shape {tuple(given.shape)}, the right-hand side {tuple(columns.shape)}"
        )
    return given.clone()


def _preconditioner(name: str, M: Any, rows: int) -> Product:
    return (lambda x: x.clone()) if M is None else product_with(f"M of {name}", M, rows)


def _not_converged(
    name: str, done: int, residual: torch.Tensor, b: torch.Tensor, limit: float
) -> ConvergenceError:
    reached = float((residual / b.norm(dim=0).clamp(min=1e-300)).max())
    return ConvergenceError(
        f"{name} did not converge: after {done} iterations the residual is {reached:.1e} of the right-hand "
        f"side, not {limit:.0e}; raise tol or maxiter, pass M (such as one over the diagonal), "
        "or use torch.linalg.solve with SciPy installed"
    )
